"""Domain randomization: physical parameters of each robot, sampled at every reset.

Structure and values: robot-NPMP (Bohez et al. 2022); conf/randomization names the source of each.
The values are per-simulation model fields, so the physics is as fast as without. A quantity c that
varies for the whole robot and for each part is (1 + s_global) (1 + s_i) c, both scales uniform.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from mocap_data.errors import InputError, unknown
from npmp.core import ranges
from npmp.robots import Robot
from npmp.robots.description import CONES
from npmp.sim.scene import FIELD_CONTACT_S
from npmp.sim.simulator import Simulator

# dimensions of contacts with friction
CONDIMS = (3, 4, 6)
# contacts' ranges in PhysicsConfig, above zero
_CONTACT_RANGES = ("friction", "contact_s", "torsional", "rolling", "impratio")


@dataclass(frozen=True)
class Spread:
    """Half-widths of the uniform scales (1 + s_global) (1 + s_i), in [0, 1)."""

    # half-width of s_global, one for the robot
    whole: float = 0.0
    # half-width of s_i, one for every part
    each: float = 0.0

    def __post_init__(self) -> None:
        ranges.share(self, "whole", "each")
        if max(self.whole, self.each) >= 1.0:
            raise ValueError(
                f"whole and each must be below 1 (a scale may not reach 0);"
                f" got {self.whole}, {self.each}"
            )

    @property
    def active(self) -> bool:
        """Whether the quantity varies."""
        return self.whole > 0 or self.each > 0


@dataclass(frozen=True)
class JointPhysics:
    """Identified parameters of a joint and its drive; None: the model's."""

    # [kg m2]
    armature: float | None = None
    # damping of the joint [Nm s/rad]
    damping: float | None = None
    # [Nm]
    friction_loss: float | None = None
    # [Nm/rad]
    kp: float | None = None
    # damping of the drive [Nm s/rad]
    kd: float | None = None
    # the encoder reads the true angle plus this [rad]
    offset: float = 0.0

    def __post_init__(self) -> None:
        ranges.not_negative(self, "armature", "damping", "friction_loss", "kd")
        ranges.above_zero(self, "kp")


@dataclass(frozen=True)
class PhysicsConfig:
    """Parameters sampled at every reset; by default none."""

    # nominal parameters by joint, around which samples vary
    nominal: Mapping[str, JointPhysics] = field(default_factory=dict)
    # friction cone of contacts, elliptic or pyramidal; a list: one of them for each robot; None:
    # the model's
    cone: str | tuple[str, ...] | None = None
    # rate of the physics [Hz], a multiple of the control rate; None: the robot's
    physics_rate_hz: float | None = None
    # range of the feet's sliding friction; None: the model's
    friction: tuple[float, float] | None = None
    # dimensions of the feet's contacts (MuJoCo's condim): 3, with torsional friction 4, also with
    # rolling friction 6; a list: one of them for each robot; None: the model's
    condim: int | tuple[int, ...] | None = None
    # range of the feet's torsional friction [m], log-uniform; None: the model's
    torsional: tuple[float, float] | None = None
    # range of the feet's rolling friction [m], log-uniform; None: the model's
    rolling: tuple[float, float] | None = None
    # range of the ratio of frictional to normal impedance (MuJoCo's impratio), log-uniform; None:
    # the model's
    impratio: tuple[float, float] | None = None
    # time constant of the contacts between feet and ground [s] (MuJoCo's solref), at least two
    # physics steps, on terrain at most `FIELD_CONTACT_S`; None: the model's
    contact_s: tuple[float, float] | None = None
    # range of the restitution of the feet on the ground, below 1 (MuJoCo's solref: its damping
    # ratio, at the stiffness of `contact_s`, on terrain of half of `FIELD_CONTACT_S`); None: the
    # model's
    restitution: tuple[float, float] | None = None
    # scale of the bodies' masses and inertia
    mass: Spread = field(default_factory=Spread)
    # mass added to the scaled mass of the root body [kg]; None or (0, 0): none
    payload: tuple[float, float] | None = None
    # shift of the root body's centre of mass along each axis, at most [m]
    com_trunk: float = 0.0
    # shift of the other bodies' centres of mass [m]
    com_links: float = 0.0
    # calibration error of each joint's encoder, at most [rad]
    joint_offset: float = 0.0
    # scale of the armature of joints
    armature: Spread = field(default_factory=Spread)
    # scale of the damping of drives and joints
    damping: Spread = field(default_factory=Spread)
    # scale of the friction of joints
    friction_loss: Spread = field(default_factory=Spread)
    # stiffness of the drives
    gain: Spread = field(default_factory=Spread)
    # torque limit of the drives
    torque: Spread = field(default_factory=Spread)
    # scale of an actuator model's latents around their mean, in their standard deviation
    actuators: float = 0.0
    # factor of the torque limit of one random joint of the legs; 1: none is weak
    weak_joint: float = 1.0

    def __post_init__(self) -> None:
        ranges.not_negative(self, "com_trunk", "com_links", "joint_offset", "actuators")
        ranges.share(self, "weak_joint")
        for name, choices in (("cone", CONES), ("condim", CONDIMS)):
            if (value := getattr(self, name)) is not None:
                values = tuple(value) if isinstance(value, list | tuple) else (value,)
                if not values or not set(values) <= set(choices):
                    expected = ", ".join(map(str, choices))
                    got = ", ".join(map(str, values)) or "none"
                    raise ValueError(f"{name} must be one or several of {expected}; got {got}")
                object.__setattr__(self, name, values if len(values) > 1 else values[0])
        for name in (*_CONTACT_RANGES, "restitution", "payload"):
            if (pair := getattr(self, name)) is not None:
                # lists as they come from a file
                object.__setattr__(self, name, tuple(float(v) for v in pair))
                if len(pair) != 2 or not 0.0 <= pair[0] <= pair[1] < math.inf:
                    words = f"{name} must be two numbers, 0 <= low <= high, or null"
                    raise ValueError(f"{words}, got {list(pair)}")
        ranges.above_zero(self, *_CONTACT_RANGES, "physics_rate_hz")
        if self.restitution is not None and self.restitution[1] >= 1.0:
            raise ValueError(f"restitution must be below 1, got {list(self.restitution)}")
        if self.payload == (0.0, 0.0):
            object.__setattr__(self, "payload", None)


@dataclass(frozen=True)
class PushConfig:
    """Random lateral forces on the root body; by default none.

    The magnitude is uniform from `least` times `force` to `force`, the direction uniform in the
    horizontal plane; duration and gap are exponential.
    """

    # largest force [N]
    force: float = 0.0
    # least force as a share of `force`; 1: all are equally strong
    least: float = 0.0
    # mean duration of a push [s]
    duration_s: float = 0.1
    # mean time between two pushes [s]
    gap_s: float = 1.0

    def __post_init__(self) -> None:
        ranges.not_negative(self, "force")
        ranges.share(self, "least")
        ranges.above_zero(self, "duration_s", "gap_s")


# (model field, component of its last axis or None for all, name of its spread in PhysicsConfig);
# centres of mass are shifted, not scaled. Masses are first and torque limits last, as payload and
# weak joint index them so.
_VARIED: tuple[tuple[str, int | None, str], ...] = (
    ("body_mass", None, "mass"),
    ("body_inertia", None, "mass"),
    ("body_ipos", None, "com"),
    ("dof_armature", None, "armature"),
    ("dof_damping", None, "damping"),
    ("actuator_biasprm", 2, "damping"),
    ("dof_frictionloss", None, "friction_loss"),
    ("actuator_gainprm", 0, "gain"),
    ("actuator_biasprm", 1, "gain"),
    ("actuator_forcerange", None, "torque"),
)
# parts lighter than this share of the robot do not vary (ANYmal's feet: 1 g)
_LIGHT = 1e-4


def with_nominal(model: mujoco.MjModel, robot: Robot, config: PhysicsConfig) -> mujoco.MjModel:
    """The model with a configuration's joints, timestep, and contacts that all robots share; the
    same object without any.

    Raises:
      InputError: for a joint that the model lacks.
    """
    cone = config.cone if isinstance(config.cone, str) else None
    condim = config.condim if isinstance(config.condim, int) else None
    impratio = None if _varies(config.impratio) else config.impratio
    shared = (cone, condim, impratio, config.physics_rate_hz)
    if not config.nominal and all(value is None for value in shared):
        return model
    drives = {model.actuator(i).name: i for i in range(model.nu)}
    model = copy.copy(model)
    if cone is not None:
        model.opt.cone = CONES[cone]
    if condim is not None:
        model.geom_condim[foot_geoms(model, robot)] = condim
    if impratio is not None:
        model.opt.impratio = impratio[0]
    if config.physics_rate_hz is not None:
        model.opt.timestep = 1.0 / config.physics_rate_hz
    for name, joint in config.nominal.items():
        if name not in drives:
            raise InputError(f"randomization.physics.nominal: {unknown('joint', name, drives)}")
        v = int(model.joint(name).dofadr[0])
        u = drives[name]
        for values, at, value in (
            (model.dof_armature, v, joint.armature),
            (model.dof_damping, v, joint.damping),
            (model.dof_frictionloss, v, joint.friction_loss),
            (model.actuator_gainprm, (u, 0), joint.kp),
            (model.actuator_biasprm, (u, 1), None if joint.kp is None else -joint.kp),
            (model.actuator_biasprm, (u, 2), None if joint.kd is None else -joint.kd),
        ):
            if value is not None:
                values[at] = value
    mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


def foot_geoms(model: mujoco.MjModel, robot: Robot) -> np.ndarray:
    """Ids of the geoms of a robot's feet that collide."""
    feet = [model.body(name).id for name in robot.foot_bodies]
    return np.flatnonzero(np.isin(model.geom_bodyid, feet) & _collides(model))


def _collides(model: mujoco.MjModel) -> np.ndarray:
    collides: np.ndarray = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    return collides


def _varies(limits: tuple[float, float] | None) -> bool:
    """Whether a range has more than one value."""
    return limits is not None and limits[0] < limits[1]


def damping_ratio(restitution: Tensor) -> Tensor:
    """The damping ratio of an oscillator that has this share of its speed after half a period:
    e = exp(-pi r / sqrt(1 - r^2)).

    MuJoCo's contacts end earlier, where their force is zero, and their impedance grows with the
    depth. At 400 Hz both together change the restitution by at most 0.06, up to 0.6.

    Args:
      restitution: (...) in [0, 1]; 0 counts as 1e-9.
    """
    decay = -restitution.clamp(min=1e-9).log()
    return decay / torch.sqrt(math.pi**2 + decay**2)


class PhysicsRandomizer:
    """Samples physical parameters and writes them into simulations.

    `unit` (n, P) are the samples, uniform in [-1, 1], observed by critic and world model; P is 0
    when nothing varies. `joint_offset` (n, nu) [rad]: encoders read the true angle plus this. A
    payload is a point mass at the root body's shifted centre of mass; the inertia about that centre
    does not change.

    Quantities that are zero in the model (ANYmal's friction loss) and very light parts have no
    samples.
    """

    def __init__(self, sim: Simulator, robot: Robot, config: PhysicsConfig):
        """Expand the model fields that vary. Every simulation starts with the model's values.

        Raises:
          InputError: for a field that the simulator cannot vary, and for a restitution of feet
            whose contacts have no time constant.
        """
        model = sim.model
        c = config
        self._sim = sim
        self._config = config
        bodies = [int(model.body(name).id) for name in robot.body_names]
        self._bodies = torch.tensor([b for b in bodies if model.body_mass[b] > 0])
        light = _LIGHT * sum(model.body_mass[bodies])
        self._heavy = torch.tensor([b for b in bodies if model.body_mass[b] > light])
        self._spreads = {
            name: getattr(c, name, Spread()) if self._has(name) else Spread()
            for name in dict.fromkeys(kind for *_, kind in _VARIED)
        }
        feet = foot_geoms(model, robot)
        floor = np.flatnonzero((model.geom_bodyid == 0) & _collides(model))
        self._foot_geoms = torch.from_numpy(feet)
        self._touching = torch.from_numpy(np.union1d(feet, floor))
        rough = (model.geom_type[floor] == mujoco.mjtGeom.mjGEOM_HFIELD).any()
        self._longest_contact_s = FIELD_CONTACT_S if rough else math.inf
        # of the model's feet, as if their damping ratio were 1 [s]
        self._foot_contact_s = torch.from_numpy(model.geom_solref[feet].prod(-1))
        if c.restitution is not None and model.geom_solref[feet].min() <= 0.0:
            raise InputError(
                f"randomization.physics.restitution: the feet of robot '{robot.name}' have a solref"
                " of stiffness and damping, expected a time constant and a damping ratio"
            )
        # columns of `unit` by quantity
        self.columns: dict[str, slice] = {}
        size = 0
        for name, count in self._sample_counts().items():
            self.columns[name] = slice(size, size + count)
            size += count
        self.unit = torch.zeros(sim.num_envs, size, device=sim.device)
        offsets = [c.nominal.get(name, JointPhysics()).offset for name in robot.joint_names]
        self._offset = torch.tensor(offsets, device=sim.device)
        self.joint_offset = self._offset.repeat(sim.num_envs, 1)
        shifted = c.com_trunk > 0 or c.com_links > 0
        extra = {
            "body_mass": c.payload is not None,
            "body_ipos": shifted,
            "actuator_forcerange": c.weak_joint < 1.0,
        }
        varied = [e for e in _VARIED if extra.get(e[0]) or self._spreads[e[2]].active]
        frictions = (c.friction, c.torsional, c.rolling)
        contacts = {
            "geom_friction": any(limits is not None for limits in frictions),
            "geom_solref": c.contact_s is not None or c.restitution is not None,
            "geom_condim": isinstance(c.condim, tuple),
            "opt.cone": isinstance(c.cone, tuple),
            "opt.impratio": _varies(c.impratio),
        }
        names = [name for name, *_ in varied]
        names += [name for name, is_set in contacts.items() if is_set]
        self._fields = sim.expand(list(dict.fromkeys(names)))
        self._derived = shifted or bool({"body_mass", "dof_armature"} & self._fields.keys())
        if self._derived:
            sim.set_const(torch.arange(sim.num_envs, device=sim.device))
        # the device of the simulator's model fields
        self._device = next((values.device for values in self._fields.values()), sim.device)
        self._foot_geoms = self._foot_geoms.to(self._device)
        self._foot_contact_s = self._foot_contact_s.to(self._device)
        self._touching = self._touching.to(self._device)
        self._legs = torch.from_numpy(np.flatnonzero(robot.is_leg_joint)).to(self._device)
        self._trunk = bodies[0]
        self._targets = list[Tensor]()
        if varied:
            self._combine(varied)

    def _sample_counts(self) -> dict[str, int]:
        """Number of samples of each quantity, in their order in `unit`."""
        sim = self._sim
        c = self._config
        spreads = self._spreads
        nu = sim.model.nu
        nb = len(self._heavy)
        return {
            "friction": int(_varies(c.friction)),
            **{f"{name}_whole": int(spread.whole > 0) for name, spread in spreads.items()},
            **{
                f"{name}_each": (nb if name == "mass" else nu) if spread.each > 0 else 0
                for name, spread in spreads.items()
            },
            "com_trunk": 3 if c.com_trunk > 0 else 0,
            "com_links": 3 * (nb - 1) if c.com_links > 0 else 0,
            "joint_offset": nu if c.joint_offset > 0 else 0,
            "payload": int(c.payload is not None),
            "actuators": nu * sim.drives.latent_dim if sim.drives and c.actuators else 0,
            "weak_joint": int(c.weak_joint < 1.0),
            "contact_s": int(_varies(c.contact_s)),
            "condim": int(isinstance(c.condim, tuple)),
            "torsional": int(_varies(c.torsional)),
            "rolling": int(_varies(c.rolling)),
            "cone": int(isinstance(c.cone, tuple)),
            "impratio": int(_varies(c.impratio)),
            "restitution": int(_varies(c.restitution)),
        }

    def _combine(self, varied: list[tuple[str, int | None, str]]) -> None:
        """Concatenate these entries of _VARIED, so that a reset computes all of them at once.

        `_targets` are views (n, m_i) of the fields, `_nominal` (n, m) float64 the nominal values,
        `_terms` functions of the samples: s_global, s_i and the shifts.
        """
        c = self._config
        heavy = self._heavy
        nu = self._sim.model.nu
        # indices of all parts, and of those that vary; the world has parts as well
        parts = {"dof": (torch.arange(6, 6 + nu),) * 2, "actuator": (torch.arange(nu),) * 2}
        parts["body"] = self._bodies, heavy
        trunk = heavy == self._trunk
        shifts: list[_Variation] = [
            (heavy[trunk], c.com_trunk, self.columns["com_trunk"]),
            (heavy[~trunk], c.com_links, self.columns["com_links"]),
        ]
        whole = list[_Entry]()
        each = list[_Entry]()
        shift = list[_Entry]()
        for name, at, kind in varied:
            values = _component(getattr(self._sim.model, name), at)
            spread = self._spreads[kind]
            shape = len(values), values.size // len(values)
            all_of, some = parts[name.split("_")[0]]
            whole.append((shape, [(all_of, spread.whole, self.columns[f"{kind}_whole"])]))
            each.append((shape, [(some, spread.each, self.columns[f"{kind}_each"])]))
            shift.append((shape, shifts if name == "body_ipos" else []))
        self._targets = [_component(self._fields[name], at).flatten(1) for name, at, _ in varied]
        self._nominal = torch.cat(self._targets, -1).double()
        self._terms = [_terms(entries, self._device) for entries in (whole, each, shift)]

    def _has(self, kind: str) -> bool:
        """Whether any value that a spread scales is not zero in the robot's model."""
        return any(
            _component(getattr(self._sim.model, name), at)[6 * name.startswith("dof") :].any()
            for name, at, of in _VARIED
            if of == kind
        )

    @property
    def size(self) -> int:
        """P, the number of samples per robot."""
        return self.unit.shape[1]

    def samples(self, i: int) -> dict[str, list[float]]:
        """The samples of simulation i by name, each in [-1, 1]."""
        samples = {name: self.unit[i, columns].tolist() for name, columns in self.columns.items()}
        return {name: values for name, values in samples.items() if values}

    def sample(self, ids: Tensor, generator: torch.Generator) -> None:
        """Sample new physics of simulations ids (k,)."""
        if self.size:
            shape = (len(ids), self.size)
            uniform = torch.rand(shape, generator=generator, device=self.unit.device)
            self.set(ids, 2.0 * uniform - 1.0)
        elif self._fields:
            self.set(ids, self.unit[ids])

    def set(self, ids: Tensor, unit: Tensor) -> None:
        """Set the physics of simulations ids (k,) by samples unit (k, P) in [-1, 1]."""
        c = self._config
        if unit.shape[1] != self.size:
            raise ValueError(
                f"randomized physics has {unit.shape[1]} samples per robot, expected {self.size}"
            )
        self.unit[ids] = unit
        if c.joint_offset > 0:
            offset = unit[:, self.columns["joint_offset"]].float()
            self.joint_offset[ids] = self._offset + c.joint_offset * offset
        if self._sim.drives is not None and c.actuators > 0:
            device = self._sim.drives.device
            latent = normal_of(unit[:, self.columns["actuators"]].to(device))
            shape = len(ids), self._sim.model.nu, self._sim.drives.latent_dim
            self._sim.drives.set_latent(ids.to(device), c.actuators * latent.view(shape))
        if not self._fields or not len(ids):
            return
        rows = ids.to(self._device)
        samples = unit.to(self._device, torch.float64)
        if self._targets:
            whole, each, shift = (term(samples) for term in self._terms)
            values = self._nominal[rows] * ((1.0 + whole) * (1.0 + each)) + shift
            if c.payload is not None:
                payload = self._within(c.payload, samples, "payload")
                values[:, self._trunk] += payload.squeeze(-1)
            if c.weak_joint < 1.0:
                nu = self._sim.model.nu
                legs = self._legs
                # (k, 1)
                weak = legs[self._index(len(legs), samples, "weak_joint")]
                # both ends of the range
                is_weak = (torch.arange(nu, device=weak.device) == weak).repeat_interleave(2, -1)
                values[:, -2 * nu :] *= torch.where(is_weak, c.weak_joint, 1.0)
            parts = values.split([target.shape[1] for target in self._targets], -1)
            for target, part in zip(self._targets, parts, strict=True):
                target.index_copy_(0, rows, part.to(target.dtype))
        self._set_contacts(rows, samples)
        if self._derived:
            self._sim.set_const(ids)

    def _set_contacts(self, rows: Tensor, samples: Tensor) -> None:
        """Set the contacts of simulations rows (k,) by samples (k, P)."""
        c = self._config
        fields = self._fields
        feet = rows[:, None], self._foot_geoms
        if c.friction is not None:
            sliding = self._within(c.friction, samples, "friction")
            _write(fields["geom_friction"][..., 0], feet, sliding)
        if c.torsional is not None:
            torsional = self._log_within(c.torsional, samples, "torsional")
            _write(fields["geom_friction"][..., 1], feet, torsional)
        if c.rolling is not None:
            rolling = self._log_within(c.rolling, samples, "rolling")
            _write(fields["geom_friction"][..., 2], feet, rolling)
        constant = self._foot_contact_s
        if c.contact_s is not None:
            constant = self._log_within(c.contact_s, samples, "contact_s")
            constant = constant.clamp(max=self._longest_contact_s)
            _write(fields["geom_solref"][..., 0], (rows[:, None], self._touching), constant)
        if c.restitution is not None:
            ratio = damping_ratio(self._within(c.restitution, samples, "restitution"))
            # a lightly damped foot sinks in twice as deep
            constant = constant.clamp(max=0.5 * self._longest_contact_s)
            _write(fields["geom_solref"][..., 1], feet, ratio)
            # stiffness is 1 / (constant ratio)^2
            _write(fields["geom_solref"][..., 0], feet, constant / ratio)
        if isinstance(c.condim, tuple):
            _write(fields["geom_condim"], feet, self._choose(c.condim, samples, "condim"))
        if isinstance(c.cone, tuple):
            cones = [int(CONES[name]) for name in c.cone]
            _write(fields["opt.cone"], (rows,), self._choose(cones, samples, "cone").squeeze(-1))
        if c.impratio is not None and _varies(c.impratio):
            impratio = self._log_within(c.impratio, samples, "impratio")
            _write(fields["opt.impratio"], (rows,), impratio.squeeze(-1))

    def _within(self, limits: tuple[float, float], samples: Tensor, name: str) -> Tensor:
        """Values (k, 1) in limits (low, high) by samples (k, P); low where both are equal."""
        low, high = limits
        if not low < high:
            return samples.new_full((len(samples), 1), low)
        return low + (high - low) * 0.5 * (1.0 + samples[:, self.columns[name]])

    def _log_within(self, limits: tuple[float, float], samples: Tensor, name: str) -> Tensor:
        """As `_within`, log-uniform: 0.005 to 0.04 is three doublings."""
        low, high = (math.log(v) for v in limits)
        return self._within((low, high), samples, name).exp()

    def _choose(self, choices: Sequence[int], samples: Tensor, name: str) -> Tensor:
        """Each robot's choice (k, 1), equally likely, by samples (k, P)."""
        index = self._index(len(choices), samples, name)
        return torch.tensor(choices, device=samples.device)[index]

    def _index(self, count: int, samples: Tensor, name: str) -> Tensor:
        """Indices (k, 1) in [0, count), equally likely, by samples (k, P)."""
        index = (0.5 * (1.0 + samples[:, self.columns[name]]) * count).long()
        return index.clamp(max=count - 1)


def _write(field: Tensor, at: tuple[Tensor, ...], values: Tensor) -> None:
    """Write values to a field's entries, in its precision."""
    field[at] = values.to(field.dtype)


def normal_of(unit: Tensor) -> Tensor:
    """Standard normal samples from uniform ones in [-1, 1] by the inverse CDF, clamped to 4."""
    return (math.sqrt(2.0) * torch.erfinv(unit)).clamp(-4.0, 4.0)


def _component(values: Any, at: int | None) -> Any:
    """One component of the last axis of values (..., parts, k); None: all."""
    return values if at is None else values[..., at]


# parts, half-width, columns of `unit`: one for all, one for each part, or one for each value
_Variation = tuple[Tensor, float, slice]
# a field's (parts, values of each), and variations
_Entry = tuple[tuple[int, int], list[_Variation]]


def _terms(entries: Iterable[_Entry], device: torch.device) -> Callable[[Tensor], Tensor]:
    """A function from samples (k, P) to half-width times sample of each value, (k, m); zero for
    values that do not vary."""
    widths = []
    columns = []
    for shape, variations in entries:
        width = torch.zeros(shape, dtype=torch.float64)
        column = torch.zeros(shape, dtype=torch.long)
        for parts, half_width, of_unit in variations:
            if half_width > 0:
                width[parts] = half_width
                index = torch.arange(of_unit.start, of_unit.stop)
                column[parts] = index.view(min(len(index), len(parts)), -1)
        widths.append(width.flatten())
        columns.append(column.flatten())
    whole = torch.cat(widths).to(device)
    at = torch.cat(columns).to(device)
    return lambda samples: whole * samples.index_select(1, at)


class Pusher:
    """Random lateral forces on the root bodies; constant over a control step.

    `force` (n, 2) [N], world frame: the force during the next control step.
    """

    def __init__(self, sim: Simulator, root_body: int, config: PushConfig, dt: float):
        self.config = config
        self._dt = dt
        self.force = torch.zeros(sim.num_envs, 2, device=sim.device)
        # [s] until the current push or gap is over
        self.left = torch.zeros(sim.num_envs, device=sim.device)
        self._applied = sim.wrench(root_body)[:, :2] if config.force > 0 else None

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """Reset simulations ids (k,) to a gap of random length."""
        if self._applied is None or len(ids) == 0:
            return
        uniform = torch.rand((4, len(ids)), generator=generator, device=self.left.device)
        # times are exponential, at least one control step
        gap = -self.config.gap_s * torch.log1p(-uniform[3])
        self.left[ids] = gap.clamp(min=self._dt)
        self.force.index_fill_(0, ids, 0.0)
        self._applied.index_fill_(0, ids, 0.0)

    def advance(self, generator: torch.Generator) -> None:
        """Advance by a control step."""
        c = self.config
        if self._applied is None:
            return
        uniform = torch.rand((4, len(self.left)), generator=generator, device=self.left.device)
        left = self.left - self._dt
        over = left <= 0.0
        begins = over & ~self.force.any(-1)
        angle = 2.0 * math.pi * uniform[0]
        size = c.least + (1.0 - c.least) * uniform[1]
        way = torch.stack((torch.cos(angle), torch.sin(angle)), -1)
        push = (c.force * size).unsqueeze(-1) * way
        kept = torch.where(over.unsqueeze(-1), 0.0, self.force)
        self.force = torch.where(begins.unsqueeze(-1), push, kept)
        mean = torch.where(begins, c.duration_s, c.gap_s)
        sampled_s = -mean * torch.log1p(-torch.where(begins, uniform[2], uniform[3]))
        self.left = torch.where(over, sampled_s.clamp(min=self._dt), left)
        self._applied.copy_(self.force)
