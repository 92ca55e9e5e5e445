"""Reuse of skills: high-level policies that act through the frozen decoder of a skill module."""

from npmp.reuse.evaluation import WalkingTrial, evaluate_walking
from npmp.reuse.policy import HighLevelPolicy, PolicyContract, PolicyInput, module_sha256
from npmp.reuse.vmpo_trainer import VMPOTrainer, VMPOTrainerConfig

__all__ = [
    "HighLevelPolicy",
    "PolicyContract",
    "PolicyInput",
    "VMPOTrainer",
    "VMPOTrainerConfig",
    "WalkingTrial",
    "evaluate_walking",
    "module_sha256",
]
