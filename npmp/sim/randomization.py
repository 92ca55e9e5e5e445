"""Domain randomization: what differs from one simulated robot to the next, drawn anew for every episode.

Structure and figures: robot-NPMP (Bohez et al. 2022); see conf/randomization for each figure's source. The values live in the
simulator's per-simulation model fields, so the physics costs what it does without. Quantities that vary both for the whole
robot and for each part are (1 + s_global) (1 + s_i) c, both drawn uniformly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import mujoco
import torch
from torch import Tensor

from npmp import ranges
from npmp.robots import Robot
from npmp.sim.simulator import Simulator


@dataclass(frozen=True)
class Spread:
    """Half-widths of the uniform scales (1 + s_global) (1 + s_i). Raises ValueError outside [0, 1)."""

    whole: float = 0.0  # of s_global, one for the robot
    each: float = 0.0  # of s_i, one for every part

    def __post_init__(self) -> None:
        ranges.share(self, "whole", "each")
        if max(self.whole, self.each) >= 1.0:
            raise ValueError(f"a spread of 1 or more would make a quantity vanish; got whole {self.whole}, each {self.each}")

    @property
    def active(self) -> bool:
        """Whether anything varies."""
        return self.whole > 0 or self.each > 0


@dataclass(frozen=True)
class PhysicsConfig:
    """What is drawn per episode; by default nothing. Raises ValueError for values out of range."""

    friction: tuple[float, float] | None = None  # of the feet, sliding; None: the model's
    mass: Spread = field(default_factory=Spread)  # of the bodies, with their inertia
    com_trunk: float = 0.0  # the root body's centre of mass is shifted by up to this along each axis [m]
    com_links: float = 0.0  # the other bodies' [m]
    joint_offset: float = 0.0  # calibration error of each joint's encoder, up to [rad]
    damping: Spread = field(default_factory=Spread)  # of drives and joints
    friction_loss: Spread = field(default_factory=Spread)  # of joints
    gain: Spread = field(default_factory=Spread)  # stiffness of the drives
    torque: Spread = field(default_factory=Spread)  # their torque limit

    def __post_init__(self) -> None:
        ranges.not_negative(self, "com_trunk", "com_links", "joint_offset")
        if self.friction is not None:
            object.__setattr__(self, "friction", tuple(float(v) for v in self.friction))  # lists as they come from a file
            if len(self.friction) != 2 or not 0.0 < self.friction[0] <= self.friction[1] < math.inf:
                raise ValueError(f"friction must be two numbers, 0 < low <= high, got {list(self.friction)}")


@dataclass(frozen=True)
class PushConfig:
    """Random lateral forces on the root body; by default none. Raises ValueError for negative values.

    The magnitude is uniform up to `force`, the direction uniform in the horizontal plane; duration and gap are exponential.
    """

    force: float = 0.0  # at most [N]
    duration_s: float = 0.1  # mean [s]
    gap_s: float = 1.0  # mean [s]

    def __post_init__(self) -> None:
        ranges.not_negative(self, "force")
        ranges.above_zero(self, "duration_s", "gap_s")


class PhysicsRandomizer:
    """Writes drawn physics into simulations, and says what was drawn.

    `unit` (n, P) holds the draws themselves, uniform in [-1, 1], for those who may know the physics (critic, world model); P is 0
    when nothing varies. `joint_offset` (n, nu) [rad]: encoders read the true angle plus this.
    """

    def __init__(self, sim: Simulator, robot: Robot, config: PhysicsConfig):
        """Expand the model fields that vary. Every simulation starts with the model's own values.

        Raises: InputError where the simulator cannot vary one of them.
        """
        model, c = sim.model, config
        self._sim, self._config = sim, config
        bodies = [mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name) for name in robot.body_names]
        self._bodies = torch.tensor([b for b in bodies if model.body_mass[b] > 0])
        self._trunk = bodies[0]
        feet = {mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name) for name in robot.foot_bodies}
        on_feet = [g for g in range(model.ngeom) if int(model.geom_bodyid[g]) in feet]
        self._foot_geoms = torch.tensor([g for g in on_feet if model.geom_contype[g] or model.geom_conaffinity[g]])
        nu, nb = model.nu, len(self._bodies)
        self._dofs = torch.arange(6, 6 + nu)
        # name -> how many draws; in this order they stand in `unit`
        wanted = {
            "friction": 1 if c.friction is not None and c.friction[0] < c.friction[1] else 0,
            **{f"{name}_whole": int(spread.whole > 0) for name, spread in self._spreads().items()},
            "mass_each": nb if c.mass.each > 0 else 0,
            "damping_each": nu if c.damping.each > 0 else 0,
            "friction_loss_each": nu if c.friction_loss.each > 0 else 0,
            "gain_each": nu if c.gain.each > 0 else 0,
            "torque_each": nu if c.torque.each > 0 else 0,
            "com_trunk": 3 if c.com_trunk > 0 else 0,
            "com_links": 3 * (nb - 1) if c.com_links > 0 else 0,
            "joint_offset": nu if c.joint_offset > 0 else 0,
        }
        self._columns: dict[str, slice] = {}
        size = 0
        for name, count in wanted.items():
            self._columns[name] = slice(size, size + count)
            size += count
        self.unit = torch.zeros(sim.num_envs, size, device=sim.device)
        self.joint_offset = torch.zeros(sim.num_envs, nu, device=sim.device)
        self._nominal = {
            name: torch.tensor(getattr(model, name), dtype=torch.float64)
            for name in ("body_mass", "body_inertia", "body_ipos", "dof_damping", "dof_frictionloss", "actuator_gainprm",
                         "actuator_biasprm", "actuator_forcerange", "geom_friction")
        }  # fmt: skip
        varied: list[str] = []
        if c.mass.active:
            varied += ["body_mass", "body_inertia"]
        if c.com_trunk > 0 or c.com_links > 0:
            varied += ["body_ipos"]
        if c.damping.active:
            varied += ["dof_damping"]
        if c.friction_loss.active:
            varied += ["dof_frictionloss"]
        if c.gain.active:
            varied += ["actuator_gainprm"]
        if c.gain.active or c.damping.active:
            varied += ["actuator_biasprm"]
        if c.torque.active:
            varied += ["actuator_forcerange"]
        if c.friction is not None:
            varied += ["geom_friction"]
        self._fields = sim.expand(varied)
        self._derived = bool({"body_mass", "body_inertia", "body_ipos"} & set(varied))
        if self._derived:
            sim.set_const(torch.arange(sim.num_envs, device=sim.device))
        # the draws become values where the simulator keeps its models
        self._place = next((values.device for values in self._fields.values()), sim.device)
        self._nominal = {name: values.to(self._place) for name, values in self._nominal.items()}
        self._bodies, self._foot_geoms, self._dofs = (
            index.to(self._place) for index in (self._bodies, self._foot_geoms, self._dofs)
        )

    def _spreads(self) -> dict[str, Spread]:
        c = self._config
        return {"mass": c.mass, "damping": c.damping, "friction_loss": c.friction_loss, "gain": c.gain, "torque": c.torque}

    @property
    def size(self) -> int:
        """P, how many numbers are drawn per robot."""
        return self.unit.shape[1]

    def drawn(self, i: int) -> dict[str, list[float]]:
        """What was drawn for simulation i by name, each in [-1, 1]."""
        return {name: self.unit[i, columns].tolist() for name, columns in self._columns.items() if columns.stop > columns.start}

    def draw(self, ids: Tensor, generator: torch.Generator) -> None:
        """New physics for simulations ids (k,)."""
        if self.size:
            self.set(ids, 2.0 * torch.rand((len(ids), self.size), generator=generator, device=self.unit.device) - 1.0)
        elif self._config.friction is not None:
            self.set(ids, self.unit[ids])

    def set(self, ids: Tensor, unit: Tensor) -> None:
        """Given physics: unit (k, P) in [-1, 1] for simulations ids (k,)."""
        c, fields, nominal = self._config, self._fields, self._nominal
        self.unit[ids] = unit
        if c.joint_offset > 0:
            self.joint_offset[ids] = c.joint_offset * unit[:, self._columns["joint_offset"]].float()
        if not fields or not len(ids):
            return
        w = _Writer(fields, nominal, self._columns, ids.to(self._place), unit.to(self._place, torch.float64))
        self._write_bodies(w)
        if c.damping.active:
            factor = w.scale("damping", c.damping)
            w.write("dof_damping", nominal["dof_damping"][self._dofs] * factor, self._dofs)
            w.write("actuator_biasprm", nominal["actuator_biasprm"][:, 2] * factor, component=2)
        if c.friction_loss.active:
            factor = w.scale("friction_loss", c.friction_loss)
            w.write("dof_frictionloss", nominal["dof_frictionloss"][self._dofs] * factor, self._dofs)
        if c.gain.active:
            factor = w.scale("gain", c.gain)
            w.write("actuator_gainprm", nominal["actuator_gainprm"][:, 0] * factor, component=0)
            w.write("actuator_biasprm", nominal["actuator_biasprm"][:, 1] * factor, component=1)
        if c.torque.active:
            w.write("actuator_forcerange", nominal["actuator_forcerange"] * w.scale("torque", c.torque)[..., None])
        if c.friction is not None:
            low, high = c.friction
            share = 0.5 * (1.0 + w.column("friction")) if self._columns["friction"].stop else w.draws.new_zeros(len(ids), 1)
            value = (low + (high - low) * share).expand(-1, len(self._foot_geoms))
            w.write("geom_friction", value, self._foot_geoms, component=0)
        if self._derived:
            self._sim.set_const(ids)

    def _write_bodies(self, w: _Writer) -> None:
        """Masses, inertias and centres of mass."""
        c, bodies = self._config, self._bodies
        if c.mass.active:
            factor = w.scale("mass", c.mass)
            w.write("body_mass", w.nominal["body_mass"][bodies] * factor, bodies)
            w.write("body_inertia", w.nominal["body_inertia"][bodies] * factor[..., None], bodies)
        if "body_ipos" in w.fields:
            shift = w.draws.new_zeros(len(w.rows), len(bodies), 3)
            trunk = bodies == self._trunk
            if c.com_trunk > 0:
                shift[:, trunk] = c.com_trunk * w.column("com_trunk")[:, None]
            if c.com_links > 0:
                shift[:, ~trunk] = c.com_links * w.column("com_links").reshape(len(w.rows), -1, 3)
            w.write("body_ipos", w.nominal["body_ipos"][bodies] + shift, bodies)


@dataclass(frozen=True)
class _Writer:
    """Draws of some simulations on their way into model fields, all where the simulator keeps its models."""

    fields: dict[str, Tensor]  # (n, ...)
    nominal: dict[str, Tensor]
    columns: dict[str, slice]  # of draws, by name
    rows: Tensor  # (k,)
    draws: Tensor  # (k, P) float64

    def column(self, name: str) -> Tensor:
        """The draws of one kind."""
        return self.draws[:, self.columns[name]]

    def scale(self, name: str, spread: Spread) -> Tensor:
        """(k, 1) or (k, parts): (1 + s_global) (1 + s_i)."""
        factor = self.draws.new_ones(len(self.rows), 1)
        if spread.whole > 0:
            factor = factor * (1.0 + spread.whole * self.column(f"{name}_whole"))
        if spread.each > 0:
            factor = factor * (1.0 + spread.each * self.column(f"{name}_each"))
        return factor

    def write(self, name: str, value: Tensor, parts: Tensor | None = None, *, component: int | None = None) -> None:
        """Values (k, parts[, ...]) into a field's parts, None for all; `component` of its last axis alone, or all."""
        field = self.fields[name] if component is None else self.fields[name][..., component]
        where = (self.rows,) if parts is None else (self.rows[:, None], parts)
        field[where] = value.to(field.dtype)


class Pusher:
    """Lateral forces on the root bodies of simulations, each with its own clock; constant over a control step.

    `force` (n, 2) [N], world frame: what pushes during the coming control step.
    """

    def __init__(self, sim: Simulator, root_body: int, config: PushConfig, dt: float):
        self.config, self._dt = config, dt
        self.force = torch.zeros(sim.num_envs, 2, device=sim.device)
        self.left = torch.zeros(sim.num_envs, device=sim.device)  # [s] until the present push or gap is over
        self._applied = sim.wrench(root_body)[:, :2] if config.force > 0 else None

    def advance(self, ids: Tensor, fresh: bool, generator: torch.Generator) -> None:
        """Move the clocks of simulations ids (k,) on by a control step, or start them anew (fresh) in a gap."""
        c = self.config
        if self._applied is None or len(ids) == 0:
            return
        k = len(ids)
        uniform = torch.rand((4, k), generator=generator, device=self.left.device)
        left = torch.zeros_like(uniform[0]) if fresh else self.left[ids] - self._dt
        over = left <= 0.0
        pushing = self.force[ids].abs().sum(-1) > 0
        begins = over & ~pushing if not fresh else torch.zeros_like(over)
        angle = 2.0 * math.pi * uniform[0]
        drawn = c.force * uniform[1].unsqueeze(-1) * torch.stack((torch.cos(angle), torch.sin(angle)), -1)
        force = torch.where(begins.unsqueeze(-1), drawn, torch.where((over | fresh).unsqueeze(-1), 0.0, self.force[ids]))
        # exponential times; at least a control step, the shortest that a push can last here
        push_s = torch.clamp(-c.duration_s * torch.log1p(-uniform[2]), min=self._dt)
        gap_s = torch.clamp(-c.gap_s * torch.log1p(-uniform[3]), min=self._dt)
        self.left[ids] = torch.where(over, torch.where(begins, push_s, gap_s), left)
        self.force[ids] = force
        self._applied[ids] = force.to(self._applied)
