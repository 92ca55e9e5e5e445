"""Many simulations at once: the scene a robot stands in, and the simulators that step it."""

from __future__ import annotations

import mujoco
import torch

from mocap_data.errors import InputError
from npmp.actuators.models import ActuatorModel
from npmp.sim.batch import BatchSim
from npmp.sim.scene import add_contact_sensors, flat_scene, flat_spec
from npmp.sim.simulator import Simulator
from npmp.sim.staged import StagedBatchSim

__all__ = [
    "SIMULATORS",
    "BatchSim",
    "Simulator",
    "StagedBatchSim",
    "add_contact_sensors",
    "flat_scene",
    "flat_spec",
    "make_simulator",
]

SIMULATORS = ("batch", "warp")


def make_simulator(
    name: str,
    model: mujoco.MjModel,
    num_envs: int,
    *,
    control_rate_hz: float,
    device: torch.device | str = "cpu",
    num_threads: int = 0,
    actuator: ActuatorModel | None = None,
) -> Simulator:
    """Simulations of a model for an environment whose tensors are on a device.

    Args:
      name: "batch", MuJoCo on the CPU's threads, whatever the device; "warp", mujoco_warp on the
        device.
      num_threads: of "batch"; 0 for all cores.
      actuator: what moves the joints, of "batch"; None: the model's own drives, which are ideal.

    Raises:
      InputError: for an unknown name, where mujoco_warp is not installed, or an actuator that
        cannot be used.
    """
    device = torch.device(device)
    if name not in SIMULATORS:
        raise InputError(f"no simulator '{name}'; there are: {', '.join(SIMULATORS)}")
    if name == "warp":
        if actuator is not None:
            raise InputError(
                "sim=warp has ideal drives only (actuator=pd); sim=batch takes a model of actuators"
            )
        try:
            from npmp.sim.warp import WarpSim
        except ImportError as error:
            raise InputError(
                f"sim=warp needs mujoco_warp: pip install 'npmp[warp]' ({error})"
            ) from error
        return WarpSim(model, num_envs, control_rate_hz=control_rate_hz, device=device)
    if device.type == "cpu":
        return BatchSim(
            model,
            num_envs,
            control_rate_hz=control_rate_hz,
            num_threads=num_threads,
            actuator=actuator,
        )
    return StagedBatchSim(
        model,
        num_envs,
        control_rate_hz=control_rate_hz,
        num_threads=num_threads,
        device=device,
        actuator=actuator,
    )
