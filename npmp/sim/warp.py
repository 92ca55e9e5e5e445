"""mujoco_warp as the environments use it: physics in float32 where the tensors are, shared with
torch without copies.

On a GPU a control step is one CUDA graph. On the CPU the same kernels run on one core, which takes
many robots some thirty times as long as `BatchSim`: for tests and for looking into things.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp
from torch import Tensor

from mocap_data.errors import InputError
from npmp.sim.simulator import sensor_columns, substeps_of

# Contacts that have room in a simulation, where the model could have more: twice what OP3, all of
# boxes, has at most when it tumbles over the floor at random (18; ANYmal B 8).
CONTACTS = 48
# What `mjw.set_const` writes, where the masses differ from simulation to simulation.
_DERIVED = ("body_subtreemass", "body_invweight0", "dof_invweight0", "actuator_acc0")
# Overflows that change the physics: contacts or constraint rows without room are left out. (A
# solver that stops at its limit of iterations is no overflow: MuJoCo's does the same.)
_LOSSES = ("NEFC", "NJMAX_NNZ", "BROADPHASE", "NARROWPHASE", "CCD", "CONTACT_MATCH")
# Control steps between two looks for overflows: each look waits for the device.
_LOOK_EVERY = 50

wp.config.log_level = wp.LOG_WARNING  # no list of compiled kernels on the output


# to the type checker, warp's annotations are no types
@wp.kernel(enable_backward=False)
def _hold(  # type: ignore[no-untyped-def]
    start: wp.array2d(dtype=float),  # type: ignore[valid-type]
    end: wp.array2d(dtype=float),  # type: ignore[valid-type]
    share: float,
    ctrl: wp.array2d(dtype=float),  # type: ignore[valid-type]
):
    i, j = wp.tid()  # type: ignore[misc]
    ctrl[i, j] = start[i, j] + share * (end[i, j] - start[i, j])


class WarpSim:
    """Many simulations of one model by mujoco_warp; see `Simulator`.

    `qpos` and `qvel` are float32 views of its arrays: writing to them changes the simulations at
    the next step. Torch's work must be on its default stream, with which warp's is in order. On a
    GPU contacts are found in no fixed order, so that sums of forces may differ in the last bit from
    run to run: only `BatchSim` on the CPU promises equal bits. Integrator, cone, solver and their
    options are the model's; the solver's tolerance is 1e-6 where the model's is less, as single
    precision allows.

    A simulation that diverges becomes NaN and stays so until it is placed anew. (MuJoCo itself
    resets it.)
    """

    drives = None  # the model's own, ideal

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        *,
        control_rate_hz: float,
        device: torch.device | str = "cpu",
        contacts: int | None = None,
    ):
        """Make the simulations, all in the model's default state.

        Args:
          contacts: that have room in one simulation. By default as many as the model can have, at
            most 48; more are left out, with a RuntimeWarning.

        Raises:
          InputError: for a model with what mujoco_warp does not support; ValueError when the
            control period is no multiple of the timestep.
        """
        self.model, self.num_envs = model, num_envs
        self.substeps = substeps_of(model, control_rate_hz)
        self.device = torch.device(device)
        self._wp_device = wp.get_device(str(self.device))
        room = contacts if contacts is not None else min(contacts_at_most(model), CONTACTS)
        with wp.ScopedDevice(self._wp_device):
            self._model = self._put_model({})
            self._data = mjw.make_data(
                model, nworld=num_envs, nconmax=room, njmax=rows_at_most(model, room)
            )
            self._start, self._end = (wp.zeros((num_envs, model.nu), dtype=float) for _ in range(2))
        d = self._data
        self.qpos, self.qvel = wp.to_torch(d.qpos), wp.to_torch(d.qvel)
        self._start_view, self._end_view = wp.to_torch(self._start), wp.to_torch(self._end)
        self._sensordata, self._overflow = wp.to_torch(d.sensordata), wp.to_torch(d.overflow)
        # what an integration goes on from; `snapshot` keeps these side by side
        arrays = (d.time, d.qpos, d.qvel, d.qacc_warmstart, d.ctrl, d.qfrc_applied, d.xfrc_applied)
        self._state = [wp.to_torch(array).view(num_envs, -1) for array in arrays]
        self._wrenches = wp.to_torch(d.xfrc_applied)
        self._constants_stale = False
        self._physics, self._constants = self._replays()
        self._steps = 0
        self._told: set[str] = set()

    def _put_model(self, batch_sizes: dict[str, int]) -> Any:
        try:
            model = mjw.put_model(self.model, batch_sizes=batch_sizes)
        except NotImplementedError as error:
            raise InputError(
                f"mujoco_warp cannot simulate this model: {error}; use sim=batch"
            ) from error
        # `_look_for_overflows` tells it once, not once a step and simulation
        model.opt.warn_overflow = 0
        return model

    def _replays(self) -> tuple[_Replay, _Replay]:
        """The physics steps of a control step, and the derived constants, of the arrays that there
        are now."""
        return _Replay(self._physics_steps, self), _Replay(self._derive_constants, self)

    def set_state(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        for part in self._state:
            part.index_fill_(0, ids, 0.0)
        self.move(ids, qpos, qvel)

    def move(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        self.qpos.index_copy_(0, ids, qpos.to(self.qpos))
        self.qvel.index_copy_(0, ids, qvel.to(self.qvel))

    def step(self, ctrl: Tensor, previous: Tensor | None = None) -> None:
        self._start_view.copy_(ctrl if previous is None else previous)
        self._end_view.copy_(ctrl)
        if self._constants_stale:
            self._constants()
            self._constants_stale = False
        self._physics()
        self._steps += 1
        if self._steps % _LOOK_EVERY == 0:
            self._look_for_overflows()

    def _physics_steps(self) -> None:
        """All physics steps of a control step."""
        d = self._data
        for k in range(self.substeps):
            share = (k + 1) / self.substeps
            wp.launch(
                _hold,
                dim=(self.num_envs, self.model.nu),
                inputs=[self._start, self._end, share],
                outputs=[d.ctrl],
            )
            mjw.step(self._model, d)

    def _derive_constants(self) -> None:
        mjw.set_const(self._model, self._data, restore=False)

    def overflows(self) -> dict[str, int]:
        """What has had no room since the last look, and in how many simulations it was left out."""
        found = {}
        if bool(self._overflow.any()):
            for name in _LOSSES:
                count = int(((self._overflow & int(mjw.OverflowType[name])) != 0).sum())
                if count:
                    found[name] = count
        self._overflow.zero_()
        return found

    def _look_for_overflows(self) -> None:
        found = {name: count for name, count in self.overflows().items() if name not in self._told}
        self._told |= set(found)
        for name, count in found.items():
            warnings.warn(
                f"mujoco_warp had no room for all contacts or constraints of {count} of"
                f" {self.num_envs} robots ({name}) and left some out: their physics is wrong there;"
                " WarpSim(contacts=...) makes room",
                RuntimeWarning,
                stacklevel=2,
            )

    def wrench(self, body: int) -> Tensor:
        return self._wrenches[:, body]

    def expand(self, names: Sequence[str]) -> dict[str, Tensor]:
        """As `Simulator.expand`, float32 and on the device."""
        if not names:
            return {}
        inertial = {"body_mass", "body_inertia", "body_ipos", "dof_armature"} & set(names)
        known = dict.fromkeys((*names, *(_DERIVED if inertial else ())), self.num_envs)
        with wp.ScopedDevice(self._wp_device):
            try:
                self._model = self._put_model(known)
            except ValueError as error:
                why = f"mujoco_warp cannot vary this from robot to robot: {error}"
                raise InputError(f"{why}; use sim=batch") from error
        self._physics, self._constants = self._replays()
        return {name: wp.to_torch(getattr(self._model, name)) for name in names}

    def set_const(self, ids: Tensor) -> None:
        """As `Simulator.set_const`: of all simulations, before the next step."""
        self._constants_stale = True

    def broken(self) -> Tensor:
        """As `Simulator.broken`: whose state is not finite."""
        return ~torch.isfinite(torch.cat((self.qpos, self.qvel), -1)).all(-1)

    def warnings(self, i: int) -> list[str]:
        return (
            []
            if bool(torch.isfinite(self.qpos[i]).all() & torch.isfinite(self.qvel[i]).all())
            else ["NOTFINITE"]
        )

    def sensor(self, name: str) -> Tensor:
        return self._sensordata[:, sensor_columns(self.model, name)].clone()

    def drive_forces(self) -> Tensor:
        return wp.to_torch(self._data.qfrc_actuator).clone()

    def snapshot(self) -> Tensor:
        """As `Simulator.snapshot`, (n, size) float32."""
        return torch.cat(self._state, -1)

    def restore(self, state: Tensor) -> None:
        for part, kept in zip(
            self._state,
            state.to(self.qpos).split([p.shape[1] for p in self._state], -1),
            strict=True,
        ):
            part.copy_(kept)


class _Replay:
    """A sequence of kernel launches: as they are on the CPU, as one CUDA graph on a GPU."""

    def __init__(self, launches: Callable[[], None], sim: WarpSim):
        self._launches, self._sim = launches, sim
        self._device = sim._wp_device
        self._graph: Any = None

    def __call__(self) -> None:
        with wp.ScopedDevice(self._device):
            # the solver's loop needs conditional nodes in the graph, the scratch arrays a memory
            # pool
            if (
                not self._device.is_cuda
                or not wp.is_conditional_graph_supported()
                or not wp.is_mempool_enabled(self._device)
            ):
                self._launches()
                return
            if self._graph is None:
                before = self._sim.snapshot()
                # compiles the kernels, which must not happen while they are recorded
                self._launches()
                self._sim.restore(before)
                with _no_collection(), wp.ScopedCapture() as capture:
                    self._launches()
                self._graph = capture.graph
            wp.capture_launch(self._graph)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without finalizers of warp's objects, which would be recorded into a graph."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def contacts_at_most(model: mujoco.MjModel) -> int:
    """Contact points that a model's geoms can have with a plane at once: 1 of a sphere, 2 of a
    capsule, 4 of anything else. Raises InputError for a model with other collisions."""
    kinds, planes = mujoco.mjtGeom, model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
    others = ~planes & ((model.geom_contype | model.geom_conaffinity) != 0)
    contype, conaffinity = model.geom_contype[others], model.geom_conaffinity[others]
    if model.npair or (contype[:, None] & conaffinity[None]).any():
        raise InputError(
            "mujoco_warp is for scenes in which robots collide with the floor only; use sim=batch"
        )
    points = {int(kinds.mjGEOM_SPHERE): 1, int(kinds.mjGEOM_CAPSULE): 2}
    return int(planes.sum()) * sum(points.get(int(kind), 4) for kind in model.geom_type[others])


def rows_at_most(model: mujoco.MjModel, contacts: int) -> int:
    """Constraint rows of so many contacts, all joint limits, all joints' friction, and equalities
    (at most 6 each)."""
    pyramidal = model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    per_contact = max((2 * (int(d) - 1) if pyramidal else int(d)) or 1 for d in model.geom_condim)
    limits, frictions = (
        int(model.jnt_limited.sum()) + int(model.tendon_limited.sum()),
        model.nv + model.ntendon,
    )
    return contacts * per_contact + limits + frictions + 6 * model.neq
