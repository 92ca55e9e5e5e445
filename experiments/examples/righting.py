"""A scripted teacher for task=recover, for quadrupeds whose legs turn all the way around.

    npmp reuse task=recover algo=clone joint_space=true module=anymal_b_dog \
      teacher=experiments/examples/righting.py:RightingTeacher

On its back the robot stretches the legs of one side past its back until they push it over. On its
side it presses with the lower legs. On its belly it crouches, then stands up. Keyframes map the
roll angle to joint targets. The state is the side it rolls over, and whether it stands up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.core import ranges
from npmp.envs.policy import Observation, PolicyOutput
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.robots.model import posed

Keyframes = tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class RightingConfig:
    """Settings of the script, for ANYmal B [D: by the cross-entropy method in simulation,
    docs/recovery.md]. Keyframes are joint angles [rad] of the left fore leg, from the root
    outwards; those of the other legs are mirror images. Raises ValueError for values out of
    range."""

    # roll angles of the keyframes: 0 upright, 180 on the back
    roll_deg: tuple[float, ...] = (0.0, 36.0, 63.0, 90.0, 111.6, 135.0, 180.0)
    # keyframes of the legs on the side that it rolls over
    below: Keyframes = (
        (-0.03, 1.52, -2.77),
        (-0.16, 1.27, -2.49),
        (-0.64, -1.98, 0.29),
        (-0.65, -2.67, 0.13),
        (-0.1, -2.99, -0.45),
        (0.88, -2.4, -1.61),
        (0.78, -1.64, -2.51),
    )
    # keyframes of the legs on the other side
    above: Keyframes = (
        (0.11, 1.07, -2.41),
        (-0.02, 1.88, -2.55),
        (-0.49, -0.93, -2.57),
        (-0.26, -0.75, -1.09),
        (-0.31, -2.08, -0.61),
        (0.85, -2.88, 0.03),
        (-0.09, -2.79, -1.11),
    )
    # largest change of targets [rad/s]
    speed: float = 12.0
    # largest tilt from which the robot stands up, from the crouch of the first keyframe
    upright_deg: float = 34.4
    # largest distance of the joints from the crouch before standing up [rad]
    near: float = 0.5
    # time after which it stands up in any case
    wait_s: float = 0.5
    # gain of the targets on the distance from the home pose while standing
    firm: float = 1.0
    # roll beyond the back that changes the side
    turn_back_deg: float = 28.6

    def __post_init__(self) -> None:
        ranges.above_zero(self, "speed", "upright_deg", "near", "turn_back_deg")
        ranges.not_negative(self, "wait_s", "firm")
        knots = list(self.roll_deg)
        if knots != sorted(set(knots)) or knots[:1] + knots[-1:] != [0.0, 180.0]:
            raise ValueError(f"roll_deg={knots}: must increase from 0 to 180 [degrees]")
        for name in ("below", "above"):
            frames = getattr(self, name)
            if len(frames) != len(self.roll_deg) or any(len(frame) != 3 for frame in frames):
                raise ValueError(
                    f"{name} needs three angles at each of {len(self.roll_deg)} roll_deg"
                )


class RightingState(NamedTuple):
    """The state of the script."""

    side: Tensor  # (n,) that it rolls over: 1 its right, -1 its left; 0 where an episode begins
    upright_s: Tensor  # (n,) for how long it has not leaned much
    stands: Tensor  # (n,) bool: it stands up, or has


class RightingTeacher:
    """The script as a policy of task `recover`. It observes true states, and starts from the
    current targets."""

    config_type = RightingConfig

    def __init__(self, env: TaskEnv[Any], config: RightingConfig | None = None):
        """Raises InputError for a robot without four legs of three joints, or without mirrors
        left_right and front_back."""
        robot = env.robot
        device = env.device
        self.env = env
        self.config = config or RightingConfig()
        self.sign, self.left = (torch.tensor(part, device=device) for part in _legs(robot))
        self.home = torch.tensor(robot.home_joints, dtype=torch.float32, device=device)

    def initial_state(self, n: int) -> RightingState:
        none = self.home.new_zeros(n)
        return RightingState(none, none.clone(), none.bool())

    def step(
        self, observation: Observation, state: RightingState
    ) -> tuple[PolicyOutput, RightingState]:
        c = self.config
        env = self.env
        robot = env.state
        up = robot.root_rot[..., 2, :]  # the world's vertical in the root frame
        roll = torch.atan2(up[..., 1], up[..., 2])
        side = torch.where(state.side == 0.0, torch.where(roll >= 0.0, 1.0, -1.0), state.side)
        turned = (roll * side < 0.0) & (roll.abs() < math.pi - math.radians(c.turn_back_deg))
        side = torch.where(turned, -side, side)
        along = roll * side
        # a bit beyond one's back
        along = torch.where(along < -0.5 * math.pi, math.pi, along.clamp(min=0.0))
        crouch = self._targets(along, side)
        upright = up[..., 2] > math.cos(math.radians(c.upright_deg))
        near = (robot.joint_pos - crouch).abs().amax(-1) < c.near
        waited = torch.where(upright, state.upright_s + env.dt, 0.0)
        stands = upright & (state.stands | near | (waited > c.wait_s))
        home = self.home
        most = c.speed * env.dt
        firm = home + c.firm * (home - robot.joint_pos).clamp(-c.near, c.near)
        target = torch.where(stands.unsqueeze(-1), firm, crouch)
        target = robot.setpoint + (target - robot.setpoint).clamp(-most, most)
        return PolicyOutput(target - home), RightingState(side, waited, stands)

    def _targets(self, roll: Tensor, side: Tensor) -> Tensor:
        """Joint angles (n, nu) interpolated between keyframes. roll: (n,) [rad], 0 to pi. side:
        (n,)."""
        c = self.config
        knots = roll.new_tensor(c.roll_deg).deg2rad()
        frames = roll.new_tensor((c.below, c.above))  # (2, K, 3)
        i = (torch.searchsorted(knots, roll.contiguous(), right=True) - 1).clamp(0, len(knots) - 2)
        share = ((roll - knots[i]) / (knots[i + 1] - knots[i])).unsqueeze(-1)
        legs = torch.lerp(frames[:, i], frames[:, i + 1], share)  # (2, n, 3)
        above = self.left == (side > 0.0).unsqueeze(-1)  # (n, 4)
        chosen = torch.where(above.unsqueeze(-1), legs[1].unsqueeze(1), legs[0].unsqueeze(1))
        return (chosen * self.sign).flatten(1)


def _legs(robot: Robot) -> tuple[np.ndarray, np.ndarray]:
    """Factors of the first leg's angles for each leg, (4, 3), and whether it is a left leg, (4,)
    bool."""
    wanted = {"left_right", "front_back"}
    mirrors = robot.symmetries
    if len(robot.joint_names) != 12 or len(robot.foot_bodies) != 4 or not wanted <= set(mirrors):
        raise InputError(
            f"no script for getting up for robot '{robot.name}': expected four legs of three "
            "joints, and mirrors"
        )
    data = posed(robot.model(visuals=False), robot.home_joints)
    feet = np.array([data.body(foot).xpos for foot in robot.foot_bodies])
    first = np.zeros((4, 3))
    first[np.argmax(feet[:, 0] + feet[:, 1])] = 1.0  # the left fore leg's own
    side = first.ravel() + mirrors["front_back"].mirror_joints(first.ravel())
    legs = side + mirrors["left_right"].mirror_joints(side)
    if not np.all(np.abs(legs) == 1.0):
        raise InputError(
            f"no script for getting up for robot '{robot.name}': expected the joints of each leg "
            "to be contiguous"
        )
    return legs.reshape(4, 3).astype(np.float32), feet[:, 1] > 0.0
