"""A planner of footsteps and its module as the controller of one robot, by readings.

It runs in torch on the CPU, as the planner is Python: there is no bundle of it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike

from npmp.core import geometry
from npmp.core.gaussian import Gaussian
from npmp.deploy.onnx_policy import Readings
from npmp.deploy.robot import FloatArray
from npmp.envs.policy import Observation
from npmp.envs.sensing import SensorConfig
from npmp.envs.state import GRAVITY, RobotState
from npmp.robots import Robot
from npmp.skills.camera_map import CameraMap
from npmp.skills.composition import over
from npmp.skills.elevation_map import ElevationMap
from npmp.skills.footsteps import COMMANDS, FootstepPlanner, Plan
from npmp.skills.skill_module import SkillModule


class FootstepController:
    """A planner over a module for one robot; the interface of `OnnxPolicy`, with a pose.

    `contract`: the module's, for joints, gains and rate.
    """

    def __init__(
        self,
        skill: SkillModule,
        robot: Robot,
        terrain: ElevationMap | CameraMap,
        sensors: SensorConfig,
    ):
        """terrain, sensors: as of `FootstepPlanner.connect`. Raises as `FootstepPlanner`."""
        self.contract = skill.contract
        self.planner = FootstepPlanner(skill, robot)
        self.dt = 1.0 / skill.contract.control_rate_hz
        self.planner.connect(self.dt, self.planner.stride_s, sensors, terrain)
        self.policy = over(self, skill)
        self.home = self.planner.home
        self.reset()

    def reset(self) -> None:
        """Begin an episode: the home pose is the last target."""
        self.steps = 0
        self.state = self.policy.initial_state(1)
        self.target = self.home

    @torch.no_grad()
    def act(
        self, readings: Readings, command: ArrayLike, position: ArrayLike, quaternion: ArrayLike
    ) -> FloatArray:
        """Joint targets (nu,) [rad] of one control step.

        Args:
          command: (3,) [m/s, m/s, rad/s], clipped to `COMMANDS`.
          position, quaternion: (3,) [m] and (4,) wxyz of the root in the frame of the map's ground.
            They place a simulated map; else only those of the first step count.

        Raises:
          ValueError: for a wrong width or a value that is not finite; the state is then unchanged.
        """
        values = [np.asarray(v, np.float32) for v in (*readings, command, position, quaternion)]
        widths = (len(self.home), 3, 3, 3, 3, 3, 4)
        for value, width in zip(values, widths, strict=True):
            if value.shape != (width,) or not np.isfinite(value).all():
                raise ValueError(f"{value}: expected {width} finite numbers")
        joints, gyro, accel, up, command, position, quaternion = (
            torch.tensor(value)[None] for value in values
        )
        low, high = torch.tensor(COMMANDS, dtype=torch.float32).T
        off = joints - self.home, (self.target - self.home).expand(1, -1)
        observation = Observation(
            # as `npmp.envs.features.proprioception`
            proprioception=torch.cat((*off, gyro, accel / GRAVITY, up), -1),
            task=command.clamp(low, high),
            is_first=torch.tensor([self.steps == 0]),
            state=RobotState.still(position, geometry.matrix_from_quat(quaternion), joints),
        )
        output, self.state = self.policy.step(observation, self.state)
        self.steps += 1
        self.target = self.home + output.action[0]
        return self.target.double().numpy()

    @property
    def blind(self) -> bool:
        """Whether the map is unknown for lack of valid images. The planner then walks at half the
        speed and takes the ground to be level. False with an `ElevationMap`."""
        return bool(self.planner.map.blind(self.state.upper.map))

    # --- the upper policy of the composition ---

    def initial_state(self, n: int) -> Plan:
        """The state at the start of n episodes."""
        return self.planner.initial_state(n)

    def step(self, observation: Observation, state: Plan) -> tuple[Gaussian, Plan]:
        """As `Policy.step`: latents that track the plan."""
        phase = torch.tensor([self.steps * self.dt / self.planner.period_s % 1.0])
        return self.planner.track(observation, state, observation.task, phase, observation.state)
