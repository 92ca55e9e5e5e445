"""Reinforcement learning in pure pieces, returns, the losses of (MO-)V-MPO, PopArt and unrolls, and
the learner made of them.

Knows shapes only: no environment, no skill module.
"""

from npmp.rl.learner import VMPO, VMPOConfig
from npmp.rl.optimization import NonFiniteGradient
from npmp.rl.rollout import Rollout
from npmp.rl.unroll import unroll_lstm

__all__ = ["VMPO", "NonFiniteGradient", "Rollout", "VMPOConfig", "unroll_lstm"]
