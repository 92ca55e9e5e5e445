"""Recordings for Rerun, read by rerun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rerun.chunk import RrdReader

from npmp.robots import Robot
from npmp.view.render import ReplayClip, Shot
from npmp.view.render.film import Frames
from npmp.view.render.rerun_file import write_rrd
from npmp.view.robot_shapes import body_poses, moving_bodies
from tests.refusals import refusal

STEPS = 20


@pytest.fixture
def shot(robot: Robot) -> Shot:
    """A robot that lifts its root by 1 cm a step, beside a ghost, with a ball."""
    qpos = np.tile(robot.home_qpos, (STEPS, 1))
    qpos[:, 2] += 0.01 * np.arange(STEPS)
    clip = ReplayClip(
        "lift",
        qpos,
        50.0,
        reference=qpos + 0.1,
        command=np.tile([0.5, 0.0, 0.1], (STEPS, 1)),
        keypoints=np.random.default_rng(0).normal(size=(STEPS, 3, 3)),
        bones=np.array([[0, 1], [1, 2]]),
        ball=np.zeros((STEPS, 3)),
        target=np.ones((STEPS, 2)),
    )
    return Shot(robot, clip, title="Lift")


def columns(path: Path) -> dict[str, dict[str, list[Any]]]:
    """The columns of a recording by entity."""
    entities: dict[str, dict[str, list[Any]]] = {}
    for chunk in RrdReader(str(path)).stream().to_chunks():
        batch = chunk.to_record_batch()
        of = entities.setdefault(chunk.entity_path, {})
        for name in batch.schema.names:
            of.setdefault(name, []).extend(batch[name].to_pylist())
    return entities


def test_a_recording_holds_what_is_filmed(shot: Shot, tmp_path: Path) -> None:
    path = tmp_path / "lift.rrd"
    images = Frames(np.zeros((5, 8, 8, 3), dtype=np.uint8), 10.0, "none")
    assert write_rrd(path, shot, images) == path.stat().st_size
    assert [file.name for file in tmp_path.iterdir()] == ["lift.rrd"]

    entities = columns(path)
    model = shot.robot.model()
    poses = body_poses(model, shot.qpos)
    for i, body in enumerate(moving_bodies(model)):
        entity = entities[f"/world/robot/{model.body(body).name}"]
        positions = [row[0] for row in entity["Transform3D:translation"]]
        turns = [row[0] for row in entity["Transform3D:quaternion"]]
        np.testing.assert_allclose(positions, poses[:, i, :3], atol=1e-6)
        np.testing.assert_allclose(turns, poses[:, i, [4, 5, 6, 3]], atol=1e-6)
    joint = shot.robot.joint_names[0]
    for line, offset in (("position", 0.0), ("reference", 0.1)):
        values = [row[0] for row in entities[f"/joints/{joint}/{line}"]["Scalars:scalars"]]
        np.testing.assert_allclose(values, shot.qpos[:, 7] + offset)
    seconds = [time.total_seconds() for time in entities[f"/joints/{joint}/position"]["time"]]
    np.testing.assert_allclose(seconds, np.arange(STEPS) / 50.0, atol=1e-6)
    assert entities["/base/yaw_rate_rps/command"]["Scalars:scalars"][0] == [0.1]
    assert len(entities["/camera"]["EncodedImage:blob"]) == 5
    assert {"/world/recording", "/world/ball"} <= entities.keys()

    verified = [sys.executable, "-m", "rerun", "rrd", "verify", str(path)]
    assert (
        "without error"
        in subprocess.run(verified, capture_output=True, text=True, check=True).stderr
    )


def test_a_capsule_is_where_mujoco_has_it(robot: Robot, tmp_path: Path) -> None:
    """Rerun's begins at its origin, MuJoCo's is centred."""
    from npmp.view.render import rerun_file

    rr = rerun_file.load_rerun()
    part = {"t": "capsule", "s": [0.1, 0.4], "p": [1.0, 0.0, 0.0], "q": [1.0, 0.0, 0.0, 0.0]}
    capsule = rerun_file._shape(rr, part, (0, 0, 0))
    assert capsule.translations.as_arrow_array().to_pylist() == [[1.0, 0.0, pytest.approx(-0.4)]]
    assert capsule.lengths.as_arrow_array().to_pylist() == [pytest.approx(0.8)]


def test_the_missing_extra_is_named(
    shot: Shot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    refusal(r"npmp\[rerun\]", write_rrd, tmp_path / "lift.rrd", shot)
    assert not list(tmp_path.iterdir())
