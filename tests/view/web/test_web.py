"""The static page: libraries that are checked, the scene as MJCF, and in Chromium the same steps as
in Python."""

from __future__ import annotations

import functools
import http.server
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from PIL import Image

from npmp import robots
from npmp.core.settings import from_mapping
from npmp.deploy.bundle import Bundle
from npmp.deploy.contract import GRAVITY, BundleContract, Command
from npmp.deploy.onnx_policy import OnnxPolicy, Readings
from npmp.deploy.simulated import SimulatedRobot
from npmp.experiments import cli
from npmp.view import web
from tests.deploy.standins import toy
from tests.refusals import refusal
from tests.view.chromium import CHROMIUM, FLAGS

POLICY = "go2_gaits_walk"
PATIENCE_MS = 300_000


def npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program `npm`, the only one."""
    path = folder / "npm"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_libraries_come_from_npm_and_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [three] = [library for library in web.LIBRARIES if library.spec.startswith("three@")]
    npm(tmp_path, "echo changed > three.tgz", monkeypatch)
    refusal("sha512", web.fetch, three)
    npm(tmp_path, "echo no network >&2; exit 1", monkeypatch)
    refusal("three@.*no network", web.fetch, three)
    monkeypatch.setenv("PATH", "")
    refusal("needs npm", web.fetch, three)


def test_other_commands_are_refused(tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, toy(commands=[Command("x_m", "m", [0.0, 1.0])]), {})
    refusal("forward_mps", web.write, tmp_path, bundle, robots.load("anymal_b"), "other")


def test_the_scene_is_the_robot_on_its_floor() -> None:
    """MJCF has six digits."""
    robot = robots.load("op3")
    text = web.scene(robot)
    assert "input=" not in text
    model = mujoco.MjModel.from_xml_string(text)
    expected = robot.on_floor().compile()
    assert model.opt.timestep == expected.opt.timestep
    for name in ("body_mass", "body_inertia", "geom_size", "dof_damping", "actuator_forcerange"):
        np.testing.assert_allclose(getattr(model, name), getattr(expected, name), rtol=1e-5)


# --- in a browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a shipped policy."""
    pytest.importorskip("onnxscript")
    for library in web.LIBRARIES:
        try:
            web.fetch(library)
        except web.InputError as error:
            pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("web") / "page"
    words = ["deploy", "export", f"policy={POLICY}", "format=web", "steps=100", f"out={folder}"]
    assert cli.main([*words, "debug=tiny"]) == 0
    return folder


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Any]:
    """It in Chromium, from a plain server that has it in a folder."""
    playwright = pytest.importorskip("playwright.sync_api")
    handler = functools.partial(Quiet, directory=str(folder.parent))
    errors = list[str]()
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        playwright.sync_playwright() as driver,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/page/"
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 480, "height": 360})
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        elsewhere = list[str]()
        page.on(
            "request",
            lambda r: (
                None if r.url.startswith((address, "data:", "blob:")) else elsewhere.append(r.url)
            ),
        )
        page.goto(address)
        page.evaluate("npmp.ready")
        yield page
        browser.close()
        server.shutdown()
    assert not errors and not elsewhere


def steps(folder: Path, count: int, command: list[float]) -> Iterator[tuple[Any, Any, Any]]:
    """Observation and action of each control step, and qpos after it, in Python."""
    about = json.loads((folder / "bundle.json").read_text())
    contract = from_mapping(BundleContract, about, ignore=("schema", "version"))
    policy = OnnxPolicy(contract, (folder / "policy.onnx").read_bytes())
    robot = SimulatedRobot(robots.load(contract.robot), accelerometer=contract.accelerometer)
    robot.reset()
    home = contract.home_pose
    gains = contract.per_joint("kp"), contract.per_joint("kd")
    duration = 1.0 / contract.control_rate_hz if contract.hold == "first_order" else 0.0
    action = np.zeros_like(home)
    for _ in range(count):
        state = robot.sense(0.0)
        readings = Readings(state.joint_pos, state.gyro, state.accelerometer, state.up)
        force = state.accelerometer / GRAVITY
        observation = np.concatenate((state.joint_pos - home, action, state.gyro, force, state.up))
        target = policy.act(readings, command)
        action = target - home
        robot.command(np.clip(target, *contract.joint_range), *gains, duration)
        for _ in range(robot.robot.substeps):
            robot.step()
        yield observation, action, robot.data.qpos.copy()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_the_browser_steps_as_python_does(page: Any, folder: Path) -> None:
    """In single precision; 3.7e-7 was the largest difference of 200 steps."""
    result = page.evaluate("npmp.run(50, [0.5, 0, 0])")
    for k, expected in enumerate(steps(folder, 50, [0.5, 0.0, 0.0])):
        for name, values in zip(("observation", "action", "qpos"), expected, strict=True):
            np.testing.assert_allclose(result[name][k], values, atol=1e-5, err_msg=f"{name} {k}")


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_it_stands_and_a_held_key_walks_it(page: Any, folder: Path) -> None:
    def at(time_s: float) -> dict[str, Any]:
        page.wait_for_function(f"npmp.state().time >= {time_s}")
        state: dict[str, Any] = page.evaluate("npmp.state()")
        assert np.isfinite(state["qpos"]).all() and state["up"][2] > 0.9
        return state

    standing = at(1.0)
    assert np.abs(standing["qpos"][:2]).max() < 0.1 and standing["command"] == [0, 0, 0]
    drawn = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("L"), float)
    middle = drawn[130:250, 140:340]  # beside the texts
    assert (middle < 100).mean() > 0.02 and (middle > 180).mean() > 0.2  # dark on light ground

    page.keyboard.down("w")
    # a second until the command is at the end of its range, another for the robot to follow
    begin = at(standing["time"] + 2.0)
    end = at(begin["time"] + 3.0)
    page.keyboard.up("w")
    commands = json.loads((folder / "bundle.json").read_text())["commands"]
    forward = commands[0]["range"][1]
    assert end["command"] == [forward, 0, 0]
    way = np.subtract(end["qpos"][:2], begin["qpos"][:2])
    assert np.hypot(*way) / (end["time"] - begin["time"]) == pytest.approx(forward, rel=0.2)
    page.wait_for_function("npmp.state().command[0] === 0")
