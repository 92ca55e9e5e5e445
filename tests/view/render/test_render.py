"""Films: positions in the image, and every format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from mocap_data.synthetic import dog_gait
from npmp.robots import Robot
from npmp.view.render import Mount, ReplayClip, Shot, View, backend, camera_of, draw, film, write
from npmp.view.render.drawing import BALL, BONE, TARGET
from npmp.view.render.film import Frames
from npmp.view.render.shot import FILLED, HALF, Camera, smoothed
from retarget.keypoint_overlay import bones, keypoints_of
from tests.refusals import refusal

SIZE = (192, 128)


@pytest.fixture(scope="module")
def drawing() -> Callable[..., Frames]:
    """`draw` in small images at 5 frames/s; skips without a rendering backend."""

    def small(shot: Shot, **more: object) -> Frames:
        try:
            return draw([shot], SIZE, 5.0, **{"captions": False, **more})  # type: ignore[arg-type]
        except InputError as error:
            if "no rendering backend" in str(error):
                pytest.skip(str(error))
            raise

    return small


@pytest.fixture(scope="module")
def recording() -> Clip:
    return dog_gait("trot", speed_mps=1.0, duration_s=2.0)


@pytest.fixture(scope="module")
def trot(motions: MotionSet, recording: Clip) -> ReplayClip:
    """Half a second of the robot's trot beside the dog's, its ghost 20 cm higher, asked to walk
    faster to the left."""
    motion = motions.motions[0].crop(0, 26)
    return ReplayClip(
        motion.name,
        motion.qpos,
        motion.rate_hz,
        reference=motion.qpos + np.eye(motion.qpos.shape[1])[2] * 0.2,
        keypoints=keypoints_of(motion, recording),
        bones=bones(recording),
        command=np.tile([1.0, 0.0, 0.0], (26, 1)),
        achieved=np.tile([0.0, 0.7, 0.0], (26, 1)),
    )


def project(camera: Camera, points: np.ndarray) -> np.ndarray:
    """Pixels (T, N, 2), right and down from the upper left corner, of points (T, N, 3) [m]."""
    x, y, depth = np.moveaxis((points - camera.lookat[:, None]) @ camera.axes.T, -1, 0)
    scale = SIZE[1] / 2.0 / HALF / (depth + camera.distance)
    return np.stack((SIZE[0] / 2.0 + scale * x, SIZE[1] / 2.0 - scale * y), axis=-1)


def near(pixels: np.ndarray, rgba: tuple[float, ...]) -> np.ndarray:
    """Which pixels (..., 3) have about the hue of a colour: lit or in shadow it keeps its
    direction."""
    colour = np.array(rgba[:3]) / np.linalg.norm(rgba[:3])
    length = np.linalg.norm(pixels.astype(float), axis=-1)
    return (pixels @ colour > 0.97 * length) & (length > 40.0)


@pytest.fixture(scope="module")
def filmed(robot: Robot, trot: ReplayClip, drawing: Callable[..., Frames]) -> tuple[Shot, Frames]:
    shot = Shot(robot, trot)
    return shot, drawing(shot)


def test_the_robot_moves_in_a_bright_picture(filmed: tuple[Shot, Frames]) -> None:
    _, frames = filmed
    # 0.5 s at 5 frames/s: 0, 0.2 and 0.4 s
    assert frames.pictures.shape == (3, SIZE[1], SIZE[0], 3)
    assert frames.fps == 5.0
    assert 120 < frames.pictures.mean() < 230 and frames.pictures.std() > 20
    moved = np.abs(np.diff(frames.pictures.astype(int), axis=0)).max(-1) > 30
    assert (moved.mean((1, 2)) > 0.02).all()
    assert moved.mean((1, 2)).max() < 0.6


def test_the_figure_is_where_the_keypoints_are(filmed: tuple[Shot, Frames]) -> None:
    shot, frames = filmed
    camera, figure = camera_of(shot, SIZE), shot.figure
    assert figure is not None and shot.clip.bones is not None
    middles = project(camera, figure[:, shot.clip.bones].mean(2))[[0, 10, 20]]
    column, row = np.floor(middles).astype(int).transpose(2, 0, 1)
    there = np.take_along_axis(
        frames.pictures.reshape(3, -1, 3), (row * SIZE[0] + column)[..., None], 1
    )
    assert near(there, BONE).mean() > 0.8  # some bones are behind others' joints
    assert near(frames.pictures, BONE).mean() < 0.1
    assert column.max() < SIZE[0] / 2  # beside the robot, which is on the right
    assert project(camera, shot.bodies)[..., 0].min() > SIZE[0] / 2 - 10


def test_the_camera_fits_and_follows_smoothly(robot: Robot, trot: ReplayClip) -> None:
    shot = Shot(robot, replace(trot, keypoints=None, reference=None, command=None, achieved=None))
    camera = camera_of(shot, SIZE)
    span = np.ptp(project(camera, shot.bodies) / SIZE, axis=1).max(axis=0)  # of the picture
    assert 0.75 < (span / FILLED).max() < 1.0
    assert np.abs(np.diff(camera.lookat[:, 2])).max() < 1e-9
    sway = np.random.default_rng(0).normal(size=(200, 1))
    line = np.linspace(0.0, 3.0, 200)[:, None]
    np.testing.assert_allclose(smoothed(line, 50.0), line, atol=1e-9)  # to its very ends
    measured = np.abs(np.diff(smoothed(line + 0.1 * sway, 50.0), axis=0)).max()
    assert measured < 0.1 * np.abs(np.diff(0.1 * sway, axis=0)).max()
    fixed = camera_of(replace(shot, view=View(mode="fixed")), SIZE)
    assert (fixed.lookat == fixed.lookat[0]).all()


def test_a_ball_on_rough_ground(robot: Robot, drawing: Callable[..., Frames]) -> None:
    ball = np.linspace([0.8, 0.3, 0.12], [1.0, 0.3, 0.12], 11)
    heights = np.zeros((80, 80))
    heights[30:50] = 0.1  # far to the left
    clip = ReplayClip(
        "dribble",
        np.tile(robot.home_qpos, (11, 1)),
        50.0,
        ball=ball,
        ball_m=0.12,
        target=np.tile([1.2, -0.4], (11, 1)),
        ground=heights,
        ground_m=0.1,
    )
    shot = Shot(robot, clip, View(azimuth=180.0, elevation=-30.0, distance=4.0))
    frames, camera = drawing(shot), camera_of(shot, SIZE)
    for rgba, place in ((BALL, ball[:, None]), (TARGET, np.array([[[1.2, -0.4, 0.0]]] * 11))):
        column, row = project(camera, place)[0, 0].astype(int)
        measured = near(frames.pictures[0, row - 2 : row + 3, column - 4 : column + 5], rgba).mean()
        assert measured > 0.4


def test_the_robots_camera_sees_what_is_before_it(
    robot: Robot, drawing: Callable[..., Frames]
) -> None:
    """A ball on its optical axis is in the middle of the picture, one to the left is left of it."""
    mount, ahead = Mount((0.5, 0.0, 0.2), pitch=30.0, fovy=58.0), np.array([0.866, 0.0, -0.5])
    left = np.array([0.0, 0.3, 0.0])
    home = robot.home_qpos
    balls = home[:3] + np.array(mount.position) + np.stack((ahead, ahead + left))
    clip = ReplayClip(
        "seen",
        np.tile(home, (2, 1)),
        5.0,
        ball=balls,
        ball_m=0.05,
        target=np.tile([9.0, 9.0], (2, 1)),
    )
    shot = Shot(robot, clip, View(mode="robot"), mount=mount)
    for picture, column in zip(drawing(shot).pictures, (96, 96 - 0.3 / 0.554 * 64), strict=True):
        measured = near(picture, BALL).nonzero()
        assert np.abs(np.mean(measured, axis=1) - [64, column]).max() < 3.0
    with pytest.raises(InputError, match="camera=robot"):
        replace(shot, mount=None)


def test_same_shot_same_frames_and_words(
    filmed: tuple[Shot, Frames], drawing: Callable[..., Frames]
) -> None:
    shot, frames = filmed
    again = drawing(replace(shot, title="Trot", note="a dog's", frame=10), captions=True)
    # a driver may round otherwise after other frames: by one level
    changed = (np.abs(again.pictures.astype(int) - frames.pictures[1:2]) > 1).any(-1)
    assert changed[:, :90].mean() > 0.1 and not changed[:, 100:].any()
    assert (again.pictures[:, 12:24, 12:50].min((1, 2)) < 60).all()  # the title's ink


# --- without anything to draw with ---


@pytest.fixture
def frames() -> Frames:
    ramp = np.linspace(0, 255, 64).astype(np.uint8)
    picture = np.stack([np.tile(ramp, (48, 1))] * 3, axis=-1)
    return Frames(np.stack([np.roll(picture, 4 * t, axis=1) for t in range(12)]), 12.5, "none")


@pytest.mark.parametrize("suffix", [".gif", ".webp"])
def test_films_are_read_back(suffix: str, frames: Frames, tmp_path: Path) -> None:
    out = tmp_path / f"film{suffix}"
    assert write(out, frames)[0] == out.stat().st_size
    with Image.open(out) as image:
        assert (image.size, image.n_frames) == ((64, 48), 12)
        image.seek(7)
        image.load()
        assert image.info["duration"] == 80
        error = np.abs(np.asarray(image.convert("RGB")).astype(int) - frames.pictures[7])
        assert error.mean() < 6
    assert list(tmp_path.iterdir()) == [out]


def test_mp4_is_read_back(frames: Frames, tmp_path: Path) -> None:
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    write(tmp_path / "film.mp4", frames)
    reader = imageio_ffmpeg.read_frames(str(tmp_path / "film.mp4"))
    about = next(reader)
    assert about["size"] == (64, 48) and about["fps"] == 12.5
    pictures = [np.frombuffer(content, np.uint8).reshape(48, 64, 3) for content in reader]
    assert len(pictures) == 12
    assert np.abs(pictures[7].astype(int) - frames.pictures[7]).mean() < 8


def test_a_still(frames: Frames, tmp_path: Path) -> None:
    write(tmp_path / "still.png", frames)
    with Image.open(tmp_path / "still.png") as image:
        np.testing.assert_array_equal(np.asarray(image), frames.pictures[0])


def test_bytes_are_bounded(frames: Frames, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (12, 48, 64, 3)).astype(np.uint8)
    noisy = replace(frames, pictures=noise)
    free, best = write(tmp_path / "free.webp", noisy)
    tight, lower = write(tmp_path / "tight.webp", noisy, max_mb=0.6 * free / 1e6)
    assert tight <= 0.6 * free and lower < best
    with pytest.raises(InputError, match="max_mb=1e-05"):
        write(tmp_path / "none.webp", noisy, max_mb=1e-5)
    assert not (tmp_path / "none.webp").exists()


def test_the_error_without_a_backend_has_its_reason(
    robot: Robot, trot: ReplayClip, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(backend, "BACKENDS", ("wrong",))
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    refusal(
        "no rendering backend works: wrong: .*invalid value", draw, [Shot(robot, trot)], SIZE, 5.0
    )


def test_shots_fade_into_each_other() -> None:
    dark, bright = np.zeros((6, 2, 2, 3), np.uint8), np.full((6, 2, 2, 3), 200, np.uint8)
    joined = film._joined([dark, bright], 3)
    assert joined[:, 0, 0, 0].tolist() == [0, 0, 0, 50, 100, 150, 200, 200, 200]
