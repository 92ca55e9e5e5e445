"""What the steps of a proposal share: the draft they fill in, and kinematics at a pose."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from npmp.robots.fields import FloatArray


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for: what came out, and where it comes from."""

    topic: str
    value: str
    guessed: str = ""  # why it is a guess; "" where the model says so


@dataclass(frozen=True)
class Limb:
    """A chain of hinges from the trunk to an end."""

    body: str  # the last
    # hinge indices (0 is the first after the root), from the trunk outwards
    joints: tuple[int, ...]
    trunk: str  # the body that carries it
    side: str = ""  # "LF", "RF", "LH", "RH", or "L", "R"


@dataclass
class Draft:
    """What the steps hand on; each fills in its part."""

    mjcf: Path
    reference: str
    name: str
    model: mujoco.MjModel
    zero: mujoco.MjData
    drop_missing: bool = False  # mesh files that colliding shapes want
    legs: list[Limb] = field(default_factory=list)
    arms: list[Limb] = field(default_factory=list)
    content: dict[str, Any] = field(default_factory=dict)  # of robot.yaml
    why: dict[str, str] = field(default_factory=dict)  # dotted key -> why its value is a guess
    findings: list[Finding] = field(default_factory=list)

    def note(self, topic: str, value: str, guessed: str = "") -> None:
        self.findings.append(Finding(topic, value, guessed))

    @property
    def joint_names(self) -> list[str]:
        return [self.model.joint(i).name for i in range(1, self.model.njnt)]

    @property
    def quadruped(self) -> bool:
        return len(self.legs) == 4


def anchor_of(draft: Draft, joint: int) -> FloatArray:
    """(3,) a hinge's anchor in the base's frame at zero joints [m]."""
    return np.array(draft.zero.xanchor[joint + 1])


def axis_of(draft: Draft, joint: int) -> FloatArray:
    return np.array(draft.zero.xaxis[joint + 1])


def model_range(draft: Draft) -> tuple[FloatArray, FloatArray]:
    """(J,), (J,) the model's joint limits, +-inf where it has none worth the name."""
    limited = draft.model.jnt_limited[1:].astype(bool)
    low, high = draft.model.jnt_range[1:].T
    real = limited & (high - low < 1.9 * np.pi)
    return np.where(real, low, -np.inf), np.where(real, high, np.inf)


def pitch_joints(draft: Draft, limb: Limb) -> list[int]:
    """A limb's hinges about the lateral axis, outwards."""
    return [j for j in limb.joints if abs(axis_of(draft, j)[1]) > 0.7]


def _frame(draft: Draft, body: str) -> tuple[FloatArray, FloatArray]:
    """Origin (3,) and rotation (3, 3) of a body at zero joints, in the base's frame; also of a foot
    still to be made."""
    made = draft.content["feet"].get("at", {})
    if body in made:
        origin, turn = _frame(draft, made[body]["body"])
        return origin + turn @ made[body]["position"], np.eye(3)
    frame = draft.zero.body(body)
    return np.array(frame.xpos), np.array(frame.xmat).reshape(3, 3)


def in_base(draft: Draft, body: str, position: Any) -> FloatArray:
    origin, turn = _frame(draft, body)
    return np.asarray(origin + turn @ np.asarray(position))


def in_body(draft: Draft, body: str, point: FloatArray) -> list[float]:
    """A point of the base's frame at zero joints, in a body's frame."""
    origin, turn = _frame(draft, body)
    return rounded((point - origin) @ turn)


def content_of(draft: Draft) -> dict[str, Any]:
    head = {
        "name": draft.name,
        "mjcf": draft.reference,
        "source": str(draft.mjcf.name),
        "licence": "",
    }
    return head | ({"drop_missing": True} if draft.drop_missing else {}) | draft.content


def short(value: float) -> float:
    return round(float(value), 6) + 0.0


def rounded(value: Any) -> list[float]:
    return [short(v) for v in value]
