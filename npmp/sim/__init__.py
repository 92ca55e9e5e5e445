"""Many simulations at once: the scene a robot stands in, and the simulators that step it."""

from npmp.sim.batch import BatchSim
from npmp.sim.scene import add_contact_sensors, flat_scene
from npmp.sim.staged import Simulator, make_simulator

__all__ = ["BatchSim", "Simulator", "add_contact_sensors", "flat_scene", "make_simulator"]
