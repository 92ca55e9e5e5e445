"""A depth camera: images by hand and by marching along each ray, faults, and when an image is
seen."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from npmp.core import geometry
from npmp.core.settings import changed
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.envs.camera import CAMERAS, CameraConfig, DepthCamera, camera_of, recorded
from npmp.robots import Robot
from npmp.sim.terrain import Terrain, TerrainConfig
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.skill_module import SkillModule
from npmp.tasks import Walk, WalkConfig
from tests.refusals import refusal

PERFECT = CameraConfig(noise_stereo=0.0, holes=0.0)
CPU = torch.device("cpu")


def camera(config: CameraConfig = PERFECT, n: int = 1) -> DepthCamera:
    made = DepthCamera(config)
    made.allocate(n, 0.02, CPU)
    return made


@pytest.mark.parametrize("yaw", [0.0, 2.0])
def test_a_floor_and_a_wall_by_hand(yaw: float) -> None:
    """A level robot, its camera 0.6 m above the floor and 1.55 m before a wall that is 0.3 m high:
    a ray ends at depth 0.6 / -z, at the wall at 1.55 / x where it is below its top, or beyond."""
    eye, turn = camera(replace(PERFECT, size=(15, 9))), geometry.yaw_matrix(torch.tensor([yaw]))

    def height(place: Tensor) -> Tensor:
        ahead = (place * turn[0, :2, 0]).sum(-1)
        return torch.where(ahead > 2.0, 0.3, 0.0)

    result = eye.depths(torch.tensor([[0.0, 0.0, 0.5]]), turn, height)[0]
    x, _, z = eye.rays.unbind(-1)
    floor, wall, top = 0.6 / -z, 1.55 / x, 0.3 / -z
    depth = torch.where(z < 0.0, torch.where(x * floor < 1.55, floor, top), 9.0)
    meets = (0.6 + z * wall > 0.0) & (0.6 + z * wall < 0.3) & (x > 0.0)
    depth = torch.where(meets, wall, depth).clamp(0.2, 4.0)
    off = (result - depth).abs()
    assert off.quantile(0.9) < 0.012 and (off > 0.02).float().mean() < 0.03  # at the wall's edge
    # the middle pixel looks 35 degrees down: it ends on the floor
    assert result[4 * 15 + 7].item() == pytest.approx(0.6 / 0.5736, abs=0.012)


@pytest.mark.parametrize(("kind", "share"), [("perlin", 0.99), ("stairs", 0.97), ("slopes", 0.99)])
def test_images_are_those_of_a_march_along_each_ray(kind: str, share: float) -> None:
    terrain, n = Terrain(TerrainConfig(kind, fields=2)), 6
    g, eye = torch.Generator().manual_seed(0), camera(replace(PERFECT, size=(32, 18)))
    place = terrain.starts[torch.randint(2, (n,), generator=g), torch.arange(n)]
    position = torch.cat((place, terrain.height_at(place).unsqueeze(-1) + 0.5), -1)
    lean = torch.linalg.matrix_exp(geometry.skew(0.2 * torch.randn(n, 3, generator=g)))
    rotation = geometry.yaw_matrix(6.0 * torch.rand(n, generator=g)) @ lean
    result = eye.depths(position, rotation, terrain.height_at)
    rays, at = eye.rays @ rotation.mT, position + rotation @ eye.position
    steps = torch.arange(0.0, 4.0, 0.01)
    way = at[:, None, None] + rays[:, :, None] * steps[:, None]
    below = terrain.height_at(way[..., :2]) >= way[..., 2]
    marched = torch.where(below.any(-1), steps[below.float().argmax(-1)], 4.0).clamp(0.2, 4.0)
    assert ((result - marched).abs() < 0.03).float().mean() > share


def test_faults_have_their_sizes() -> None:
    eye = camera(replace(PERFECT, noise_stereo=0.01, noise_flight=0.02, holes=0.1))
    noise, other = torch.randn(2, 20_000, generator=torch.Generator().manual_seed(0))
    image = eye.add_noise(torch.full((20_000,), 2.0), noise, other)
    lost = image == 4.0
    assert lost.float().mean().item() == pytest.approx(0.1, abs=0.01)
    assert image[~lost].mean().item() == pytest.approx(2.0, abs=0.005)
    assert image[~lost].std().item() == pytest.approx(0.01 * 4.0 + 0.02 * 2.0, rel=0.05)
    assert (eye.add_noise(torch.full((9,), 4.0), noise[:9], other[:9]) == 4.0).all()


@pytest.mark.parametrize(("delay_s", "images"), [(0.0, 1), (0.1, 2), (0.14, 3)])
def test_images_come_at_their_rate_and_late(delay_s: float, images: int) -> None:
    """At 10 Hz of 50 each control step shows an image that is older by the delay, by up to 4 steps
    more; robots have rhythms of their own. An image here is the step of its moment."""
    eye, now = camera(replace(PERFECT, delay_s=delay_s), 64), [0.0]
    eye._image = lambda ids: torch.full((len(ids), 144), now[0])  # type: ignore[method-assign]
    step_result, generator = cast(Any, None), torch.Generator().manual_seed(0)
    eye.begin(torch.arange(64), generator)
    assert eye.past.shape[1] == images and (eye.read() == 0.0).all()
    delay = round(50 * delay_s)
    for step in range(1, 41):
        now[0] = float(step)
        eye.advance(step_result, generator)
        age = step - eye.read()[:, 0]
        if step > delay + 5:
            assert age.min() >= delay and age.max() <= delay + 4
            assert set(age.tolist()) == {float(delay + k) for k in range(5)}
            assert torch.equal(eye.arrives(), age == delay)


def test_a_walking_robot_observes_and_goes_on_and_imagines(robot: Robot) -> None:
    config = changed(WalkConfig(), terrain="stairs", terrain_fields=2, camera="stereo")

    def make(seed: int) -> TaskEnv[Walk]:
        robots = RobotBatchConfig()
        return TaskEnv(Walk(robot, config), 3, robots=robots, seed=seed, num_threads=1)

    env, other = make(0), make(1)
    assert env.task.observe().shape == (3, 3 + 144)
    for _ in range(7):
        env.step(torch.zeros(3, 12))
    other.load_state_dict({name: value.clone() for name, value in env.state_dict().items()})
    for _ in range(6):
        seen = [(each.step(torch.zeros(3, 12)), each.task.observe())[1] for each in (env, other)]
        assert torch.equal(*seen)
    eye, ground, state = env.task.part(DepthCamera), env.ground, env.ground.integrated(env.state)
    draws = torch.zeros(3, 2, 144)  # half of a normal's numbers are below 0, holes are fewer
    patch = ground.patch(env.state)
    above = state.above(patch[:, 0])
    imagined = eye.imagined(above, partial(ground.above, patch=patch), torch.zeros(3, 3), draws)
    true = eye.depths(env.state.root_pos, env.state.root_rot, ground.height_in_world)
    # imagined fields repeat where simulated ones end, a metre beyond a field's period
    near = true < 1.0
    assert near.float().mean() > 0.2
    assert ((imagined - true).abs() < 0.02)[near].float().mean() > 0.9


def test_a_policy_keeps_its_camera(robot: Robot, skill: SkillModule, tmp_path: Path) -> None:
    task = Walk(robot, WalkConfig(camera="flight"))
    TaskEnv(task, 1, num_threads=1)
    HighLevelPolicy.for_task(skill, task).save(tmp_path)
    policy = HighLevelPolicy.load(tmp_path)
    known = policy.contract.input_settings
    assert camera_of(known["camera"]) == CAMERAS["flight"]
    assert Walk.resolve(WalkConfig(), None, known).camera == recorded(CAMERAS["flight"])
    policy.check_task(Walk(robot, WalkConfig(camera="flight")))
    refusal("task.camera=", Walk.resolve, WalkConfig(camera="stereo"), None, known)
    refusal("the policy's camera is", policy.check_task, Walk(robot, WalkConfig(camera="stereo")))


def test_cameras_by_name_file_and_mapping(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("size: [8, 6]\nplace_m: [0.3, 0.0, 0.05]\n")
    mine = camera_of(str(tmp_path / "mine.yaml"))
    assert mine == camera_of({"size": [8, 6], "place_m": [0.3, 0.0, 0.05]}) != CameraConfig()
    refusal("no camera 'lidar'; available: stereo, flight", camera_of, "lidar")
    refusal("camera has no setting 'sise'", camera_of, {"sise": [8, 6]})
    for wrong in ({"fov_deg": [180.0, 9.0]}, {"range_m": [2.0, 1.0]}, {"holes": 2.0}):
        refusal(next(iter(wrong)), camera_of, wrong)
