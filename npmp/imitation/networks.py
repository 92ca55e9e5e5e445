"""The networks of a new run, of whatever algorithm: a skill module fitted to its environment, as a policy, and a
critic."""

from __future__ import annotations

from npmp.imitation.policy import ImitationCritic, ImitationPolicy
from npmp.nets import NetConfig
from npmp.nets.init import seeded
from npmp.skill import SkillModule
from npmp.tasks.imitation import ImitationEnv


def new_networks(
    env: ImitationEnv,
    net: NetConfig,
    *,
    seed: int,
    initial_std: float,
    critic_hidden: tuple[int, ...],
    objectives: int,
) -> tuple[ImitationPolicy, ImitationCritic]:
    """A policy around a new skill module, and a critic of that many objectives.

    Args:
      seed: of the initial weights; torch's own generator is set to it.
      initial_std: of the setpoints [rad].
    """
    task, physics = env.task, env.robots.physics_size
    with seeded(seed):
        skill = SkillModule.for_reference(env.robot, net, task.reference, task.features(task.config.future_frames))
        policy = ImitationPolicy(skill, initial_std=initial_std)
        critic = ImitationCritic(
            skill.context_scale, net.latent_dim, len(task.reference.names), physics, critic_hidden, objectives
        )
    return policy.to(env.device), critic.to(env.device)
