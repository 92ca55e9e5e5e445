"""`mujoco.batch` as the environments use it: torch in and out, one control step a call."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import mujoco.batch
import numpy as np
import torch
from torch import Tensor

from npmp.actuators.models import ActuatorModel
from npmp.sim.drives import Drives, with_motors
from npmp.sim.simulator import sensor_columns, substeps_of

_CTRL = int(mujoco.mjtState.mjSTATE_CTRL)


class BatchSim:
    """Many simulations of one model on the CPU's threads. The same steps give the same bits,
    whatever the number of threads.

    The simulator's own arrays are shared, not copied: `qpos` (n, nq) and `qvel` (n, nv) are float64
    torch views of its live state rows, in MuJoCo's order and units. Writing to them changes the
    simulations at the next step.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        *,
        control_rate_hz: float,
        num_threads: int = 0,
        actuator: ActuatorModel | None = None,
    ):
        """Make the simulations, all in the model's default state.

        Args:
          model: its timestep must divide the control period.
          num_envs: number of simulations.
          control_rate_hz: how often `step` is called, in simulated time [Hz].
          num_threads: 0 for all cores. The result does not depend on it, to the bit.
          actuator: what moves the joints; None: the model's own drives, which are ideal.

        Raises:
          ValueError: when the control period is no multiple of the timestep.
          InputError: for an actuator at another rate than the physics.
        """
        self.substeps = substeps_of(model, control_rate_hz)
        self.drives = None if actuator is None else Drives(actuator, model, num_envs)
        self.model = model = model if actuator is None else with_motors(model, actuator.armature)
        self.num_envs = num_envs
        self.batch = mujoco.batch.Batch(model, num_envs, num_threads)
        self.qpos = torch.from_numpy(self.batch.bind("qpos"))
        self.qvel = torch.from_numpy(self.batch.bind("qvel"))
        self._ctrl = torch.from_numpy(self.batch.bind("ctrl"))
        self._state = torch.from_numpy(self.batch.state)
        self._initial = self._state[:1].clone()
        # (n, nsensordata) live, read only
        self.sensordata = (
            self.batch.bind("sensordata") if model.nsensordata else np.zeros((num_envs, 0))
        )
        # (n, nv) live, read only; from the next step on
        self._drive_forces = self.batch.bind("qfrc_actuator")
        self._warnings = self.batch.warning  # (n, kinds, 2): last info and count, live
        self._course = torch.zeros(num_envs, self.substeps, model.nu, dtype=torch.float64)
        # share of the way to the new controls at each physics step of a first-order hold
        self._share = (
            torch.arange(1, self.substeps + 1, dtype=torch.float64) / self.substeps
        ).view(1, -1, 1)

    def set_state(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        # a simulation is its state row, so writing the row is all that a reset is; `Batch.reset`
        # would wake its threads for it
        self._state[ids] = self._initial
        self.qpos[ids] = qpos.to(self.qpos)
        self.qvel[ids] = qvel.to(self.qvel)
        if self.drives is not None:
            self.drives.begin(ids)

    def move(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        self.qpos[ids], self.qvel[ids] = qpos.to(self.qpos), qvel.to(self.qvel)

    def step(self, ctrl: Tensor, previous: Tensor | None = None) -> None:
        # MuJoCo sets a counter to one when it resets a simulation, so only counters that start at
        # zero can tell
        self._warnings[...] = 0
        if self.drives is not None:
            self._step_driven(self.drives, ctrl, previous)
            return
        if previous is None:
            self._ctrl.copy_(ctrl)
            self.batch.step(nstep=self.substeps)
            return
        start = previous.to(self._course).unsqueeze(1)
        torch.lerp(start, ctrl.to(self._course).unsqueeze(1), self._share, out=self._course)
        self.batch.rollout(self.substeps, self._course.numpy(), _CTRL, record=())

    def _step_driven(self, drives: Drives, ctrl: Tensor, previous: Tensor | None) -> None:
        """`step` with a torque of its own at every physics step."""
        ctrl = ctrl.to(self._ctrl)
        drives.begin_step()
        for share in self._share.flatten():
            target = ctrl if previous is None else torch.lerp(previous.to(ctrl), ctrl, share)
            self._ctrl.copy_(drives.torque(target, self.qpos, self.qvel))
            self.batch.step(nstep=1)

    def wrench(self, body: int) -> Tensor:
        return torch.from_numpy(self.batch.bind("xfrc_applied"))[:, body]

    def expand(self, names: Sequence[str]) -> dict[str, Tensor]:
        """As `Simulator.expand`, float64: mujoco.batch varies every field."""
        return {name: torch.from_numpy(self.batch.expand(name)) for name in names}

    def set_const(self, ids: Tensor) -> None:
        if len(ids):
            self.batch.set_const(ids.numpy())

    def broken(self) -> Tensor:
        """Simulations that MuJoCo warned of in the last step, (n,) bool.

        Most had numbers that are not finite or are huge; MuJoCo has put those back to the model's
        default state, which is finite.
        """
        return torch.from_numpy(self._warnings[:, :, 1].any(-1))

    def warnings(self, i: int) -> list[str]:
        """MuJoCo's names of what it warned of in simulation i's last step, e.g. "BADQACC"."""
        kinds = range(int(mujoco.mjtWarning.mjNWARNING))
        return [
            mujoco.mjtWarning(k).name.removeprefix("mjWARN_")
            for k in kinds
            if self._warnings[i, k, 1]
        ]

    def sensor(self, name: str) -> Tensor:
        return torch.tensor(self.sensordata[:, sensor_columns(self.model, name)])

    def drive_forces(self) -> Tensor:
        return torch.tensor(self._drive_forces)

    def snapshot(self) -> Tensor:
        """As `Simulator.snapshot`, (n, size) float64: `restore` goes on from it to the bit."""
        state = torch.tensor(self.batch.state)
        return state if self.drives is None else torch.cat((state, self.drives.snapshot()), -1)

    def restore(self, state: Tensor) -> None:
        size = self.batch.state.shape[1]
        self.batch.state[:] = state[:, :size].numpy()
        if self.drives is not None:
            self.drives.restore(state[:, size:])
