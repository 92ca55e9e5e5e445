"""A batch of simulated robots: physics, drives, pushes and sensors, independent of the task.

It computes the next observation from an action, in imitation and reuse. Tasks reset robots, set
commands and end episodes.
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
from npmp.core.host_waits import is_asynchronous, may_have_any
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

# speed of root or joints above which a simulation counts as diverged [m/s, rad/s]; robots stay
# below 50
_MAX_SPEED = 1e3
# breakdown records kept, the latest
_MAX_BREAKDOWNS = 100


@dataclass(frozen=True)
class RobotBatchConfig:
    """Drives, sensors, physics and pushes of robots; by default ideal. Raises ValueError for an
    unknown hold or accelerometer."""

    # hold of setpoints; first_order: linear from the last to the new one over a control period
    hold: str = "zero_order"
    # imu: mean over the last control step at the robot's IMU; root: at the root, over two steps
    accelerometer: str = "imu"
    # joint drives: pd (ideal) or the folder of an actuator model; pd+FOLDER distributes several
    # among the robots
    actuator: str = IDEAL
    physics: randomization.PhysicsConfig = field(default_factory=randomization.PhysicsConfig)
    pushes: randomization.PushConfig = field(default_factory=randomization.PushConfig)
    sensors: SensorConfig = field(default_factory=SensorConfig)

    def __post_init__(self) -> None:
        ranges.one_of(self, "hold", HOLDS)
        ranges.one_of(self, "accelerometer", ACCELEROMETERS)
        if "" in self.drives:
            raise ValueError(
                f"actuator must be {IDEAL}, a folder, or several joined by +; got '{self.actuator}'"
            )

    @property
    def drives(self) -> list[str]:
        """`IDEAL` or the folder of an actuator model, one entry per kind."""
        return [self.actuator] if Path(self.actuator).is_dir() else self.actuator.split("+")

    @property
    def real_drives(self) -> list[str]:
        """The folders among `drives`."""
        return [name for name in self.drives if name != IDEAL]

    def drives_record(self) -> dict[str, str]:
        """The training record of the drives: `actuator` without parent folders, and the checksums
        of the weights; {} where all are ideal."""
        if not self.real_drives:
            return {}
        sums = (
            IDEAL if name == IDEAL else artifact.sha256(Path(name) / "actuator.safetensors")
            for name in self.drives
        )
        return {"name": artifact.short(self.actuator), "sha256": "+".join(sums)}

    def like(self, other: Any) -> RobotBatchConfig:
        """A copy with another's hold and accelerometer, and of a `RobotBatchConfig` its actuator.

        Args:
          other: has `hold` and `accelerometer`: a config, a module or a task's settings.
        """
        config = replace(self, hold=other.hold, accelerometer=other.accelerometer)
        if isinstance(other, RobotBatchConfig):
            return replace(config, actuator=other.actuator)
        return config


class RobotBatch:
    """Simulated robots: exact state, sensors and randomized physics.

    Joint angles and setpoints in `state` are exact. Encoders read the angles plus `joint_offset`,
    and the joints are driven to their targets minus it.
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
        """All simulations in the model's default state; `reset` them before use.

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
        model = randomization.with_nominal(model, robot, config.physics)
        # physics steps per control step
        self.substeps = _substeps(model, robot.control_rate_hz)
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
        # kind of each robot's drives, one-hot (n, K); (n, 0) where all have the same
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
        # simulations that diverged in the last step
        self.broken = torch.zeros(num_envs, dtype=torch.bool, device=device)
        # number of breakdowns since `clear_breakdowns`, and records of the latest
        self._lost = 0
        self._lost_on_device = torch.zeros((), dtype=torch.long, device=device)
        self.breakdowns: deque[dict[str, Any]] = deque(maxlen=_MAX_BREAKDOWNS)
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
        """A free body of the scene, by name."""
        return FreeBody(self.sim, name)

    def sensor(self, name: str) -> Tensor:
        """A sensor's readings, (n, dim), as of the last physics step."""
        return self.sim.sensor(name)

    def push(self, force: Tensor) -> None:
        """Apply horizontal forces (n, 2) [N], world frame, to the roots until the next call."""
        wrench = self.sim.wrench(self._root)
        wrench[:, :2] = force.to(wrench)

    def set_wrench(self, robot: int, body: int, wrench: np.ndarray) -> None:
        """Set the force [N] and torque [Nm] (6,), world frame, on a body of one robot, in addition
        to its random push."""
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
        """Privileged information (n, P): samples of the physics, kind of the drives and the current
        push, each about in [-1, 1].

        The push is in the heading frame, as networks do not observe the heading.
        """
        physics = torch.cat((self.randomizer.unit, self._drives), -1)
        if self.config.pushes.force == 0:
            return physics
        heading = geometry.yaw_matrix(geometry.yaw_of(self.state.root_rot))[:, :2, :2]
        push = geometry.to_local(heading, self.pusher.force) / self.config.pushes.force
        return torch.cat((physics, push), -1)

    def without_push(self, physics: Tensor) -> Tensor:
        """`physics` (..., P) with a push of zero."""
        if self.config.pushes.force == 0:
            return physics
        return torch.cat((physics[..., :-2], torch.zeros_like(physics[..., -2:])), -1)

    @property
    def joint_offset(self) -> Tensor | None:
        """Encoder offsets (n, nu) [rad]; None where all are zero."""
        physics = self.config.physics
        wrong = physics.joint_offset > 0 or any(joint.offset for joint in physics.nominal.values())
        return self.randomizer.joint_offset if wrong else None

    @property
    def qpos(self) -> Tensor:
        """The robots' columns of `Simulator.qpos`, (n, 7 + nu), live."""
        return self.sim.qpos[:, self._q]

    @property
    def qvel(self) -> Tensor:
        """The robots' columns of `Simulator.qvel`, (n, 6 + nu), live."""
        return self.sim.qvel[:, self._v]

    @property
    def torque(self) -> Tensor:
        """Torques of the joints' drives as of the last physics step, (n, nu) [Nm]."""
        return self.sim.drive_forces()[:, self._v][:, 6:].float()

    @property
    def current_squares(self) -> Tensor | None:
        """Squared motor currents (n, nu) [A^2], mean over the last control step; None where an
        actuator model gives none."""
        squares = None if self.sim.drives is None else self.sim.drives.current_squares
        return None if squares is None else squares.to(self.device)

    def reset(self, ids: Tensor, start: Start, generator: torch.Generator) -> None:
        """Reset robots ids (k,): new physics, a start state, no push, and a constant history."""
        self.randomizer.sample(ids, generator)
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

    def carry(self, ids: Tensor, position: Tensor, turn: Tensor) -> None:
        """Move robots ids (k,) in the horizontal plane; physics on flat ground does not change.

        Args:
          position: (k, 2) new positions [m].
          turn: (k, 3, 3) rotation about the vertical of robots and velocities.
        """
        root_pos = torch.cat((position, self.state.root_pos[ids, 2:]), -1)
        self.state = self.state._replace(
            root_pos=self.state.root_pos.index_copy(0, ids, root_pos),
            root_rot=self.state.root_rot.index_copy(0, ids, turn @ self.state.root_rot[ids]),
        )
        qpos = self.sim.qpos[ids]
        qvel = self.sim.qvel[ids]
        robot, speed = turned(geometry.yaw_of(turn), qpos[:, self._q], qvel[:, self._v])
        robot[:, :2] = position.to(qpos)
        qpos[:, self._q] = robot
        qvel[:, self._v] = speed
        self.sim.move(ids, qpos, qvel)

    def shift(self, ids: Tensor, by: Tensor) -> None:
        """Translate robots ids (k,) by (k, 3) [m]."""
        self.state = self.state._replace(root_pos=self.state.root_pos.index_add(0, ids, by))
        qpos = self.sim.qpos[ids]
        qpos[:, self._q][:, :3] += by.to(qpos)
        self.sim.move(ids, qpos, self.sim.qvel[ids])

    def observe(self, generator: torch.Generator) -> Tensor:
        """Sensor readings (n, o); each call samples noise and delay."""
        return self.sensing.read(self.history, generator)

    def setpoint(self, action: Tensor) -> Tensor:
        """Exact joint targets [rad] of actions (n, nu) [rad], which are relative to the home
        pose."""
        offset = self.joint_offset
        return self.home + action if offset is None else self.home + action - offset

    def step(self, action: Tensor, generator: torch.Generator) -> Tensor:
        """One control step; the new state is `state`. action: (n, nu) [rad].

        A simulation that diverged (`broken`) keeps its previous, finite state until the caller
        resets it.

        Returns: the setpoints (n, nu) [rad].
        """
        before = self.state
        setpoint = self.setpoint(action)
        held = before.setpoint if self.config.hold == "first_order" else None
        self.sim.step(setpoint, held)
        # copies, as the simulator overwrites its arrays in the next step
        qpos, qvel = (part.to(torch.float32, copy=True) for part in (self.qpos, self.qvel))
        after = arrive(before, qpos, qvel, setpoint, self.dt, self.imu_cross)
        speeds = torch.cat((after.root_vel, after.root_ang, after.joint_vel, qvel), -1)
        speed = speeds.abs().amax(-1)
        self.broken = self.sim.broken() | ~(speed < _MAX_SPEED)  # true for NaN
        self.state = before.where(self.broken, after) if may_have_any(self.broken) else after
        exact = self.sensing.exact(self.state, self.joint_offset)
        self.history = self.sensing.remember(self.history, exact)
        self.pusher.advance(generator)
        return setpoint

    def record_breakdowns(self, describe: Callable[[int], dict[str, Any]]) -> None:
        """Count the breakdowns of the last step in `lost`, and on the CPU add their records to
        `breakdowns`.

        describe: the task's record of a robot.
        """
        # a record would wait for the device at every step
        if is_asynchronous(self.device):
            self._lost_on_device += self.broken.sum()
            return
        for i in torch.nonzero(self.broken).squeeze(-1).tolist():
            reason = ", ".join(self.sim.warnings(i)) or f"faster than {_MAX_SPEED:g} m/s or rad/s"
            record = {"robot": i, "reason": reason, **describe(i)}
            physics = self.randomizer.samples(i)
            record |= {"physics": physics, "push_n": self.pusher.force[i].tolist()}
            self.breakdowns.append(record | {"state_before": self.state.pack()[i].tolist()})
            self._lost += 1

    @property
    def lost(self) -> int:
        """Number of breakdowns since `clear_breakdowns`."""
        return self._lost + int(self._lost_on_device)

    @lost.setter
    def lost(self, number: int) -> None:
        self._lost = number
        self._lost_on_device.zero_()

    def clear_breakdowns(self) -> None:
        """Reset count and records."""
        self.lost = 0
        self.breakdowns.clear()

    def state_dict(self) -> dict[str, Tensor]:
        """The full state, for checkpoints."""
        return {
            "sim": self.sim.snapshot(),
            "state": self.state.pack(),
            "history": self.history,
            "unit": self.randomizer.unit,
            "push": self.pusher.force,
            "push_left": self.pusher.left,
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a `state_dict`; on the CPU to the bit."""
        if self.randomizer.size:
            self.randomizer.set(self._all, state["unit"].to(self.device))
        self.sim.restore(state["sim"])
        kept = {name: state[name].to(self.device, copy=True) for name in state.keys() - {"sim"}}
        self.state = RobotState.unpack(kept["state"])
        self.history = kept["history"]
        self.pusher.force = kept["push"]
        self.pusher.left = kept["push_left"]


def _substeps(model: mujoco.MjModel, control_rate_hz: float) -> int:
    """Physics steps per control step. Raises InputError if they are not a whole number."""
    rate = 1.0 / model.opt.timestep
    substeps = rate / control_rate_hz
    if round(substeps) < 1 or abs(substeps - round(substeps)) > 1e-6:
        raise InputError(
            f"randomization.physics.physics_rate_hz={rate:g}: must be a multiple of the control"
            f" rate, {control_rate_hz:g} Hz (also if a task's scene sets it)"
        )
    return round(substeps)


def _refuse_gains(physics: randomization.PhysicsConfig) -> None:
    """Raise InputError where a preset sets parameters that an actuator model includes."""
    for name, joint in physics.nominal.items():
        included = ("kp", "kd", "damping", "friction_loss")
        if named := [key for key in included if getattr(joint, key) is not None]:
            raise InputError(
                f"physics.nominal.{name} sets {', '.join(named)}, which the model of actuator="
                f" includes; remove these, or use actuator={IDEAL}"
            )


def robot_columns(model: mujoco.MjModel, robot: Robot) -> tuple[slice, slice]:
    """Columns of a robot's positions (7 + nu) and velocities (6 + nu) in a scene's qpos and qvel.

    Raises:
      ValueError: where they are not contiguous in the robot's order, or the scene has other drives.
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
        raise ValueError(
            f"the joints of robot '{robot.name}' have addresses {addresses} in the scene, expected"
            f" consecutive ones from {(q + 7, v + 6)}"
        )
    if model.nu not in (nu, 2 * nu):  # two muscles per joint
        raise ValueError(
            f"the scene has {model.nu} drives, expected the {nu} of robot '{robot.name}'"
        )
    return slice(q, q + 7 + nu), slice(v, v + 6 + nu)


def imu_position(model: mujoco.MjModel, robot: Robot) -> Tensor:
    """Position of a robot's IMU in its root frame (3,) [m], joints in the model's default pose."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    root = data.body(robot.body_names[0])
    position = root.xmat.reshape(3, 3).T @ (data.site(robot.imu_site).xpos - root.xpos)
    return torch.tensor(position, dtype=torch.float32)
