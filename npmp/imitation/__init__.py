"""Imitation as published: encoder, prior and decoder trained by MO-V-MPO (Bohez et al. 2022)."""

from npmp.imitation.policy import ImitationPolicy, ImitationPolicyInput, ImitationPolicyState
from npmp.imitation.trainer import MOVMPOConfig, MOVMPOTrainer

__all__ = ["ImitationPolicy", "ImitationPolicyInput", "ImitationPolicyState", "MOVMPOConfig", "MOVMPOTrainer"]
