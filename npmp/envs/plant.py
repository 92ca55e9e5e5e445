"""The robots of an environment as a policy meets them: physics, drives, pushes and senses, before any task.

Tasks say where robots are placed, what is asked of them and when an episode ends; everything between an action and the next
observation is here, so that it is the same in imitation and reuse.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import mujoco
import torch
from torch import Tensor

from npmp.envs.sensing import Sensing, SensorConfig
from npmp.envs.state import RobotState, arrive, pose_from_qpos
from npmp.robots import Robot
from npmp.sim import BatchSim
from npmp.sim.randomization import PhysicsConfig, PhysicsRandomizer, PushConfig, Pusher

HOLDS = ("zero_order", "first_order")


@dataclass(frozen=True)
class PlantConfig:
    """What stands between action and observation; by default an ideal robot. Raises ValueError for an unknown hold."""

    hold: str = "zero_order"  # of setpoints; first_order: linear from the last setpoint to the new one over a control period
    physics: PhysicsConfig = field(default_factory=PhysicsConfig)
    pushes: PushConfig = field(default_factory=PushConfig)
    sensors: SensorConfig = field(default_factory=SensorConfig)

    def __post_init__(self) -> None:
        if self.hold not in HOLDS:
            raise ValueError(f"hold must be one of {', '.join(HOLDS)}; got {self.hold!r}")


class Plant:
    """Simulated robots and their exact state; what they sense; what of their physics was drawn.

    Joint angles and setpoints in `state` are true ones. A robot whose encoders are off by `joint_offset` senses them shifted, and
    drives its joints to what it was told minus that.
    """

    def __init__(
        self, robot: Robot, model: mujoco.MjModel, num_envs: int, config: PlantConfig, *, num_threads: int = 0
    ):
        """All simulations in the model's default state; `place` them before use."""
        self.robot, self.config, self.num_envs = robot, config, num_envs
        self.dt = 1.0 / robot.control_rate_hz
        self.home = torch.tensor(robot.home_qpos[7:], dtype=torch.float32)
        self.sim = BatchSim(model, num_envs, control_rate_hz=robot.control_rate_hz, num_threads=num_threads)
        self.randomizer = PhysicsRandomizer(self.sim, robot, config.physics)
        self.pusher = Pusher(self.sim, model.body(robot.body_names[0]).id, config.pushes, self.dt)
        self.sensing = Sensing(config.sensors, self.home, self.dt)
        self.state = RobotState.unpack(torch.zeros(num_envs, 21 + 3 * len(self.home)))
        self.history = torch.zeros(num_envs, self.sensing.reach + 1, self.sensing.width)
        self._everyone = torch.arange(num_envs)

    @property
    def physics_size(self) -> int:
        """Width of `physics`."""
        return self.randomizer.size + 2 * (self.config.pushes.force > 0)

    @property
    def physics(self) -> Tensor:
        """What the simulator alone knows of each robot: the draws of its physics and the present push, each about in [-1, 1]."""
        if self.config.pushes.force == 0:
            return self.randomizer.unit
        return torch.cat((self.randomizer.unit, self.pusher.force / self.config.pushes.force), -1)

    def without_push(self, physics: Tensor) -> Tensor:
        """`physics` (..., P) as it is when nobody pushes."""
        if self.config.pushes.force == 0:
            return physics
        return torch.cat((physics[..., :-2], torch.zeros_like(physics[..., -2:])), -1)

    @property
    def joint_offset(self) -> Tensor | None:
        """(n, nu) [rad], None where encoders are right."""
        return self.randomizer.joint_offset if self.config.physics.joint_offset > 0 else None

    def place(self, ids: Tensor, qpos: Tensor, qvel: Tensor, state: RobotState, generator: torch.Generator) -> None:
        """Begin new episodes of robots ids (k,): new physics, a given state, no push, and a past like the present."""
        self.randomizer.draw(ids, generator)
        self.sim.set_state(ids, qpos, qvel)
        self.pusher.advance(ids, True, generator)
        if len(ids) == self.num_envs:
            self.state = state
        else:
            self.state = RobotState(*(old.index_copy(0, ids, new) for old, new in zip(self.state, state, strict=True)))
        offset = self.joint_offset
        exact = self.sensing.exact(state, None if offset is None else offset[ids])
        self.history = self.history.index_copy(0, ids, self.sensing.begin(exact))

    def observe(self, generator: torch.Generator) -> Tensor:
        """What the robots sense now, (n, o): a new draw of noise and delay at each call."""
        return self.sensing.read(self.history, generator)

    def setpoint(self, action: Tensor) -> Tensor:
        """The true joint targets [rad] of actions (n, nu) [rad], which are centred on the home pose."""
        offset = self.joint_offset
        return self.home + action if offset is None else self.home + action - offset

    def step(self, action: Tensor, generator: torch.Generator) -> Tensor:
        """One control step. action (n, nu) [rad]. Returns the setpoints (n, nu); the new state is `state`."""
        setpoint = self.setpoint(action)
        self.sim.step(setpoint, self.state.setpoint if self.config.hold == "first_order" else None)
        self.state = arrive(self.state, *pose_from_qpos(self.sim.qpos), setpoint, self.dt)
        self.history = self.sensing.remember(self.history, self.sensing.exact(self.state, self.joint_offset))
        self.pusher.advance(self._everyone, False, generator)
        return setpoint

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
        """Continue where `state_dict` was taken, to the bit."""
        if self.randomizer.size:
            self.randomizer.set(self._everyone, state["unit"])
        self.sim.restore(state["sim"])
        self.state = RobotState.unpack(state["state"].clone())
        self.history = state["history"].clone()
        self.pusher.force, self.pusher.left = state["push"].clone(), state["push_left"].clone()


class PlantEnv:
    """What environments share: a plant, and a generator for everything that is drawn."""

    plant: Plant
    generator: torch.Generator

    @property
    def sim(self) -> BatchSim:
        """The simulations."""
        return self.plant.sim

    @property
    def state(self) -> RobotState:
        """The exact state of all robots."""
        return self.plant.state

    @state.setter
    def state(self, state: RobotState) -> None:
        self.plant.state = state

    @property
    def home(self) -> Tensor:
        """Joint angles of the home pose (nu,) [rad]."""
        return self.plant.home

    @property
    def dt(self) -> float:
        """Control period [s]."""
        return self.plant.dt

    @property
    def num_envs(self) -> int:
        """Robots simulated at once."""
        return self.plant.num_envs

    @property
    def num_actions(self) -> int:
        """Joints driven."""
        return len(self.home)

    def observe(self) -> Tensor:
        """What the robots sense now, (n, o) as `npmp.envs.features.proprioception`; each call draws noise and delay anew."""
        return self.plant.observe(self.generator)
