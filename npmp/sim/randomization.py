"""Domain randomization: what differs from one simulated robot to the next, drawn anew for every
episode.

Structure and figures: robot-NPMP (Bohez et al. 2022); see conf/randomization for each figure's
source. The values live in the simulator's per-simulation model fields, so the physics costs what it
does without. Quantities that vary both for the whole robot and for each part are (1 + s_global) (1
+ s_i) c, both drawn uniformly.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
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
from npmp.sim.simulator import Simulator


@dataclass(frozen=True)
class Spread:
    """Half-widths of the uniform scales (1 + s_global) (1 + s_i), in [0, 1)."""

    # of s_global, one for the robot
    whole: float = 0.0
    # of s_i, one for every part
    each: float = 0.0

    def __post_init__(self) -> None:
        ranges.share(self, "whole", "each")
        if max(self.whole, self.each) >= 1.0:
            raise ValueError(
                "a spread of 1 or more would make a quantity vanish;"
                f" got whole {self.whole}, each {self.each}"
            )

    @property
    def active(self) -> bool:
        """Whether anything varies."""
        return self.whole > 0 or self.each > 0


@dataclass(frozen=True)
class JointPhysics:
    """A joint and its drive as they were identified; None: the model's."""

    # [kg m2]
    armature: float | None = None
    # of the joint [Nm s/rad]
    damping: float | None = None
    # [Nm]
    friction_loss: float | None = None
    # [Nm/rad]
    kp: float | None = None
    # of the drive [Nm s/rad]
    kd: float | None = None
    # the encoder reads the true angle plus this [rad]
    offset: float = 0.0

    def __post_init__(self) -> None:
        ranges.not_negative(self, "armature", "damping", "friction_loss", "kd")
        ranges.above_zero(self, "kp")


@dataclass(frozen=True)
class PhysicsConfig:
    """What is drawn per episode; by default nothing."""

    # by joint: what all draws are about
    nominal: Mapping[str, JointPhysics] = field(default_factory=dict)
    # friction cones of contacts, elliptic or pyramidal; None: the model's
    cone: str | None = None
    # rate of the physics [Hz], a multiple of the control rate; None: the robot's
    physics_rate_hz: float | None = None
    # of the feet, sliding; None: the model's
    friction: tuple[float, float] | None = None
    # time constant of the contacts between feet and ground [s] (MuJoCo's solref), which is at
    # least two physics steps long; None: the model's
    contact_s: tuple[float, float] | None = None
    # of the bodies, with their inertia
    mass: Spread = field(default_factory=Spread)
    # [kg] on the root body, beside its scaled mass; None or (0, 0): none
    payload: tuple[float, float] | None = None
    # the root body's centre of mass is shifted by up to this along each axis [m]
    com_trunk: float = 0.0
    # the other bodies' [m]
    com_links: float = 0.0
    # calibration error of each joint's encoder, up to [rad]
    joint_offset: float = 0.0
    # of joints
    armature: Spread = field(default_factory=Spread)
    # of drives and joints
    damping: Spread = field(default_factory=Spread)
    # of joints
    friction_loss: Spread = field(default_factory=Spread)
    # stiffness of the drives
    gain: Spread = field(default_factory=Spread)
    # torque limit of the drives
    torque: Spread = field(default_factory=Spread)
    # how far the latents of a model of many actuators lie from the mean one's, in their std
    actuators: float = 0.0
    # factor of the torque limit of one joint of the legs, drawn; 1: none is weak
    weak_joint: float = 1.0

    def __post_init__(self) -> None:
        ranges.not_negative(self, "com_trunk", "com_links", "joint_offset", "actuators")
        ranges.share(self, "weak_joint")
        ranges.one_of(self, "cone", CONES)
        for name in ("friction", "contact_s", "payload"):
            if (pair := getattr(self, name)) is not None:
                # lists as they come from a file
                object.__setattr__(self, name, tuple(float(v) for v in pair))
                if len(pair) != 2 or not 0.0 <= pair[0] <= pair[1] < math.inf:
                    words = f"{name} must be two numbers, 0 <= low <= high, or null"
                    raise ValueError(f"{words}, got {list(pair)}")
        ranges.above_zero(self, "friction", "contact_s", "physics_rate_hz")
        if self.payload == (0.0, 0.0):
            object.__setattr__(self, "payload", None)


@dataclass(frozen=True)
class PushConfig:
    """Random lateral forces on the root body; by default none.

    The magnitude is uniform from `least` times `force` to `force`, the direction uniform in the
    horizontal plane; duration and gap are exponential.
    """

    # at most [N]
    force: float = 0.0
    # share of it that every push has; 1: all are as strong
    least: float = 0.0
    # mean [s]
    duration_s: float = 0.1
    # mean [s]
    gap_s: float = 1.0

    def __post_init__(self) -> None:
        ranges.not_negative(self, "force")
        ranges.share(self, "least")
        ranges.above_zero(self, "duration_s", "gap_s")


# what varies: a model field, the component of its last axis (None: all), and the name in
# PhysicsConfig of the spread by which it is scaled; centres of mass are shifted instead; masses
# come first, where the payload finds them, torque limits last, where the weak joint does
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
# Parts of the robot lighter than this share of it have no draws: they would not show (ANYmal's
# feet: 1 g)
_LIGHT = 1e-4


def with_nominal(model: mujoco.MjModel, config: PhysicsConfig) -> mujoco.MjModel:
    """The model with the joints, cones and timestep that a configuration names; the same object
    where it names none.

    Raises:
      InputError: for a joint that the model has not.
    """
    if not config.nominal and config.cone is None and config.physics_rate_hz is None:
        return model
    model, drives = copy.copy(model), {model.actuator(i).name: i for i in range(model.nu)}
    if config.cone is not None:
        model.opt.cone = CONES[config.cone]
    if config.physics_rate_hz is not None:
        model.opt.timestep = 1.0 / config.physics_rate_hz
    for name, joint in config.nominal.items():
        if name not in drives:
            raise InputError(f"randomization.physics.nominal: {unknown('joint', name, drives)}")
        v, u = int(model.joint(name).dofadr[0]), drives[name]
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


class PhysicsRandomizer:
    """Writes drawn physics into simulations, and says what was drawn.

    `unit` (n, P) holds the draws themselves, uniform in [-1, 1], for networks that may know the
    physics (critic, world model); P is 0 when nothing varies. `joint_offset` (n, nu) [rad]:
    encoders read the true angle plus this. A payload is a point mass at the root body's centre of
    mass, where that was shifted to: it adds to the mass, and leaves that centre and the inertia
    about it as they are.

    Nothing is drawn that would change nothing: for what the model has none of (ANYmal's drives have
    no friction loss), and for parts that weigh next to nothing.
    """

    def __init__(self, sim: Simulator, robot: Robot, config: PhysicsConfig):
        """Expand the model fields that vary. Every simulation starts with the model's own values.

        Raises:
          InputError: where the simulator cannot vary one of them.
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
        feet = [model.body(name).id for name in robot.foot_bodies]
        collides = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
        on_foot = np.isin(model.geom_bodyid, feet)
        fixed = model.geom_bodyid == 0
        self._foot_geoms = torch.from_numpy(np.flatnonzero(on_foot & collides))
        self._touching = torch.from_numpy(np.flatnonzero((on_foot | fixed) & collides))
        # where in `unit` the draws of each quantity stand
        self.columns: dict[str, slice] = {}
        size = 0
        for name, count in self._wanted().items():
            self.columns[name] = slice(size, size + count)
            size += count
        self.unit = torch.zeros(sim.num_envs, size, device=sim.device)
        offsets = [c.nominal.get(name, JointPhysics()).offset for name in robot.joint_names]
        self._offset = torch.tensor(offsets, device=sim.device)
        self.joint_offset = self._offset.repeat(sim.num_envs, 1)
        shifted = c.com_trunk > 0 or c.com_links > 0
        besides = {
            "body_mass": c.payload is not None,
            "body_ipos": shifted,
            "actuator_forcerange": c.weak_joint < 1.0,
        }
        varied = [e for e in _VARIED if besides.get(e[0]) or self._spreads[e[2]].active]
        geoms = {"geom_friction": c.friction, "geom_solref": c.contact_s}
        names = [name for name, *_ in varied] + [name for name, v in geoms.items() if v is not None]
        self._fields = sim.expand(list(dict.fromkeys(names)))
        self._derived = shifted or bool({"body_mass", "dof_armature"} & self._fields.keys())
        if self._derived:
            sim.set_const(torch.arange(sim.num_envs, device=sim.device))
        # the draws become values where the simulator keeps its models
        self._place = next((values.device for values in self._fields.values()), sim.device)
        self._foot_geoms = self._foot_geoms.to(self._place)
        self._touching = self._touching.to(self._place)
        self._legs = torch.from_numpy(np.flatnonzero(robot.is_leg_joint)).to(self._place)
        self._trunk = bodies[0]
        self._targets = list[Tensor]()
        if varied:
            self._combine(varied)

    def _wanted(self) -> dict[str, int]:
        """How many draws each quantity has; in this order they stand in `unit`."""
        sim = self._sim
        c = self._config
        spreads = self._spreads
        nu = sim.model.nu
        nb = len(self._heavy)
        return {
            "friction": 1 if c.friction is not None and c.friction[0] < c.friction[1] else 0,
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
            "contact_s": 1 if c.contact_s is not None and c.contact_s[0] < c.contact_s[1] else 0,
        }

    def _combine(self, varied: list[tuple[str, int | None, str]]) -> None:
        """Lay the values of these entries of _VARIED side by side: few operations on all of them
        serve a reset, not some on each field.

        `_targets` are views (n, m_i) of the fields, `_nominal` (n, m) float64 each simulation's own
        values; `_terms` s_global, s_i and the shifts.
        """
        c = self._config
        heavy = self._heavy
        nu = self._sim.model.nu
        # the world has parts too
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
        self._terms = [_terms(entries, self._place) for entries in (whole, each, shift)]

    def _has(self, kind: str) -> bool:
        """Whether the robot's model has any of what a spread scales, so that scaling it changes
        something."""
        return any(
            _component(getattr(self._sim.model, name), at)[6 * name.startswith("dof") :].any()
            for name, at, of in _VARIED
            if of == kind
        )

    @property
    def size(self) -> int:
        """P, how many numbers are drawn per robot."""
        return self.unit.shape[1]

    def drawn(self, i: int) -> dict[str, list[float]]:
        """What was drawn for simulation i by name, each in [-1, 1]."""
        draws = {name: self.unit[i, columns].tolist() for name, columns in self.columns.items()}
        return {name: values for name, values in draws.items() if values}

    def draw(self, ids: Tensor, generator: torch.Generator) -> None:
        """New physics for simulations ids (k,)."""
        if self.size:
            shape = (len(ids), self.size)
            uniform = torch.rand(shape, generator=generator, device=self.unit.device)
            self.set(ids, 2.0 * uniform - 1.0)
        elif self._config.friction is not None or self._config.contact_s is not None:
            self.set(ids, self.unit[ids])

    def set(self, ids: Tensor, unit: Tensor) -> None:
        """Given physics: unit (k, P) in [-1, 1] for simulations ids (k,)."""
        c = self._config
        if unit.shape[1] != self.size:
            raise ValueError(f"{unit.shape[1]} numbers of drawn physics do not fit {self.size}")
        self.unit[ids] = unit
        if c.joint_offset > 0:
            drawn = unit[:, self.columns["joint_offset"]].float()
            self.joint_offset[ids] = self._offset + c.joint_offset * drawn
        if self._sim.drives is not None and c.actuators > 0:
            drawn = normal_of(unit[:, self.columns["actuators"]].to("cpu"))
            shape = len(ids), self._sim.model.nu, self._sim.drives.latent_dim
            self._sim.drives.set_latent(ids.cpu(), c.actuators * drawn.view(shape))
        if not self._fields or not len(ids):
            return
        rows = ids.to(self._place)
        draws = unit.to(self._place, torch.float64)
        if self._targets:
            whole, each, shift = (term(draws) for term in self._terms)
            drawn = self._nominal[rows] * ((1.0 + whole) * (1.0 + each)) + shift
            if c.payload is not None:
                drawn[:, self._trunk] += self._within(c.payload, draws, "payload").squeeze(-1)
            if c.weak_joint < 1.0:
                nu = self._sim.model.nu
                legs = self._legs
                # (k, 1)
                which = (0.5 * (1.0 + draws[:, self.columns["weak_joint"]]) * len(legs)).long()
                weak = legs[which.clamp(max=len(legs) - 1)]
                # both ends of its range
                hit = (torch.arange(nu, device=weak.device) == weak).repeat_interleave(2, -1)
                drawn[:, -2 * nu :] *= torch.where(hit, c.weak_joint, 1.0)
            parts = drawn.split([target.shape[1] for target in self._targets], -1)
            for target, values in zip(self._targets, parts, strict=True):
                target.index_copy_(0, rows, values.to(target.dtype))
        if c.friction is not None:
            sliding = self._within(c.friction, draws, "friction")
            self._write_geoms("geom_friction", rows, self._foot_geoms, sliding)
        if c.contact_s is not None:
            # evenly over the logarithm: 0.005 to 0.04 s is three doublings
            low, high = (math.log(v) for v in c.contact_s)
            constant = self._within((low, high), draws, "contact_s").exp()
            self._write_geoms("geom_solref", rows, self._touching, constant)
        if self._derived:
            self._sim.set_const(ids)

    def _within(self, limits: tuple[float, float], draws: Tensor, name: str) -> Tensor:
        """Values (k, 1) in limits (low, high) by draws (k, P); low where nothing is drawn."""
        low, high = limits
        if not low < high:
            return draws.new_full((len(draws), 1), low)
        return low + (high - low) * 0.5 * (1.0 + draws[:, self.columns[name]])

    def _write_geoms(self, name: str, rows: Tensor, geoms: Tensor, values: Tensor) -> None:
        """values (k, 1) into the first component of a field of geoms (g,) of simulations (k,)."""
        first = self._fields[name][..., 0]
        first[rows[:, None], geoms] = values.to(first.dtype)


def normal_of(unit: Tensor) -> Tensor:
    """Standard normal numbers of uniform ones in [-1, 1], of the same rank; at most 4 in size."""
    return (math.sqrt(2.0) * torch.erfinv(unit)).clamp(-4.0, 4.0)


def _component(values: Any, at: int | None) -> Any:
    """One component of the last axis of a field's values (..., parts, k), or for None all of a
    part's."""
    return values if at is None else values[..., at]


# parts, the half-width of their draws, and which draws are theirs: one for all, one for each part,
# or one for each value
_Variation = tuple[Tensor, float, slice]
# of a field: parts, values of each, and what varies
_Entry = tuple[tuple[int, int], list[_Variation]]


def _terms(entries: Iterable[_Entry], place: torch.device) -> Callable[[Tensor], Tensor]:
    """Half-widths times draws (k, P) -> (k, m), one for each of the values that stand side by side;
    zero for those that do not vary."""
    widths = []
    columns = []
    for shape, variations in entries:
        width = torch.zeros(shape, dtype=torch.float64)
        column = torch.zeros(shape, dtype=torch.long)
        for parts, half_width, draws in variations:
            if half_width > 0:
                width[parts] = half_width
                index = torch.arange(draws.start, draws.stop)
                column[parts] = index.view(min(len(index), len(parts)), -1)
        widths.append(width.flatten())
        columns.append(column.flatten())
    whole = torch.cat(widths).to(place)
    at = torch.cat(columns).to(place)
    return lambda draws: whole * draws.index_select(1, at)


class Pusher:
    """Lateral forces on the root bodies of simulations, each with its own clock; constant over a
    control step.

    `force` (n, 2) [N], world frame: what pushes during the coming control step.
    """

    def __init__(self, sim: Simulator, root_body: int, config: PushConfig, dt: float):
        self.config = config
        self._dt = dt
        self.force = torch.zeros(sim.num_envs, 2, device=sim.device)
        # [s] until the present push or gap is over
        self.left = torch.zeros(sim.num_envs, device=sim.device)
        self._applied = sim.wrench(root_body)[:, :2] if config.force > 0 else None

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """Start the clocks of simulations ids (k,) anew, in a gap."""
        if self._applied is None or len(ids) == 0:
            return
        uniform = torch.rand((4, len(ids)), generator=generator, device=self.left.device)
        # times are exponential, and no shorter than a step, the shortest that a push can last here
        gap = -self.config.gap_s * torch.log1p(-uniform[3])
        self.left[ids] = gap.clamp(min=self._dt)
        self.force.index_fill_(0, ids, 0.0)
        self._applied.index_fill_(0, ids, 0.0)

    def advance(self, generator: torch.Generator) -> None:
        """Move all clocks on by a control step."""
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
        drawn = (c.force * size).unsqueeze(-1) * way
        kept = torch.where(over.unsqueeze(-1), 0.0, self.force)
        self.force = torch.where(begins.unsqueeze(-1), drawn, kept)
        mean = torch.where(begins, c.duration_s, c.gap_s)
        drawn_s = -mean * torch.log1p(-torch.where(begins, uniform[2], uniform[3]))
        self.left = torch.where(over, drawn_s.clamp(min=self._dt), left)
        self._applied.copy_(self.force)
