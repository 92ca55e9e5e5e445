"""Imitation as published: encoder, prior and decoder trained by MO-V-MPO (Bohez et al. 2022); and by PPO, as a
yardstick."""

from npmp.imitation.policy import ImitationPolicy, ImitationPolicyInput, ImitationPolicyState
from npmp.imitation.ppo import PPOConfig, PPOTrainer
from npmp.imitation.trainer import MOVMPOConfig, MOVMPOTrainer

__all__ = [
    "ImitationPolicy",
    "ImitationPolicyInput",
    "ImitationPolicyState",
    "MOVMPOConfig",
    "MOVMPOTrainer",
    "PPOConfig",
    "PPOTrainer",
]
