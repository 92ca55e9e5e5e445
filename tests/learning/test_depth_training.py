"""Training of depth networks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from npmp.envs.camera import CAMERAS
from npmp.envs.depth_network import DepthNetwork
from npmp.learning import depth_training
from npmp.learning.depth_training import DepthTrainingConfig, Scenes, depth_loss, evaluate, train
from npmp.robots import Robot


def test_loss_by_hand() -> None:
    """Off by a factor of e at scale 1, exact at scale 0.5: |error| / scale + log(2 scale)."""
    predicted = torch.tensor([2.0 * torch.e, 0.5])
    loss = depth_loss(predicted, torch.tensor([1.0, 0.5]), torch.tensor([2.0, 1.0]))
    torch.testing.assert_close(loss, torch.tensor((1.0 + 0.6931472 + 2.0 * 0.6931472) / 2.0))


def test_scenes_are_clear_of_walls_and_reproducible(robot: Robot) -> None:
    scenes = Scenes(CAMERAS["stereo"], robot, floor_plans=2, seed=3)
    images, moved, rotations, depths = samples = scenes.sample(64)
    assert images.shape[1:] == (2, 36, 64, 3) and depths.shape == (len(images), 144)
    assert rotations.shape == (len(images), 2, 3, 3) and depths.amax(-1).min() > 0.25
    assert 0.9 < rotations[..., 2, 2].min() < rotations[..., 2, 2].max() < 1.0
    starts = (moved == 0.0).all(-1)
    assert 0.0 < starts.float().mean() < 0.4 and moved[..., :2].norm(dim=-1).max() < 0.66
    before = scenes.inputs(samples)[2]
    assert (before[starts, :-1] == -1.0).all() and (before[:, -1] > 0.0).float().mean() > 0.6
    again = Scenes(CAMERAS["stereo"], robot, floor_plans=2, seed=3).sample(64)
    assert all(map(torch.equal, samples, again))


def test_a_small_data_set_is_learned(
    tmp_path: Path, robot: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depth_training, "BATCH", 16)
    lines: list[str] = []
    config = DepthTrainingConfig(pictures=32, houses=1, updates=80, out=str(tmp_path / "eyes"))
    network = train(config, lines.append)
    assert lines[-1].startswith("80/80")
    with Image.open(tmp_path / "eyes/examples.png") as sheet:
        assert sheet.size == (2 * 4 * 64, 2 * 12 * 36)
    scenes = Scenes(CAMERAS["stereo"], robot, floor_plans=1, seed=0)
    samples = scenes.sample(32)
    torch.manual_seed(0)
    untrained = evaluate(DepthNetwork(network.contract), scenes, samples)
    trained = evaluate(DepthNetwork.load(tmp_path / "eyes"), scenes, samples)
    assert trained == evaluate(network, scenes, samples)
    assert trained["error_m"] < 0.7 * untrained["error_m"]
