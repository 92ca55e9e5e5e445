"""Each kind of page fits a window of 1,280 pixels: nothing in it scrolls sideways."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mocap_data.store import MotionSet, write_motions
from npmp.actuators import write_log
from npmp.actuators.servo import PDParameters
from npmp.experiments import cli
from npmp.robots import Robot
from npmp.view import report
from npmp.view.report import parts, retarget_page, suite_page
from npmp.view.report.gait_section import grid_section
from npmp.view.report.motion_table import COLUMNS
from npmp.view.report.retarget_page import RetargetReport
from retarget import clean
from tests.actuators.servos import log_of, servo
from tests.view.report.test_report import full

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PRACTICE = Path(report.__file__).parents[2] / "conf" / "scenario" / "practice.yaml"
SCENARIOS = sorted(yaml.safe_load(PRACTICE.read_text(encoding="utf-8")).keys() - {"for"})
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


def stand(folder: Path, robot: Robot, motions: MotionSet) -> Path:
    excite = ["sysid", "excite", "robot=anymal_b", "debug=tiny", f"out={folder / 'excite'}"]
    assert cli.main(excite) == 0
    log = f"data={folder / 'excite' / 'log.npz'}"
    return written_by("report.html", "sysid", "fit", "robot=anymal_b", log)(folder, robot, motions)


def drives(folder: Path, robot: Robot, motions: MotionSet) -> Path:
    log = folder / "servos.npz"
    write_log(log, log_of(servo(PDParameters(20.0, 1.0), name="knee", samples=300)))
    command = ["actuator", "fit", f"data={log}", "model=pd", "debug=tiny", f"out={folder / 'pd'}"]
    assert cli.main(command) == 0
    return folder / "pd" / "report.html"


def grid(folder: Path, robot: Robot, motions: MotionSet) -> Path:
    """Two commands, one of them with each fault."""
    each = dict.fromkeys(("lift_m", "stance_mps", "step_rate_hz", "phase"), [0.123] * 4)
    row = each | {"command": [-0.5, 0.25, 1.0], "achieved": [-0.4, 0.2, 0.9], "dead": False}
    row |= {"joint_speed_share": 0.5, "opposite_correlation": -0.25, "falls": 12}
    row |= {"module": each | {"opposite_correlation": 0.5}, "roll_rms_rad": 0.1, "pitch_rad": 0.1}
    row |= {"recorded": row["module"], "faults": ["off by 0.10 m/s", "a foot lifts by 1.2 cm"] * 3}
    rows = [row, row | {"command": [0.5, 0.25, 1.0], "faults": []}]
    sections = [grid_section(rows, robot.foot_bodies)]
    return parts.assemble(folder / "grid.html", title="grid", sections=sections)


def suite(folder: Path, robot: Robot, motions: MotionSet) -> Path:
    """Every scenario of practice, none passed; every flag raised."""
    push = {"force_n": 50.0, "count": 8, "every_s": 1.0, "duration_s": 0.5}
    settings = {"task": {"terrain": "stairs"}, "physics": {}, "sensors": {}, "push": push}
    row = dict.fromkeys(("success", "low", "high", "pass_mark", "fell", "off_command"), 0.123)
    row |= dict.fromkeys(("error_mps", "error_rps", "bound_mps", "bound_rps"), 0.123)
    row |= {"command": [0.5, -0.25, 1.0], "source": "P", "cure": "train on it", "scaled": True}
    row |= {"passed": False, "settings": settings | {"seconds": 10.0}}
    flag = {"value": 0.123, "from": 0.1, "raised": True, "symptom": "skates", "cure": "lift"}
    names = ("jerk", "slip_mps", "spread_mps", "start_falls", "speed")
    side = {"axis": "forward", "sign": -1.0, "up_to": 0.1}
    side["achieved"] = [(0.05 * i, 0.05 * i) for i in range(1, 11)]
    speeds = {"limit_rps": 7.5, "p999_rps": 8.0, "max_rps": 12.0}
    result = {
        "policy": robot.name,
        "robot": robot.name,
        "trials": 100,
        "seed": 0,
        "randomization": "none",
        "actuator": "none",
        "teacher": None,
        "success": {"last_s": 3.0},
        "scenarios": [row | {"name": name} for name in SCENARIOS],
        "red_flags": [flag | {"name": name} for name in names],
        "dead_zones": [side],
        "joint_speeds": dict.fromkeys(robot.joint_names, speeds),
    }
    return suite_page.write(folder / "suite.html", robot, result, {}, {})


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
