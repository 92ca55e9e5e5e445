"""After a fall one policy hands over to another: from the walking policy to the recovery policy,
and back once the robot stands.

A fall shows in what the robot senses: the vertical in its root frame, and how far below its root
that and its joints put its feet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.core.tree import Tree, where_tree
from npmp.envs.feet import Feet
from npmp.envs.policy import Observation, Policy, PolicyOutput, observe
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.skills import policies
from npmp.skills.composition import Composition, CompositionState, ConstantCommand, over
from npmp.skills.high_level_policy import load_policy
from npmp.tasks import trained_config
from npmp.tasks.recover import Recover, RecoverConfig

# A robot that leans by more than this is down [deg],
FALLEN_DEG = 55.0
# and so is one whose feet reach less far below its root than this share of standing,
LOW = 0.5
# after this time [s].
FALLEN_S = 0.1
# A robot stands that leans by less [deg],
STEADY_DEG = 15.0
# whose feet reach as far below its root,
HIGH = 0.85
# and whose joints are all so near to the home pose [rad],
STEADY_RAD = 0.35
# for this time [s].
STEADY_S = 0.4


def get_up(recovery: Composition) -> Composition:
    """A policy of task `recover` in any environment of its robot, commanded to stand as high as at
    home. Raises InputError for a policy of another task."""
    recovery.upper.check_task(Recover)
    return over(ConstantCommand(1.0), recovery)


def check_wired_alike(walking: Policy, recovery: Composition) -> None:
    """Raise InputError for policies of other hold or accelerometer: one robot cannot have two."""
    if not isinstance(walking, Composition):
        return
    for name in ("hold", "accelerometer"):
        one = getattr(walking.lower, name)
        other = getattr(recovery.lower, name)
        if one != other:
            raise InputError(
                f"one robot cannot have two: {name} is {one} for the walking policy, "
                f"{other} for the recovery policy"
            )


class HandoverState(NamedTuple):
    """Both policies' states, and which of the two acts."""

    walking: Tree
    recovery: CompositionState
    # (n,) bool: the recovery acts
    recovering: Tensor
    # (n,) for how long the robot has been in what ends that: down while it walks, steady while it
    # gets up [s]
    lasted_s: Tensor


class Handover:
    """A walking policy, and a policy of task `recover` from the moment that a robot is down until
    it stands again; in any environment of the robot.

    The state of each is empty when it takes over. The output's info is where the recovery acts,
    (n,) bool.
    """

    def __init__(self, walking: Policy, recovery: Composition, env: TaskEnv[Any]):
        """Raises: InputError for a recovery of another task, or of other hold or accelerometer than
        the walking policy, or a robot that `Kinematics` does not serve."""
        self.recovery = get_up(recovery)
        check_wired_alike(walking, recovery)
        self.walking = walking
        self.env = env
        robot = env.robot
        device = next(recovery.upper.parameters()).device
        self.feet = Feet(robot).to(device)
        self.home = torch.tensor(robot.home_joints, dtype=torch.float32, device=device)
        self.standing = float(robot.home_qpos[2])

    def initial_state(self, n: int) -> HandoverState:
        """The state of n fresh episodes."""
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
        # at an episode's start the recovery acts at once
        wait_s = torch.where(is_first, 0.0, FALLEN_S)
        changes = lasted > torch.where(state.recovering, STEADY_S, wait_s)
        recovering = state.recovering ^ changes
        lasted = torch.where(changes, 0.0, lasted)
        walks_again = changes & ~recovering
        env.task.reset_memory(walks_again)
        # what the task shows has changed where a clock has started again
        walk, walking = self.walking.step(observe(env, is_first | walks_again), state.walking)
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
        """Of robots that sense (n, o) as `proprioception`: their lean (n,) [deg], how far their
        lowest foot is below the root (n,) [m], and by how much the joint farthest from the home
        pose misses it, (n,) [rad]."""
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
    """A recovery policy, and the task that it was trained for."""

    policy: Composition
    task: RecoverConfig


def load_recovery(name: str | Path, robot: Robot, device: torch.device | str = "cpu") -> Recovery:
    """A policy of task `recover`, shipped or a folder, and the task that it was trained for.

    In a scene the robot needs that task's joint limits and collisions: `Recover(robot, config)` has
    them, its `robot` and its `add_to_scene`. Raises InputError for no such policy, or one of
    another task or robot.
    """
    policy = load_policy(policies.find(str(name)), robot, task=Recover, device=device)
    return Recovery(policy, trained_config(Recover, policy.upper.contract.training))
