"""Handover after a fall from a walking policy to a recovery policy, and back once the robot stands.

Falls are detected from proprioception: the vertical in the root frame, and the feet's depth below
the root.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.core.tree import Tree, where_tree
from npmp.envs.feet import Feet
from npmp.envs.policy import Observation, Policy, PolicyOutput, bind
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.skills import policies
from npmp.skills.composition import Composition, CompositionState, ConstantCommand, over
from npmp.skills.high_level_policy import load_policy
from npmp.tasks import trained_config
from npmp.tasks.recover import Recover, RecoverConfig

# tilt from which a robot is down [deg]
FALLEN_DEG = 55.0
# depth of the feet below the root, over the standing height, below which a robot is down
LOW = 0.5
# time after which such a robot is down [s]
FALLEN_S = 0.1
# largest tilt of a standing robot [deg]
STEADY_DEG = 15.0
# least depth of a standing robot's feet below the root, over the standing height
HIGH = 0.85
# largest deviation of a standing robot's joints from the home pose [rad]
STEADY_RAD = 0.35
# time after which such a robot stands [s]
STEADY_S = 0.4


def get_up(recovery: Composition) -> Composition:
    """A policy of task `recover`, commanded to stand at the home pose's height, for any environment
    of its robot. Raises InputError for a policy of another task."""
    recovery.upper.check_task(Recover)
    return over(ConstantCommand(1.0), recovery)


def check_compatible(walking: Policy, recovery: Composition) -> None:
    """Raise InputError for policies that differ in hold or accelerometer."""
    if not isinstance(walking, Composition):
        return
    for name in ("hold", "accelerometer"):
        of_walking = getattr(walking.lower, name)
        of_recovery = getattr(recovery.lower, name)
        if of_walking != of_recovery:
            raise InputError(
                f"{name} must be equal: it is {of_walking} for the walking policy, "
                f"{of_recovery} for the recovery policy"
            )


class HandoverState(NamedTuple):
    """The states of both policies, and of the handover."""

    walking: Tree
    recovery: CompositionState
    # (n,) bool: the recovery policy acts
    recovering: Tensor
    # (n,) duration of the condition for a handover: down while walking, standing while recovering
    # [s]
    lasted_s: Tensor


class Handover:
    """A walking policy, replaced by a policy of task `recover` while a robot is down.

    Each policy's state is reset when it takes over. The output's info is `recovering`, (n,) bool.
    """

    def __init__(self, walking: Policy, recovery: Composition, env: TaskEnv[Any]):
        """Raises: InputError for a recovery policy of another task, or with another hold or
        accelerometer than the walking policy."""
        self.recovery = get_up(recovery)
        check_compatible(walking, recovery)
        self.walking = walking
        self.env = env
        robot = env.robot
        device = next(recovery.upper.parameters()).device
        self.feet = Feet(robot).to(device)
        self.home = torch.tensor(robot.home_joints, dtype=torch.float32, device=device)
        self.standing = float(robot.home_qpos[2])

    def bind(self, env: TaskEnv[Any]) -> None:
        """As `Policy`: bind the walking policy."""
        bind(self.walking, env)

    def initial_state(self, n: int) -> HandoverState:
        """The state at the start of n episodes."""
        recovery = self.recovery.initial_state(n)
        none = torch.zeros(n, dtype=torch.bool, device=self.home.device)
        lasted_s = self.home.new_zeros(n)
        return HandoverState(self.walking.initial_state(n), recovery, none, lasted_s)

    def step(
        self, observation: Observation, state: HandoverState
    ) -> tuple[PolicyOutput, HandoverState]:
        env = self.env
        is_first = observation.is_first
        lean, depth, away = self.posture(observation.proprioception)
        down = (lean > FALLEN_DEG) | (depth < LOW * self.standing)
        steady = (lean < STEADY_DEG) & (depth > HIGH * self.standing) & (away < STEADY_RAD)
        ends = torch.where(state.recovering, steady, down)
        lasted = torch.where(ends, state.lasted_s + env.dt, 0.0)
        # at an episode's start the recovery policy takes over at once
        wait_s = torch.where(is_first, 0.0, FALLEN_S)
        changes = lasted > torch.where(state.recovering, STEADY_S, wait_s)
        recovering = state.recovering ^ changes
        lasted = torch.where(changes, 0.0, lasted)
        walks_again = changes & ~recovering
        env.task.reset_memory(walks_again)
        restarted = observation._replace(
            task=env.task.observed_again(observation.task), is_first=is_first | walks_again
        )
        walk, walking = self.walking.step(restarted, state.walking)
        up, recovery = self.recovery.step(observation, state.recovery)
        empty = self.initial_state(len(is_first))
        after = HandoverState(
            where_tree(recovering, empty.walking, walking),
            where_tree(recovering, recovery, empty.recovery),
            recovering,
            lasted,
        )
        action = torch.where(recovering.unsqueeze(-1), up.action, walk.action)
        return PolicyOutput(action, recovering), after

    def posture(self, proprioception: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Posture from proprioception (n, o).

        Returns: lean (n,) [deg]; depth of the lowest foot below the root (n,) [m]; largest distance
          of a joint from the home pose (n,) [rad].
        """
        joints = proprioception[:, : len(self.home)]
        up = torch.nn.functional.normalize(proprioception[:, -3:], dim=-1)
        lean = torch.rad2deg(torch.acos(up[:, 2].clamp(-1.0, 1.0)))
        level = torch.eye(3, device=proprioception.device).expand(len(proprioception), 3, 3)
        # (n, F K, 3)
        feet = self.feet(
            proprioception.new_zeros(len(proprioception), 3), level, joints + self.home
        ).flatten(1, 2)
        depth = (-(feet * up.unsqueeze(1)).sum(-1)).amax(-1) + self.feet.radius
        return lean, depth, joints.abs().amax(-1)


class Recovery(NamedTuple):
    """A recovery policy, and the settings of its task in training."""

    policy: Composition
    task: RecoverConfig


def load_recovery(name: str | Path, robot: Robot, device: torch.device | str = "cpu") -> Recovery:
    """Load a policy of task `recover`, a shipped one or a folder.

    The scene needs the joint limits and collisions of that task: `robot` and `add_to_scene` of
    `Recover(robot, config)`. Raises InputError for a policy that is missing, or of another task or
    robot.
    """
    policy = load_policy(policies.find(str(name)), robot, task=Recover, device=device)
    return Recovery(policy, trained_config(Recover, policy.upper.contract.training))
