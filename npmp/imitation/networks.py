"""The networks of a new run, of whatever algorithm: a skill module fitted to its environment, as a policy, and a
critic."""

from __future__ import annotations

import torch

from npmp.envs.features import ReferenceFeatures, encoder_context, proprioception
from npmp.envs.imitation import ImitationEnv
from npmp.imitation.policy import ImitationCritic, ImitationPolicy
from npmp.nets import NetConfig
from npmp.skill import SkillContract, SkillModule


def new_networks(
    env: ImitationEnv,
    net: NetConfig,
    *,
    seed: int,
    horizon: int,
    initial_std: float,
    critic_hidden: tuple[int, ...],
    objectives: int,
) -> tuple[ReferenceFeatures, ImitationPolicy, ImitationCritic]:
    """The encoder's features, a policy around a new skill module, and a critic of that many objectives.

    Args:
      seed: of the initial weights; torch's own generator is set to it.
      horizon: reference frames that the encoder looks ahead.
      initial_std: of the setpoints [rad].
    """
    torch.manual_seed(seed)
    features = ReferenceFeatures(env.robot, env.reference, horizon)
    frames = torch.arange(env.reference.num_frames, device=env.device)
    clip = torch.bucketize(frames, env.reference.start, right=True) - 1
    context = encoder_context(features, env.reference.state(frames), frames, env.reference.last_frame(clip), env.home)
    contract = SkillContract.for_robot(env.robot, net, context_size=context.shape[-1], context_horizon=horizon)
    skill = SkillModule(contract)
    # scales from the reference itself: fixed from the start, so that no feature drifts under the networks
    skill.context_scale.fit(context, 0.1)
    skill.observation_scale.fit(proprioception(env.reference.state(frames), env.home), 0.1)
    policy = ImitationPolicy(skill, initial_std=initial_std)
    critic = ImitationCritic(
        skill.context_scale, net.latent_dim, len(env.reference.names), env.plant.physics_size, critic_hidden, objectives
    )
    return features, policy.to(env.device), critic.to(env.device)
