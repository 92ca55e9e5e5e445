"""Colour pictures, and a camera whose depths a network makes of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mocap_data.errors import InputError
from npmp.core.geometry import exp_so3
from npmp.core.settings import changed
from npmp.envs import TaskEnv
from npmp.envs.camera import CAMERAS, camera_of, recorded
from npmp.envs.depth_network import SHARES, DepthNetwork, DepthNetworkContract
from npmp.envs.images import (
    APPEARANCE_SIZE,
    Appearances,
    ImageCamera,
    View,
    compared,
    level_of,
    render_images,
)
from npmp.learning.depth_training import Scenes
from npmp.robots import Robot
from npmp.tasks import Walk, WalkConfig
from npmp.tasks.navigate import Mapped, NavigateConfig


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eyes that have learned nothing."""
    torch.manual_seed(0)
    contract = DepthNetworkContract(recorded(CAMERAS["stereo"]), height_m=0.5, channels=8)
    DepthNetwork(contract).save(tmp_path / "eyes")
    return tmp_path / "eyes"


def test_colors_by_hand() -> None:
    """A floor, and a wall 0.8 m high from x = 2 m on, of one colour each: half of the light is
    everywhere, half comes along (-0.6, 0, 0.8), and a shadow takes half of it at x = 1 m."""
    looks = Appearances(torch.rand(1, APPEARANCE_SIZE, generator=torch.Generator().manual_seed(0)))
    for name in ("contrast", "corners", "haze"):
        getattr(looks, name).zero_()
    looks.tint, looks.exposure, looks.gamma = (torch.ones(1, 3), torch.ones(1, 1), torch.ones(1))
    looks.ambient, looks.bearing = torch.full((1,), 0.5), torch.full((1,), math.pi)
    looks.height = torch.asin(torch.tensor([0.8]))
    looks.shadows = torch.tensor([[[-0.5 * math.pi, 0.0, 0.0]] * 2])
    looks.dark, looks.edges = torch.full((1,), 0.5), torch.full((1,), 4.0)
    floor, wall, sky = looks.colors[0, :, 0]

    def height_at(place: torch.Tensor) -> torch.Tensor:
        return torch.where(place[..., 0] > 2.0, 0.8, 0.0)

    terrain = SimpleNamespace(heights=torch.tensor([0.0, 0.8]), height_at=height_at)
    point = torch.tensor([[[1.0, 0.0, 0.0], [2.01, 0.0, 0.4], [2.5, 1.0, 0.4], [9.0, 0.0, 0.5]]])
    ray, depth = point - torch.tensor([0.0, 0.0, 0.6]), torch.tensor([[1.0, 2.0, 2.5, 6.0]])
    result = looks.paint(point, ray, depth, terrain)[0]  # type: ignore[arg-type]
    # the third is met along y, on a face that the light passes by
    expected = torch.stack((floor * 0.45, wall * 0.8, wall * 0.5, sky))
    torch.testing.assert_close(result, expected)


def test_blur_is_a_mean_of_neighbours(robot: Robot) -> None:
    scenes = Scenes(CAMERAS["stereo"], robot, floor_plans=2, seed=0)
    where = scenes.poses(2)[0]
    drawn = torch.rand(len(where[0]), APPEARANCE_SIZE, generator=scenes.generator)
    drawn[:, -1] = 0.0  # noise
    made = list[torch.Tensor]()
    for blur in (0.0, 1.0):
        drawn[:, -2] = blur
        given = scenes.fine, *where, scenes.terrain, drawn, scenes.generator
        made.append(render_images(*given))
    sharp, soft = made
    torch.testing.assert_close(soft[:, 9, 9], sharp[:, 8:11, 8:11].mean((1, 2)))
    torch.testing.assert_close(soft[:, 0, 0], sharp[:, :2, :2].mean((1, 2)))


def test_what_eyes_see_is_kept(robot: Robot, folder: Path) -> None:
    """A task that goes on from a checkpoint sees the same pictures; one that begins sees others."""
    made = [
        Mapped(robot, changed(NavigateConfig(), camera=str(folder), terrain_fields=2))
        for _ in range(2)
    ]
    envs = [TaskEnv(task, 3, seed=seed, num_threads=1) for seed, task in enumerate(made)]
    before = made[0].planner.camera.appearances.clone()
    envs[0].reset(torch.tensor([False, True, False]))
    same = (made[0].planner.camera.appearances == before).all(-1)
    assert same.tolist() == [True, False, True]
    envs[0].robots.shift(torch.arange(3), torch.tensor([[0.3, 0.0, 0.0]]).expand(3, -1))
    made[0].planner.camera.age.fill_(made[0].planner.camera.period)
    made[0].planner.camera.advance(made[0].evaluate_step(), envs[0].generator)
    made[1].load_state_dict(made[0].state_dict())
    for name in ("appearances", "views", "poses"):
        kept = getattr(made[0].planner.camera, name)
        assert torch.equal(getattr(made[1].planner.camera, name), kept)
    assert not torch.equal(kept[:, 0], kept[:, 1])


def test_eyes_are_for_rooms(robot: Robot, folder: Path) -> None:
    with pytest.raises(InputError, match="rooms"):
        Walk(robot, WalkConfig(camera=str(folder)))
    with pytest.raises(InputError, match="network"):
        camera_of({"renderer": "mujoco"})
    with pytest.raises(InputError, match="camera"):
        camera_of(3)  # type: ignore[arg-type]


def test_eyes_take_the_depths_place(
    robot: Robot, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a policy reads is what the network makes of the picture of that moment."""
    task = Mapped(robot, changed(NavigateConfig(), camera=str(folder), terrain_fields=2))
    env = TaskEnv(task, 3, num_threads=1)
    eye = task.planner.camera
    assert isinstance(eye, ImageCamera) and eye.config.holes == 0.0
    ids = torch.arange(3)
    eye.appearances[:, -1] = 0.0  # noise
    view = eye.view(ids)
    assert view.image.shape == (3, 36, 64, 3)
    assert 0.0 <= view.image.min() < view.image.max() <= 1.0
    level = level_of(eye.fine, env.state.root_rot[:, 2], 0.5)
    depth, spread = eye.network(view.image, level, compared(eye.fine, view, view, level))
    sure = spread < spread.median()  # the others are holes
    monkeypatch.setattr("npmp.envs.images.UNSURE", spread.median())
    eye.age.fill_(eye.period)
    eye.advance(env.task.evaluate_step(), env.generator)
    near, far = eye.config.range_m
    told = torch.where(sure, depth, far).clamp(near, far)
    torch.testing.assert_close(eye.past[:, 0], told)


def test_a_level_floor_is_where_rays_end(robot: Robot) -> None:
    """What eyes are told of a floor, against where the same camera's rays end on one."""
    scenes = Scenes(CAMERAS["stereo"], robot, floor_plans=2, seed=0)
    position, rotation = scenes.poses(32)[0]
    position[:, 2] = scenes.height
    depth = scenes.fine.depths(position, rotation, lambda place: torch.zeros(place.shape[:-1]))
    level = level_of(scenes.fine, rotation[:, 2], scenes.height).flatten(1)
    seen = depth < 5.9
    assert 0.5 < seen.float().mean() < 1.0 and level[~seen].max() < 1.02 / 5.9
    torch.testing.assert_close(level[seen], 1.0 / depth[seen], rtol=0.01, atol=0.0)


@pytest.mark.parametrize("turn", [0.0, 0.3])
def test_an_earlier_picture_agrees_where_things_are(robot: Robot, turn: float) -> None:
    """A robot walks 0.4 m ahead, and may turn and lean, over a floor whose brightness is a wave
    along x and y: its two pictures agree at the floor's own depth, best of all shares; those of a
    plane that is nearer at its own share. What it sees before its feet after a way back was out of
    sight."""
    scenes, still = Scenes(CAMERAS["stereo"], robot, floor_plans=2, seed=0), torch.eye(3)[None]
    fine, turned = scenes.fine, exp_so3(torch.tensor([[0.1 * turn, -0.2 * turn, turn]]))

    def seen(x: float, share: float, turned: torch.Tensor) -> View:
        at = torch.tensor([[x, 0.0, scenes.height]])
        depth = share / level_of(fine, turned[:, 2], scenes.height).clamp(min=0.1).flatten(1)
        point = (at + turned @ fine.position)[:, None] + depth[..., None] * (fine.rays @ turned.mT)
        wave = 0.5 + 0.25 * torch.sin(9.0 * point[..., 0]) + 0.25 * torch.sin(7.0 * point[..., 1])
        return View(wave.view(1, 36, 64, 1).expand(-1, -1, -1, 3), at, turned)

    level = level_of(fine, still[:, 2], scenes.height)
    for number, share in enumerate(SHARES):
        now, before = seen(0.4, share, still), seen(0.0, share, turned)
        result = compared(fine, now, before, level)[0]
        off = result[:-1].masked_fill(result[:-1] < 0.0, math.nan)
        mean = off[:, 12:28].flatten(1).nanmean(-1)
        best, second = mean.sort().values[:2]
        assert mean.argmin() == number and best < 0.7 * second and (turn or best < 0.03)
        assert turn or (result[0] >= 0.0).all()
        back = compared(fine, before, now, level)[0]
        assert turn or ((back[0, -1] == -1.0).all() and (back[0, 9, 16:48] >= 0.0).all())
    alone = compared(fine, now, now, level)
    assert (alone[:, :-1] == -1.0).all() and (alone[:, -1] == 0.0).all()


def test_earlier_pictures_are_from_elsewhere(robot: Robot, folder: Path) -> None:
    """A robot that is shifted by 0.1 m each time compares with a place 0.25 to 0.5 m away, from the
    third on; one that begins anew has none."""
    task = Mapped(robot, changed(NavigateConfig(), camera=str(folder), terrain_fields=2))
    env, eye = TaskEnv(task, 2, num_threads=1), task.planner.camera
    assert isinstance(eye, ImageCamera)
    ids, apart = torch.arange(2), list[float]()
    for _ in range(12):
        env.robots.shift(ids, torch.tensor([[0.1, 0.0, 0.0], [0.0, 0.0, 0.0]]))
        now = eye.view(ids)
        away = (now.position - eye._earlier(now, ids).position)[:, :2].norm(dim=-1)
        assert away[1] == 0.0
        apart.append(away[0].item())
    assert max(apart[:2]) < 0.25 and 0.29 < min(apart[2:]) < max(apart) < 0.51
    eye.begin(torch.tensor([0]), env.generator)
    now = eye.view(ids)
    assert torch.equal(eye._earlier(now, ids).position[0], now.position[0])


def test_eyes_are_of_one_camera(folder: Path) -> None:
    known = camera_of(str(folder))
    assert known == camera_of({"eyes": str(folder)}) and known.noise_stereo == 0.0
    assert DepthNetwork.load(folder).contract.channels == 8
    with pytest.raises(InputError, match=r"pitch_deg 35.0, not 20.0"):
        ImageCamera(replace(known, pitch_deg=20.0), 0.5)
    with pytest.raises(InputError, match=r"0.50 m above the floor, .* at 0.30 m; train"):
        ImageCamera(known, 0.3)
    with pytest.raises(InputError, match=r"eyes\.json"):
        ImageCamera(replace(known, network=str(folder / "none")), 0.5)


def test_the_network_sees_no_brightness(folder: Path) -> None:
    """A picture of half the contrast is the same to it, but for what keeps it finite."""
    eyes, picture, level = (
        DepthNetwork.load(folder),
        torch.rand(2, 36, 64, 3),
        torch.rand(2, 36, 64),
    )
    before = torch.rand(2, len(SHARES) + 1, 36, 64)
    made, spread = eyes(picture, level, before)
    assert made.shape == spread.shape == (2, 16 * 9) and made.min() > 0.2
    before[:, :-1] *= 0.5
    dim = eyes(0.3 + 0.5 * picture, level, before)[0]
    assert (made.log() - dim.log()).abs().max() < 0.05 * math.log(4.0 / 0.2)
