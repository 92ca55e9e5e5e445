"""`mujoco.batch` as the environments use it: torch in and out, one control step a call."""

from __future__ import annotations

import mujoco
import mujoco.batch
import torch
from torch import Tensor

_CTRL = int(mujoco.mjtState.mjSTATE_CTRL)


class BatchSim:
    """Many simulations of one model on the CPU's threads.

    The simulator's own arrays are shared, not copied: `qpos` (n, nq) and `qvel` (n, nv) are float64 torch views of its
    live state rows, in MuJoCo's order and units. Writing to them changes the simulations at the next step.
    """

    def __init__(self, model: mujoco.MjModel, num_envs: int, *, control_rate_hz: float, num_threads: int = 0):
        """Make the simulations, all in the model's default state.

        Args:
          model: its timestep must divide the control period.
          num_envs: number of simulations.
          control_rate_hz: how often `step` is called, in simulated time [Hz].
          num_threads: 0 for all cores. The result does not depend on it, to the bit.

        Raises: ValueError when the control period is no multiple of the timestep.
        """
        ratio = 1.0 / (control_rate_hz * model.opt.timestep)
        self.substeps = round(ratio)
        if self.substeps < 1 or abs(ratio - self.substeps) > 1e-6:
            raise ValueError(
                f"a control period of {1 / control_rate_hz} s is no multiple of the timestep {model.opt.timestep} s"
            )
        self.model = model
        self.num_envs = num_envs
        self.batch = mujoco.batch.Batch(model, num_envs, num_threads)
        self.qpos = torch.from_numpy(self.batch.bind("qpos"))
        self.qvel = torch.from_numpy(self.batch.bind("qvel"))
        self._ctrl = torch.from_numpy(self.batch.bind("ctrl"))
        self._state = torch.from_numpy(self.batch.state)
        self._initial = self._state[:1].clone()
        self._sensordata = self.batch.bind("sensordata") if model.nsensordata else None
        self._course = torch.zeros(num_envs, self.substeps, model.nu, dtype=torch.float64)
        # share of the way to the new controls at each physics step of a first-order hold
        self._share = (torch.arange(1, self.substeps + 1, dtype=torch.float64) / self.substeps).view(1, -1, 1)

    def set_state(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Place simulations, at rest in every internal state (time, warm start of the solver, controls).

        ids (k,) int64; qpos (k, nq), qvel (k, nv) in MuJoCo's order and units.
        """
        # a simulation is its state row, so writing the row is all that a reset is; `Batch.reset` would wake its threads for it
        self._state[ids] = self._initial
        self.qpos[ids] = qpos.to(self.qpos)
        self.qvel[ids] = qvel.to(self.qvel)

    def step(self, ctrl: Tensor, previous: Tensor | None = None) -> None:
        """One control step of every simulation. ctrl (n, nu): joint targets [rad] for position actuators.

        previous: (n, nu) the targets of the step before: the targets then move linearly from these to `ctrl`, which they reach
        with the last physics step (robot-NPMP's delayed first-order hold: the delay is one control period). None: `ctrl` holds
        for the whole step (zero-order hold).
        """
        if previous is None:
            self._ctrl.copy_(ctrl)
            self.batch.step(nstep=self.substeps)
            return
        start = previous.to(self._course).unsqueeze(1)
        torch.lerp(start, ctrl.to(self._course).unsqueeze(1), self._share, out=self._course)
        self.batch.rollout(self.substeps, self._course.numpy(), _CTRL, record=())

    def sensor(self, name: str) -> Tensor:
        """A copy of a sensor's readings, (n, dim); one physics step behind the state, as `mj_step` leaves it."""
        if self._sensordata is None:
            raise KeyError(f"no sensor '{name}': the model has none")
        sensor = self.model.sensor(name)
        start = int(sensor.adr[0])
        return torch.tensor(self._sensordata[:, start : start + int(sensor.dim[0])])


    def snapshot(self) -> Tensor:
        """A copy of the whole integration state of every simulation, (n, size) float64: `restore` goes on from it to the bit."""
        return torch.tensor(self.batch.state)

    def restore(self, state: Tensor) -> None:
        """Continue from a `snapshot` of as many simulations of the same model."""
        self.batch.state[:] = state.numpy()
