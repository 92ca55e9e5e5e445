"""Reinforcement learning on tensors: returns, the losses of (MO-)V-MPO and PPO, PopArt, rollouts,
and learners that combine them. Independent of environments and skill modules.
"""

from npmp.learning.rl.learner import PPO, VMPO, Learner, PPOConfig, VMPOConfig
from npmp.learning.rl.optimization import NonFiniteGradient
from npmp.learning.rl.rollout import Rollout

__all__ = ["PPO", "VMPO", "Learner", "NonFiniteGradient", "PPOConfig", "Rollout", "VMPOConfig"]
