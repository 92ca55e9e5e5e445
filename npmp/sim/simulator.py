"""The physics engine as environments use it, and the registry of engines."""

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
    """Many simulations of one model. A step gives the same bits on the same engine."""

    model: mujoco.MjModel
    num_envs: int
    device: torch.device
    # physics steps of a control step
    substeps: int
    # the joints' actuators where a model of real ones moves them, else None
    drives: Drives | None
    # (n, nq) and (n, nv), in MuJoCo's order and units: read only, overwritten by the next call
    qpos: Tensor
    qvel: Tensor

    def set_state(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Place simulations ids (k,) int64 at qpos (k, nq), qvel (k, nv), with every internal state
        (time, warm start of the solver, controls, wrenches) at rest."""

    def move(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Set positions and velocities of simulations ids (k,), and leave all else as it is."""

    def step(self, ctrl: Tensor, previous: Tensor | None = None) -> None:
        """One control step of every simulation.

        Args:
          ctrl: (n, nu) joint targets [rad] for position actuators.
          previous: (n, nu) the targets of the step before: the targets then move linearly from
            these to `ctrl`, which they reach with the last physics step (robot-NPMP's delayed
            first-order hold). None: `ctrl` holds for the whole step.
        """

    def wrench(self, body: int) -> Tensor:
        """Force [N] and torque [Nm] on a body in the world frame, (n, 6), live: what is written
        acts until it is written anew."""

    def sensor(self, name: str) -> Tensor:
        """A copy of a sensor's readings, (n, dim); one physics step behind the state, as `mj_step`
        leaves it. Raises KeyError for a sensor that the model lacks."""

    def drive_forces(self) -> Tensor:
        """A copy of the generalized forces of the drives [N, Nm], (n, nv), as of the last physics
        step."""

    def expand(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Give model fields a value per simulation, before the first step: the live values
        (n, ...) float64 by name, on the engine's own device."""

    def set_const(self, ids: Tensor) -> None:
        """Derive MuJoCo's constants of models ids (k,) anew from their masses and inertias."""

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
          num_threads: 0 for all cores. The result does not depend on it.
          actuators: move the joints, K kinds, in simulation i the kind i % K; None: the model's own
            drives, which are ideal.

        Raises:
          InputError: for an actuator at another rate than the physics.
        """


_ENGINES: dict[str, Engine] = {}
# the engine for a type of device; others have that of "cuda"
_OF_DEVICE = {"cpu": "mujoco", "cuda": "mujoco_staged"}


def register(name: str, engine: Engine, *, device: str = "") -> None:
    """Add an engine. device: the type of device, "cpu" or "cuda", that it is the default for."""
    _ENGINES[name] = engine
    if device:
        _OF_DEVICE[device] = name


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
      engine: its name; "": the default for the device.
      settings: as `Engine` takes them.

    Raises:
      InputError: for an unknown engine, and as the engine does.
    """
    device = torch.device(device)
    name = engine or _OF_DEVICE.get(device.type, _OF_DEVICE["cuda"])
    if name not in _ENGINES:
        raise unknown("simulator", name, _ENGINES)
    return _ENGINES[name](model, num_envs, device=device, **settings)
