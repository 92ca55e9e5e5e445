"""The report of `npmp retarget`, and its 3-D replay in a browser."""

from __future__ import annotations

import base64
import dataclasses
import io
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from mocap_data import Clip, dog_gait
from npmp.experiments import cli
from npmp.robots import Robot
from npmp.view import robot_shapes
from npmp.view.report import figures, retarget_page
from npmp.view.report.motion_table import motion_table
from npmp.view.report.parts import is_report
from npmp.view.report.retarget_page import RetargetReport
from retarget import clean, keypoint_overlay, retarget_many
from tests.experiments.test_retarget import save
from tests.view.chromium import CHROMIUM

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def clips() -> dict[str, Clip]:
    """Three seconds of walk and of trot, which hops off the floor after a second and a half."""
    walk, trot = dog_gait("walk", duration_s=3.0), dog_gait("trot", duration_s=3.0)
    positions = trot.positions.copy()
    positions[90:120, :, 2] += 0.6
    return {clip.name: clip for clip in (walk, dataclasses.replace(trot, positions=positions))}


@pytest.fixture(scope="module")
def data(clips: dict[str, Clip], robot: Robot) -> RetargetReport:
    whole = retarget_many(list(clips.values()), robot)
    return RetargetReport(
        robot=robot,
        whole=whole,
        cleaned=clean(whole, robot, mirrors="left_right", validation=0.3, min_chunk_s=0.5),
        clips=clips,
        warnings={"synthetic_trot": f"looks wrong: {EVIL}"},
        failures=[f"a.bvh: garbled {EVIL}"],
        seconds=1.0,
        provenance={"command": "npmp retarget source=/home/ada/dogs", "versions": {"npmp": "1"}},
    )


@pytest.fixture(scope="module")
def page(data: RetargetReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return retarget_page.build(tmp_path_factory.mktemp("report") / "motions.html", data)


# ---- the page


def test_all_sections(page: Path, data: RetargetReport) -> None:
    text = page.read_text(encoding="utf-8")
    keys = ("replay", "distributions", "motions", "dropped", "problems", "provenance")
    for key in keys:
        assert f'<section id="{key}"' in text and f'href="#{key}"' in text
    for motion in data.cleaned.motions.motions:
        name = motion.name.replace("_", "_<wbr>")  # it may break there
        assert (f"<td>{name}</td>" in text) == (not motion.mirror)
    assert "feet far from the ground" in text
    assert EVIL not in text and "&lt;script&gt;alert(1)" in text
    assert "/home/ada" not in text and "…/dogs" in text
    assert "CC0" in text or "licence of the recordings" in text
    assert is_report(page) and len(text) < 3_000_000
    again = retarget_page.build(page.parent / "again" / page.name, data)
    assert again.read_bytes() == page.read_bytes()


def test_the_recording_is_beside_the_robot_and_on_it(
    page: Path, data: RetargetReport, clips: dict[str, Clip]
) -> None:
    text = page.read_text(encoding="utf-8")
    match = re.search(
        r'<script type="application/json" id="replay-data">(.*?)</script>', text, re.S
    )
    assert match and "script-src 'unsafe-inline'\"" in text
    packed = json.loads(match[1])["clips"]
    chosen = retarget_page.replayed(data)
    assert [clip["name"] for clip in packed] == [title for title, _ in chosen]
    for clip, (_, motion) in zip(packed, chosen, strict=True):
        source = clips[motion.recording]
        points = np.frombuffer(base64.b64decode(clip["points"]), "<u2").reshape(
            clip["frames"], len(source.names), 3
        )
        low, high = np.array(clip["low"]), np.array(clip["high"])
        want = keypoint_overlay.keypoints_of(motion, source)[:: round(motion.rate_hz / clip["fps"])]
        np.testing.assert_allclose(low + points / 65535 * (high - low), want, atol=2e-3)
        assert len(clip["bones"]) == len(source.names) - 1
        stands = np.array(clip["stands"]).reshape(clip["frames"], -1)
        expected = data.meter.contacts(motion)[:: round(motion.rate_hz / clip["fps"])]
        np.testing.assert_array_equal(stands, expected)
    assert 'data-part="recording"' in text and "standing foot" in text


def test_the_headline_is_the_tables_row_of_all(data: RetargetReport) -> None:
    """Two motions of 1 s and 3 s: RMS over frames, means by time, the largest, sums; the table has
    them where the cards have them."""
    (motion, *_) = data.whole.motions
    figures = {"rms_marker_m": (0.01, 0.03), "max_marker_m": (0.02, 0.05)}
    figures |= {"foot_slide_mps": (0.04, 0.0), "limit_violations": (1.0, 2.0)}
    motions = []
    for i, frames in enumerate((50, 150)):
        quality = {key: values[i] for key, values in figures.items()}
        motions.append(dataclasses.replace(motion.crop(0, frames), name=f"m{i}", quality=quality))
    motion_set = dataclasses.replace(data.whole, motions=tuple(motions))
    report = dataclasses.replace(
        data, cleaned=dataclasses.replace(data.cleaned, motions=motion_set)
    )
    # sqrt((50 * 1 + 150 * 9) / 200) = 2.646 cm; (4 * 1 + 0 * 3) / 4 = 1 cm/s
    cards = {name: value for name, value, _ in retarget_page._cards(report)}
    assert (cards["Marker error"], cards["Foot slide"]) == ("2.6 cm", "1 cm/s")
    assert cards["Limits"] == "3"
    last = motion_table(motions).last[0]
    assert [cell if isinstance(cell, str) else cell.text for cell in last][:6] == (
        ["all (2)", "4.0", "2.65", "5.0", "1.00", "3"]
    )


def test_which_motions_are_replayed(data: RetargetReport, monkeypatch: pytest.MonkeyPatch) -> None:
    (motion, *_) = data.whole.motions
    many = [
        dataclasses.replace(motion, name=f"m{i}", quality={"rms_marker_m": 0.01 * i})
        for i in range(9)
    ]
    motion_set = dataclasses.replace(data.whole, motions=tuple(many))
    report = dataclasses.replace(
        data, cleaned=dataclasses.replace(data.cleaned, motions=motion_set)
    )
    # 9 motions of 3 s, 25 frames/s: 14 bytes for each of 13 bodies, 6 for each sole and keypoint
    keypoints = len(data.clips[motion.recording].names)
    bytes_of_all = 9 * 3 * 25 * (14 * 13 + 6 * (4 + keypoints))
    assert retarget_page.replay_bytes(report) == pytest.approx(bytes_of_all)
    titles = [title for title, _ in retarget_page.replayed(report)]
    others = [["m7", "m6", "m5"], ["m3", "m2", "m1"]]
    assert titles == ["worst: m8", *others[0], "median: m4", *others[1], "best: m0"]
    monkeypatch.setattr(retarget_page, "BUDGET_BYTES", 1000)
    titles = [title for title, _ in retarget_page.replayed(report)]
    assert titles == ["worst: m8", "median: m4", "best: m0"]
    # a motion of less than two seconds is skipped
    many[8] = dataclasses.replace(many[8].crop(0, 20), name="m8", quality=many[8].quality)
    motion_set = dataclasses.replace(data.whole, motions=tuple(many))
    report = dataclasses.replace(
        report, cleaned=dataclasses.replace(data.cleaned, motions=motion_set)
    )
    titles = [title for title, _ in retarget_page.replayed(report)]
    assert titles == ["worst: m7", "median: m4", "best: m0"]


def test_the_command_writes_it_beside_the_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = dog_gait("walk", duration_s=1.5)
    save(tmp_path / "a.npz", clip)
    out = tmp_path / "motions.h5"
    command = ["retarget", f"source={tmp_path}", "up=z", f"out={out}"]
    for _ in range(2):  # a report is replaced, like a dataset
        assert cli.main(command) == 0
    assert f"report: {tmp_path / 'motions.html'}" in capsys.readouterr().out
    assert is_report(tmp_path / "motions.html")
    other = tmp_path / "other.html"
    assert cli.main([*command, f"report={other}"]) == 0 and is_report(other)


# ---- charts


def test_histogram_shares() -> None:
    """Values 0.5, 0.5, 1.5 and 9 in bins of 1 up to 4: shares of 50, 25 and, in the last, 25 %."""
    chart = figures.histogram(
        [0.5, 0.5, 1.5, 9.0], title="t", bins=4, top=4.0, width=450, height=200
    )
    (bars,) = re.findall(r'class="fill robot">\s*<path d="([^"]*)"', chart.svg)
    places = np.array(
        [[float(v) for v in pair] for pair in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", bars)]
    )
    floor, plot = 168.0, 160.0  # 200 high, 8 above and 32 below; the tallest is at 1 / 1.08
    assert places[:, 1].max() == floor
    heights = []
    for left in (40.0, 140.0, 340.0):  # bins are 100 wide
        edge = places[np.abs(places[:, 0] - left) < 0.1, 1]
        heights.append(floor - edge.min())
    np.testing.assert_allclose(heights, [plot / 1.08 * s for s in (1.0, 1.0, 0.5)], atol=0.11)
    assert "all above 4" in chart.svg
    assert "no finite values" in figures.histogram([], title="t").svg


def test_a_map_has_one_scale() -> None:
    chart = figures.line_chart(
        [figures.Line("a", [0, 1], [0, 4])], title="t", square=True, x_range=(0, 1), y_range=(0, 4)
    ).svg
    x, y = (
        np.ptp([float(v) for v in re.findall(rf'data-{axis}="([^"]*)"', chart)[0].split()])
        for axis in "xy"
    )
    width, height = (float(v) for v in re.findall(r'data-box="([^"]*)"', chart)[0].split()[2:])
    assert x / width == pytest.approx(y / height)


# ---- the replay


def test_keypoints_stand_where_the_robot_is(data: RetargetReport, clips: dict[str, Clip]) -> None:
    (motion, *_) = data.whole.motions
    part = dataclasses.replace(motion.crop(50, 100), start_s=1.0)
    points = keypoint_overlay.keypoints_of(part, clips[motion.name])[::10]
    at = (1.0 + np.arange(0, 50, 10) / 50.0) * 60.0  # frames of the recording
    shape = clips[motion.name].positions[at.round().astype(int)]
    result = points - points.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(result, shape - shape.mean(axis=1, keepdims=True), atol=1e-9)
    result = points[..., :2].mean(axis=(0, 1))
    np.testing.assert_allclose(result, part.qpos[::10, :2].mean(axis=0), atol=0.05)
    half = keypoint_overlay.keypoints_of(part, clips[motion.name], scale=0.5)
    assert np.ptp(half[0, :, 0]) == pytest.approx(0.5 * np.ptp(points[0, :, 0]), rel=0.1)


def test_bones(clips: dict[str, Clip]) -> None:
    clip = next(iter(clips.values()))
    pairs = keypoint_overlay.bones(dataclasses.replace(clip, parents=None))
    names = set(range(len(clip.names)))
    assert len(pairs) == len(names) - 1 and set(pairs.reshape(-1).tolist()) == names  # a tree
    chain = dataclasses.replace(clip.select(clip.names[:4]), parents=(-1, 0, 1, 1))
    assert keypoint_overlay.bones(chain).tolist() == [[0, 1], [1, 2], [1, 3]]


def test_meshes_are_drawn_as_their_hulls() -> None:
    """A fine ball of radius 0.1 at (1, 0, 0) of its body: corners on it, faces around them."""
    points = np.random.default_rng(0).normal(size=(4000, 3))
    points *= 0.1 / np.linalg.norm(points, axis=1, keepdims=True)
    vertices = " ".join(f"{v:.6f}" for v in points.reshape(-1))
    model = mujoco.MjModel.from_xml_string(
        f"<mujoco><asset><mesh name='ball' vertex='{vertices}'/></asset><worldbody><body>"
        "<freejoint/><geom type='mesh' mesh='ball' pos='1 0 0'/></body></worldbody></mujoco>"
    )
    (shape,) = robot_shapes.shapes(model)
    corners, faces = np.array(shape["v"]), np.array(shape["f"])
    assert shape["t"] == "mesh" and 40 < len(corners) <= robot_shapes.FACES // 2
    assert faces.max() < len(corners)
    np.testing.assert_allclose(np.linalg.norm(corners, axis=1), 0.1, atol=2e-3)
    assert len(faces) == 2 * len(corners) - 4  # Euler: a closed surface of triangles
    np.testing.assert_allclose(shape["p"], [1.0, 0.0, 0.0], atol=2e-3)


# ---- in a browser


@pytest.fixture
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    flags = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader"]
    flags += ["--enable-unsafe-swiftshader", "--hide-scrollbars"]
    with playwright.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield chromium.new_page(viewport={"width": 620, "height": 520})
        chromium.close()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_the_replay_plays_and_scrubs(browser: Any, page: Path) -> None:
    errors, requests = list[str](), list[str]()
    browser.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    browser.on("pageerror", lambda error: errors.append(str(error)))
    browser.on("request", lambda request: requests.append(request.url))
    browser.goto(page.as_uri())
    browser.wait_for_selector("#replay.ready canvas")
    canvas = browser.locator("#replay [data-part=canvas]")
    canvas.evaluate("e => e.scrollIntoView({block: 'center', behavior: 'instant'})")
    scrub = browser.locator("#replay [data-part=scrub]")
    until(lambda: float(scrub.input_value()) > 0)  # it plays
    last = float(scrub.get_attribute("max"))
    box = canvas.bounding_box()
    middle = {"x": box["x"] + 0.1 * box["width"], "y": box["y"] + 0.2 * box["height"]}
    middle |= {"width": 0.8 * box["width"], "height": 0.75 * box["height"]}

    def picture() -> np.ndarray:
        """(H, W, 3), once it does not change any more: drawing takes its time without a GPU."""
        from PIL import Image

        shots = [browser.screenshot(clip=middle)]
        for _ in range(20):
            time.sleep(0.25)
            shots.append(browser.screenshot(clip=middle))
            if shots[-1] == shots[-2]:
                break
        return np.asarray(Image.open(io.BytesIO(shots[-1])).convert("RGB"), dtype=np.float64)

    def at(share: float) -> np.ndarray:
        event = "new Event('input', {bubbles: true})"
        scrub.evaluate(f"e => {{ e.value = {share * last}; e.dispatchEvent({event}); }}")
        return picture()

    early, late, again = at(0.1), at(0.85), at(0.1)
    assert float(scrub.input_value()) == pytest.approx(0.1 * last, abs=0.01)
    # something is drawn, it moves with the bar, and comes back
    assert early.std() > 15 and len(np.unique(early.reshape(-1, 3).round(-1), axis=0)) > 20
    assert (np.abs(late - early).max(axis=2) > 30).mean() > 0.01
    assert np.array_equal(again, early)
    seen = []
    for choice in ("both", "off", "on", "beside"):
        browser.select_option("#replay [data-part=recording]", choice)
        seen.append(picture())
    for one, two in itertools.combinations(seen, 2):
        assert (np.abs(one - two).max(axis=2) > 30).any()
    browser.select_option("#replay [data-part=clip]", "1")
    # the table sorts
    first, heading = browser.locator("#motions tbody tr td").first, "#motions th >> nth=2"
    before = first.text_content()
    for _ in range(2):  # largest error first, as it was
        browser.click(heading)
    assert browser.get_attribute(heading, "aria-sort") == "ascending"
    assert first.text_content() != before
    local = ("file:", "data:", "blob:", "about:")
    assert not errors and all(url.startswith(local) for url in requests)


def until(condition: Callable[[], bool], seconds: float = 25.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
