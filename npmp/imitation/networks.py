"""The networks of a new run, of whatever algorithm: a skill module fitted to its environment, as a
policy, and a critic."""

from __future__ import annotations

from dataclasses import dataclass

from npmp import ranges
from npmp.imitation.policy import ImitationCritic, ImitationPolicy
from npmp.nets import NetConfig
from npmp.nets.init import seeded
from npmp.skill import SkillModule
from npmp.tasks.imitation import ImitationEnv
from npmp.training.schedules import prior_weight


@dataclass(frozen=True)
class OnPolicyConfig:
    """What every algorithm has that learns from its own unrolls. Raises ValueError for values out
    of range."""

    initial_std: float = 0.2  # of the setpoints [rad]
    critic_hidden: tuple[int, ...] = (256, 256, 256)
    # weight of the KL to the prior at the end of its course, per nat summed over latent dimensions
    beta: float = 0.03
    beta_power: float = 0.2  # beta (1 - (1 - min(1, k / K))^power)
    beta_ramp: float = 0.5  # K, as a share of the run

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "critic_hidden")
        ranges.above_zero(self, "initial_std", "beta_power", "beta_ramp")
        ranges.not_negative(self, "beta")

    def beta_at(self, progress: float) -> float:
        """The weight of the KL when a share of the run is done (robot-NPMP): slow at first, steep
        at the end of the ramp."""
        return prior_weight(progress, self.beta, self.beta_power, self.beta_ramp)


def new_networks(
    env: ImitationEnv, net: NetConfig, config: OnPolicyConfig, *, seed: int, objectives: int
) -> tuple[ImitationPolicy, ImitationCritic]:
    """A policy around a new skill module, and a critic of that many objectives.

    seed: of the initial weights; torch's own generator is set to it.
    """
    task, physics = env.task, env.robots.physics_size
    with seeded(seed):
        skill = SkillModule.for_reference(
            env.robot, net, task.reference, task.features(task.config.future_frames)
        )
        policy = ImitationPolicy(skill, initial_std=config.initial_std)
        critic = ImitationCritic(
            skill.context_scale,
            net.latent_dim,
            len(task.reference.names),
            physics,
            config.critic_hidden,
            objectives,
        )
    return policy.to(env.device), critic.to(env.device)
