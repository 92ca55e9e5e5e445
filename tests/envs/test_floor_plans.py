"""Rooms as MuJoCo's renderer shows them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from npmp.envs.floor_plans import boxes
from npmp.view.render import backend

# floors black, walls white: which is which must be as the drawn pictures have it
SAME = """
import torch
from npmp import robots
from npmp.envs import TaskEnv
from npmp.envs.camera import CAMERAS
from npmp.envs.images import finer
from npmp.envs.floor_plans import FloorPlanRenderer
from npmp.core.settings import changed
from npmp.tasks.navigate import Guided, NavigateConfig
task = Guided(robots.load("anymal_b"), changed(NavigateConfig(), terrain_fields=2))
env = TaskEnv(task, 6, num_threads=1)
eye, state = finer(CAMERAS["stereo"], torch.device("cpu")), env.state
plans = FloorPlanRenderer(CAMERAS["stereo"], eye)
seen = state.root_pos, state.root_rot, env.ground.terrain, env.ground.field
plans.images(*seen)
for model, *_ in plans.floor_plans.values():
    model.mat_texid[:] = -1
    model.mat_emission[:], model.mat_specular[:] = 1.0, 0.0
    model.mat_rgba[0, :3], model.mat_rgba[1, :3] = 0.0, 1.0
white = plans.images(*seen)[..., 0] > 0.5
depth = eye.depths(state.root_pos, state.root_rot, env.ground.height_in_world)
at = state.root_pos + state.root_rot @ eye.position
point = at[:, None] + depth[..., None] * (eye.rays @ state.root_rot.mT)
wall = point[..., 2] > env.ground.terrain.heights.min() + 0.03
print((wall.view(white.shape) == white).float().mean().item(), wall.float().mean().item())
"""


def test_boxes_cover_what_stands_once() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        stands = rng.random((13, 17)) < rng.random()
        count = np.zeros(stands.shape, int)
        for low, high in boxes(stands):
            count[low[0] : high[0], low[1] : high[1]] += 1
        assert (count == stands).all()


@pytest.mark.slow
def test_both_painters_see_the_same_house() -> None:
    able = [name for name, fault in backend.reasons().items() if not fault]
    if not able:
        pytest.skip("nothing can draw here")
    command, place = [sys.executable, "-c", SAME], backend.environment(able[0])
    done = subprocess.run(command, env=place, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    agree, walls = map(float, done.stdout.split())
    assert agree > 0.97 and 0.1 < walls < 0.9
