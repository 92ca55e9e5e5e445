"""Kinds of movement."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mocap_data import dog_gait
from mocap_data.motion import ReferenceMotion
from npmp import robots
from retarget import retarget
from retarget.motion_summary import kinds_of, worst
from retarget.recording_checks import recording_warnings, retargeting_warning


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


def test_long_and_slow_is_warned_of() -> None:
    walk = dog_gait("walk", duration_s=1.5)
    motion = retarget(walk, robots.load("anymal_b"))
    assert recording_warnings(walk, None) == [] and retargeting_warning(motion, []) == ""
    slow = dataclasses.replace(walk, rate_hz=0.1)  # 90 frames: 900 s
    warnings = recording_warnings(slow, None)
    assert "900 s at 0.1 frames/s (rate?" in retargeting_warning(motion, warnings)
    beyond = dataclasses.replace(motion, quality={**motion.quality, "limit_violations": 1.0})
    assert "1 limit violation (" in retargeting_warning(beyond, [])
    assert retargeting_warning(beyond, [], cleaned=True) == ""  # it is dropped, and listed there


def test_the_worst_are_not_all_of_one_recording() -> None:
    walk = dog_gait("walk", duration_s=1.5)
    motion = retarget(walk, robots.load("anymal_b"))
    bad = {**motion.quality, "rms_marker_m": 0.5}
    chunks = [
        dataclasses.replace(motion, name=f"bad_c{i:02d}", recording="bad", quality=bad)
        for i in range(20)
    ]
    others = [dataclasses.replace(motion, name=f"good{i}", recording=f"good{i}") for i in range(20)]
    expected = ["bad_c00", "bad_c01", *(f"good{i}" for i in range(10))]
    assert [entry.name for entry in worst([*others, *chunks])] == expected
    assert len(worst(chunks)) == 2
