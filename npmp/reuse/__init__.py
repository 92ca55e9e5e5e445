"""Reuse of skills: high-level policies that act through the frozen decoder of a skill module."""

from npmp.reuse.actor import PolicyActor
from npmp.reuse.clone_trainer import CloneTrainer, CloneTrainerConfig
from npmp.reuse.model_trainer import ModelTrainer, ModelTrainerConfig
from npmp.reuse.policy import (
    HighLevelPolicy,
    PolicyContract,
    PolicyInput,
    find_module,
    mean_policy,
    module_sha256,
)
from npmp.reuse.vmpo_trainer import VMPOTrainer, VMPOTrainerConfig

__all__ = [
    "CloneTrainer",
    "CloneTrainerConfig",
    "HighLevelPolicy",
    "ModelTrainer",
    "ModelTrainerConfig",
    "PolicyActor",
    "PolicyContract",
    "PolicyInput",
    "VMPOTrainer",
    "VMPOTrainerConfig",
    "find_module",
    "mean_policy",
    "module_sha256",
]
