"""Distillation: a module learns what another one does, and what its mirror images do.

A robot with mirror planes has more skills than its module was taught: in a mirror a module that
walks forwards is one that walks backwards. So it shows the mirrored recordings as well as those
that it knows, and one module learns both, in a fraction of what learning them anew takes (policy
distillation, Rusu et al. 2016; by DAgger, Ross et al. 2011). Where several mirrors show a motion,
left to right and not, what they say is averaged.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import ranges
from npmp.actors import SkillMemory, skill_memory
from npmp.envs.mirrors import Mirrors
from npmp.envs.robot_batch import imu_position
from npmp.imitation.lessons import LessonConfig, LessonTrainer
from npmp.imitation.policy import ImitationPolicy, ImitationPolicyInput, ImitationPolicyState
from npmp.memory import require_batch
from npmp.nets import DecoderState, NetConfig, prior
from npmp.nets.init import seeded
from npmp.rollout import Decision
from npmp.skill import SkillModule
from npmp.tasks.imitation import ImitationEnv
from npmp.tree import Tree, map_tree

NEAR_M = 1e-3  # to a mirror's plane, where an IMU reads what its image would


@dataclass(frozen=True, kw_only=True)
class DistillConfig(LessonConfig):
    """Settings of distillation; sources with the values in conf/algo/distill.yaml. Raises
    ValueError for values out of range."""

    unroll: int = 25
    kept: int = 8
    updates: int = 16
    batch: int = 128
    episode_s: float | None = 3.0
    outlier_rad: float | None = 0.2
    ema: float = 0.999
    beta: float = 1e-4  # weight of the KL to the AR(1) prior, per nat summed over latent dimensions
    # at which robots are sent to track another frame from where they stand [1/s]
    rejoin_rate: float = 0.4
    anchor: float = 0.0  # decay of the weights towards the teacher's, per update times lr

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.not_negative(self, "beta", "rejoin_rate", "anchor")
        if (share := self.anchor * max(self.lr)) > 1.0:
            raise ValueError(
                f"anchor times lr must be at most 1, got {share:g}: beyond it an update passes the teacher"
            )


class DistillMemory(NamedTuple):
    """What student and teacher carry from step to step."""

    student: ImitationPolicyState
    teacher: SkillMemory  # (n, mirrors, ...) in every mirror


class DistillTrainer(LessonTrainer):
    """A module that learns from another one and its mirror images."""

    config: DistillConfig
    online: ImitationPolicy
    average: ImitationPolicy
    env: ImitationEnv
    most_error = 1.0

    def __init__(
        self,
        env: ImitationEnv,
        net: NetConfig,
        config: DistillConfig,
        *,
        teacher: SkillModule,
        seed: int = 0,
    ):
        """Build everything on the environment's device.

        net: of the student. One like the teacher's begins with its weights, another one anew.

        Raises:
          InputError: for a teacher of another robot, that looks ahead otherwise, of another hold or
            accelerometer, or that was trained on none of the motions; for one whose accelerometer
            is elsewhere in the mirrors; and for an anchor where `net` is not the teacher's.
        """
        teacher.check_robot(env.robot)
        teacher.check_encoder(env.robot)
        wired = env.robots.config
        for key in ("hold", "accelerometer"):
            if (own := getattr(teacher, key)) != (here := getattr(wired, key)):
                raise InputError(
                    f"the teacher's {key} is '{own}', here it is '{here}': task.{key}={own}"
                )
        if config.anchor and net != teacher.net:
            raise InputError(
                f"algo.anchor={config.anchor:g}: net= is not the teacher's, so no weights correspond"
            )
        task, horizon = env.task, teacher.contract.context_horizon
        if horizon != (frames := task.config.future_frames):
            raise InputError(
                f"the teacher looks {horizon} frames ahead, here it is {frames}: task.future_frames={horizon}"
            )
        self.teacher = copy.deepcopy(teacher).requires_grad_(False).eval().to(env.device)
        self.mirrors = Mirrors(env.robot, horizon, env.device)
        self.shows = _shows(teacher, self.mirrors, task.reference.names, task.reference.mirrors).to(
            env.device
        )
        _check_accelerometer(env, self.mirrors, self.shows)
        if net == teacher.net:
            skill = copy.deepcopy(teacher)
        else:
            with seeded(seed):
                skill = SkillModule.for_reference(
                    env.robot, net, task.reference, task.features(horizon)
                )
        student = ImitationPolicy(skill.train().requires_grad_(True)).to(env.device)
        student.log_std.requires_grad_(False)  # of exploration, which nobody asks for
        self.cost_weights = {"kl": config.beta}
        context, seen = task.context(horizon), env.observe()
        widths = (2 * net.encoder_width, 5 * net.decoder_width, 4 * net.lstm_width)
        require_batch(config.batch, config.unroll, widths, context.shape[-1], key="algo.batch")
        given = ImitationPolicyInput(context, seen, context.new_zeros(env.num_envs, net.latent_dim))
        super().__init__(env, student, config, given=given, shown=env.num_actions, seed=seed)

    def module(self) -> SkillModule:
        """The averaged module, with the range of the latents lately seen."""
        z = self.lessons.start.z.flatten(0, 1)
        z = z[(z != 0.0).any(-1)][:100_000]  # not of episodes that begin
        if not len(z):
            return self.average.module(self.average.skill.latent_range)
        return self.average.module(torch.quantile(z.abs(), 0.99, dim=0).clamp(min=0.1))

    def initial_memory(self, n: int) -> DistillMemory:
        """As `LessonTrainer.initial_memory`."""
        images = len(self.mirrors.names)
        teacher = map_tree(
            lambda part: part.unflatten(0, (n, images)), skill_memory(self.teacher, n * images)
        )
        return DistillMemory(self.online.initial_state(n), teacher)

    def students(self, memory: DistillMemory) -> ImitationPolicyState:
        """As `LessonTrainer.students`."""
        return memory.student

    def act(self, env: ImitationEnv, memory: DistillMemory, first: Tensor) -> Decision:
        """As `LessonTrainer.act`: the student with sampled latents and noise on its actions."""
        task, skill, student = env.task, self.online.skill, memory.student
        drawn = torch.rand(env.num_envs, generator=self.generator, device=env.device)
        task.rejoin(~first & (drawn < self.config.rejoin_rate * env.dt))
        context, seen = task.context(skill.contract.context_horizon), env.observe().clone()
        noise = torch.randn(student.z.shape, generator=self.generator, device=env.device)
        mu, sigma = skill.encode(context, student.z)
        z = prior.sample_posterior(student.z, mu, sigma, skill.alpha, noise)
        action, decoder = skill.decode(z, seen, DecoderState(student.hidden, student.cell))
        shown, teacher = self._shown(context, seen, memory.teacher, self.shows[task.clip])
        off = torch.randn(action.shape, generator=self.generator, device=env.device)
        after = DistillMemory(ImitationPolicyState(decoder.hidden, decoder.cell, z), teacher)
        note = {"given": ImitationPolicyInput(context, seen, noise), "shown": shown, "first": first}
        return Decision(action + self.config.action_noise * off, after, note)

    def _shown(
        self, context: Tensor, seen: Tensor, memory: SkillMemory, knows: Tensor
    ) -> tuple[Tensor, SkillMemory]:
        """What the teacher would do by its mean latents, the mean over those mirrors (n, mirrors)
        in which it knows the motion: (n, nu) [rad], and its memory. The others' latents are
        forgotten; their LSTMs go on, as these see nothing but what robots sense."""
        images, teacher = knows.shape, self.teacher
        context, seen = self.mirrors.context.images(context), self.mirrors.observation.images(seen)
        before = map_tree(lambda part: part.flatten(0, 1), memory)
        mu, _ = teacher.encode(context.flatten(0, 1), before.z)
        z = teacher.alpha * before.z + mu
        action, decoder = teacher.decode(z, seen.flatten(0, 1), before.decoder)
        after = map_tree(lambda part: part.unflatten(0, images), SkillMemory(z, decoder))
        share = knows.unsqueeze(-1).to(z)
        shown = (self.mirrors.action.back(action.unflatten(0, images)) * share).sum(1) / share.sum(
            1
        )
        return shown, after._replace(z=after.z * share)

    @torch.no_grad()
    def stepped(self, lr: float) -> None:
        """As `LessonTrainer.stepped`: what lessons do not settle goes back to what the teacher has,
        so that it is not forgotten (L2-SP, Li et al. 2018; decoupled from the gradient as by
        AdamW)."""
        if share := self.config.anchor * lr:
            for weight, there in zip(
                self.online.skill.parameters(), self.teacher.parameters(), strict=True
            ):
                weight.lerp_(there, share)

    def fit(self, steps: Tree, start: ImitationPolicyState) -> tuple[Tensor, dict[str, Tensor]]:
        """As `LessonTrainer.fit`; the KL costs, too."""
        mean, _, _, divergence = self.online(steps["given"], start, steps["first"])
        return mean - steps["shown"], {"kl": divergence.mean()}


def _shows(
    teacher: SkillModule, mirrors: Mirrors, names: tuple[str, ...], seen_in: tuple[str, ...]
) -> Tensor:
    """Of each clip, in which mirrors it is like those that the teacher was trained on, (clips,
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
            f"the teacher was trained on none of these {len(names)} motions, so nothing tells in which mirrors it "
            "knows the others; it takes a dataset that holds some of its own"
        )
    shows = torch.tensor([[there in known for there in mirrors.onto(mirror)] for mirror in seen_in])
    for name, mirror, shown in zip(names, seen_in, shows.any(1).tolist(), strict=True):
        if not shown:
            raise InputError(
                f"motion {name!r} was seen in '{mirror}'; the robot's mirrors are {list(mirrors.names[-1])}"
            )
    return shows


def _check_accelerometer(env: ImitationEnv, mirrors: Mirrors, shows: Tensor) -> None:
    """Raise InputError where a mirror that is needed moves the accelerometer: what it reads there
    nobody senses."""
    if env.robots.config.accelerometer != "imu":
        return
    place = imu_position(env.robot.model(), env.robot)
    for number, names in enumerate(mirrors.names):
        moved = [
            name
            for name in names
            if abs(place.numpy() @ env.robot.symmetries[name].normal) > NEAR_M
        ]
        if moved and bool(shows[:, number].any()):
            raise InputError(
                f"in the mirror {moved[0]} the IMU is elsewhere on '{env.robot.name}', so what the teacher's "
                "accelerometer would read there is not known; it takes one trained with task.accelerometer=root"
            )
