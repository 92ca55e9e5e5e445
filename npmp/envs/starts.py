"""Start states of tasks without a reference: the home pose, or frames of motions, in any
heading."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.core import geometry
from npmp.envs.feet import Feet
from npmp.envs.reference import Reference
from npmp.envs.state import GRAVITY, RobotState, pose_from_qpos, turned
from npmp.envs.task import Start
from npmp.robots import Robot


class StartPoses:
    """The home pose at rest and frames of motions, the lowest foot on the floor, in random
    headings.

    Friction of MuJoCo's pyramidal cones depends on the direction: along x it is 1.4 times that at
    45 degrees.
    """

    def __init__(
        self,
        robot: Robot,
        motions: MotionSet | None = None,
        *,
        share: float = 0.5,
        tilt_deg: float = 0.0,
        speed_mps: float = 0.0,
    ):
        """Args:
        share: of starts on motions. tilt_deg, speed_mps: as `disturbed`.

        Raises:
          InputError: for an empty dataset or one at another rate than the robot's control rate.
        """
        self.share = share
        self.tilt = math.radians(tilt_deg)
        self.speed = speed_mps
        self._feet = Feet(robot) if tilt_deg > 0 else None
        self._table = _table(robot, motions)

    def bind(self, env: Any) -> None:
        """As `Starts`."""
        self._table = tuple(part.to(env.device) for part in self._table)
        self._feet = None if self._feet is None else self._feet.to(env.device)

    def start(self, ids: Tensor, generator: torch.Generator, **where: Tensor) -> Start:
        """As `Starts`. where: `yaw`, as of `sample`."""
        return self.sample(len(ids), generator, **where)

    def sample(self, n: int, generator: torch.Generator, yaw: Tensor | None = None) -> Start:
        """Sample starts of n robots. yaw: (n,) rotation of each [rad]; None: random."""
        qpos, qvel, states = self._table
        device = states.device
        row = torch.zeros(n, dtype=torch.long, device=device)
        if len(qpos) > 1:
            frame = torch.randint(1, len(qpos), (n,), generator=generator, device=device)
            on_reference = torch.rand(n, generator=generator, device=device) < self.share
            row = torch.where(on_reference, frame, row)
        if yaw is None:
            yaw = 2.0 * math.pi * torch.rand(n, generator=generator, device=device)
        turn = geometry.yaw_matrix(yaw)
        state = RobotState.unpack(states[row])
        root_pos = geometry.to_world(turn, state.root_pos)
        state = state._replace(root_pos=root_pos, root_rot=turn @ state.root_rot)
        start = Start(*turned(yaw, qpos[row], qvel[row]), state)
        if self.tilt or self.speed:
            start = disturbed(start, self.tilt, self.speed, self._feet, generator)
        return start


def disturbed(
    start: Start, tilt: float, speed: float, feet: Feet | None, generator: torch.Generator
) -> Start:
    """Starts (n, ...) rotated about the world's x and y axes by up to `tilt` [rad], with up to
    `speed` [m/s] added along them, the lowest foot on the floor.

    feet: needed for a tilt.
    """
    uniform = torch.rand((len(start.qpos), 4), generator=generator, device=start.qpos.device)
    uniform = 2.0 * uniform - 1.0
    qpos = start.qpos.clone()
    qvel = start.qvel.clone()
    state = start.state
    if feet is not None:
        half = 0.5 * tilt * uniform[:, :2].to(qpos)
        size = torch.linalg.vector_norm(half, dim=-1, keepdim=True)
        axis = half / size.clamp(min=1e-12)
        turn = torch.cat((torch.cos(size), torch.sin(size) * axis, torch.zeros_like(size)), -1)
        qpos[:, 3:7] = geometry.multiply_quat(turn, qpos[:, 3:7])
        pos, rot, joints = pose_from_qpos(qpos)
        low = feet(pos, rot, joints)[..., 2].amin((-1, -2)) - feet.radius
        qpos[:, 2] -= low
        # velocities are in the root frame and rotate with it, gravity does not
        upright = state.accel + GRAVITY * (rot[..., 2, :] - state.root_rot[..., 2, :])
        pos = torch.cat((pos[:, :2], (pos[:, 2] - low).unsqueeze(-1)), -1)
        qvel[:, :3] = geometry.to_world(rot, state.root_vel_end)
        state = state._replace(root_pos=pos, root_rot=rot, accel=upright)
    faster = torch.nn.functional.pad(speed * uniform[:, 2:], (0, 1))
    qvel[:, :3] += faster
    local = geometry.to_local(state.root_rot, faster)
    state = state._replace(root_vel=state.root_vel + local, root_vel_end=state.root_vel_end + local)
    return start._replace(qpos=qpos, qvel=qvel, state=state)


def _table(robot: Robot, motions: MotionSet | None) -> tuple[Tensor, ...]:
    """The home pose at rest, then every frame of the motions of flat ground with its lowest foot on
    the floor: qpos (S, nq) float64, qvel (S, nv), packed states."""
    qpos = torch.tensor(robot.home_qpos, dtype=torch.float64).unsqueeze(0)
    pos, rot, joints = pose_from_qpos(qpos)
    home = RobotState.still(pos, rot, joints)
    qvel = torch.zeros(1, 6 + joints.shape[-1], dtype=torch.float64)
    flat = () if motions is None else tuple(m for m in motions.motions if m.ground is None)
    if motions is None or (motions.motions and not flat):
        return qpos, qvel, home.pack()
    motions = replace(motions, motions=flat)
    reference = Reference(robot, motions)
    state = reference.state(torch.arange(reference.num_frames))
    feet = Feet(robot)
    lowest = feet(state.root_pos, state.root_rot, state.joint_pos)[..., 2].amin((-1, -2))
    lowered = state.root_pos.clone()
    lowered[:, :2] = 0.0
    lowered[:, 2] -= lowest - feet.radius
    state = state._replace(root_pos=lowered)
    table = torch.from_numpy(np.concatenate([m.qpos for m in motions.motions])).clone()
    table[:, :3] = lowered.double()
    moving = torch.cat((reference.frames.root_vel_w, state.root_ang, state.joint_vel), -1)
    parts = (qpos, table), (qvel, moving.double()), (home.pack(), state.pack())
    return tuple(map(torch.cat, parts))
