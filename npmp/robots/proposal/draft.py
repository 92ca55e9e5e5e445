"""The state of a proposal: the robot.yaml that its steps fill in, and the model's geometry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from mocap_data.arrays import Array

_PAIRS = (("L", "R"), ("LF", "RF"), ("LH", "RH"))


@dataclass(frozen=True)
class ProposedValue:
    """A proposed value and its source."""

    topic: str
    value: str
    # the reason of a guess; "" for the model's own value
    guessed: str = ""


@dataclass(frozen=True)
class LimbChain:
    """A chain of hinges from the trunk to an end."""

    # the last body
    body: str
    # hinge indices (0 is the first after the root), from the trunk outwards
    joints: tuple[int, ...]
    # the body that carries it
    trunk: str
    # "LF", "RF", "LH", "RH", or "L", "R"
    side: str = ""


@dataclass
class Draft:
    """A robot.yaml that the steps fill in. Points are in the base's frame at zero joints [m]."""

    mjcf: Path
    # the `mjcf:` of robot.yaml
    reference: str
    name: str
    model: mujoco.MjModel
    # kinematics at zero joints
    zero: mujoco.MjData
    legs: list[LimbChain] = field(default_factory=list)
    arms: list[LimbChain] = field(default_factory=list)
    # content of robot.yaml
    content: dict[str, Any] = field(default_factory=dict)
    # dotted key -> reason of a guess
    reasons: dict[str, str] = field(default_factory=dict)
    findings: list[ProposedValue] = field(default_factory=list)

    def note(self, topic: str, value: str, guessed: str = "") -> None:
        self.findings.append(ProposedValue(topic, value, guessed))

    @property
    def joint_names(self) -> list[str]:
        return [self.model.joint(i).name for i in range(1, self.model.njnt)]

    @property
    def quadruped(self) -> bool:
        return len(self.legs) == 4

    @property
    def root(self) -> str:
        return str(self.model.body(1).name)

    def anchor(self, joint: int) -> Array:
        """A hinge's anchor in the base's frame, (3,) [m]."""
        return np.array(self.zero.xanchor[joint + 1])

    def axis(self, joint: int) -> Array:
        """A hinge's axis in the base's frame, a unit vector (3,)."""
        return np.array(self.zero.xaxis[joint + 1])

    def origin(self, body: str) -> Array:
        """A body's origin in the base's frame, (3,) [m]."""
        return np.array(self.zero.body(body).xpos)

    def pitching(self, limb: LimbChain) -> list[int]:
        """A limb's hinges about the lateral axis, outwards."""
        return [j for j in limb.joints if abs(self.axis(j)[1]) > 0.7]

    def ranges(self) -> tuple[Array, Array]:
        """Lower and upper joint limits, each (J,) [rad].

        Infinite for joints without limits or with a range of at least 1.9 pi.
        """
        low, high = self.model.jnt_range[1:].T
        real = self.model.jnt_limited[1:].astype(bool) & (high - low < 1.9 * np.pi)
        return np.where(real, low, -np.inf), np.where(real, high, np.inf)

    def _frame(self, body: str) -> tuple[Array, Array]:
        """Origin (3,) and rotation (3, 3) of a body, or of a foot that `feet.at` will add."""
        entries = self.content["feet"].get("at", {})
        if body in entries:
            origin, turn = self._frame(entries[body]["body"])
            return origin + turn @ entries[body]["position"], np.eye(3)
        return self.origin(body), np.array(self.zero.body(body).xmat).reshape(3, 3)

    def in_base(self, body: str, position: Any) -> Array:
        """A point of a body's frame in the base's frame, (3,) [m]."""
        origin, turn = self._frame(body)
        return np.asarray(origin + turn @ np.asarray(position))

    def in_body(self, body: str, point: Array) -> list[float]:
        """A point in a body's frame, rounded."""
        origin, turn = self._frame(body)
        return rounded((point - origin) @ turn)

    def on_body(self, body: str, point: Array) -> dict[str, Any]:
        """A point in robot.yaml's form: `body` and `position`."""
        return {"body": body, "position": self.in_body(body, point)}

    def robot_yaml(self) -> dict[str, Any]:
        """The content of robot.yaml so far."""
        head = {"name": self.name, "mjcf": self.reference, "source": self.mjcf.name, "licence": ""}
        return head | self.content


def pairs(limbs: Sequence[LimbChain]) -> Iterator[tuple[int, int]]:
    """Indices of left limbs and their right counterparts."""
    at = {limb.side: i for i, limb in enumerate(limbs)}
    yield from ((at[a], at[b]) for a, b in _PAIRS if a in at and b in at)


def short(value: float) -> float:
    return round(float(value), 6) + 0.0


def rounded(values: Any) -> list[float]:
    return [short(v) for v in values]
