"""A session of one robot in a mode, without a browser and a clock: requests in, snapshots out."""

from __future__ import annotations

from typing import Any, NamedTuple

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray

from mocap_data import rotations
from mocap_data.errors import InputError
from npmp.envs.policy import Policy, bind, observe
from npmp.tasks.velocity import heading_velocity
from npmp.view.play.modes import Cast, Floats, Markers, Mode, World

# time that a robot lies before it is reset [s]
RESET_S = 1.0
# additional time for a recovery policy [s]
RECOVERY_S = 6.0
# time that the robot must be upright before the policy continues [s]
UP_S = 0.5
# time constant of the displayed velocity, to hide the oscillation of strides [s]
SMOOTH_S = 0.2
# force of a drag by the mouse, over the robot's mass [N/kg per m]
PUSH_PER_M = 4.0
# largest force of a drag, over the robot's mass [N/kg]
MAX_PUSH = 8.0


class Snapshot(NamedTuple):
    """The state after a control step, for display; B bodies, world frame."""

    time_s: float  # simulated, since the start of the session
    mode: str
    bodies: Floats  # (B, 7) positions [m] and quaternions
    command: list[float] | None  # forward, left [m/s], turn [rad/s]
    achieved: list[float]  # the same, smoothed
    ghost: Floats | None  # (B, 7)
    ball: tuple[Floats, float] | None  # (7,), and its radius [m]
    target: tuple[float, float] | None  # [m]
    camera_image: NDArray[np.uint8] | None  # `Mode.camera_image`
    markers: Markers | None  # `Mode.markers`
    push: tuple[Floats, Floats] | None  # point [m] and force [N]
    down: bool  # the robot lies or is lost
    falls: int  # since the start of the session


class Session:
    """A robot in a mode. Equal requests between equal steps give equal bits.

    Not thread-safe: other threads pass their requests to the stepping one (`Player`).
    """

    def __init__(
        self, cast: Cast, mode: str | None = None, world: World | None = None, *, seed: int = 0
    ):
        """mode: by default the first possible one. Raises InputError for an impossible one."""
        self.cast = cast
        self.world = world or World()
        self.seed = seed
        self.time_s = 0.0
        self.falls = 0
        self._push: tuple[int, Floats, Floats] | None = None  # body, point on it, force
        self._recovery: Policy | None = None
        self.mass = float(cast.robot.model(visuals=False).body_mass.sum())
        self._bodies = list(cast.robot.body_names)
        self.enter(self.made(mode or cast.modes[0]))

    # --- requests

    def made(self, mode: str, world: World | None = None) -> Mode:
        """A mode to `enter`. Slow, but without side effects, so any thread may call it."""
        return self.cast.mode(mode, world or self.world, self.seed)

    def enter(self, mode: Mode, world: World | None = None) -> None:
        """Switch to a mode. world: of that mode."""
        self.mode = mode
        bind(mode.policy, mode.env)
        self.world = world or self.world
        model = mode.env.robots.model
        self._data = mujoco.MjData(model)
        self._ghost = mujoco.MjData(model)
        self._ids = [model.body(name).id for name in self._bodies]
        self.steer(0.0, 0.0, 0.0)
        self._begin_episode()

    def steer(self, forward: float, left: float, turn: float) -> None:
        """Set the command relative to the policy's range, in [-1, 1].

        Raises:
          InputError: for other values.
        """
        axes = (forward, left, turn)
        if not all(isinstance(v, int | float) and abs(v) <= 1.0 for v in axes):
            raise InputError(f"axes={axes!r:.80}: must be from -1 to 1")
        self.axes = axes

    def push(self, body: str, point: Any, drag: Any) -> None:
        """Push a body at a point (3,) [m] until `release`, with a force proportional to the drag
        (3,) [m].

        Raises:
          InputError: for an unknown body or invalid vectors.
        """
        position, vector = (np.array(part, dtype=np.float64) for part in (point, drag))
        valid = position.shape == vector.shape == (3,) and np.isfinite([position, vector]).all()
        if body not in self._bodies or not valid:
            raise InputError(f"push: body {body!r:.40}, point or drag is invalid")
        index = self._bodies.index(body)
        size = float(np.linalg.norm(vector))
        force = vector * self.mass * min(PUSH_PER_M, MAX_PUSH / max(size, 1e-9))
        self.release()
        pose = self._poses()[index]
        local = rotations.rotate(rotations.conjugate(pose[3:]), position - pose[:3])
        self._push = index, local, force

    def release(self) -> None:
        """Stop pushing."""
        if self._push is not None:
            self._wrench(self._push[0], np.zeros(3), np.zeros(3))
        self._push = None

    def choose(self, clip: str) -> None:
        """Switch to another clip. Raises InputError as `Mode.choose`."""
        self.mode.choose(clip)
        self._begin_episode()

    def put_back(self) -> None:
        """Reset the robot, upright and at rest."""
        self.mode.put_back()
        self._begin_episode()

    def _begin_episode(self) -> None:
        """Reset the state of an episode."""
        self._push = None
        self._hand_over(None)
        self._down_s = 0.0
        self._up_s = 0.0
        self._smooth = heading_velocity(self.mode.env.state)[0].double().numpy()

    def _hand_over(self, recovery: Policy | None) -> None:
        """Switch to a recovery policy, or, with None, to the mode's policy."""
        self._recovery = recovery
        self._markers: Markers | None = None
        self._state = (recovery or self.mode.policy).initial_state(1)
        self._is_first = torch.ones(1, dtype=torch.bool)

    # --- a step

    @torch.no_grad()
    def step(self) -> None:
        mode = self.mode
        env = self.mode.env
        mode.steer((0.0, 0.0, 0.0) if self._down_s else self.axes)
        if self._push is not None:
            index, local, force = self._push
            pose = self._poses()[index]
            self._wrench(index, force, pose[:3] + rotations.rotate(pose[3:], local))
        policy = self._recovery or mode.policy
        output, self._state = policy.step(observe(env, self._is_first), self._state)
        if self._recovery is None:
            self._markers = mode.markers(self._state)
        step = env.step(output.action)
        self._is_first = torch.zeros(1, dtype=torch.bool)
        self.time_s += env.dt
        velocity = heading_velocity(env.state)[0].nan_to_num(0.0).double().numpy()
        self._smooth = self._smooth + min(1.0, env.dt / SMOOTH_S) * (velocity - self._smooth)
        if env.robots.broken.any():
            self.falls += not self._down_s
            self.put_back()
        elif (fallen := bool(env.fallen(env.state))) or mode.lost(step):
            # the recovery policy takes over; without one, or after too long, the robot is reset
            self.falls += fallen and self._down_s == 0.0
            self._down_s += env.dt
            self._up_s = 0.0
            recovery = mode.rescuer if fallen else None
            if recovery is not None and self._recovery is None and self._down_s >= RESET_S:
                self._hand_over(recovery)
            elif self._down_s >= (RESET_S if recovery is None else RESET_S + RECOVERY_S):
                self.put_back()
        elif self._down_s:
            self._up_s += env.dt
            if self._up_s >= UP_S:
                self._down_s = 0.0
                if self._recovery is not None:
                    self._hand_over(None)
                    mode.env.task.reset_memory(self._is_first)
        elif mode.over(step):
            mode.again()
            self._begin_episode()

    def _wrench(self, index: int, force: Floats, point: Floats) -> None:
        """Apply a force [N] to a body at a point [m], in addition to random pushes."""
        robots = self.mode.env.robots
        body = self._ids[index]
        torque = np.cross(point - self._data.xipos[body], force) if force.any() else np.zeros(3)
        robots.set_wrench(0, body, np.concatenate((force, torque)))

    # --- display

    def _poses(self) -> Floats:
        """(B, 7) current poses of the robot's bodies."""
        robots = self.mode.env.robots
        return _poses(robots.model, self._data, robots.scene_qpos[0].numpy(), self._ids)

    def snapshot(self) -> Snapshot:
        """A copy of the current state."""
        mode = self.mode
        bodies = self._poses()
        push = None
        ghost = None
        if self._push is not None:
            index, local, force = self._push
            push = bodies[index, :3] + rotations.rotate(bodies[index, 3:], local), force
        if mode.ghost is not None:
            ghost = _poses(mode.env.robots.model, self._ghost, mode.ghost, self._ids)
        return Snapshot(
            self.time_s,
            mode.name,
            bodies,
            mode.command(),
            self._smooth.tolist(),
            ghost,
            mode.ball,
            mode.target,
            mode.camera_image,
            self._markers,
            push,
            self._down_s > 0.0,
            self.falls,
        )


def _poses(model: mujoco.MjModel, data: mujoco.MjData, qpos: Floats, ids: list[int]) -> Floats:
    data.qpos[: len(qpos)] = qpos
    mujoco.mj_kinematics(model, data)
    return np.concatenate((data.xpos[ids], data.xquat[ids]), -1)
