"""The protocol of physics engines, and their registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mujoco
import torch
from torch import Tensor

from mocap_data.errors import unknown
from npmp.actuators.models import ActuatorModel
from npmp.sim.drives import Drives


class Simulator(Protocol):
    """A batch of simulations of one model. A step is deterministic on the same engine."""

    model: mujoco.MjModel
    num_envs: int
    device: torch.device
    # physics steps per control step
    substeps: int
    # actuator models; None: ideal drives
    drives: Drives | None
    # (n, nq) and (n, nv), in MuJoCo's order and units, of the engine's precision: read only,
    # overwritten by the next call
    qpos: Tensor
    qvel: Tensor

    def set_state(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Reset simulations ids (k,) int64 to qpos (k, nq), qvel (k, nv). Time, the solver's warm
        start, controls and wrenches become zero."""

    def move(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Set positions and velocities of simulations ids (k,) only."""

    def step(self, ctrl: Tensor, previous: Tensor | None = None) -> None:
        """One control step of every simulation.

        Args:
          ctrl: (n, nu) joint targets [rad] for position actuators.
          previous: (n, nu) targets of the step before. The targets move linearly from these to
            `ctrl`, reached at the last physics step (robot-NPMP's delayed first-order hold). None:
            `ctrl` holds for the whole step.
        """

    def wrench(self, body: int) -> Tensor:
        """Force [N] and torque [Nm] on a body in the world frame, (n, 6), live: written values act
        until they are overwritten."""

    def sensor(self, name: str) -> Tensor:
        """A copy of a sensor's readings, (n, dim), one physics step behind the state, as after
        `mj_step`. Raises KeyError for a sensor that the model lacks."""

    def drive_forces(self) -> Tensor:
        """A copy of the generalized forces of the drives [N, Nm], (n, nv), as of the last physics
        step."""

    def expand(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Give model fields a value per simulation, before the first step.

        Returns: live values (n, ...) by name, on the device of the engine's model.
        """

    def set_const(self, ids: Tensor) -> None:
        """Recompute MuJoCo's derived constants (`mj_setConst`) of simulations ids (k,)."""

    def broken(self) -> Tensor:
        """Simulations that diverged in the last step, (n,) bool; their state is finite."""

    def warnings(self, i: int) -> list[str]:
        """MuJoCo's names of the warnings of simulation i's last step, e.g. "BADQACC"."""

    def snapshot(self) -> Tensor:
        """A copy of the whole integration state, (n, size) float64, without `expand`'s fields."""

    def restore(self, state: Tensor) -> None:
        """Continue from a `snapshot` of as many simulations of the same model, to the bit."""


class Engine(Protocol):
    """Makes a simulator."""

    def __call__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        *,
        device: torch.device,
        control_rate_hz: float,
        num_threads: int = 0,
        actuators: Sequence[ActuatorModel | None] = (None,),
    ) -> Simulator:
        """All simulations in the model's default state.

        Args:
          device: of the tensors.
          control_rate_hz: how often `step` is called, in simulated time [Hz]; it divides the
            model's physics rate.
          num_threads: 0 for all cores. Results do not depend on it.
          actuators: K actuator models; simulation i has model i % K; None: ideal drives.

        Raises:
          InputError: for an actuator at another rate than the physics.
        """


_ENGINES: dict[str, Engine] = {}
# default engine by type of device; others use that of "cuda"
_OF_DEVICE = {"cpu": "mujoco", "cuda": "mujoco_staged"}


def register(name: str, engine: Engine, *, device: str = "") -> None:
    """Register an engine. device: type of device whose default it is, "cpu" or "cuda"."""
    _ENGINES[name] = engine
    if device:
        _OF_DEVICE[device] = name


def check_engine(name: str) -> None:
    """Raise InputError for a name that no engine is registered by; "" is the device's default."""
    if name and name not in _ENGINES:
        raise unknown("engine", name, _ENGINES)


def simulate(
    model: mujoco.MjModel,
    num_envs: int,
    *,
    device: torch.device | str = "cpu",
    engine: str = "",
    **settings: Any,
) -> Simulator:
    """A simulator of a registered engine.

    Args:
      engine: its name; "": the device's default.
      settings: arguments of `Engine`.

    Raises:
      InputError: for an unknown engine, or by the engine.
    """
    device = torch.device(device)
    name = engine or _OF_DEVICE.get(device.type, _OF_DEVICE["cuda"])
    check_engine(name)
    return _ENGINES[name](model, num_envs, device=device, **settings)
