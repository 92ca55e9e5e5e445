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
from npmp.envs.rollout import Actor, PolicyOutput
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.skills import policies
from npmp.skills.high_level_policy import PolicyActor, PolicyMemory, load_actor
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


class GetUpActor:
    """A policy of task `recover` in any environment of its robot, commanded to stand as high as at
    home."""

    def __init__(self, recovery: PolicyActor):
        """Raises: InputError for a policy of another task."""
        recovery.policy.check_task(Recover)
        self.recovery = recovery
        self.initial_memory = recovery.initial_memory

    def act(self, env: TaskEnv[Any], memory: PolicyMemory, first: Tensor) -> PolicyOutput:
        return self.answer(env.observe(), memory)

    def answer(self, seen: Tensor, memory: PolicyMemory) -> PolicyOutput:
        """Its decision for observations (n, o)."""
        return self.recovery.answer(seen, seen.new_ones(len(seen), 1), memory)


class HandoverMemory(NamedTuple):
    """Both policies' memories, and the present one of the two."""

    walking: Tree
    recovery: PolicyMemory
    # (n,) bool: the recovery acts
    recovering: Tensor
    # (n,) for how long the robot has been in what ends that: down while it walks, steady while it
    # gets up [s]
    lasted_s: Tensor


class HandoverActor:
    """A walking actor, and a policy of task `recover` from the moment that a robot is down until it
    stands again.

    The memory of each is empty when it takes over. The decision's note is where the recovery acts,
    (n,) bool.
    """

    def __init__(self, walking: Actor, recovery: PolicyActor, robot: Robot):
        """Raises: InputError for a recovery of another task, or of other hold or accelerometer than
        the walking policy, or a robot that `Kinematics` does not serve."""
        self.recovery = GetUpActor(recovery)
        if isinstance(walking, PolicyActor):
            for name in ("hold", "accelerometer"):
                one = getattr(walking.skill, name)
                other = getattr(recovery.skill, name)
                if one != other:
                    raise InputError(
                        f"one robot cannot have two: {name} is {one} for the walking policy, "
                        f"{other} for the recovery policy"
                    )
        self.walking = walking
        device = next(recovery.policy.parameters()).device
        self.feet = Feet(robot).to(device)
        self.home = torch.tensor(robot.home_joints, dtype=torch.float32, device=device)
        self.standing = float(robot.home_qpos[2])

    def initial_memory(self, n: int) -> HandoverMemory:
        memory = self.recovery.initial_memory(n)
        asleep = torch.zeros(n, dtype=torch.bool, device=self.home.device)
        return HandoverMemory(
            self.walking.initial_memory(n), memory, asleep, self.home.new_zeros(n)
        )

    def act(self, env: TaskEnv[Any], memory: HandoverMemory, first: Tensor) -> PolicyOutput:
        """As `Actor.act`; in any environment of the robot."""
        seen = env.observe()
        lean, depth, away = self.posture(seen)
        down = (lean > FALLEN_DEG) | (depth < LOW * self.standing)
        steady = (lean < STEADY_DEG) & (depth > HIGH * self.standing) & (away < STEADY_RAD)
        ends = torch.where(memory.recovering, steady, down)
        lasted = torch.where(ends, memory.lasted_s + env.dt, 0.0)
        # at an episode's start the recovery acts at once
        over = lasted > torch.where(memory.recovering, STEADY_S, torch.where(first, 0.0, FALLEN_S))
        recovering = memory.recovering ^ over
        lasted = torch.where(over, 0.0, lasted)
        env.task.reset_memory(over & ~recovering)
        walk = self.walking.act(env, memory.walking, first | (over & ~recovering))
        up = self.recovery.answer(seen, memory.recovery)
        empty = self.initial_memory(len(seen))
        kept = HandoverMemory(
            where_tree(recovering, empty.walking, walk.memory),
            where_tree(recovering, up.memory, empty.recovery),
            recovering,
            lasted,
        )
        return PolicyOutput(
            torch.where(recovering.unsqueeze(-1), up.action, walk.action), kept, recovering
        )

    def posture(self, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of robots that sense (n, o) as `proprioception`: their lean (n,) [deg], how far their
        lowest foot is below the root (n,) [m], and by how much the joint farthest from the home
        pose misses it, (n,) [rad]."""
        joints = seen[:, : len(self.home)]
        up = torch.nn.functional.normalize(seen[:, -3:], dim=-1)
        lean = torch.rad2deg(torch.acos(up[:, 2].clamp(-1.0, 1.0)))
        level = torch.eye(3, device=seen.device).expand(len(seen), 3, 3)
        # (n, F K, 3)
        feet = self.feet(seen.new_zeros(len(seen), 3), level, joints + self.home).flatten(1, 2)
        depth = (-(feet * up.unsqueeze(1)).sum(-1)).amax(-1) + self.feet.radius
        return lean, depth, joints.abs().amax(-1)


class Recovery(NamedTuple):
    """A recovery policy, and the task that it was trained for."""

    actor: PolicyActor
    task: RecoverConfig


def load_recovery(name: str | Path, robot: Robot, device: torch.device | str = "cpu") -> Recovery:
    """A policy of task `recover`, shipped or a folder, and the task that it was trained for.

    In a scene the robot needs that task's joint limits and collisions: `Recover(robot, config)` has
    them, its `robot` and its `add_to_scene`. Raises InputError for no such policy, or one of
    another task or robot.
    """
    actor = load_actor(policies.find(str(name)), robot, task=Recover, device=device)
    return Recovery(actor, trained_config(Recover, actor.policy.contract.training))
