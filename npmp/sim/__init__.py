"""Many simulations at once: the scene a robot stands in, and the batch that steps it."""

from npmp.sim.batch import BatchSim
from npmp.sim.scene import flat_scene

__all__ = ["BatchSim", "flat_scene"]
