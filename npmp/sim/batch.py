"""`mujoco.batch` behind the `Simulator` protocol: torch tensors, one control step per call."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import mujoco.batch
import numpy as np
import torch
from torch import Tensor

from npmp.actuators.models import ActuatorModel
from npmp.sim.drives import Drives, with_drives
from npmp.sim.simulator import register

_CTRL = int(mujoco.mjtState.mjSTATE_CTRL)
_CPU = torch.device("cpu")


class BatchSim:
    """A `Simulator` on CPU threads, float64. Results do not depend on the number of threads."""

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        *,
        device: torch.device = _CPU,
        control_rate_hz: float,
        num_threads: int = 0,
        actuators: Sequence[ActuatorModel | None] = (None,),
    ):
        """As `Engine`. Raises ValueError for another device than the CPU."""
        if torch.device(device).type != "cpu":
            raise ValueError(f"device={device}: BatchSim runs on the CPU; use StagedBatchSim")
        self.device = _CPU
        self.substeps = round(1.0 / (control_rate_hz * model.opt.timestep))
        driven = any(actuator is not None for actuator in actuators)
        self.drives = Drives(actuators, model, num_envs) if driven else None
        self.model, differing = with_drives(model, actuators)
        model = self.model
        self.num_envs = num_envs
        self.batch = mujoco.batch.Batch(model, num_envs, num_threads)
        for name, values in differing.items():
            expanded = self.batch.expand(name)
            for k, value in enumerate(values):
                expanded[k :: len(values)] = value
            if name == "dof_armature":
                self.batch.set_const(np.arange(num_envs))
        self.qpos = torch.from_numpy(self.batch.bind("qpos"))
        self.qvel = torch.from_numpy(self.batch.bind("qvel"))
        self._ctrl = torch.from_numpy(self.batch.bind("ctrl"))
        self._state = torch.from_numpy(self.batch.state)
        self._initial = self._state[:1].clone()
        # (n, nsensordata) live, read only
        none = np.zeros((num_envs, 0))
        self.sensordata = self.batch.bind("sensordata") if model.nsensordata else none
        # (n, nv) live, read only; valid after the first step
        self._drive_forces = self.batch.bind("qfrc_actuator")
        self._warnings = self.batch.warning  # (n, kinds, 2): last info and count, live
        self._targets = torch.zeros(num_envs, self.substeps, model.nu, dtype=torch.float64)
        # weight of the new controls at each physics step of a first-order hold
        steps = torch.arange(1, self.substeps + 1, dtype=torch.float64)
        self._share = (steps / self.substeps).view(1, -1, 1)

    def set_state(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        # a reset writes the simulation's state row; `Batch.reset` would also wake the threads
        self._state[ids] = self._initial
        self.qpos[ids] = qpos.to(self.qpos)
        self.qvel[ids] = qvel.to(self.qvel)
        if self.drives is not None:
            self.drives.begin(ids)

    def move(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        self.qpos[ids] = qpos.to(self.qpos)
        self.qvel[ids] = qvel.to(self.qvel)

    def step(self, ctrl: Tensor, previous: Tensor | None = None) -> None:
        # MuJoCo sets a counter to one when it resets a simulation: start all counters at zero
        self._warnings[...] = 0
        if self.drives is not None:  # torques are computed at every physics step
            ctrl = ctrl.to(self._ctrl)
            self.drives.begin_step()
            for share in self._share.flatten():
                target = ctrl if previous is None else torch.lerp(previous.to(ctrl), ctrl, share)
                self._ctrl.copy_(self.drives.controls(target, self.qpos, self.qvel))
                self.batch.step(nstep=1)
        elif previous is None:
            self._ctrl.copy_(ctrl)
            self.batch.step(nstep=self.substeps)
        else:
            start = previous.to(self._targets).unsqueeze(1)
            torch.lerp(start, ctrl.to(self._targets).unsqueeze(1), self._share, out=self._targets)
            self.batch.rollout(self.substeps, self._targets.numpy(), _CTRL, record=())

    def wrench(self, body: int) -> Tensor:
        return torch.from_numpy(self.batch.bind("xfrc_applied"))[:, body]

    def expand(self, names: Sequence[str]) -> dict[str, Tensor]:
        return {name: torch.from_numpy(self.batch.expand(name)) for name in names}

    def set_const(self, ids: Tensor) -> None:
        if len(ids):
            self.batch.set_const(ids.numpy())

    def broken(self) -> Tensor:
        # MuJoCo resets most of these to the model's default state, which is finite
        return torch.from_numpy(self._warnings[:, :, 1].any(-1))

    def warnings(self, i: int) -> list[str]:
        raised = np.flatnonzero(self._warnings[i, :, 1])
        return [mujoco.mjtWarning(int(k)).name.removeprefix("mjWARN_") for k in raised]

    def sensor(self, name: str) -> Tensor:
        return torch.tensor(self.sensordata[:, sensor_columns(self.model, name)])

    def drive_forces(self) -> Tensor:
        return torch.tensor(self._drive_forces)

    def snapshot(self) -> Tensor:
        state = torch.tensor(self.batch.state)
        return state if self.drives is None else torch.cat((state, self.drives.snapshot()), -1)

    def restore(self, state: Tensor) -> None:
        size = self.batch.state.shape[1]
        self.batch.state[:] = state[:, :size].numpy()
        if self.drives is not None:
            self.drives.restore(state[:, size:])


def sensor_columns(model: mujoco.MjModel, name: str) -> slice:
    """Columns of a sensor in `sensordata`. Raises: KeyError for one that the model lacks."""
    sensor = model.sensor(name)
    return slice(int(sensor.adr[0]), int(sensor.adr[0] + sensor.dim[0]))


register("mujoco", BatchSim, device="cpu")
