"""One robot in a mode, without a browser and without a clock: wishes in, snapshots out."""

from __future__ import annotations

from typing import Any, NamedTuple

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray

from mocap_data import rotations
from mocap_data.errors import InputError
from npmp.envs.policy import Policy, observe
from npmp.tasks.velocity import heading_velocity
from npmp.view.play.modes import Cast, Floats, Mode, World

PUT_BACK_S = 1.0  # a robot lies so long before it is put back
RECOVERY_S = 6.0  # and so long where a recovery policy tries to get it up
UP_S = 0.5  # it has to stand before the policy continues
SMOOTH_S = 0.2  # time constant of the velocity that is shown, to hide the sway of strides
# [N/kg per m, N/kg] of the robot's mass: of a drag by the mouse
PUSH_PER_M = 4.0
MOST_PUSH = 8.0


class Snapshot(NamedTuple):
    """What there is to see after a control step; B bodies."""

    time_s: float  # simulated, since the session began
    mode: str
    bodies: Floats  # (B, 7) positions [m] and quaternions of the robot's bodies, world
    command: list[float] | None  # forward, left [m/s], turn [rad/s]
    achieved: list[float]  # the same, smoothed
    ghost: Floats | None  # (B, 7)
    ball: tuple[Floats, float] | None  # (7,), and its radius [m]
    target: tuple[float, float] | None  # [m]
    eye: NDArray[np.uint8] | None  # `Mode.eye`
    push: tuple[Floats, Floats] | None  # where [m] and what force [N], world
    down: bool  # it lies or is lost
    falls: int  # since the session began


class Session:
    """A robot in a mode. The same wishes between the same steps give the same bits.

    Not thread-safe: threads hand their wishes to the one that steps (`Player`).
    """

    def __init__(
        self, cast: Cast, mode: str | None = None, world: World | None = None, *, seed: int = 0
    ):
        """mode: the first that is possible by default. Raises InputError for one that is not."""
        self.cast = cast
        self.world = world or World()
        self.seed = seed
        self.time_s = 0.0
        self.falls = 0
        self._push: tuple[int, Floats, Floats] | None = None  # body, place on it and force
        self._rescuer: Policy | None = None
        self.mass = float(cast.robot.model(visuals=False).body_mass.sum())
        self._bodies = list(cast.robot.body_names)
        self.enter(self.made(mode or cast.modes[0]))

    # --- what viewers wish

    def made(self, mode: str, world: World | None = None) -> Mode:
        """A mode to `enter`; takes a while, and changes nothing: any thread may do it."""
        return self.cast.mode(mode, world or self.world, self.seed)

    def enter(self, mode: Mode, world: World | None = None) -> None:
        """Switch to a mode. world: that it was made in."""
        self.mode, self.world = mode, world or self.world
        model = mode.env.robots.model
        self._data, self._ghost = (mujoco.MjData(model) for _ in range(2))
        self._ids = [model.body(name).id for name in self._bodies]
        self.steer(0.0, 0.0, 0.0)
        self._afresh()

    def steer(self, forward: float, left: float, turn: float) -> None:
        """The command until the next one, as shares in [-1, 1] of the policy's range.

        Raises:
          InputError: for what is no such number.
        """
        axes = (forward, left, turn)
        if not all(isinstance(v, int | float) and abs(v) <= 1.0 for v in axes):
            raise InputError(f"forward, left and turn must lie in -1 to 1, got {axes!r:.80}")
        self.axes = axes

    def push(self, body: str, point: Any, drag: Any) -> None:
        """Push a body at a point of the world (3,) [m] until `release`, by how far it is dragged
        (3,) [m]."""
        place, way = (np.array(part, dtype=np.float64) for part in (point, drag))
        sound = place.shape == way.shape == (3,) and np.isfinite([place, way]).all()
        if body not in self._bodies or not sound:
            raise InputError(f"no body {body!r:.40} to be pushed there")
        index = self._bodies.index(body)
        size = float(np.linalg.norm(way))
        force = way * self.mass * min(PUSH_PER_M, MOST_PUSH / max(size, 1e-9))
        self.release()
        pose = self._poses()[index]
        self._push = index, rotations.rotate(rotations.conjugate(pose[3:]), place - pose[:3]), force

    def release(self) -> None:
        """Push no more."""
        if self._push is not None:
            self._wrench(self._push[0], np.zeros(3), np.zeros(3))
        self._push = None

    def choose(self, clip: str) -> None:
        """Switch to another clip. Raises InputError as `Mode.choose`."""
        self.mode.choose(clip)
        self._afresh()

    def put_back(self) -> None:
        """Upright and at rest, now."""
        self.mode.put_back()
        self._afresh()

    def _afresh(self) -> None:
        """The state of an episode that begins."""
        self._push = None
        self._hand_over(None)
        self._down_s, self._up_s = 0.0, 0.0
        self._smooth = heading_velocity(self.mode.env.state)[0].double().numpy()

    def _hand_over(self, rescuer: Policy | None) -> None:
        """To what gets it up, or, with None, to the mode's own policy."""
        self._rescuer = rescuer
        self._state = (rescuer or self.mode.policy).initial_state(1)
        self._is_first = torch.ones(1, dtype=torch.bool)

    # --- a step

    @torch.no_grad()
    def step(self) -> None:
        mode = self.mode
        env = self.mode.env
        mode.steer((0.0, 0.0, 0.0) if self._down_s else self.axes)
        if self._push is not None:
            index, place, force = self._push
            pose = self._poses()[index]
            self._wrench(index, force, pose[:3] + rotations.rotate(pose[3:], place))
        policy = self._rescuer or mode.policy
        output, self._state = policy.step(observe(env, self._is_first), self._state)
        step = env.step(output.action)
        self._is_first = torch.zeros(1, dtype=torch.bool)
        self.time_s += env.dt
        velocity = heading_velocity(env.state)[0].nan_to_num(0.0).double().numpy()
        self._smooth = self._smooth + min(1.0, env.dt / SMOOTH_S) * (velocity - self._smooth)
        if env.robots.broken.any():
            self.falls += not self._down_s
            self.put_back()
        elif (fallen := bool(env.fallen(env.state))) or mode.lost(step):
            # the rescuer starts; without one, or too late, it is put back
            self.falls += fallen and self._down_s == 0.0
            self._down_s, self._up_s = self._down_s + env.dt, 0.0
            rescuer = mode.rescuer if fallen else None
            if rescuer is not None and self._rescuer is None and self._down_s >= PUT_BACK_S:
                self._hand_over(rescuer)
            elif self._down_s >= (PUT_BACK_S if rescuer is None else PUT_BACK_S + RECOVERY_S):
                self.put_back()
        elif self._down_s:
            self._up_s += env.dt
            if self._up_s >= UP_S:
                self._down_s = 0.0
                if self._rescuer is not None:
                    self._hand_over(None)
                    mode.env.task.reset_memory(self._is_first)
        elif mode.over(step):
            mode.again()
            self._afresh()

    def _wrench(self, index: int, force: Floats, point: Floats) -> None:
        """A force [N] on a body at a point [m] of the world, beside random pushes."""
        robots = self.mode.env.robots
        body = self._ids[index]
        torque = np.cross(point - self._data.xipos[body], force) if force.any() else np.zeros(3)
        robots.set_wrench(0, body, np.concatenate((force, torque)))

    # --- what there is to see

    def _poses(self) -> Floats:
        """(B, 7) of the robot's bodies, now."""
        robots = self.mode.env.robots
        return _poses(robots.model, self._data, robots.scene_qpos[0].numpy(), self._ids)

    def snapshot(self) -> Snapshot:
        """What there is to see now; copies."""
        mode = self.mode
        bodies = self._poses()
        push = None
        ghost = None
        if self._push is not None:
            index, place, force = self._push
            push = bodies[index, :3] + rotations.rotate(bodies[index, 3:], place), force
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
            mode.eye,
            push,
            self._down_s > 0.0,
            self.falls,
        )


def _poses(model: mujoco.MjModel, data: mujoco.MjData, qpos: Floats, ids: list[int]) -> Floats:
    data.qpos[: len(qpos)] = qpos
    mujoco.mj_kinematics(model, data)
    return np.concatenate((data.xpos[ids], data.xquat[ids]), -1)
