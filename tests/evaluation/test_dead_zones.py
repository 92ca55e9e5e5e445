"""Small commands that a policy does not answer."""

from __future__ import annotations

import torch

from npmp.envs.task import Trial
from npmp.evaluation.dead_zones import LAST_S, ROBOTS, SIZES, commands_of, sides


def test_commands_end_with_the_policys_range() -> None:
    commands = commands_of(((0.0, 0.2), (-0.1, 0.1), (0.0, 0.0)))
    expected = torch.tensor(
        [[0.05, 0, 0], [0.1, 0, 0], [0.15, 0, 0], [0.2, 0, 0]]
        + [[0, 0.05, 0], [0, 0.1, 0], [0, -0.05, 0], [0, -0.1, 0]]
    )  # fmt: skip
    assert torch.equal(commands, expected)
    assert len(commands_of(((-1.0, 1.0),) * 3)) == 6 * len(SIZES)
    assert not len(commands_of(((0.0, 0.0),) * 3))


def test_dead_zones_by_hand() -> None:
    """Forward 0.05 gives 0, 0.1 a fifth of it, so from there it answers; backwards it goes forward,
    whatever is asked; with the largest turn, alone answered, one robot falls."""
    commands = torch.tensor([[0.05, 0, 0], [0.1, 0, 0], [-0.05, 0, 0], [0, 0, 0.05], [0, 0, 0.1]])
    each = commands.repeat_interleave(ROBOTS, 0)
    steps = round(LAST_S / 0.02)
    achieved = torch.zeros(2 * steps, len(each), 3)
    achieved[steps:, ROBOTS : 2 * ROBOTS, 0] = 0.021
    achieved[steps:, 2 * ROBOTS : 3 * ROBOTS, 0] = 0.05
    achieved[steps:, 4 * ROBOTS :, 2] = 0.1
    achieved[:steps] = 9.0  # what was before does not count
    falls = torch.zeros(2 * steps, len(each), dtype=torch.bool)
    falls[3, -1] = True
    trial = Trial({"achieved": achieved}, falls, falls, torch.zeros(1, 19), 0.02)
    ahead, back, turning = sides(trial, each)
    assert (ahead.axis, ahead.sign, ahead.up_to, ahead.first) == ("forward", 1, 0.05, 0.1)
    assert (back.sign, back.up_to, back.first) == (-1, 0.05, None)
    assert (turning.axis, turning.first) == ("yaw", None) and turning.up_to == 0.1
    assert str(ahead) == "forward +: up to 0.05 not answered, 0.1 is"
    assert str(back) == "forward -: up to 0.05 not answered, none is"
