"""Reinforcement learning in pure pieces: returns, (MO-)V-MPO losses, PopArt, unrolls; and one
stateful learner.

Knows shapes only: no environment, no skill module.
"""

from npmp.rl.gradients import NonFiniteGradient
from npmp.rl.learner import Critic, Policy, Regularizer, VMPOConfig, VMPOLearner
from npmp.rl.rollout import Rollout
from npmp.rl.unroll import reset_state, unroll, unroll_lstm

__all__ = [
    "Critic",
    "NonFiniteGradient",
    "Policy",
    "Regularizer",
    "Rollout",
    "VMPOConfig",
    "VMPOLearner",
    "reset_state",
    "unroll",
    "unroll_lstm",
]
