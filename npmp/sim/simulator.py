"""What the environments need of a simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mujoco
import torch
from torch import Tensor

from npmp.sim.drives import Drives


class Simulator(Protocol):
    """Many simulations of one model, one control step a call; tensors in and out are on `device`.

    `qpos` (n, nq) and `qvel` (n, nv) are the present state in MuJoCo's order and units, to be read
    only and overwritten by the next call: clone them to keep them. Their precision is the
    simulator's.
    """

    model: mujoco.MjModel
    num_envs: int
    substeps: int  # physics steps in a control step
    device: torch.device

    @property
    def drives(self) -> Drives | None:
        """The joints' actuators, where a model of real ones moves them."""

    @property
    def qpos(self) -> Tensor:
        """Positions, (n, nq)."""

    @property
    def qvel(self) -> Tensor:
        """Velocities, (n, nv)."""

    def set_state(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Place simulations ids (k,) int64, at rest in every internal state (time, warm start of
        the solver, controls, wrenches).

        qpos (k, nq), qvel (k, nv), of any floating type.
        """

    def move(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Give simulations ids (k,) other positions (k, nq) and velocities (k, nv), and leave all
        else as it is."""

    def step(self, ctrl: Tensor, previous: Tensor | None = None) -> None:
        """One control step of every simulation. ctrl (n, nu): joint targets [rad] for position
        actuators.

        previous: (n, nu) the targets of the step before: the targets then move linearly from these
        to `ctrl`, which they reach with the last physics step (robot-NPMP's delayed first-order
        hold: the delay is one control period). None: `ctrl` holds for the whole step (zero-order
        hold).
        """

    def wrench(self, body: int) -> Tensor:
        """Force [N] and torque [Nm] on a body in the world frame, (n, 6), live: what is written
        acts until it is written anew."""

    def expand(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Give model fields per-simulation values; the live values (n, ...) by name, on whatever
        device the models are.

        Called once, before the first step. Raises InputError for a field that cannot vary.
        """

    def set_const(self, ids: Tensor) -> None:
        """Let the constants that MuJoCo derives from masses and inertias follow what was written to
        them in models ids (k,)."""

    def broken(self) -> Tensor:
        """Simulations whose numbers stopped making sense in the last step, (n,) bool; they must be
        placed anew."""

    def warnings(self, i: int) -> list[str]:
        """What broke simulation i in the last step, by name; empty where nothing is known."""

    def sensor(self, name: str) -> Tensor:
        """A copy of a sensor's readings, (n, dim); one physics step behind the state, as `mj_step`
        leaves it.

        Raises:
          KeyError: for a sensor that the model has not.
        """

    def drive_forces(self) -> Tensor:
        """A copy of the generalized forces of the drives [N, Nm], (n, nv), as of the last physics
        step."""

    def snapshot(self) -> Tensor:
        """A copy of the whole integration state of every simulation, (n, size); of what `expand`
        gave nothing."""

    def restore(self, state: Tensor) -> None:
        """Continue from a `snapshot` of as many simulations of the same model by the same kind of
        simulator."""


def substeps_of(model: mujoco.MjModel, control_rate_hz: float) -> int:
    """Physics steps in a control step. Raises: ValueError when the control period is no multiple of
    the timestep."""
    ratio = 1.0 / (control_rate_hz * model.opt.timestep)
    if round(ratio) < 1 or abs(ratio - round(ratio)) > 1e-6:
        raise ValueError(
            f"a control period of {1 / control_rate_hz} s is no multiple of the timestep"
            f" {model.opt.timestep} s"
        )
    return round(ratio)


def sensor_columns(model: mujoco.MjModel, name: str) -> slice:
    """Where a sensor's readings stand in `sensordata`. Raises: KeyError for one that the model has
    not."""
    if not model.nsensor:
        raise KeyError(f"no sensor '{name}': the model has none")
    sensor = model.sensor(name)
    return slice(int(sensor.adr[0]), int(sensor.adr[0] + sensor.dim[0]))
