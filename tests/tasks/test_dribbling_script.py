"""The scripted dribbler: what it commands in situations whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from npmp.tasks.teachers.dribbling import DribbleScriptConfig, dribble_command

CONFIG = DribbleScriptConfig()


def command(ball: tuple[float, float], target: tuple[float, float]) -> list[float]:
    return dribble_command(torch.tensor([ball]), torch.tensor([target]), CONFIG)[0].tolist()


def test_behind_the_ball_it_walks_straight_on() -> None:
    """The ball ahead of the left fore foot, the target straight beyond it: forwards, neither
    sideways nor turning."""
    forward, left, turn = command((0.6, CONFIG.side), (3.0, CONFIG.side))
    # 0.660 m from it: close = sqrt(1 - 0.660 / 0.903) = 0.519, 0.519 (0.376 + 0.056 * 2.4) + 0.481
    # * 1.37 = 0.924
    assert forward == pytest.approx(0.924, abs=2e-3) and abs(left) < 1e-5 and abs(turn) < 1e-5


def test_a_ball_at_its_target_is_left_alone() -> None:
    assert command((0.5, 0.2), (0.55, 0.1)) == [0.0, 0.0, 0.0]


def test_what_is_mirrored_is_answered_mirrored_and_within_the_limits() -> None:
    generator = torch.Generator().manual_seed(0)
    ball, target = (2.0 * torch.randn(500, 2, generator=generator) for _ in range(2))
    mirror = torch.tensor([1.0, -1.0])
    found = dribble_command(ball, target, CONFIG)
    got = dribble_command(ball * mirror, target * mirror, CONFIG)
    torch.testing.assert_close(got, found * torch.tensor([1.0, -1.0, -1.0]), atol=1e-4, rtol=0)
    low, high = torch.tensor(CONFIG.lowest), torch.tensor(CONFIG.highest)
    assert bool(((found >= low - 1e-6) & (found <= high + 1e-6)).all())


def gliding(place: Tensor, heading: Tensor, ball: Tensor, target: Tensor, steps: int) -> Tensor:
    """Where robots (n,) that obey at once get to, the ball still: complex places (steps, n)."""
    seen = []
    for _ in range(steps):
        turn = torch.polar(torch.ones_like(heading), -heading)
        views = [torch.view_as_real((point - place) * turn) for point in (ball, target)]
        v = dribble_command(*views, CONFIG)
        place = place + 0.02 * torch.view_as_complex(v[:, :2].contiguous()) * turn.conj()
        heading = heading + 0.02 * v[:, 2]
        seen.append(place)
    return torch.stack(seen)


def test_from_anywhere_it_gets_behind_the_ball() -> None:
    """The ball at the origin, the target far along x. Robots from all around come to where a fore
    foot stands behind the ball: 0.37 m behind it, 0.27 m to one side."""
    angle = torch.linspace(0.0, 2.0 * math.pi, 17)[:-1]
    origin = torch.zeros(16, dtype=torch.complex64)
    path = gliding(
        torch.polar(torch.full((16,), 1.5), angle), angle * 3.0, origin, origin + 10.0, 300
    )
    near = (path.imag.abs() - CONFIG.side).abs() + (path.real + CONFIG.reach).abs()
    assert bool((near.amin(0) < 0.1).all())
