"""Reuse of skills: high-level policies that act through the frozen decoder of a skill module."""

from npmp.reuse.actor import PolicyActor
from npmp.reuse.evaluation import evaluate
from npmp.reuse.model_trainer import ModelTrainer, ModelTrainerConfig
from npmp.reuse.policy import HighLevelPolicy, PolicyContract, PolicyInput, module_sha256
from npmp.reuse.vmpo_trainer import VMPOTrainer, VMPOTrainerConfig

__all__ = [
    "HighLevelPolicy",
    "ModelTrainer",
    "ModelTrainerConfig",
    "PolicyActor",
    "PolicyContract",
    "PolicyInput",
    "VMPOTrainer",
    "VMPOTrainerConfig",
    "evaluate",
    "module_sha256",
]
