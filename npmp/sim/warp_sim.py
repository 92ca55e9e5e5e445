"""MuJoCo Warp behind the `Simulator` protocol: physics on a GPU, without a copy to the host."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from mocap_data.errors import InputError, importing, one_line
from npmp.actuators.models import ActuatorModel
from npmp.sim.batch import sensor_columns
from npmp.sim.drives import Drives, with_drives
from npmp.sim.simulator import register

# positions and velocities beyond which MuJoCo resets a simulation (mjMAXVAL)
_MAX = 1e10
# contacts of one simulation that the solver's memory allows for, without height fields [D]: a
# robot that lies on the floor has about ten
_CONTACTS = 24
# what `set_const` computes; geoms' bounds follow a varied size
_DERIVED = (
    "body_subtreemass",
    "body_invweight0",
    "dof_invweight0",
    "tendon_length0",
    "tendon_invweight0",
    "actuator_acc0",
    "eq_data",
)
_BOUNDS = ("geom_aabb", "geom_rbound")


class WarpSim:
    """A `Simulator` by `mujoco_warp`, float32, on a CUDA device or (slowly, for tests) on the CPU.

    State, sensors and varied model fields are views of Warp's arrays. On a GPU a control step is
    one captured graph; with actuator models each physics step is one, and torch computes the
    torques between them. Only `warnings` and the first step, which compiles, wait for the GPU.

    On a GPU the same seed does not give the same bits: the order of atomic sums varies.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        *,
        device: torch.device,
        control_rate_hz: float,
        num_threads: int = 0,
        actuators: Sequence[ActuatorModel | None] = (None,),
    ):
        """As `Engine`; num_threads has no effect.

        Raises:
          InputError: also where Warp is not installed, or cannot simulate the model.
        """
        with importing("engine=warp needs mujoco_warp: pip install 'npmp[warp]'"):
            import warp

            # without Warp's version, devices and compiled modules
            warp.config.log_level = warp.LOG_WARNING
            warp.init()
            import mujoco_warp
        self._warp = warp
        self._mjw = mujoco_warp
        self.num_envs = num_envs
        # with an index, which Warp needs
        self.device = torch.empty(0, device=device).device
        self._place = warp.device_from_torch(self.device)
        self.substeps = round(1.0 / (control_rate_hz * model.opt.timestep))
        driven = any(actuator is not None for actuator in actuators)
        self.drives = Drives(actuators, model, num_envs, self.device) if driven else None
        self.model, differing = with_drives(model, actuators)
        self._model, self._data = self._put()
        self._field_types = {field.name: field.type for field in fields(self._model)}
        # graphs by the function that they capture
        self._graphs: dict[str, Any] = {}

        data = self._data
        self.qpos = warp.to_torch(data.qpos)
        self.qvel = warp.to_torch(data.qvel)
        self._ctrl = warp.to_torch(data.ctrl)
        self._wrenches = warp.to_torch(data.xfrc_applied)
        self._warm_start = warp.to_torch(data.qacc_warmstart)
        self._activation = warp.to_torch(data.act)
        self._time = warp.to_torch(data.time)
        self._sensordata = warp.to_torch(data.sensordata)
        self._drive_forces = warp.to_torch(data.qfrc_actuator)
        self._overflow = warp.to_torch(data.overflow)
        # columns of a snapshot; a reset clears all but positions and velocities
        self._parts = [
            self.qpos,
            self.qvel,
            self._warm_start,
            self._ctrl,
            self._wrenches.flatten(1),
            self._activation,
            self._time.unsqueeze(1),
        ]
        self._initial_qpos = self.qpos[:1].clone()
        # controls of each physics step
        shape = self.substeps, num_envs, self.model.nu
        self._targets = warp.zeros(shape, dtype=float, device=self._place)
        self._targets_torch = warp.to_torch(self._targets)
        # weight of the new controls at each physics step of a first-order hold
        steps = torch.arange(1, self.substeps + 1, device=self.device)
        self._share = (steps / self.substeps).view(-1, 1, 1)
        self._broken = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._diverged = self._broken
        for name, values in differing.items():
            self._differ(name, values)

    def _put(self) -> tuple[Any, Any]:
        """Warp's model and data. Raises InputError for a feature that it does not support."""
        model = self.model
        rows = 2 * (int(model.geom_condim.max(initial=1)) - 1)
        constraints = 6 * model.neq + model.nv + model.njnt + max(1, rows) * _CONTACTS
        try:
            with self._warp.ScopedDevice(self._place), warnings.catch_warnings():
                # of frictions that are too small for float32
                warnings.simplefilter("ignore")
                put = self._mjw.put_model(model)
                # by default more with height fields
                most = None if model.nhfield else constraints
                data = self._mjw.make_data(model, nworld=self.num_envs, njmax=most)
        except (NotImplementedError, ValueError) as error:
            raise InputError(
                f"engine=warp cannot simulate this model: {one_line(error)}; use engine=mujoco"
            ) from error
        # reported by `broken` and `warnings`
        put.opt.warn_overflow = 0
        if self._place.is_cuda:
            put.opt.graph_conditional = self._warp.is_conditional_graph_supported()
        return put, data

    def _differ(self, name: str, values: list[np.ndarray]) -> None:
        """Give simulation i the value i % K of a model field."""
        field = self.expand([name])[name]
        for k, value in enumerate(values):
            field[k :: len(values)] = torch.as_tensor(value).to(field)
        if name == "dof_armature":
            self.set_const(torch.arange(self.num_envs, device=self.device))

    def set_state(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        for part in self._parts[2:]:
            part.index_fill_(0, ids, 0.0)
        self.move(ids, qpos, qvel)
        if self.drives is not None:
            self.drives.begin(ids)

    def move(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        self.qpos.index_copy_(0, ids, qpos.to(self.qpos))
        self.qvel.index_copy_(0, ids, qvel.to(self.qvel))

    def step(self, ctrl: Tensor, previous: Tensor | None = None) -> None:
        self._overflow.zero_()
        ctrl = ctrl.to(self._ctrl)
        start = ctrl if previous is None else previous.to(self._ctrl)
        if self.drives is None:
            torch.lerp(start, ctrl, self._share, out=self._targets_torch)
            self._run(self._control_step)
        else:  # torques are computed at every physics step
            self.drives.begin_step()
            for share in self._share:
                target = torch.lerp(start, ctrl, share)
                self._ctrl.copy_(self.drives.controls(target, self.qpos, self.qvel))
                self._run(self._physics_step)
        self._reset_diverged()

    def _physics_step(self) -> None:
        self._mjw.step(self._model, self._data)

    def _control_step(self) -> None:
        for k in range(self.substeps):
            self._warp.copy(self._data.ctrl, self._targets[k])
            self._physics_step()

    def _set_const(self) -> None:
        # the next step computes what depends on the state
        self._mjw.set_const(self._model, self._data, restore=False)

    def _run(self, function: Callable[[], None]) -> None:
        """Call a function of Warp's kernels; on a GPU launch its graph.

        Warp's stream and torch's default stream wait for each other: both are blocking.
        """
        with self._warp.ScopedDevice(self._place):
            if not self._place.is_cuda:
                function()
                return
            name = function.__name__
            if name not in self._graphs:
                self._graphs[name] = self._capture(function)
            self._warp.capture_launch(self._graphs[name])

    def _capture(self, function: Callable[[], None]) -> Any:
        """The graph of a function. A first call compiles its kernels."""
        before = [part.clone() for part in self._parts]
        function()
        for part, values in zip(self._parts, before, strict=True):
            part.copy_(values)
        self._overflow.zero_()
        torch.cuda.synchronize(self.device)
        with self._warp.ScopedCapture(device=self._place) as capture:
            function()
        return capture.graph

    def _reset_diverged(self) -> None:
        """Reset simulations without a finite state, as MuJoCo does."""
        overflow = self._mjw.OverflowType
        full = overflow.NEFC | overflow.NJMAX_NNZ | overflow.BROADPHASE | overflow.NARROWPHASE
        moving = torch.cat((self.qpos, self.qvel), -1)
        # true for NaN
        self._diverged = ~(moving.abs() < _MAX).all(-1)
        self._broken = self._diverged | ((self._overflow & int(full)) != 0)
        reset = self._diverged.unsqueeze(-1)
        self.qpos.copy_(torch.where(reset, self._initial_qpos, self.qpos))
        for values in (self.qvel, self._warm_start, self._activation, self._sensordata):
            values.masked_fill_(reset, 0.0)

    def wrench(self, body: int) -> Tensor:
        return self._wrenches[:, body]

    def sensor(self, name: str) -> Tensor:
        return self._sensordata[:, sensor_columns(self.model, name)].clone()

    def drive_forces(self) -> Tensor:
        return self._drive_forces.clone()

    def expand(self, names: Sequence[str]) -> dict[str, Tensor]:
        # live values are float32
        return {name: self._expanded(name) for name in names}

    def _expanded(self, name: str) -> Tensor:
        """A model field with a value per simulation (n, ...), live."""
        # a leading "*" of its shape: one value for all, or one for each
        if getattr(self._field_types.get(name), "shape", ())[:1] != ("*",):
            raise InputError(f"engine=warp cannot vary model field {name!r}; use engine=mujoco")
        field = getattr(self._model, name)
        shared = self._warp.to_torch(field)
        if len(shared) == self.num_envs:
            return shared
        shape = (self.num_envs, *field.shape[1:])
        own = self._warp.empty(shape, dtype=field.dtype, device=self._place)
        setattr(self._model, name, own)
        # graphs use the arrays of their capture
        self._graphs.clear()
        values = self._warp.to_torch(own)
        values.copy_(shared.expand_as(values))
        return values

    def set_const(self, ids: Tensor) -> None:
        # of all simulations: the others' values stay
        if len(ids):
            bounds = _BOUNDS if len(self._model.geom_size) == self.num_envs else ()
            for name in (*_DERIVED, *bounds):
                if len(getattr(self._model, name)) != self.num_envs:
                    self._expanded(name)
            self._run(self._set_const)

    def broken(self) -> Tensor:
        return self._broken

    def warnings(self, i: int) -> list[str]:
        names = ["BADQPOS"] if self._diverged[i] else []
        overflow = self._mjw.OverflowType(int(self._overflow[i]))
        if overflow & (self._mjw.OverflowType.NEFC | self._mjw.OverflowType.NJMAX_NNZ):
            names.append("CNSTRFULL")
        if overflow & (self._mjw.OverflowType.BROADPHASE | self._mjw.OverflowType.NARROWPHASE):
            names.append("CONTACTFULL")
        return names

    def snapshot(self) -> Tensor:
        state = torch.cat(self._parts, -1).double()
        return state if self.drives is None else torch.cat((state, self.drives.snapshot()), -1)

    def restore(self, state: Tensor) -> None:
        state = state.to(self.device)
        begins = 0
        for part in self._parts:
            part.copy_(state[:, begins : begins + part.shape[1]])
            begins += part.shape[1]
        if self.drives is not None:
            self.drives.restore(state[:, begins:])


register("warp", WarpSim)
