"""Eyes learn depths of pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from npmp.envs.camera import CAMERAS
from npmp.envs.depth_network import DepthNetwork
from npmp.learning import depth_training as seeing
from npmp.learning.depth_training import Scenes, SeeingConfig, judge, learn, loss_of
from npmp.robots import Robot


def test_the_loss_by_hand() -> None:
    """A factor of e too far, of scale 1, and half as far as it is, of scale 0.5: |error| / scale +
    log(2 scale)."""
    made, spread = torch.tensor([2.0 * torch.e, 0.5]), torch.tensor([1.0, 0.5])
    found = loss_of(made, spread, torch.tensor([2.0, 1.0]))
    torch.testing.assert_close(found, torch.tensor((1.0 + 0.6931472 + 2.0 * 0.6931472) / 2.0))


def test_scenes_are_outside_of_walls(robot: Robot) -> None:
    scenes = Scenes(CAMERAS["stereo"], robot, houses=2, seed=3)
    pictures, moved, rotations, depths = drawn = scenes.draw(64)
    assert pictures.shape[1:] == (2, 36, 64, 3) and depths.shape == (len(pictures), 144)
    assert rotations.shape == (len(pictures), 2, 3, 3) and depths.amax(-1).min() > 0.25
    assert 0.9 < rotations[..., 2, 2].min() < rotations[..., 2, 2].max() < 1.0
    alone = (moved == 0.0).all(-1)
    assert 0.0 < alone.float().mean() < 0.4 and moved[..., :2].norm(dim=-1).max() < 0.66
    before = scenes.given(drawn)[2]
    assert (before[alone, :-1] == -1.0).all() and (before[:, -1] > 0.0).float().mean() > 0.6
    again = Scenes(CAMERAS["stereo"], robot, houses=2, seed=3).draw(64)
    assert all(map(torch.equal, drawn, again))


def test_a_few_pictures_are_learned(
    tmp_path: Path, robot: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeing, "BATCH", 16)
    said = list[str]()
    config = SeeingConfig(pictures=32, houses=1, updates=80, out=str(tmp_path / "eyes"))
    eyes = learn(config, said.append)
    assert said[-1].startswith("80/80")
    with Image.open(tmp_path / "eyes/examples.png") as sheet:
        assert sheet.size == (2 * 4 * 64, 2 * 12 * 36)
    scenes = Scenes(CAMERAS["stereo"], robot, houses=1, seed=0)
    drawn = scenes.draw(32)
    torch.manual_seed(0)
    untrained = judge(DepthNetwork(eyes.contract), scenes, drawn)
    found = judge(DepthNetwork.load(tmp_path / "eyes"), scenes, drawn)
    assert found == judge(eyes, scenes, drawn)
    assert found["error_m"] < 0.7 * untrained["error_m"]
