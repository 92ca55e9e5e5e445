"""Imitation as published: encoder, prior and decoder trained by MO-V-MPO (Bohez et al. 2022); by
PPO, as a yardstick; and from another module and its mirror images."""

from npmp.imitation.distillation import DistillConfig, DistillTrainer
from npmp.imitation.policy import ImitationPolicy, ImitationPolicyInput, ImitationPolicyState
from npmp.imitation.ppo import PPOConfig, PPOTrainer
from npmp.imitation.trainer import MOVMPOConfig, MOVMPOTrainer

__all__ = [
    "DistillConfig",
    "DistillTrainer",
    "ImitationPolicy",
    "ImitationPolicyInput",
    "ImitationPolicyState",
    "MOVMPOConfig",
    "MOVMPOTrainer",
    "PPOConfig",
    "PPOTrainer",
]
