"""A module and its mirror images as the teacher of another module.

A robot with mirror planes has more skills than its module was taught: in a mirror a module that
walks forwards is one that walks backwards. So it shows the mirrored recordings as well as those
that it knows, and one module learns both, in a fraction of what learning them anew takes. Where
several mirrors show a motion, left to right and not, their outputs are averaged.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.actors import SkillMemory, skill_memory
from npmp.envs.mirrors import Mirrors
from npmp.envs.robot_batch import imu_position
from npmp.envs.task_env import TaskEnv
from npmp.nets import NetConfig
from npmp.nets.init import seeded
from npmp.skill import SkillModule
from npmp.training.agents import ModuleAgent, ModuleInput
from npmp.tree import map_tree

NEAR_M = 1e-3  # to a mirror's plane, where an IMU reads what its image would


class MirrorTeacher:
    """A module that shows every motion in the mirrors in which it knows it."""

    def __init__(self, env: TaskEnv[Any], module: SkillModule):
        """module: a copy of it is used.

        Raises:
          InputError: for a module of another robot, that looks ahead otherwise, of another hold or
            accelerometer, or that was trained on none of the motions; for one whose accelerometer
            is elsewhere in the mirrors.
        """
        module.check_robot(env.robot)
        module.check_encoder(env.robot)
        wired, task, horizon = env.robots.config, env.task, module.contract.context_horizon
        pairs = [
            (key, getattr(module, key), getattr(wired, key)) for key in ("hold", "accelerometer")
        ]
        pairs.append(("future_frames", horizon, task.config.future_frames))
        for key, own, here in pairs:
            if own != here:
                raise InputError(
                    f"the teacher's {key} is {own}, here it is {here}: task.{key}={own}"
                )
        self.weights = copy.deepcopy(module).requires_grad_(False).eval().to(env.device)
        self.mirrors = Mirrors(env.robot, horizon, env.device)
        reference = task.reference
        self.shows = _shows(module, self.mirrors, reference.names, reference.mirrors).to(env.device)
        _check_accelerometer(env, self.mirrors, self.shows)

    def initial_memory(self, n: int) -> SkillMemory:
        """As `Teacher.initial_memory`: (n, mirrors, ...) in every mirror."""
        images = len(self.mirrors.names)
        memory = skill_memory(self.weights, n * images)
        return map_tree(lambda part: part.unflatten(0, (n, images)), memory)

    def answer(
        self, env: TaskEnv[Any], given: ModuleInput, memory: SkillMemory, first: Tensor
    ) -> tuple[Tensor, SkillMemory]:
        """As `Teacher.answer`: the action by mean latents, (n, nu) [rad], averaged over those
        mirrors in which the module knows the motion.

        The others' latents are forgotten; their LSTMs go on, as these see only what robots sense.
        """
        knows, teacher = self.shows[env.task.clip], self.weights
        context = self.mirrors.context.images(given.context)
        senses = self.mirrors.observation.images(given.senses)
        before = map_tree(lambda part: part.flatten(0, 1), memory)
        mu, _ = teacher.encode(context.flatten(0, 1), before.z)
        z = teacher.alpha * before.z + mu
        action, decoder = teacher.decode(z, senses.flatten(0, 1), before.decoder)
        after = map_tree(lambda part: part.unflatten(0, knows.shape), SkillMemory(z, decoder))
        share = knows.unsqueeze(-1).to(z)
        images = self.mirrors.action.back(action.unflatten(0, knows.shape))
        shown = (images * share).sum(1) / share.sum(1)
        return shown, after._replace(z=after.z * share)


def student_of(
    env: TaskEnv[Any], teacher: SkillModule, net: NetConfig, *, seed: int
) -> ModuleAgent:
    """A module that begins with its teacher's weights, or, of other sizes, anew."""
    if net == teacher.net:
        skill = copy.deepcopy(teacher)
    else:
        task, horizon = env.task, teacher.contract.context_horizon
        with seeded(seed):
            skill = SkillModule.for_reference(
                env.robot, net, task.reference, task.features(horizon)
            )
    agent = ModuleAgent(skill.to(env.device).train().requires_grad_(True), 1.0)
    agent.network.log_std.requires_grad_(False)  # exploration is noise on the action
    agent.network.to(env.device)
    return agent


def _shows(
    teacher: SkillModule, mirrors: Mirrors, names: tuple[str, ...], seen_in: tuple[str, ...]
) -> Tensor:
    """The mirrors in which each clip is like those that the teacher was trained on, (clips,
    mirrors) bool.

    Raises:
      InputError: where that was none of them.
    """
    learned = set(teacher.contract.training.get("clips", ()))
    known = {
        mirrors.onto(mirror)[0]
        for name, mirror in zip(names, seen_in, strict=True)
        if name in learned
    }
    if not known:
        raise InputError(
            f"the teacher was trained on none of these {len(names)} motions, so nothing says in "
            "which mirrors it knows the others; give a dataset that holds some of its own"
        )
    shows = torch.tensor([[there in known for there in mirrors.onto(mirror)] for mirror in seen_in])
    for name, mirror, shown in zip(names, seen_in, shows.any(1).tolist(), strict=True):
        if not shown:
            raise InputError(
                f"motion {name!r} was seen in '{mirror}'; the robot's mirrors are "
                f"{list(mirrors.names[-1])}"
            )
    return shows


def _check_accelerometer(env: TaskEnv[Any], mirrors: Mirrors, shows: Tensor) -> None:
    """Raise InputError where a mirror that is needed moves the accelerometer: what it would read
    there is not sensed."""
    if env.robots.config.accelerometer != "imu":
        return
    place = imu_position(env.robot.model(), env.robot).numpy()
    for number, names in enumerate(mirrors.names):
        moved = [n for n in names if abs(place @ env.robot.symmetries[n].normal) > NEAR_M]
        if moved and bool(shows[:, number].any()):
            raise InputError(
                f"in the mirror {moved[0]} the IMU is elsewhere on '{env.robot.name}', so what the "
                "teacher's accelerometer would read there is not known; use a teacher trained with "
                "task.accelerometer=root"
            )
