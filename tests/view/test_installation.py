"""Checks of the installation agree with the declared packages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from npmp.view import installation
from npmp.view.render import backend

ROOT = Path(__file__).resolve().parents[2]


def test_every_extra_says_what_it_is_for() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(installation.EXTRAS) == set(declared)


def test_make_installs_every_extra_at_versions_that_fit() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    default = re.search(r"^EXTRAS \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    # drake has 0.3 GB for one check
    assert default
    assert set(default[1].split(",")) == set(project["optional-dependencies"]) - {"drake"}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    for line in [
        *project["dependencies"],
        *(entry for extra in project["optional-dependencies"].values() for entry in extra),
    ]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), line


def test_an_absent_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "EXTRAS", {"deploy": "steers a robot"})
    monkeypatch.setattr(installation, "requirements", lambda extra=None: ["no-such-package>=1"])
    (finding,) = installation.check_extras()
    assert finding.verdict == "absent"
    assert "no-such-package" in finding.detail and "(steers a robot)" in finding.detail
    assert finding.advice == "make install EXTRAS=deploy   or: pip install 'npmp[deploy]'"


def test_a_version_out_of_range_is_broken() -> None:
    assert installation.check_requirement("numpy>=1.0")[0] == "ok"
    assert installation.check_requirement("numpy<1.0")[0] == "broken"
    assert installation.check_requirement("no-such-package-anywhere>=1")[0] == "absent"


def test_a_broken_gl_backend_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "BACKENDS", ("egl",))
    monkeypatch.setattr(backend, "PROBE", "import os; os.abort()")
    assert "signal" in backend.reasons(20.0)["egl"]
    monkeypatch.setattr(backend, "PROBE", "raise RuntimeError('no such device')")
    assert "no such device" in backend.reasons(20.0)["egl"]
