"""Chromium for tests of pages, without a graphics card."""

from __future__ import annotations

import shutil

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader"]
FLAGS += ["--enable-unsafe-swiftshader", "--disable-background-networking", "--disable-sync"]
FLAGS += ["--disable-component-update", "--no-first-run"]
