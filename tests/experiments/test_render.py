"""`npmp render`: what is filmed, and what is said where it cannot be."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pytest import CaptureFixture

from mocap_data.files import new_hdf5
from mocap_data.store import MotionSet, write_motions
from mocap_data.synthetic import demo_clips
from npmp.deploy.run_log import FILE, DeployLog, layout, write_log
from npmp.experiments import cli, render
from npmp.experiments.command import Run
from npmp.robots import Robot
from npmp.view import films
from npmp.view.render import Mount, Shot, camera_of
from retarget import retarget
from retarget.mirror import mirror
from tests.experiments.command import Says
from tests.experiments.jobs import job_of
from tests.experiments.test_suite import save_standing
from tests.refusals import refusal


@pytest.fixture(scope="module")
def data(robot: Robot, motions: MotionSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A turn of the embedded gaits, 1.5 s of it, and its mirror image."""
    motion = retarget(demo_clips()[3], robot).crop(0, 75)
    path = tmp_path_factory.mktemp("render") / "motions.h5"
    write_motions(path, replace(motions, motions=(motion, mirror(motion, robot, "left_right"))))
    return path


def shot(*arguments: str) -> Shot:
    """What a command line films. Raises InputError."""
    job = job_of("render", *arguments)
    run = Run(
        "render", None, job.config.seed, "cpu", 1, overridden=job.overridden, chosen=job.chosen
    )
    return render.shot_of(job.config, run)


def test_a_policy_obeys_timed_commands() -> None:
    result = shot(
        "policy=anymal_b_walk", "command=[[0,0.6,0,0],[0.5,0.2,0,0.5]]", "seconds=1.0", "title=Walk"
    )
    command, achieved = (np.asarray(value) for value in (result.clip.command, result.clip.achieved))
    assert result.robot.name == "anymal_b" and result.title == "Walk"
    assert result.qpos.shape == (50, 19) and achieved.shape == (50, 3)
    # a command is given after the step that ends at its time: 0.5 s is the 25th step's end
    np.testing.assert_allclose(command[:25], np.tile([0.6, 0.0, 0.0], (25, 1)), rtol=1e-6)
    np.testing.assert_allclose(command[25:], np.tile([0.2, 0.0, 0.5], (25, 1)), rtol=1e-6)
    again = shot("policy=anymal_b_walk", "command=[[0,0.6,0,0],[0.5,0.2,0,0.5]]", "seconds=1.0")
    np.testing.assert_array_equal(again.qpos, result.qpos)


def test_a_policy_of_another_project(tmp_path: Path, refused: Says) -> None:
    """It stands in its default pose; its commands are at most 0.6 m/s forward."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    policy = f"policy={save_standing(tmp_path)}"
    result = shot(policy, "command=[0.5,0,0]", "seconds=0.4")
    assert result.title == "policy: walk" and result.qpos.shape == (20, 19)
    command, achieved = (np.asarray(value) for value in (result.clip.command, result.clip.achieved))
    np.testing.assert_allclose(command, np.tile([0.5, 0.0, 0.0], (20, 1)), rtol=1e-6)
    assert abs(achieved[-1, 0]) < 0.1
    refusal("forward_mps must be from 0 to 0.6", shot, policy, "command=[1,0,0]")
    refusal("expected task=walk, got path", shot, policy, "task=path")
    out = f"out={tmp_path / 'film.webp'}"
    assert "needs a policy of npmp" in refused("render", policy, "module=anymal_b_dog", out)
    own = "policy=anymal_b_walk"
    assert "trust=true needs another project's" in refused("render", own, "trust=true", out)


def test_a_path_and_a_ball() -> None:
    result = shot(
        "policy=anymal_b_walk", "task=path", "task.path=slalom", "seconds=0.4", "camera=fixed"
    )
    assert result.path is not None and result.clip.name == "path"
    np.testing.assert_allclose(result.path[0], result.qpos[0, :2], atol=0.02)
    assert np.linalg.norm(np.diff(result.path, axis=0), axis=1).max() < 0.11
    assert 17.0 < np.linalg.norm(result.path[-1] - result.path[0]) < 18.1  # six cones, 3 m apart
    result = shot("policy=anymal_b_dribble", "seconds=0.4")
    assert result.clip.ball is not None and result.clip.target is not None
    assert result.clip.ball.shape == (20, 3) and result.clip.target.shape == (20, 2)
    assert 0.105 <= result.clip.ball_m <= 0.129
    assert (result.clip.ball[:, 2] == result.clip.ball_m).all()


def test_rough_ground_is_under_the_feet() -> None:
    result = shot(
        "policy=anymal_b_rough", "task.terrain=perlin", "task.terrain_fields=1", "seconds=0.2"
    )
    assert result.clip.ground is not None and result.clip.ground_m == 0.05
    column, row = np.round(result.qpos[0, :2] / 0.05).astype(int) % len(result.clip.ground)
    assert 0.4 < result.qpos[0, 2] - result.clip.ground[row, column] < 0.7


def test_imitation_beside_its_recording(data: Path) -> None:
    result = shot("module=anymal_b_dog", f"data={data}", "clip=synthetic_turn_right", "seconds=1.0")
    reference, keypoints = np.asarray(result.clip.reference), result.clip.keypoints
    assert keypoints is not None and result.clip.bones is not None and result.figure is not None
    assert result.qpos.shape == reference.shape and len(result.qpos) == len(keypoints) == 51
    assert 0.0 < np.abs(result.qpos - reference).max() < 0.4  # it is simulated, and tracks
    message = r"no clip 'walk'; available: synthetic_turn_right, synthetic_turn_right_lr"
    refusal(message, shot, "module=anymal_b_dog", f"data={data}", "clip=walk")


def test_a_mirrored_motion_has_a_mirrored_recording(data: Path) -> None:
    plain, mirrored = (
        shot(f"data={data}", f"clip=synthetic_turn_right{end}") for end in ("", "_lr")
    )
    assert plain.clip.reference is None and not plain.has("ghost")
    places = [result.clip.keypoints for result in (plain, mirrored)]
    assert places[0] is not None and places[1] is not None
    np.testing.assert_allclose(places[1], places[0] * [1.0, -1.0, 1.0], atol=1e-9)
    alone = shot(f"data={data}", "show=[recording]", "start=0.5", "seconds=0.5")
    # placed by the mean of another stretch
    np.testing.assert_allclose(alone.figure, places[0][25:51], atol=0.02)


def test_rollouts(robot: Robot, tmp_path: Path) -> None:
    qpos = np.tile(robot.home_qpos, (30, 1))
    feet = np.zeros((30, 4))
    with new_hdf5(tmp_path / "rollouts.h5") as file:
        file.attrs["robot"], file.attrs["joint_names"] = robot.name, list(robot.joint_names)
        file.attrs["foot_names"] = list(robot.foot_bodies)
        group = file.create_group("trot")
        group.attrs["rate_hz"], group.attrs["tracked_frames"] = 50.0, 20
        names = ("qpos", "reference_qpos", "foot_height", "reference_foot_height")
        for name, value in zip(names, (qpos, qpos + 0.01, feet, feet), strict=True):
            group.create_dataset(name, data=value)
    result = shot(f"rollouts={tmp_path / 'rollouts.h5'}", "start=0.1")
    assert result.title == "trot" and result.has("ghost") and not result.has("recording")
    assert len(result.qpos) == 15  # from frame 5 until the robot is lost


def test_a_deployments_log(robot: Robot, tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    """A joint jumps in the middle of a second."""
    columns = {name: np.zeros((50, width)) for name, width in layout(12, 0).items()}
    columns["time_s"][:, 0] = np.arange(50) / 50.0
    columns["joint_pos"][:] = robot.home_joints
    columns["joint_pos"][25:, 0] += 0.1
    columns["up"][:] = [0.0, 0.0, 1.0]
    log = DeployLog(robot.name, robot.joint_names, (), 50.0, "sim", columns)
    write_log(tmp_path / FILE, log)
    result = shot(f"log={tmp_path}", "start=0.4", "seconds=0.2")
    assert result.qpos.shape == (11, 19) and result.title == "anymal_b: sim"
    np.testing.assert_allclose(result.qpos[:, 7] - robot.home_joints[0], [0.0] * 5 + [0.1] * 6)

    out = tmp_path / "run.rrd"
    assert cli.main(["render", f"log={tmp_path}", f"out={out}"]) == 0
    assert f"rerun {out}" in capsys.readouterr().out.replace("\n", "") and out.is_file()


def test_a_film_from_the_command_line(
    data: Path, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    story = tmp_path / "story.txt"
    story.write_text(f"# a shot\ndata={data} seconds=1 azimuth=80\n\n")
    out = tmp_path / "films" / "story.webp"
    code = cli.main(["render", f"story={story}", "debug=tiny", f"out={out}"])
    message = capsys.readouterr()
    if "nothing can draw here" in message.err:
        pytest.skip(message.err)
    assert code == 0 and "160x96" in message.out and str(out) in message.out.replace("\n", "")
    with Image.open(out) as image:
        assert (image.size, image.n_frames) == ((160, 96), 6)  # at 0, 0.2, ... 1 s
        first = np.asarray(image.convert("RGB")).astype(int)
        image.seek(5)
        last = np.asarray(image.convert("RGB")).astype(int)
    assert np.abs(first - last).mean() > 1
    assert [path.name for path in out.parent.iterdir()] == ["story.webp"]


def test_errors_of_a_story_name_its_line(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    story = tmp_path / "story.txt"
    story.write_text("# nothing\nmodule=anymal_b_dog\n")
    assert cli.main(["render", f"story={story}", f"out={tmp_path / 'a.webp'}"]) == 2
    assert f"{story}, line 2: npmp render module=... needs data=" in capsys.readouterr().err


def test_a_robots_own_camera_is_the_tasks() -> None:
    requested = "policy=anymal_b_walk", "task=mapped", "task.terrain_fields=1", "seconds=0.1"
    filmed = shot(*requested, "camera=robot")
    assert filmed.mount == Mount((0.45, 0.0, 0.1), 35.0, 58.0) and filmed.view.mode == "robot"
    refusal("camera=robot", shot, requested[0], requested[3], "camera=robot")


def test_moments_and_angles(data: Path) -> None:
    whole = shot(f"data={data}", "azimuth=90", "distance=3")
    assert films.still(whole, None).frame == 37 and films.still(whole, 0.5).frame == 25
    refusal(r"at=2: must be from 0 to 1", films.still, whole, 2.0)

    w, x, y, z = whole.qpos[0, 3:7]
    heading = math.degrees(math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))
    camera = camera_of(whole, (320, 180))
    assert camera.azimuth == pytest.approx(heading + 90.0) and camera.distance == 3.0


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("max_mb=1", "max_mb=1 needs a film or a still, not a .rrd"),
        ("fps=10", "fps=10 needs camera=robot in a .rrd"),
        ("size=[320,180]", "size=[320, 180] needs camera=robot in a .rrd"),
    ],
)
def test_keys_without_effect_on_a_recording_for_rerun(
    tmp_path: Path, refused: Says, key: str, reason: str
) -> None:
    out = tmp_path / "walk.rrd"
    assert reason in refused("render", "policy=anymal_b_walk", key, f"out={out}")
    assert not out.exists()
