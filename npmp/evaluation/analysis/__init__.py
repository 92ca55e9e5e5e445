"""Analysis of skill modules: contract, use of latents, rollouts on the prior.

    describe(module)            contract, networks, training record, licences, file
    latent_use(module, data)    information in each latent dimension
    wander(module)              robots on latents of the prior

A module is a `SkillModule`, its folder, or the name of a shipped one.
"""

from npmp.evaluation.analysis.description import describe, open_module
from npmp.evaluation.analysis.latents import LatentUse, latent_use
from npmp.evaluation.analysis.wandering import Wandering, wander

__all__ = ["LatentUse", "Wandering", "describe", "latent_use", "open_module", "wander"]
