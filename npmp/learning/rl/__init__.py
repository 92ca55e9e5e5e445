"""Reinforcement learning in pure pieces: returns, the losses of (MO-)V-MPO and PPO, PopArt,
unrolls; and the learners made of them.

Knows shapes only: no environment, no skill module.
"""

from npmp.learning.rl.learner import PPO, VMPO, Learner, PPOConfig, VMPOConfig
from npmp.learning.rl.optimization import NonFiniteGradient
from npmp.learning.rl.rollout import Rollout

__all__ = ["PPO", "VMPO", "Learner", "NonFiniteGradient", "PPOConfig", "Rollout", "VMPOConfig"]
