"""Kinds of movement."""

from __future__ import annotations

import numpy as np
import pytest

from mocap_data.motion import ReferenceMotion
from retarget.motion_summary import kinds_of


def moving(
    speed: float, turn: float = 0.0, *, seconds: float = 2.0, rms: float | None = None
) -> ReferenceMotion:
    """A root that goes straight on at `speed` [m/s] while it turns by `turn` [rad/s]; no joints, 50
    Hz."""
    time = np.arange(round(seconds * 50) + 1) / 50
    qpos = np.zeros((len(time), 7))
    qpos[:, 0] = speed * time
    qpos[:, 3] = np.cos(0.5 * turn * time)
    qpos[:, 6] = np.sin(0.5 * turn * time)
    quality = {} if rms is None else {"rms_marker_m": rms}
    return ReferenceMotion("made", qpos, 50.0, quality=quality)


@pytest.mark.parametrize(
    ("speed", "turn", "expected"),
    [
        (0.1, 0.0, ("still",)),
        (0.1, 1.0, ("still",)),  # turning on the spot without moving: no gait
        (0.5, 0.2, ("walk",)),
        (0.5, -0.4, ("walk", "turn")),
        (1.0, 5.0, ("trot", "turn")),  # turned by more than half a circle
        (2.0, 0.0, ("canter",)),
    ],
)
def test_kinds(speed: float, turn: float, expected: tuple[str, ...]) -> None:
    assert kinds_of(moving(speed, turn)) == expected
