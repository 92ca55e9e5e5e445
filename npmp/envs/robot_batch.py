"""Simulated robots as a policy meets them: physics, drives, pushes and senses, before any task.

Tasks place robots, give commands and end episodes; everything
between an action and the next observation is here, so that it is the same in imitation and reuse.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import actuators
from npmp.core import artifact, geometry, ranges
from npmp.core.memory_checks import require_robots
from npmp.envs.free_body import FreeBody
from npmp.envs.sensing import Sensing, SensorConfig
from npmp.envs.state import RobotState, arrive, turned
from npmp.envs.task import Start
from npmp.robots import Robot
from npmp.sim import Simulator, randomization, simulate
from npmp.sim.drives import IDEAL

HOLDS = ("zero_order", "first_order")
ACCELEROMETERS = ("imu", "root")

# Mean over a control step in any direction, of root or joints [m/s, rad/s]: robots stay below 50,
# diverging simulations do not.
_TOO_FAST = 1e3
# breakdowns kept where none are taken: evaluations and library users go on for long
_REMEMBERED = 100


@dataclass(frozen=True)
class RobotBatchConfig:
    """Drives, sensors, physics and pushes of robots; by default ideal. Raises ValueError for an
    unknown hold or accelerometer."""

    # of setpoints; first_order: linear from the last to the new one over a control period
    hold: str = "zero_order"
    # imu: its mean over the last control step, at the robot's IMU; root: of the root over two steps
    accelerometer: str = "imu"
    # drives of the joints: pd, which is ideal, or the folder of a model of real drives; several,
    # as pd+FOLDER, are shared out among the robots
    actuator: str = IDEAL
    physics: randomization.PhysicsConfig = field(default_factory=randomization.PhysicsConfig)
    pushes: randomization.PushConfig = field(default_factory=randomization.PushConfig)
    sensors: SensorConfig = field(default_factory=SensorConfig)

    def __post_init__(self) -> None:
        ranges.one_of(self, "hold", HOLDS)
        ranges.one_of(self, "accelerometer", ACCELEROMETERS)
        if "" in self.drives:
            raise ValueError(f"actuator names each kind, as pd+FOLDER; got '{self.actuator}'")

    @property
    def drives(self) -> list[str]:
        """`IDEAL` or the folder of a model of real drives, of each kind that there is."""
        return [self.actuator] if Path(self.actuator).is_dir() else self.actuator.split("+")

    @property
    def real_drives(self) -> list[str]:
        """Those of `drives` that are not ideal."""
        return [name for name in self.drives if name != IDEAL]

    def drives_noted(self) -> dict[str, str]:
        """What is noted of a training's drives: `actuator` without its folders' parents, and the
        checksums of their weights; nothing where all are ideal."""
        if not self.real_drives:
            return {}
        sums = (
            IDEAL if name == IDEAL else artifact.sha256(Path(name) / "actuator.safetensors")
            for name in self.drives
        )
        return {"name": artifact.short(self.actuator), "sha256": "+".join(sums)}

    def like(self, other: Any) -> RobotBatchConfig:
        """The same robots, their setpoints held and their accelerometers read as others'. other:
        has `hold` and `accelerometer`: robots, a module or a task's settings."""
        wired = replace(self, hold=other.hold, accelerometer=other.accelerometer)
        if isinstance(other, RobotBatchConfig):
            return replace(wired, actuator=other.actuator)
        return wired


class RobotBatch:
    """Simulated robots and their exact state; what they sense; what of their physics was drawn.

    Joint angles and setpoints in `state` are true ones. A robot whose encoders are off by
    `joint_offset` senses them shifted, and drives its joints to their targets minus that.
    """

    def __init__(
        self,
        robot: Robot,
        model: mujoco.MjModel,
        num_envs: int,
        config: RobotBatchConfig,
        *,
        num_threads: int = 0,
        device: torch.device | str = "cpu",
        engine: str = "",
    ):
        """All simulations in the model's default state; `place` them before use.

        Args:
          device: of all tensors.
          engine: as `npmp.sim.simulate`.

        Raises:
          InputError: for an actuator that cannot be used, and an unknown engine.
        """
        self.robot = robot
        self.config = config
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.dt = 1.0 / robot.control_rate_hz
        model = randomization.with_nominal(model, config.physics)
        rate = 1.0 / model.opt.timestep
        substeps = rate / robot.control_rate_hz
        if round(substeps) < 1 or abs(substeps - round(substeps)) > 1e-6:
            raise InputError(
                f"randomization.physics.physics_rate_hz={rate:g}: must be a multiple of the control"
                f" rate, {robot.control_rate_hz:g} Hz (so must what a task's scene says)"
            )
        self.substeps = round(substeps)  # physics steps of a control step
        require_robots(model, num_envs, substeps=self.substeps)
        self.home = torch.tensor(robot.home_joints, dtype=torch.float32, device=self.device)
        self.imu_cross: Tensor | None = None
        if config.accelerometer == "imu":
            self.imu_cross = geometry.skew(imu_position(model, robot)).to(self.device)
        if config.real_drives:
            _refuse_gains(config.physics)
        self.sim: Simulator = simulate(
            model,
            num_envs,
            device=self.device,
            engine=engine,
            control_rate_hz=robot.control_rate_hz,
            num_threads=num_threads,
            actuators=[None if at == IDEAL else actuators.load(at) for at in config.drives],
        )
        # which drives each robot has, (n, K); (n, 0) where all have the same
        kinds = torch.arange(num_envs, device=self.device)
        count = len(config.drives)
        self._drives = torch.nn.functional.one_hot(kinds % count, count).float()[:, count == 1 :]
        self.randomizer = randomization.PhysicsRandomizer(self.sim, robot, config.physics)
        self._root = model.body(robot.body_names[0]).id
        self.pusher = randomization.Pusher(self.sim, self._root, config.pushes, self.dt)
        self.sensing = Sensing(config.sensors, self.home, self.dt)
        device = self.device
        width = RobotState.width(len(self.home))
        self.state = RobotState.unpack(torch.zeros(num_envs, width, device=device))
        self._q, self._v = robot_columns(model, robot)
        self._scene = torch.tensor(np.concatenate((model.qpos0, np.zeros(model.nv))), device=device)
        shape = num_envs, self.sensing.lags + 1, self.sensing.width
        self.history = torch.zeros(shape, device=device)
        # whether a simulation broke down in the last step
        self.broken = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self.lost = 0  # simulations noted as broken since `forget_breakdowns`
        # records of the latest of them
        self.breakdowns: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED)
        self._all = torch.arange(num_envs, device=self.device)

    # --- the scene ---

    @property
    def model(self) -> mujoco.MjModel:
        """The compiled scene."""
        return self.sim.model

    @property
    def scene_qpos(self) -> Tensor:
        """A copy of the positions of the whole scene, (n, nq) float64."""
        return self.sim.qpos.to(torch.float64, copy=True)

    def free_body(self, name: str) -> FreeBody:
        """A free body of the scene beside the robots."""
        return FreeBody(self.sim, name)

    def sensor(self, name: str) -> Tensor:
        """A sensor's readings, (n, dim), as of the last physics step."""
        return self.sim.sensor(name)

    def push(self, force: Tensor) -> None:
        """Push the roots by horizontal forces (n, 2) [N] in the world frame, until the next
        call."""
        wrench = self.sim.wrench(self._root)
        wrench[:, :2] = force.to(wrench)

    def set_wrench(self, robot: int, body: int, wrench: np.ndarray) -> None:
        """Set the force [N] and torque [Nm] (6,) in the world frame on a body of one robot, beside
        its random push."""
        acting = self.sim.wrench(body)[robot]
        acting[:] = torch.from_numpy(wrench).to(acting)
        if body == self._root and self.config.pushes.force > 0:
            acting[:2] += self.pusher.force[robot].to(acting)

    # --- the robots ---

    @property
    def physics_size(self) -> int:
        """Width of `physics`."""
        return self.randomizer.size + self._drives.shape[1] + 2 * (self.config.pushes.force > 0)

    @property
    def physics(self) -> Tensor:
        """What the simulator alone knows of each robot: the draws of its physics, which drives it
        has and the present push, each about in [-1, 1].

        The push is in the heading frame, as networks do not observe the heading.
        """
        drawn = torch.cat((self.randomizer.unit, self._drives), -1)
        if self.config.pushes.force == 0:
            return drawn
        turned = geometry.yaw_matrix(geometry.yaw_of(self.state.root_rot))[:, :2, :2]
        push = geometry.to_local(turned, self.pusher.force) / self.config.pushes.force
        return torch.cat((drawn, push), -1)

    def without_push(self, physics: Tensor) -> Tensor:
        """`physics` (..., P) as it is without a push."""
        if self.config.pushes.force == 0:
            return physics
        return torch.cat((physics[..., :-2], torch.zeros_like(physics[..., -2:])), -1)

    @property
    def joint_offset(self) -> Tensor | None:
        """(n, nu) [rad], None where encoders are right."""
        physics = self.config.physics
        wrong = physics.joint_offset > 0 or any(joint.offset for joint in physics.nominal.values())
        return self.randomizer.joint_offset if wrong else None

    @property
    def qpos(self) -> Tensor:
        """The robots' columns of the simulations' positions, (n, 7 + nu): live, of the simulator's
        precision."""
        return self.sim.qpos[:, self._q]

    @property
    def qvel(self) -> Tensor:
        """The same of the velocities, (n, 6 + nu)."""
        return self.sim.qvel[:, self._v]

    @property
    def torque(self) -> Tensor:
        """Torques of the joints' drives as of the last physics step, (n, nu) [Nm]."""
        return self.sim.drive_forces()[:, self._v][:, 6:].float()

    @property
    def current_squares(self) -> Tensor | None:
        """The squares of the motors' currents, mean over the physics steps of the last control
        step, (n, nu) [A^2]; None where no model of real drives gives them."""
        squares = None if self.sim.drives is None else self.sim.drives.current_squares
        return None if squares is None else squares.to(self.device)

    def place(self, ids: Tensor, start: Start, generator: torch.Generator) -> None:
        """Begin new episodes of robots ids (k,): new physics, a state, no push, and a past
        like the present."""
        self.randomizer.draw(ids, generator)
        self.sim.set_state(ids, *self._whole(start))
        self.pusher.begin(ids, generator)
        if len(ids) == self.num_envs:
            self.state = start.state
        else:
            fields = zip(self.state, start.state, strict=True)
            self.state = RobotState(*(old.index_copy(0, ids, new) for old, new in fields))
        offset = self.joint_offset
        exact = self.sensing.exact(start.state, None if offset is None else offset[ids])
        self.history = self.history.index_copy(0, ids, self.sensing.begin(exact))

    def _whole(self, start: Start) -> tuple[Tensor, Tensor]:
        """Positions and velocities of the whole scene (k, nq), (k, nv)."""
        model = self.sim.model
        if start.others is None and model.nq == start.qpos.shape[-1]:
            return start.qpos, start.qvel
        if start.others is None:
            rest = self._scene.expand(len(start.qpos), -1)
            qpos = rest[:, : model.nq].clone()
            qvel = rest[:, model.nq :].clone()
        else:
            qpos, qvel = (part.clone() for part in start.others)
        qpos[:, self._q] = start.qpos.to(qpos)
        qvel[:, self._v] = start.qvel.to(qvel)
        return qpos, qvel

    def carry(self, ids: Tensor, place: Tensor, turn: Tensor) -> None:
        """Move robots ids (k,) in the horizontal plane as they are, which physics on flat ground
        does not notice.

        Args:
          place: (k, 2) where to [m]. turn: (k, 3, 3) about the vertical, by which they and their
            velocities are turned.
        """
        position = torch.cat((place, self.state.root_pos[ids, 2:]), -1)
        self.state = self.state._replace(
            root_pos=self.state.root_pos.index_copy(0, ids, position),
            root_rot=self.state.root_rot.index_copy(0, ids, turn @ self.state.root_rot[ids]),
        )
        qpos = self.sim.qpos[ids]
        qvel = self.sim.qvel[ids]
        robot, speed = turned(geometry.yaw_of(turn), qpos[:, self._q], qvel[:, self._v])
        robot[:, :2] = place.to(qpos)
        qpos[:, self._q] = robot
        qvel[:, self._v] = speed
        self.sim.move(ids, qpos, qvel)

    def shift(self, ids: Tensor, by: Tensor) -> None:
        """Move robots ids (k,) by (k, 3) [m] as they are."""
        self.state = self.state._replace(root_pos=self.state.root_pos.index_add(0, ids, by))
        qpos = self.sim.qpos[ids]
        qpos[:, self._q][:, :3] += by.to(qpos)
        self.sim.move(ids, qpos, self.sim.qvel[ids])

    def observe(self, generator: torch.Generator) -> Tensor:
        """The robots' sensors now, (n, o), with new noise and delay at each call."""
        return self.sensing.read(self.history, generator)

    def setpoint(self, action: Tensor) -> Tensor:
        """The true joint targets [rad] of actions (n, nu) [rad], which are centred on the home
        pose."""
        offset = self.joint_offset
        return self.home + action if offset is None else self.home + action - offset

    def step(self, action: Tensor, generator: torch.Generator) -> Tensor:
        """One control step. action (n, nu) [rad]. Returns the setpoints (n, nu); the new state is
        `state`.

        Where a simulation broke down, `broken`, the state is that of before, which is finite. Such
        a robot must be placed anew.
        """
        before = self.state
        setpoint = self.setpoint(action)
        held = before.setpoint if self.config.hold == "first_order" else None
        self.sim.step(setpoint, held)
        # copies: the simulator's own numbers change with the next step, the state does not
        qpos, qvel = (part.to(torch.float32, copy=True) for part in (self.qpos, self.qvel))
        after = arrive(before, qpos, qvel, setpoint, self.dt, self.imu_cross)
        speeds = torch.cat((after.root_vel, after.root_ang, after.joint_vel, qvel), -1)
        speed = speeds.abs().amax(-1)
        self.broken = self.sim.broken() | ~(speed < _TOO_FAST)  # so that nan counts
        self.state = before.where(self.broken, after) if self.broken.any() else after
        exact = self.sensing.exact(self.state, self.joint_offset)
        self.history = self.sensing.remember(self.history, exact)
        self.pusher.advance(generator)
        return setpoint

    def note_broken(self, describe: Callable[[int], dict[str, Any]]) -> None:
        """Count each breakdown of the last step in `lost`, and add what led to it to `breakdowns`.

        describe: the task's record of a robot.
        """
        for i in torch.nonzero(self.broken).squeeze(-1).tolist():
            reason = ", ".join(self.sim.warnings(i)) or f"faster than {_TOO_FAST:g} m/s or rad/s"
            record = {"robot": i, "reason": reason, **describe(i)}
            record |= {"physics": self.randomizer.drawn(i), "push_n": self.pusher.force[i].tolist()}
            self.breakdowns.append(record | {"state_before": self.state.pack()[i].tolist()})
            self.lost += 1

    def forget_breakdowns(self) -> None:
        """Begin to count anew."""
        self.lost = 0
        self.breakdowns.clear()

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, for checkpoints."""
        return {
            "sim": self.sim.snapshot(),
            "state": self.state.pack(),
            "history": self.history,
            "unit": self.randomizer.unit,
            "push": self.pusher.force,
            "push_left": self.pusher.left,
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was taken; on the CPU to the bit."""
        if self.randomizer.size:
            self.randomizer.set(self._all, state["unit"].to(self.device))
        self.sim.restore(state["sim"])
        kept = {name: state[name].to(self.device, copy=True) for name in state.keys() - {"sim"}}
        self.state = RobotState.unpack(kept["state"])
        self.history = kept["history"]
        self.pusher.force = kept["push"]
        self.pusher.left = kept["push_left"]


def _refuse_gains(physics: randomization.PhysicsConfig) -> None:
    """Raises InputError where a preset names what a model of actuators has of its own."""
    for name, joint in physics.nominal.items():
        own = ("kp", "kd", "damping", "friction_loss")
        if named := [key for key in own if getattr(joint, key) is not None]:
            raise InputError(
                f"physics.nominal.{name} gives {', '.join(named)}, which actuator= says by itself;"
                f" leave these out, or use actuator={IDEAL}"
            )


def robot_columns(model: mujoco.MjModel, robot: Robot) -> tuple[slice, slice]:
    """Where a robot's positions (7 + nu) and velocities (6 + nu) stand among those of a scene.

    Raises:
      ValueError: where they do not stand side by side in the robot's order, or the scene has drives
        of its own.
    """
    root = model.body(robot.body_names[0])
    joint = int(root.jntadr[0])
    q = int(model.jnt_qposadr[joint])
    v = int(model.jnt_dofadr[joint])
    nu = len(robot.joint_names)
    addresses = [
        (int(model.joint(name).qposadr[0]), int(model.joint(name).dofadr[0]))
        for name in robot.joint_names
    ]
    if addresses != [(q + 7 + i, v + 6 + i) for i in range(nu)]:
        raise ValueError(f"the joints of '{robot.name}' do not stand side by side in the scene")
    if model.nu not in (nu, 2 * nu):  # two muscles a joint
        raise ValueError(
            f"the scene has {model.nu} drives, '{robot.name}' {nu}: only the robot is driven"
        )
    return slice(q, q + 7 + nu), slice(v, v + 6 + nu)


def imu_position(model: mujoco.MjModel, robot: Robot) -> Tensor:
    """Where the IMU of a robot in a scene sits, (3,) in its root's frame [m]; joints as the model
    has them at first."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    root = data.body(robot.body_names[0])
    position = root.xmat.reshape(3, 3).T @ (data.site(robot.imu_site).xpos - root.xpos)
    return torch.tensor(position, dtype=torch.float32)
