"""The static page: packages that are checked, scenes that are the same in another release, and in a
browser the same steps as in Python."""

from __future__ import annotations

import functools
import http.server
import io
import json
import re
import shutil
import stat
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from PIL import Image

from mocap_data.errors import InputError
from npmp import policies, robots
from npmp.deploy import Bundle, Readings
from npmp.deploy.bundle import BundleContract, observation_layout
from npmp.deploy.simulated import SimulatedRobot
from npmp.deploy.trial import COMMAND
from npmp.deploy.web import Walker, packages, write
from npmp.deploy.web.packages import Package, fetched, integrity, pinned
from npmp.deploy.web.scene import differing, scene_xml
from npmp.deploy.web.site import PAGE
from npmp.experiments import cli
from npmp.settings import from_mapping
from npmp.sim import flat_scene
from npmp.sim.terrain import Terrain, TerrainConfig
from tests.deploy import toys

# --- packages ---


def archive(**files: bytes) -> bytes:
    """A package's archive as npm makes it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def toy(content: bytes, **files: str) -> Package:
    return Package(
        "@some/toy", "1.2.3", integrity(content), "MIT", files or {"package/toy": "toy.js"}
    )


def test_a_package_comes_from_the_cache_under_its_own_names(tmp_path: Path) -> None:
    content = archive(toy=b"export default 1", other=b"unused")
    (tmp_path / "some-toy-1.2.3.tgz").write_bytes(content)
    assert fetched(toy(content), tmp_path) == {"toy.js": b"export default 1"}
    with pytest.raises(InputError, match=r"some-toy-1.2.3.tgz' lacks more.js"):
        fetched(toy(content, **{"package/more": "more.js"}), tmp_path)


def test_another_archive_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some-toy-1.2.3.tgz"
    path.write_bytes(archive(toy=b"export default 2"))
    with pytest.raises(InputError, match=r"not @some/toy 1.2.3 as pinned: its checksum differs"):
        fetched(toy(archive(toy=b"export default 1")), tmp_path)


def npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of that name, the only one."""
    path = folder / "bin" / "npm"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(packages.shutil, "which", lambda _: str(path))


def test_npm_fetches_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, cache = archive(toy=b"export default 1"), tmp_path / "cache"
    (tmp_path / "held").write_bytes(content)
    npm(
        tmp_path,
        f'[ "$2" = @some/toy@1.2.3 ] && cp "{tmp_path}/held" some-toy-1.2.3.tgz',
        monkeypatch,
    )
    assert fetched(toy(content), cache) == {"toy.js": b"export default 1"}
    monkeypatch.setattr(packages.shutil, "which", lambda _: None)
    assert fetched(toy(content), cache) == {"toy.js": b"export default 1"}
    with pytest.raises(
        InputError,
        match=r"needs @some/toy@1.2.3, and there is no npm .* Node.js, or put its archive",
    ):
        fetched(toy(content), tmp_path / "empty")


def test_a_registry_out_of_reach_and_one_that_gives_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm(tmp_path, "echo no network >&2; exit 1", monkeypatch)
    with pytest.raises(
        InputError,
        match=r"could not fetch @some/toy@1.2.3 \(no network\); is its registry within reach",
    ):
        fetched(toy(b""), tmp_path / "cache")
    (tmp_path / "bin" / "npm").write_text("#!/bin/sh\necho changed > some-toy-1.2.3.tgz\n")
    with pytest.raises(InputError, match=r"another @some/toy@1.2.3 than the pinned one"):
        fetched(toy(b""), tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.tgz"))


# --- scenes ---


def test_a_scene_as_xml_is_the_scene() -> None:
    robot = robots.load("op3")
    model = mujoco.MjModel.from_xml_string(xml := scene_xml(robot))
    assert differing(flat_scene(robot), model) == []
    assert "input=" not in xml  # which releases before 3.17 refuse
    np.testing.assert_array_equal(model.body_mass, flat_scene(robot).body_mass)  # to the last bit
    model.body_mass[3] *= 1.01
    model.opt.impratio = 1.0
    assert differing(flat_scene(robot), model) == ["body_mass", "option impratio"]


def test_rough_ground_is_in_the_scene() -> None:
    terrain = Terrain(TerrainConfig("perlin", fields=1))
    model = mujoco.MjModel.from_xml_string(scene_xml(robots.load("anymal_b"), terrain.add_to_scene))
    heights = model.geom("floor").pos[2] + model.hfield_size[0, 2] * model.hfield_data
    np.testing.assert_allclose(heights, terrain.heights.numpy().ravel(), atol=1e-5)


# --- the folder ---


def walker(folder: Path, **other: Any) -> Bundle:
    """A bundle of ANYmal whose graph nobody runs."""
    robot, joints = robots.load("anymal_b"), 12
    rates = {"control_rate_hz": robot.control_rate_hz, "physics_rate_hz": robot.physics_rate_hz}
    told = {
        "command": COMMAND,
        "command_unit": ["m/s", "m/s", "rad/s"],
        "command_range": [[-1.0, 1.0]] * 3,
    }
    each = {"home_pose": robot.home_joints.tolist(), "velocity_limit": [10.0] * joints}
    each |= {
        "kp": robot.kp.tolist(),
        "kd": robot.kd.tolist(),
        "torque_limit": robot.torque_limit.tolist(),
    }
    each |= {
        "joint_range": [
            list(pair) for pair in zip(robot.joint_lower.tolist(), robot.joint_upper.tolist())
        ]
    }
    named = {
        "robot": "anymal_b",
        "model_sha256": robot.model_sha256,
        "joint_names": list(robot.joint_names),
    }
    contract = toys.contract(
        **named | rates | told | each | {"observation": observation_layout(joints)} | other
    )
    Bundle.write(folder, contract, b"a graph", toys.golden()._asdict())
    return Bundle.read(folder)


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Archives of nothing in a cache, in place of the pinned packages."""
    replaced = []
    for package in pinned():
        content = archive(**{name.removeprefix("package/"): b"1" for name in package.files})
        (tmp_path / "cache").mkdir(exist_ok=True)
        (tmp_path / "cache" / package.archive).write_bytes(content)
        replaced.append(
            Package(
                package.name, package.version, integrity(content), package.licence, package.files
            )
        )
    monkeypatch.setattr("npmp.deploy.web.site.pinned", lambda: replaced)
    return tmp_path / "cache"


def test_the_folder_holds_all_that_the_page_asks_for_and_nothing_from_elsewhere(
    tmp_path: Path, no_packages: Path
) -> None:
    site = tmp_path / "site"
    terrain = TerrainConfig("perlin", fields=8, rows=2)
    walkers = [
        Walker("flat_one", walker(tmp_path / "a")),
        Walker("rough_one", walker(tmp_path / "b"), terrain),
    ]
    size = write(site, walkers, cache=no_packages)
    files = {path.relative_to(site).as_posix(): path for path in site.rglob("*") if path.is_file()}
    assert size == sum(path.stat().st_size for path in files.values())
    asked = set()
    for path in (site / name.name for name in PAGE.iterdir()):
        text = path.read_text(encoding="utf-8")
        addresses = set(re.findall(r"\b\w+://[^\s\"'`<]*", text)) - {"http://localhost:8000"}
        assert not addresses, f"{path.name} goes to {addresses}"
        found = re.findall(r'(?:from|src=|href=|"three":|at\() ?"(?:\./)?([\w./-]+)"', text)
        asked |= {name for name in found if name != "three"}
    assert asked == {name for name in asked if name in files} and len(asked) >= 10
    page = (site / "index.html").read_text(encoding="utf-8")
    for name in re.findall(r'\$\("(\w+)"\)', (site / "main.js").read_text(encoding="utf-8")):
        assert f'id="{name}"' in page

    told = json.loads((site / "site.json").read_text())
    assert [one["ground"] for one in told["policies"]] == ["flat", "rough"]
    assert set(told["robots"]) == {"anymal_b"} and set(told["robots"]["anymal_b"]["grounds"]) == {
        "flat",
        "rough",
    }
    assert told["robots"]["anymal_b"]["weight"] == pytest.approx(30.475 * 9.81, abs=0.1)
    for one in told["policies"]:
        assert {
            f"policies/{one['name']}/bundle.json",
            f"policies/{one['name']}/policy.onnx",
        } <= set(files)
    licences = (site / "licences" / "README.txt").read_text()
    assert (
        "policies/flat_one: trained with recordings of none: CC0" in licences
        and "three 0." in licences
    )


def test_what_cannot_be_on_a_page(tmp_path: Path, no_packages: Path) -> None:
    with pytest.raises(
        InputError, match="told forward_mps, lateral_mps, yaw_rate_rps; other is told push"
    ):
        Walker("other", walker(tmp_path / "a", command=["push"] * 3))
    changed = Walker("changed", walker(tmp_path / "b", model_sha256="0"))
    with pytest.raises(InputError, match="the bundle is of another 'anymal_b'"):
        write(tmp_path / "site", [changed], cache=no_packages)
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["format=web"], "format=web needs policy="),
        (["format=web", "policy=[]"], "format=web needs policy="),
        (["format=web", "policy=anymal_b_dribble"], "anymal_b_dribble is told ball_forward_m"),
        (["format=web", "policy=[anymal_b_walk,nobody]"], "no policy 'nobody'"),
        (["policy=[anymal_b_walk,op3_walk]"], "format=web puts several on one page"),
    ],
)
def test_what_the_command_refuses(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["export", *arguments, f"out={tmp_path / 'site'}"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "site").exists()


# --- in a browser ---

SOFTWARE = (
    "--no-sandbox",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
)
ALONE = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of the shipped policies as a page, by the command."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("web") / "under" / "site"
    try:
        for package in pinned():
            fetched(package)
    except InputError as error:
        pytest.skip(f"the page's packages are not to be had: {error}")
    arguments = ["policy=[anymal_b_walk,op3_walk]", "format=web", f"out={folder}", "threads=1"]
    assert cli.main(["export", *arguments]) == 0
    assert not (folder / "config.yaml").exists()
    return folder


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where a plain server shows it, not at the root."""
    handler = functools.partial(Quiet, directory=str(site.parent.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/under/site/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if path is None:
        pytest.skip("no Chromium here")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=[*SOFTWARE, *ALONE])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def opened(address: str, browser: Any) -> Iterator[tuple[Any, list[str]]]:
    """The page with its first policy, and what went wrong there: said on the console, or asked for
    elsewhere."""
    shown, wrong = browser.new_page(viewport={"width": 640, "height": 480}), list[str]()
    shown.set_default_timeout(PATIENCE_MS)
    shown.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    shown.on("pageerror", lambda error: wrong.append(str(error)))
    here = (address, "data:", "blob:")
    shown.on(
        "request",
        lambda request: None if request.url.startswith(here) else wrong.append(request.url),
    )
    shown.goto(address)
    shown.evaluate("npmp.ready")
    yield shown, wrong
    shown.close()


@pytest.fixture
def page(opened: tuple[Any, list[str]]) -> Iterator[Any]:
    """ANYmal stands where it began."""
    shown, wrong = opened
    shown.select_option("#policy", "anymal_b_walk")
    shown.wait_for_function("npmp.state().policy === 'anymal_b_walk'")
    shown.evaluate("npmp.run(0, [0, 0, 0])")
    yield shown
    assert not wrong


def steps(bundle: Bundle, count: int, command: list[float]) -> Iterator[tuple[Any, Any, Any]]:
    """Observation, action and qpos after each control step, in Python."""
    contract, policy = bundle.contract, bundle.policy()
    robot = SimulatedRobot(robots.load(contract.robot), accelerometer=contract.accelerometer)
    robot.place()
    home, (low, high) = np.array(contract.home_pose), np.array(contract.joint_range).T
    duration = 1.0 / contract.control_rate_hz if contract.hold == "first_order" else 0.0
    action = np.zeros(len(home))
    for _ in range(count):
        state = robot.sense(0.0)
        seen = (state.joint_pos - home, action, state.gyro, state.accelerometer / 9.81, state.up)
        target = policy.act(
            Readings(state.joint_pos, state.gyro, state.accelerometer, state.up), command
        )
        robot.command(
            np.clip(target, low, high), np.array(contract.kp), np.array(contract.kd), duration
        )
        for _ in range(robot.robot.substeps):
            robot.step()
        action = target - home
        yield np.concatenate(seen), action, robot.data.qpos.copy()


@pytest.mark.parametrize(("name", "speed"), [("op3_walk", 0.2), ("anymal_b_walk", 0.5)])
def test_the_browser_steps_as_python_does(page: Any, site: Path, name: str, speed: float) -> None:
    page.select_option("#policy", name)
    page.wait_for_function(f"npmp.state().policy === '{name}'")
    command = [speed, 0.0, 0.0]
    run = "([steps, command]) => npmp.run(steps, command)"
    folder = site / "policies" / name
    told = json.loads((folder / "bundle.json").read_text())
    contract = from_mapping(BundleContract, told, ignore=("schema", "version", "sha256"))
    seconds = 10.0
    found = page.evaluate(run, [round(seconds * contract.control_rate_hz), command])
    bundle = Bundle(folder, contract, {"policy.onnx": (folder / "policy.onnx").read_bytes()})
    for k, (seen, action, qpos) in enumerate(steps(bundle, 25, command)):
        np.testing.assert_allclose(found["observation"][k], seen, atol=2e-5)
        np.testing.assert_allclose(found["action"][k], action, atol=1e-5)
        np.testing.assert_allclose(found["qpos"][k], qpos, atol=1e-5)
    assert not found["fell"] and len(found["qpos"]) == round(seconds * contract.control_rate_hz)
    assert found["qpos"][-1][0] == pytest.approx(seconds * speed, rel=0.15)
    assert page.evaluate(run, [20, command])["qpos"] == found["qpos"][:20]


def test_a_held_key_moves_it_and_released_it_stops(page: Any) -> None:
    page.keyboard.down("KeyW")
    page.wait_for_function("npmp.state().command[0] > 1")
    page.wait_for_function("npmp.state().velocity[0] > 0.7")
    assert page.inner_text("#rows li:first-child b.told") != "0.00"
    page.keyboard.up("KeyW")
    page.wait_for_function("npmp.state().command[0] === 0")
    page.wait_for_function("Math.abs(npmp.state().velocity[0]) < 0.2")
    assert page.evaluate("npmp.state().falls") == 0


def test_a_gamepad_steers_beyond_its_dead_zone_and_not_when_unplugged(page: Any) -> None:
    page.evaluate(
        "window.pad = {connected: true, axes: [0.05, -0.08, -1]}; navigator.getGamepads = () => [null, pad]"
    )
    page.wait_for_function("npmp.state().command[2] > 0.69")  # 70 % of 1 rad/s, to the left
    assert page.evaluate("npmp.state().command.slice(0, 2)") == [0, 0]
    page.evaluate("pad.connected = false")
    page.wait_for_function("npmp.state().command[2] === 0")
    zone = "import('./steering.js').then((its) => [0.1, 0.55, -1].map((x) => its.beyondDeadZone(x, 0)[0]))"
    assert page.evaluate(zone) == pytest.approx([0.0, 0.5, -1.0])


def test_sticks_on_the_screen(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    box = page.locator("#move").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y - 40)
    page.wait_for_function("npmp.state().command[0] > 0.3")
    page.mouse.up()
    page.wait_for_function("npmp.state().command[0] === 0")


def test_the_mouse_pulls_at_it(page: Any) -> None:
    page.set_viewport_size({"width": 640, "height": 480})
    x, y = 320, 240
    for dy in (0, -20, -40, -60, -80, 20, 40):  # where the robot is in the picture
        page.mouse.move(x, y + dy)
        page.mouse.down()
        page.mouse.move(x + 120, y + dy, steps=2)
        page.wait_for_timeout(300)
        if page.evaluate("npmp.state().push"):
            break
        page.mouse.up()
    page.wait_for_function("Math.hypot(...(npmp.state().push?.force ?? [0])) > 30")
    page.mouse.up()
    page.wait_for_function("npmp.state().push === null")


def test_what_lies_is_put_back(page: Any) -> None:
    page.evaluate("npmp.simulation.data.qpos.set([1, 2, 0.3, 0, 1, 0, 0])")  # on its back
    page.wait_for_function("npmp.state().falls === 1")
    x, y, _ = page.evaluate("npmp.state().position")
    assert np.hypot(x - 1, y - 2) < 1.0
    assert "1 fall" in page.inner_text("#falls")
    page.click("#reset")
    page.wait_for_function("npmp.state().falls === 0")


def test_the_robot_is_in_the_picture(page: Any) -> None:
    page.click("#pause")
    drawn = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB"), float)
    middle = drawn[120:360, 160:480]
    assert middle.std() > 15.0 and (middle.max(-1) < 60).mean() > 0.01  # its dark parts
    assert page.inner_text("#realtime") == "paused"


def test_policies_of_one_name_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training calls every policy's folder `policy`; one would stand in the other's place."""
    for folder in ("a", "b"):
        shutil.copytree(policies.find("anymal_b_walk"), tmp_path / folder / "policy")
    asked = f"policy=[{tmp_path / 'a' / 'policy'},{tmp_path / 'b' / 'policy'}]"
    assert cli.main(["export", asked, "format=web", f"out={tmp_path / 'page'}"]) == 2
    assert "two policies are called policy" in capsys.readouterr().err
    assert not (tmp_path / "page").exists()
