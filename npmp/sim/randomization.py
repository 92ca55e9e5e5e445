"""Domain randomization: what differs from one simulated robot to the next, drawn anew for every episode.

Structure and figures: robot-NPMP (Bohez et al. 2022); see conf/randomization for each figure's source. The values live in the
batch's per-simulation model fields, so the physics costs what it does without. Quantities that vary both for the whole robot and
for each part are (1 + s_global) (1 + s_i) c, both drawn uniformly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import mujoco
import numpy as np
import torch
from torch import Tensor

from npmp import ranges
from npmp.robots import Robot
from npmp.sim.batch import BatchSim


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

    def __init__(self, sim: BatchSim, robot: Robot, config: PhysicsConfig):
        """Expand the model fields that vary. Every simulation starts with the model's own values."""
        model, c = sim.model, config
        self._sim, self._config = sim, config
        bodies = [mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name) for name in robot.body_names]
        self._bodies = np.array([b for b in bodies if model.body_mass[b] > 0])
        self._trunk = bodies[0]
        feet = {mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name) for name in robot.foot_bodies}
        on_feet = [g for g in range(model.ngeom) if int(model.geom_bodyid[g]) in feet]
        self._foot_geoms = np.array([g for g in on_feet if model.geom_contype[g] or model.geom_conaffinity[g]])
        nu, nb = model.nu, len(self._bodies)
        dofs = np.arange(6, 6 + nu)
        self._dofs = dofs
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
        self.unit = torch.zeros(sim.num_envs, size)
        self.joint_offset = torch.zeros(sim.num_envs, nu)
        self._nominal = {
            name: np.array(getattr(model, name))
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
        self._fields = {name: sim.batch.expand(name) for name in varied}
        self._derived = bool({"body_mass", "body_inertia", "body_ipos"} & set(varied))
        if self._derived:
            sim.batch.set_const()

    def _spreads(self) -> dict[str, Spread]:
        c = self._config
        return {"mass": c.mass, "damping": c.damping, "friction_loss": c.friction_loss, "gain": c.gain, "torque": c.torque}

    @property
    def size(self) -> int:
        """P, how many numbers are drawn per robot."""
        return self.unit.shape[1]

    def draw(self, ids: Tensor, generator: torch.Generator) -> None:
        """New physics for simulations ids (k,)."""
        if self.size:
            self.set(ids, 2.0 * torch.rand((len(ids), self.size), generator=generator) - 1.0)
        elif self._config.friction is not None:
            self.set(ids, torch.zeros(len(ids), 0))

    def set(self, ids: Tensor, unit: Tensor) -> None:
        """Given physics: unit (k, P) in [-1, 1] for simulations ids (k,)."""
        c, fields, nominal = self._config, self._fields, self._nominal
        self.unit[ids] = unit
        rows, draws = ids.numpy(), unit.double().numpy()

        def column(name: str) -> np.ndarray:
            return draws[:, self._columns[name]]

        def scale(name: str, spread: Spread) -> np.ndarray:
            """(k, 1) or (k, parts): (1 + s_global) (1 + s_i)."""
            factor = np.ones((len(rows), 1))
            if spread.whole > 0:
                factor = factor * (1.0 + spread.whole * column(f"{name}_whole"))
            if spread.each > 0:
                factor = factor * (1.0 + spread.each * column(f"{name}_each"))
            return factor

        if c.mass.active:
            factor = scale("mass", c.mass)
            fields["body_mass"][np.ix_(rows, self._bodies)] = nominal["body_mass"][self._bodies] * factor
            fields["body_inertia"][np.ix_(rows, self._bodies)] = nominal["body_inertia"][self._bodies] * factor[..., None]
        if "body_ipos" in fields:
            shift = np.zeros((len(rows), len(self._bodies), 3))
            trunk = self._bodies == self._trunk
            if c.com_trunk > 0:
                shift[:, trunk] = c.com_trunk * column("com_trunk")[:, None]
            if c.com_links > 0:
                shift[:, ~trunk] = c.com_links * column("com_links").reshape(len(rows), -1, 3)
            fields["body_ipos"][np.ix_(rows, self._bodies)] = nominal["body_ipos"][self._bodies] + shift
        if c.damping.active:
            factor = scale("damping", c.damping)
            fields["dof_damping"][np.ix_(rows, self._dofs)] = nominal["dof_damping"][self._dofs] * factor
            fields["actuator_biasprm"][rows, :, 2] = nominal["actuator_biasprm"][:, 2] * factor
        if c.friction_loss.active:
            factor = scale("friction_loss", c.friction_loss)
            fields["dof_frictionloss"][np.ix_(rows, self._dofs)] = nominal["dof_frictionloss"][self._dofs] * factor
        if c.gain.active:
            factor = scale("gain", c.gain)
            fields["actuator_gainprm"][rows, :, 0] = nominal["actuator_gainprm"][:, 0] * factor
            fields["actuator_biasprm"][rows, :, 1] = nominal["actuator_biasprm"][:, 1] * factor
        if c.torque.active:
            factor = scale("torque", c.torque)
            fields["actuator_forcerange"][rows] = nominal["actuator_forcerange"] * factor[..., None]
        if c.friction is not None:
            low, high = c.friction
            share = 0.5 * (1.0 + column("friction")) if self._columns["friction"].stop else np.zeros((len(rows), 1))
            fields["geom_friction"][rows[:, None], self._foot_geoms[None], 0] = low + (high - low) * share
        if c.joint_offset > 0:
            self.joint_offset[ids] = c.joint_offset * unit[:, self._columns["joint_offset"]].float()
        if self._derived and len(rows):
            self._sim.batch.set_const(rows)


class Pusher:
    """Lateral forces on the root bodies of simulations, each with its own clock; constant over a control step.

    `force` (n, 2) [N], world frame: what pushes during the coming control step.
    """

    def __init__(self, sim: BatchSim, root_body: int, config: PushConfig, dt: float):
        self.config, self._dt = config, dt
        self.force = torch.zeros(sim.num_envs, 2)
        self.left = torch.zeros(sim.num_envs)  # [s] until the present push or gap is over
        self._applied = torch.from_numpy(sim.batch.bind("xfrc_applied"))[:, root_body, :2] if config.force > 0 else None

    def advance(self, ids: Tensor, fresh: bool, generator: torch.Generator) -> None:
        """Move the clocks of simulations ids (k,) on by a control step, or start them anew (fresh) in a gap."""
        c = self.config
        if self._applied is None or len(ids) == 0:
            return
        k = len(ids)
        uniform = torch.rand((4, k), generator=generator)
        left = torch.zeros(k) if fresh else self.left[ids] - self._dt
        over = left <= 0.0
        pushing = self.force[ids].abs().sum(-1) > 0
        begins = over & ~pushing if not fresh else torch.zeros(k, dtype=torch.bool)
        angle = 2.0 * math.pi * uniform[0]
        drawn = c.force * uniform[1].unsqueeze(-1) * torch.stack((torch.cos(angle), torch.sin(angle)), -1)
        force = torch.where(begins.unsqueeze(-1), drawn, torch.where((over | fresh).unsqueeze(-1), 0.0, self.force[ids]))
        # exponential times; at least a control step, the shortest that a push can last here
        push_s = torch.clamp(-c.duration_s * torch.log1p(-uniform[2]), min=self._dt)
        gap_s = torch.clamp(-c.gap_s * torch.log1p(-uniform[3]), min=self._dt)
        self.left[ids] = torch.where(over, torch.where(begins, push_s, gap_s), left)
        self.force[ids] = force
        self._applied[ids] = force.to(self._applied)
