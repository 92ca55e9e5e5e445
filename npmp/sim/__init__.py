"""Many simulations at once: the scene a robot stands in, and the simulators that step it."""

from npmp.sim.batch import BatchSim
from npmp.sim.scene import add_contact_sensors, flat_scene, flat_spec
from npmp.sim.simulator import Simulator, make_simulator
from npmp.sim.staged import StagedBatchSim

__all__ = [
    "BatchSim",
    "Simulator",
    "StagedBatchSim",
    "add_contact_sensors",
    "flat_scene",
    "flat_spec",
    "make_simulator",
]
