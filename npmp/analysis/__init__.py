"""Reading a skill module: what it says of itself, what its latents carry, where its prior leads,
what lies between two clips.

    describe(module)                          contract, networks, training record, licences, file
    latent_use(module, data)                  what each latent dimension tells the decoder
    wander(module)                            robots on latents of the prior, and on white noise
    interpolate(module, data, "walk", "trot") between the latents of two clips

A module is a `SkillModule`, its folder, or the name of a shipped one.
"""

from npmp.analysis.description import describe, open_module
from npmp.analysis.interpolation import ALIGNMENTS, MIXES, Interpolation, interpolate
from npmp.analysis.latents import LatentUse, latent_use
from npmp.analysis.movement import Movement
from npmp.analysis.wandering import LATENTS, Ratio, Wandering, ratio_of_means, wander

__all__ = [
    "ALIGNMENTS",
    "LATENTS",
    "MIXES",
    "Interpolation",
    "LatentUse",
    "Movement",
    "Ratio",
    "Wandering",
    "describe",
    "interpolate",
    "latent_use",
    "open_module",
    "ratio_of_means",
    "wander",
]
