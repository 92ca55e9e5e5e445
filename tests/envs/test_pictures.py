"""Colour pictures, and a camera whose depths a network makes of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mocap_data.errors import InputError
from npmp.envs import TaskEnv
from npmp.envs.camera import CAMERAS, camera_of
from npmp.envs.pictures import DrawnLooks, Looks, PictureCamera, frame
from npmp.nets.eyes import Eyes, EyesContract
from npmp.robots import Robot
from npmp.settings import as_plain
from npmp.tasks.navigate import Mapped, NavigateConfig

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eyes that have learned nothing."""
    torch.manual_seed(0)
    contract = EyesContract(as_plain(frame(CAMERAS["stereo"])), channels=8)
    Eyes(contract).save(tmp_path / "eyes")
    return tmp_path / "eyes"


def test_colors_by_hand() -> None:
    """A floor, and a wall 0.8 m high from x = 2 m on, of one colour each: half of the light is
    everywhere, half comes along (-0.6, 0, 0.8)."""
    looks = Looks(1, torch.Generator(), CPU)
    for name in ("contrast", "corners", "haze"):
        getattr(looks, name).zero_()
    looks.gain, looks.gamma, looks.ambient = torch.ones(1, 3), torch.ones(1), torch.full((1,), 0.5)
    looks.light = torch.tensor([[-0.6, 0.0, 0.8]])
    floor, wall, sky = looks.colors[0, :, 0]

    def height_at(place: torch.Tensor) -> torch.Tensor:
        return torch.where(place[..., 0] > 2.0, 0.8, 0.0)

    terrain = SimpleNamespace(heights=torch.tensor([0.0, 0.8]), height_at=height_at)
    point = torch.tensor([[[1.0, 0.0, 0.0], [2.01, 0.0, 0.4], [2.5, 1.0, 0.4], [9.0, 0.0, 0.5]]])
    ray, depth = point - torch.tensor([0.0, 0.0, 0.6]), torch.tensor([[1.0, 2.0, 2.5, 6.0]])
    found = looks.paint(point, ray, depth, terrain)[0]  # type: ignore[arg-type]
    # the third is met along y, on a face that the light passes by
    expected = torch.stack((floor * 0.9, wall * 0.8, wall * 0.5, sky))
    torch.testing.assert_close(found, expected)


def test_who_begins_an_episode_is_elsewhere() -> None:
    drawn = DrawnLooks(CAMERAS["stereo"], 3, torch.Generator().manual_seed(0), CPU)
    before = drawn.looks.colors.clone()
    drawn.begin(None, torch.tensor([1]))
    same = (drawn.looks.colors == before).flatten(1).all(-1)
    assert same.tolist() == [True, False, True]


def test_eyes_take_the_depths_place(robot: Robot, folder: Path) -> None:
    """What a policy reads is what the network makes of the picture of that moment."""
    task = Mapped(robot, NavigateConfig(camera=str(folder), terrain_fields=2))
    env = TaskEnv(task, 3, num_threads=1)
    eye = task.eye
    assert isinstance(eye, PictureCamera) and eye.config.holes == 0.0
    ids = torch.arange(3)
    eye.painter.looks.noise.zero_()  # type: ignore[attr-defined]
    pictures = eye.painter.pictures(env, ids)
    assert pictures.shape == (3, 36, 64, 3) and 0.0 <= pictures.min() < pictures.max() <= 1.0
    eye.age.fill_(eye.period)
    eye.advance(env)
    near, far = eye.config.range_m
    torch.testing.assert_close(eye.past[:, 0], eye.eyes(pictures).clamp(near, far))


def test_eyes_are_of_one_camera(folder: Path) -> None:
    known = camera_of(str(folder))
    assert known == camera_of({"eyes": str(folder)}) and known.noise_stereo == 0.0
    assert Eyes.load(folder).contract.channels == 8
    with pytest.raises(InputError, match=r"eyes of a camera with \{'pitch_deg': 35.0\}"):
        PictureCamera(replace(known, pitch_deg=20.0))
    with pytest.raises(InputError, match=r"eyes\.json"):
        PictureCamera(replace(known, eyes=str(folder / "none")))


def test_the_network_sees_no_brightness(folder: Path) -> None:
    """A picture of half the contrast is the same to it, but for what keeps it finite."""
    eyes, picture = Eyes.load(folder), torch.rand(2, 36, 64, 3)
    made = eyes(picture)
    assert made.shape == (2, 16 * 9) and made.min() > 0.2
    dim = eyes(0.3 + 0.5 * picture)
    assert (made.log() - dim.log()).abs().max() < 0.05 * math.log(4.0 / 0.2)
