"""The report: its sections, its errors, and that the page is self-contained."""

from __future__ import annotations

import base64
import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import mujoco
import numpy as np
import pytest
import torch

from mocap_data.motion import ReferenceMotion
from npmp import robots
from npmp.envs import Trial
from npmp.envs.task import CommandTraces
from npmp.evaluation.policy import PolicyEvaluation
from npmp.evaluation.rollouts import read_rollouts
from npmp.view import report, robot_shapes
from npmp.view.report import figures, replay
from npmp.view.report.parts import Chart
from tests.refusals import refusal

EVIL = "<script>alert(1)</script>\"'&"


def swaying(robot: robots.Robot, frames: int, phase: float = 0.0) -> np.ndarray:
    """(T, 19): the home pose, going forward at 0.5 m/s with swinging joints."""
    t = np.arange(frames) / 50.0
    qpos = np.tile(np.asarray(robot.home_qpos, dtype=np.float64), (frames, 1))
    qpos[:, 0] += 0.5 * t
    qpos[:, 7:] += 0.2 * np.sin(6 * t[:, None] + np.arange(12) + phase)
    return qpos


def motion_of(robot: robots.Robot, name: str, **quality: float) -> ReferenceMotion:
    return ReferenceMotion(name, swaying(robot, 20), 50.0, quality=quality)


def write_rollouts(
    path: Path, robot: robots.Robot, clips: dict[str, int], **attributes: Any
) -> Path:
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file.attrs["robot"] = robot.name
        file.attrs["joint_names"] = list(robot.joint_names)
        file.attrs["foot_names"] = list(robot.foot_bodies)
        for name, frames in clips.items():
            group = file.create_group(name)
            group["qpos"] = swaying(robot, frames, 0.1)
            group["reference_qpos"] = swaying(robot, frames)
            group["foot_height"] = rng.uniform(0, 0.1, (frames, 4))
            group["reference_foot_height"] = rng.uniform(0, 0.1, (frames, 4))
            group.attrs["rate_hz"] = 50.0
            group.attrs["tracked_frames"] = attributes.get("tracked_frames", frames)
    return path


def evaluation_of(names: list[str]) -> dict[str, Any]:
    clip = {
        "tracked_fraction": 0.5,
        "tracked_s": 1.0,
        "duration_s": 2.0,
        "base_deviation_m": {"mean": 0.05, "max": 0.1},
        "joint_error_rad": 0.07,
    }
    return {"robot": "anymal_b", "clips": [{"name": n, **clip} for n in names]}


def walking_of(robot: robots.Robot, frames: int, achieved: float = 0.4) -> PolicyEvaluation:
    """A trial of one robot, of a task that is no more than its traces."""
    velocities = {
        "command": torch.full((frames, 1, 3), 0.5),
        "achieved": torch.full((frames, 1, 3), achieved),
    }
    channels = (("Forward velocity", "(m/s)"), ("Lateral velocity", "(m/s)"), ("Yaw", "(rad/s)"))
    traces = CommandTraces(channels, velocities["command"][:, 0], velocities["achieved"][:, 0])
    level = SimpleNamespace(ground=SimpleNamespace(rough=False))
    task: Any = SimpleNamespace(robot=robot, traces=lambda trial: traces, env=level, planner=None)
    still, qpos = torch.zeros(frames, 1), torch.from_numpy(swaying(robot, frames + 1))
    trial = Trial(velocities, still, still.bool(), qpos, 0.02)
    return PolicyEvaluation({"robots": 1, "seconds": 1.0, "velocity_error": 0.234}, trial, task)


def write_metrics(path: Path, rows: int = 30, extra: str = "loss") -> Path:
    lines = [f"iteration,env_steps,tracked_fraction,{extra},beta,word"]
    lines += [
        f"{i},{1000 * i},{i / rows},{10 ** (-i / 10)},{'' if i % 2 else 0.1},text"
        for i in range(rows)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def full(folder: Path, robot: robots.Robot, frames: int = 100) -> dict[str, Any]:
    names = {"walk": frames, "trot": frames}
    return dict[str, Any](
        title="A run",
        subtitle="anymal_b",
        cards=[("Tracked", "50 %", "of each clip")],
        motions=[
            motion_of(robot, "walk", rms_marker_m=0.0123, foot_slide_mps=0.05, limit_violations=3.0)
        ],
        evaluation=evaluation_of(list(names)),
        rollouts=write_rollouts(folder / "rollouts.h5", robot, names, tracked_frames=frames // 2),
        learning=[("Imitation", write_metrics(folder / "metrics.csv"))],
        walking=walking_of(robot, frames),
        provenance={
            "command": "npmp demo",
            "seed": 0,
            "versions": report.versions(),
            "machine": report.machine_summary(),
        },
    )


def packed_in(page: str) -> dict[str, Any]:
    match = re.search(
        r'<script type="application/json" id="replay-data">(.*?)</script>', page, re.S
    )
    assert match
    return json.loads(match[1])


def unpack(clip: dict[str, Any], layers: int, bodies: int) -> np.ndarray:
    """Poses (frames, layers, bodies, 7) of a packed clip, as the page's script reads them."""
    raw = (
        np.frombuffer(base64.b64decode(clip["poses"]), "<u2").reshape(
            clip["frames"], layers, bodies, 7
        )
        / 65535
    )
    low, high = np.array(clip["low"]), np.array(clip["high"])
    return np.concatenate([raw[..., :3] * (high - low) + low, raw[..., 3:] * 2 - 1], axis=-1)


def assert_self_contained(page: str) -> None:
    assert not re.search(r"""(src|href|action|poster)\s*=\s*["']?\s*(https?:|//|file:)""", page)
    assert "@import" not in page and "<link" not in page
    assert not re.search(r"url\((?!#)", page)  # a drawing's own clips only
    assert "default-src 'none'" in page


# ---- the page


def test_all_sections(tmp_path: Path, robot: robots.Robot) -> None:
    out = report.build(tmp_path / "deep" / "report.html", **full(tmp_path, robot))
    page = out.read_text(encoding="utf-8")
    for key in ("replay", "imitation", "walking", "retargeting", "learning", "provenance"):
        assert f'<section id="{key}"' in page and f'href="#{key}"' in page
    assert_self_contained(page)
    assert "1.23" in page  # 0.0123 m of marker error, in centimetres
    assert "lost after 1 s of 2 s" in page
    assert "0.234" in page
    assert "word" not in re.findall(r"<b>(.*?)</b>", page)  # a column without numbers has no chart
    assert [c["name"] for c in packed_in(page)["clips"]] == ["walk", "trot", "walking on command"]
    assert len(page) < 500_000
    assert list(out.parent.iterdir()) == [out]
    again = report.build(tmp_path / "again.html", **full(tmp_path, robot))
    assert again.read_bytes() == out.read_bytes()


def test_the_headline_weighs_clips_by_their_tracked_time(tmp_path: Path) -> None:
    """1 of 2 s tracked, 10 cm off, and 3 of 3 s, 2 cm off: 4 of 5 s, (10 + 3 * 2) / 4 = 4 cm; the
    cards and the table's last row alike."""
    evaluation = evaluation_of(["a", "b"])
    evaluation["clips"][0]["base_deviation_m"] = {"mean": 0.1, "max": 0.2}
    second = {"tracked_s": 3.0, "duration_s": 3.0, "tracked_fraction": 1.0}
    second["base_deviation_m"] = {"mean": 0.02, "max": 0.3}
    evaluation["clips"][1].update(second)
    page = report.build(tmp_path / "r.html", evaluation=evaluation, provenance={}).read_text()
    assert re.findall(r'class="value">([^<]*)<', page) == ["80 %", "4 cm", "0.07 rad"]
    [last] = re.findall(r'<tr class="mean">(.*?)</tr>', page, re.S)
    assert re.findall(r"<td>([^<]*)</td>", last) == [
        *("all clips", "80", "4", "5"),
        *("4", "30", "0.07"),
    ]
    assert "it is lost" in page


def test_infeasible_clips_have_a_row(tmp_path: Path) -> None:
    """1 of 2 s of one clip and 2 of 2 s of the infeasible one."""
    evaluation = evaluation_of(["a", "b"])
    evaluation["clips"][0]["infeasible_by"] = ""
    evaluation["clips"][1].update(infeasible_by="balance", tracked_s=2.0, tracked_fraction=1.0)
    page = report.build(tmp_path / "r.html", evaluation=evaluation, provenance={}).read_text()
    rows = re.findall(r'<tr class="mean">(.*?)</tr>', page, re.S)
    cells = [re.findall(r"<td>([^<]*)</td>", row)[:4] for row in rows]
    assert cells == [
        ["all clips", "75", "3", "4"],
        ["feasible clips", "50", "1", "2"],
        ["infeasible clips", "100", "2", "2"],
    ]
    assert "<td>balance</td>" in page


def test_names_are_escaped(tmp_path: Path, robot: robots.Robot) -> None:
    name = EVIL.replace("/", "_")  # "/" parts groups in HDF5
    data = dict[str, Any](
        title=EVIL,
        subtitle=EVIL,
        cards=[(EVIL, EVIL, EVIL)],
        motions=[motion_of(robot, EVIL, rms_marker_m=1.0)],
        evaluation=evaluation_of([EVIL, name]),
        rollouts=write_rollouts(tmp_path / "rollouts.h5", robot, {name: 10}),
        learning=[(EVIL, write_metrics(tmp_path / "m.csv", extra="<script>alert(1)</script>"))],
        provenance={EVIL: EVIL, "command": EVIL, "config": {EVIL: {EVIL: EVIL}}, "list": [EVIL]},
    )
    page = report.build(tmp_path / "report.html", **data).read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert len(re.findall(r"<script", page)) == 2  # the data, and the page's own
    assert packed_in(page)["clips"][0]["name"] == name


def test_values_that_are_not_finite(tmp_path: Path, robot: robots.Robot) -> None:
    path = write_rollouts(tmp_path / "rollouts.h5", robot, {"part": 40, "none": 40})
    with h5py.File(path, "r+") as file:
        qpos = file["part/qpos"][()]
        qpos[25:] = np.nan
        qpos[10, 3] = np.inf
        file["part/qpos"][...] = qpos
        file["none/qpos"][...] = np.nan
        file["none/foot_height"][...] = np.nan
    evaluation = evaluation_of(["part", "none"])
    evaluation["clips"][1].update(tracked_fraction=float("nan"), joint_error_rad=float("nan"))
    data = dict[str, Any](
        evaluation=evaluation,
        rollouts=path,
        walking=walking_of(robot, 10, math.nan),
        motions=[motion_of(robot, "x")],
    )
    page = report.build(tmp_path / "report.html", **data).read_text(encoding="utf-8")
    assert "none is not in the replay" in page
    assert packed_in(page)["clips"][0]["name"] == "part"
    drawings = " ".join(re.findall(r"<svg.*?</svg>", page, re.S))
    assert not re.search(r"\b(nan|inf)\b", drawings, re.I)
    assert "n/a" in page


def test_absolute_paths_are_removed(tmp_path: Path) -> None:
    data = dict[str, Any](
        subtitle="from /home/ada/data/x.bvh",
        provenance={
            "command": f"npmp evaluate out={tmp_path}/module",
            "config": {"a": {"path": "/home/ada/b.h5"}},
        },
    )
    page = report.build(tmp_path / "report.html", **data).read_text(encoding="utf-8")
    assert "ada" not in page and str(tmp_path) not in page
    assert "npmp evaluate out=module" in page and "…/b.h5" in page


# ---- errors


# ---- reading


def test_read_rollouts_recovers_what_was_written(tmp_path: Path, robot: robots.Robot) -> None:
    result = read_rollouts(write_rollouts(tmp_path / "r.h5", robot, {"walk": 10}, tracked_frames=4))
    assert result.robot == "anymal_b" and result.joint_names == tuple(robot.joint_names)
    clip = result.clips[0]
    np.testing.assert_array_equal(clip.qpos, swaying(robot, 10, 0.1))
    assert clip.lost_after_s == pytest.approx(0.08)  # 4 frames at 50 Hz
    np.testing.assert_allclose(clip.base_deviation_m(), 0.0)
    expected = swaying(robot, 10, 0.1)[:, 7:] - swaying(robot, 10)[:, 7:]
    np.testing.assert_allclose(clip.joint_difference_rad(), expected)


# ---- replay


def test_packed_poses_are_the_robots_own(robot: robots.Robot) -> None:
    model = robot.model()
    rng = np.random.default_rng(1)
    qpos = swaying(robot, 60)
    qpos[:, :3] += rng.normal(size=3) * 5
    qpos[:, 3:7] = rng.normal(size=4)
    qpos[30:, 3:7] *= -1  # the same rotation, the other sign
    packed, remarks = replay.pack(
        model, [replay.ReplayClip("a", qpos, 50.0, reference=swaying(robot, 60))]
    )
    assert not remarks
    clip = packed["clips"][0]
    assert (clip["frames"], clip["fps"], clip["layers"]) == (30, 25.0, 2)
    result = unpack(clip, 2, packed["bodies"])
    bodies = robot_shapes.moving_bodies(model)
    # base and four legs of three; feet ride on the shanks
    assert len(bodies) == packed["bodies"] == 13
    data = mujoco.MjData(model)
    for k in (0, 14, 16, 29):
        data.qpos[:] = qpos[2 * k]
        mujoco.mj_kinematics(model, data)
        np.testing.assert_allclose(result[k, 0, :, :3], data.xpos[bodies], atol=5e-4)
        same = np.abs((result[k, 0, :, 3:] * data.xquat[bodies]).sum(-1))
        np.testing.assert_allclose(same, 1.0, atol=1e-4)
    # no jumps of sign
    assert (np.einsum("tlbi,tlbi->tlb", result[1:, ..., 3:], result[:-1, ..., 3:]) > 0).all()


def test_shapes_ride_on_their_bodies(robot: robots.Robot) -> None:
    """A shape's pose, carried by its body's, is the geom's own pose, in any configuration."""
    model = robot.model()
    drawn = robot_shapes.shapes(model, robot.foot_bodies)
    assert {s["c"] for s in drawn} >= {"base", "foot0", "foot1", "foot2", "foot3"}
    qpos = swaying(robot, 5)[4]
    qpos[3:7] = [0.8, 0.1, -0.5, 0.2]
    poses = robot_shapes.body_poses(model, qpos[None])[0]
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    for shape in drawn:
        moved = np.empty(3)
        mujoco.mju_rotVecQuat(moved, np.array(shape["p"]), poses[shape["b"], 3:])
        nearest = np.abs(data.geom_xpos - (moved + poses[shape["b"], :3])).max(axis=1).min()
        assert nearest < 3e-4


def test_invalid_frames_repeat_the_last_valid_pose(robot: robots.Robot) -> None:
    qpos = swaying(robot, 6)
    expected_poses = robot_shapes.body_poses(robot.model(), qpos)
    qpos[0], qpos[3, 9], qpos[4, 0] = np.nan, np.inf, 1e6
    result = robot_shapes.body_poses(robot.model(), qpos)
    np.testing.assert_array_equal(result, expected_poses[[1, 1, 2, 2, 2, 5]])
    refusal("no frame", robot_shapes.body_poses, robot.model(), np.full((3, 19), np.nan))


def test_budget(robot: robots.Robot) -> None:
    clips = [replay.ReplayClip(str(i), swaying(robot, 500), 50.0) for i in range(2)]
    full_cost = 2 * 250 * 13 * 14  # clips x frames x bodies x 7 values of 2 bytes
    packed, remarks = replay.pack(robot.model(), clips, budget_bytes=full_cost)
    assert not remarks and [c["frames"] for c in packed["clips"]] == [250, 250]
    packed, remarks = replay.pack(robot.model(), clips, budget_bytes=full_cost // 8)
    assert len(remarks) == 1 and "the first" in remarks[0]
    assert sum(c["frames"] for c in packed["clips"]) * 13 * 14 <= full_cost // 8


def test_frame_choice() -> None:
    for frames, rate, kept, fps in (
        (100, 50.0, 50, 25.0),
        (5, 10.0, 5, 10.0),
        (1, 50.0, 1, 25.0),
        (100, 60.0, 50, 30.0),
    ):
        index, result = replay.frame_choice(frames, rate, 25.0)
        assert (len(index), result) == (kept, fps)


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to check the scripts with")
def test_scripts_parse() -> None:
    for path in (Path(report.__file__).parent / "assets").glob("*.js"):
        subprocess.run(["node", "--check", str(path)], check=True, timeout=30)


# ---- charts


def drawn(chart: Chart, css: str) -> list[list[tuple[float, float]]]:
    """The points of what a chart draws with that class, a list for each."""
    return [
        [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)]
        for path in re.findall(rf'<g class="{css}"[^>]*>\s*<path d="([^"]*)"', chart.svg)
    ]


def box_of(chart: Chart) -> tuple[float, ...]:
    return tuple(float(v) for v in re.findall(r'data-box="([^"]*)"', chart.svg)[0].split())


def test_long_curves_keep_their_extremes() -> None:
    y = np.random.default_rng(2).normal(size=50_000)
    y[12_345], y[40_000] = 99.0, -99.0
    gap = np.where(np.arange(50_000) // 500 == 40, np.nan, y)
    x, kept = figures.thin(np.arange(50_000.0), gap, 600)
    assert len(x) <= 600 and x[0] == 0 and x[-1] == 49_999 and (np.diff(x) > 0).all()
    assert np.nanmax(kept) == 99.0 and np.nanmin(kept) == -99.0 and np.isnan(kept).any()
    chart = figures.line_chart(
        [figures.Line("a", np.arange(50_000.0), y)], title="t", y_range=(-99.0, 99.0)
    )
    _, top, _, height = box_of(chart)
    (points,) = drawn(chart, "line robot")
    assert len(points) <= 600
    assert min(y for _, y in points) == pytest.approx(top, abs=0.15)
    assert max(y for _, y in points) == pytest.approx(top + height, abs=0.15)


def test_line_chart_points() -> None:
    """Two points on given axes land on the corners of the plot's box."""
    chart = figures.line_chart(
        [figures.Line("a", [0, 1], [0, 2])], title="t", x_range=(0, 1), y_range=(0, 2)
    )
    left, top, width, height = box_of(chart)
    assert 'data-name="a"' in chart.svg
    (points,) = drawn(chart, "line robot")
    np.testing.assert_allclose(points, [(left, top + height), (left + width, top)], atol=0.1)


def test_stance() -> None:
    height = np.concatenate([np.full(50, 0.01), np.full(50, 0.1), [np.nan]])
    np.testing.assert_array_equal(figures.stance(height), [True] * 50 + [False] * 51)
    assert not figures.stance(np.full(3, np.nan)).any()
    # a fall must not hide the steps before it
    fallen = np.concatenate([np.full(10, 0.03), np.full(90, -0.5)])
    assert not figures.stance(fallen)[:10].any()
    assert figures.stance(fallen, counted=slice(0, 10))[:10].all()
