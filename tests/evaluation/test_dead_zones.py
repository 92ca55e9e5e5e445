"""Dead zones of a policy."""

from __future__ import annotations

import torch

from npmp.envs.task import Trial
from npmp.evaluation.dead_zones import (
    LAST_S,
    MAGNITUDES,
    ROBOTS_PER_COMMAND,
    axis_commands,
    dead_zones_of,
)


def test_commands_end_with_the_policys_range() -> None:
    commands = axis_commands(((0.0, 0.2), (-0.1, 0.1), (0.0, 0.0)))
    expected = torch.tensor(
        [[0.05, 0, 0], [0.1, 0, 0], [0.15, 0, 0], [0.2, 0, 0]]
        + [[0, 0.05, 0], [0, 0.1, 0], [0, -0.05, 0], [0, -0.1, 0]]
    )  # fmt: skip
    assert torch.equal(commands, expected)
    assert len(axis_commands(((-1.0, 1.0),) * 3)) == 6 * len(MAGNITUDES)
    assert not len(axis_commands(((0.0, 0.0),) * 3))


def test_dead_zones_by_hand() -> None:
    """Forward 0.05 gives 0 and 0.1 a fifth, a response; backward gives forward motion; yaw has a
    response to the largest command only, where one robot falls."""
    commands = torch.tensor([[0.05, 0, 0], [0.1, 0, 0], [-0.05, 0, 0], [0, 0, 0.05], [0, 0, 0.1]])
    each = commands.repeat_interleave(ROBOTS_PER_COMMAND, 0)
    steps = round(LAST_S / 0.02)
    achieved = torch.zeros(2 * steps, len(each), 3)
    achieved[steps:, ROBOTS_PER_COMMAND : 2 * ROBOTS_PER_COMMAND, 0] = 0.021
    achieved[steps:, 2 * ROBOTS_PER_COMMAND : 3 * ROBOTS_PER_COMMAND, 0] = 0.05
    achieved[steps:, 4 * ROBOTS_PER_COMMAND :, 2] = 0.1
    achieved[:steps] = 9.0  # not measured
    falls = torch.zeros(2 * steps, len(each), dtype=torch.bool)
    falls[3, -1] = True
    trial = Trial({"achieved": achieved}, falls, falls, torch.zeros(1, 19), 0.02)
    ahead, back, turning = dead_zones_of(trial, each)
    assert (ahead.axis, ahead.sign, ahead.up_to, ahead.first) == ("forward", 1, 0.05, 0.1)
    assert (back.sign, back.up_to, back.first) == (-1, 0.05, None)
    assert (turning.axis, turning.first) == ("yaw", None) and turning.up_to == 0.1
    assert str(ahead) == "forward +: no response up to 0.05, response from 0.1"
