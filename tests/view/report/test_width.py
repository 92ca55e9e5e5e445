"""Each kind of page fits a window of 1,280 pixels: nothing in it scrolls sideways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mocap_data.store import MotionSet, write_motions
from npmp.experiments import cli
from npmp.robots import Robot
from npmp.view import report
from npmp.view.report import retarget_page
from npmp.view.report.motion_table import COLUMNS
from npmp.view.report.retarget_page import RetargetReport
from retarget import clean
from tests.view.chromium import CHROMIUM
from tests.view.report.test_report import full

playwright = pytest.importorskip("playwright.sync_api")

# sections, tables and drawings that are wider than their place, with all folds open
WIDER = """() => {
  document.querySelectorAll("details").forEach((fold) => { fold.open = true; });
  const wide = [...document.querySelectorAll("html, section, .table, .scroll, .bars, dl")]
    .filter((part) => part.scrollWidth > part.clientWidth + 1);
  return wide.map((part) => `${part.closest("section")?.id}: ${part.className || part.tagName} of `
    + `${part.scrollWidth} in ${part.clientWidth} pixels`);
}"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


def run_report(folder: Path, robot: Robot, motions: MotionSet) -> Path:
    return report.build(folder / "report.html", **full(folder, robot))


def retargeting(folder: Path, robot: Robot, motions: MotionSet) -> Path:
    """Of long names, with every figure that the table has a column for."""
    figures = dict.fromkeys(COLUMNS, 0.1234) | {"jerk_rms": 12345.6, "limit_violations": 1234.0}
    named = [
        replace(motion, name=f"a_recording_of_a_dog_in_the_lab_{i}", quality=figures)
        for i, motion in enumerate(motions.motions)
    ]
    whole = replace(motions, motions=tuple(named))
    data = RetargetReport(robot=robot, whole=whole, cleaned=clean(whole, robot, validation=0.5))
    return retarget_page.build(folder / "motions.html", data)


def written_by(page: str, *command: str) -> Callable[[Path, Robot, MotionSet], Path]:
    """The page that a command of seconds writes."""

    def build(folder: Path, robot: Robot, motions: MotionSet) -> Path:
        data = folder / "motions.h5"
        write_motions(data, motions)
        given = [word.replace("DATA", str(data)) for word in command]
        assert cli.main([*given, "debug=tiny", "threads=1", f"out={folder / 'out'}"]) in (0, 3)
        return folder / "out" / page

    return build


PAGES = {
    "run": run_report,
    "retargeting": retargeting,
    "module": written_by("report.html", "evaluate", "module=anymal_b_gaits", "data=DATA"),
    "policy": written_by("report.html", "evaluate", "policy=anymal_b_walk", "task=walk"),
}


@pytest.mark.browser
@pytest.mark.parametrize("kind", PAGES)
def test_a_page_fits_its_window(
    kind: str, robot: Robot, motions: MotionSet, tmp_path: Path
) -> None:
    page = PAGES[kind](tmp_path, robot, motions)
    with playwright.sync_playwright() as play:
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = play.chromium.launch(executable_path=CHROMIUM, args=flags)
        window = browser.new_page(viewport={"width": 1280, "height": 800})
        window.goto(page.as_uri())
        assert window.evaluate(WIDER) == []
        browser.close()
