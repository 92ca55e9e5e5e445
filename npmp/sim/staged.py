"""MuJoCo on CPU threads for a learner on an accelerator: one packed copy each way per control
step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mujoco
import torch
from torch import Tensor

from npmp.sim.batch import BatchSim, sensor_columns
from npmp.sim.simulator import register


class StagedBatchSim:
    """`BatchSim`, a `Simulator` whose state is mirrored on another device.

    A control step copies controls and wrenches to the host, and positions, velocities and sensors
    back, one copy each, through pinned memory. Resets copy the rows that they write. `snapshot`
    stays on the host. For equal controls the physics equals `BatchSim`'s to the bit.
    """

    def __init__(
        self, model: mujoco.MjModel, num_envs: int, *, device: torch.device, **settings: Any
    ):
        """As `Engine`."""
        self.host = BatchSim(model, num_envs, **settings)
        self.model = self.host.model
        self.num_envs = num_envs
        self.device = device
        self.substeps = self.host.substeps
        self.drives = self.host.drives
        self._pin = device.type == "cuda"
        width = model.nq + model.nv + model.nsensordata
        self._down = torch.empty(num_envs, width, dtype=torch.float64, pin_memory=self._pin)
        # buffers by width, which a first-order hold doubles
        self._up: dict[int, Tensor] = {}
        self._mirror = torch.empty(num_envs, width, dtype=torch.float64, device=device)
        # (n, nq) and (n, nv), views
        self.qpos = self._mirror[:, : model.nq]
        self.qvel = self._mirror[:, model.nq : model.nq + model.nv]
        self._wrenches: dict[int, Tensor] = {}
        self._download()

    def set_state(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        self.host.set_state(ids.cpu(), *self._write(ids, qpos, qvel))
        for wrench in self._wrenches.values():
            wrench.index_fill_(0, ids, 0.0)

    def move(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        self.host.move(ids.cpu(), *self._write(ids, qpos, qvel))

    def _write(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> tuple[Tensor, Tensor]:
        """Write positions and velocities into the mirror, and return them on the host."""
        rows = torch.cat((qpos.to(self._mirror), qvel.to(self._mirror)), -1)
        self._mirror[:, : rows.shape[-1]].index_copy_(0, ids, rows)
        on_host = rows.cpu()
        return on_host[:, : self.model.nq], on_host[:, self.model.nq :]

    def step(self, ctrl: Tensor, previous: Tensor | None = None) -> None:
        nu = self.model.nu
        controls = [ctrl] if previous is None else [ctrl, previous]
        packed = torch.cat((*controls, *self._wrenches.values()), -1)
        width = packed.shape[-1]
        if width not in self._up:
            self._up[width] = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=self._pin)
        sent = self._up[width]
        sent.copy_(packed)
        used = len(controls) * nu
        for i, body in enumerate(self._wrenches):
            self.host.wrench(body).copy_(sent[:, used + 6 * i : used + 6 * (i + 1)])
        self.host.step(sent[:, :nu], None if previous is None else sent[:, nu : 2 * nu])
        self._download()

    def _download(self) -> None:
        nq = self.model.nq
        nv = self.model.nv
        self._down[:, :nq] = self.host.qpos
        self._down[:, nq : nq + nv] = self.host.qvel
        self._down[:, nq + nv :].numpy()[:] = self.host.sensordata
        self._mirror.copy_(self._down)

    def wrench(self, body: int) -> Tensor:
        # float32; copied to the host with the next controls
        if body not in self._wrenches:
            self._wrenches[body] = self.host.wrench(body).to(self.device, torch.float32)
        return self._wrenches[body]

    def expand(self, names: Sequence[str]) -> dict[str, Tensor]:
        return self.host.expand(names)

    def set_const(self, ids: Tensor) -> None:
        self.host.set_const(ids.cpu())

    def broken(self) -> Tensor:
        return self.host.broken().to(self.device)

    def warnings(self, i: int) -> list[str]:
        return self.host.warnings(i)

    def sensor(self, name: str) -> Tensor:
        columns = sensor_columns(self.model, name)
        start = self.model.nq + self.model.nv
        return self._mirror[:, start + columns.start : start + columns.stop].clone()

    def drive_forces(self) -> Tensor:
        return self.host.drive_forces().to(self.device)

    def snapshot(self) -> Tensor:
        # wrenches written since the last step
        for body, wrench in self._wrenches.items():
            self.host.wrench(body).copy_(wrench)
        return self.host.snapshot()

    def restore(self, state: Tensor) -> None:
        self.host.restore(state.cpu())
        for body, wrench in self._wrenches.items():
            wrench.copy_(self.host.wrench(body))
        self._download()


register("mujoco_staged", StagedBatchSim, device="cuda")
