"""Batched simulation: scenes, and the simulators that step them."""

from npmp.sim.batch import BatchSim
from npmp.sim.scene import add_contact_sensors, flat_scene
from npmp.sim.simulator import Engine, Simulator, check_engine, register, simulate
from npmp.sim.staged import StagedBatchSim
from npmp.sim.warp_sim import WarpSim

__all__ = [
    "BatchSim",
    "Engine",
    "Simulator",
    "StagedBatchSim",
    "WarpSim",
    "add_contact_sensors",
    "check_engine",
    "flat_scene",
    "register",
    "simulate",
]
