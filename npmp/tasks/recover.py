"""Getting up after a fall (Hwangbo et al. 2019).

Episodes start from states after drops in random orientations and joint angles. Bodies of the robot
also collide with each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mujoco
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.core import geometry, ranges
from npmp.envs.starts import StartPoses
from npmp.envs.state import RobotState, pose_from_qpos
from npmp.envs.task import Figures, Inputs, Part, Parts, Start, Task, TaskLoss, Term, Trial
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.sim import simulate
from npmp.sim.scene import flat_scene, let_bodies_collide
from npmp.tasks.goals import UniformGoals

IN_TIME_S = 3.0  # time to get up in [Hwangbo]


@dataclass(frozen=True)
class RecoverConfig:
    """The recovery task's settings. Raises ValueError for values out of range."""

    # height of the root at the drop [Hwangbo]
    drop_m: float = 1.0
    # time from the drop to the start of an episode [Hwangbo]
    settle_s: float = 1.2
    # largest distance of the joints from the home pose at the drop [rad]
    joint_spread: float = 1.0
    # number of different drops
    drops: int = 512
    # share of episodes that start in the home pose, to learn to stay up
    standing_starts: float = 0.1
    # range of the commanded height, relative to the home pose's
    stand: tuple[float, float] = (0.95, 1.0)
    # largest tilt of a robot that is up
    upright_deg: float = 20.0
    # least height of a robot that is up, relative to the target
    high_enough: float = 0.85
    # duration of an episode, which is then truncated [Hwangbo]
    episode_s: float = 6.0
    # weight of 1 - cos(tilt)
    tilt_weight: float = 1.0
    # weight of the missing share of the height
    height_weight: float = 1.0
    # weight of the joints' distance from the home pose, for upright robots [1/rad]
    pose_weight: float = 0.3
    # weight of the joints' speed, for upright robots [s/rad]
    stillness_weight: float = 0.05
    # wider joint limits in both directions [rad], by parts of joints' names
    joint_range_rad: Mapping[str, float] = field(default_factory=lambda: {"HFE": 3.14, "KFE": 3.14})

    def __post_init__(self) -> None:
        if not all(0.0 < angle < math.inf for angle in self.joint_range_rad.values()):
            raise ValueError(f"joint_range_rad={dict(self.joint_range_rad)}: must be above 0 [rad]")
        ranges.above_zero(self, "drop_m", "settle_s", "upright_deg", "episode_s")
        ranges.at_least_one(self, "drops")
        ranges.share(self, "standing_starts", "high_enough")
        ranges.not_negative(
            self, "joint_spread", "tilt_weight", "height_weight", "pose_weight", "stillness_weight"
        )
        ranges.pairs(self, "stand")
        if not 0.0 < self.stand[0] <= self.stand[1]:
            raise ValueError(f"stand={list(self.stand)}: expected [low, high], above 0")


class BodiesCollide(Part):
    """Enable collisions of the robot's bodies with each other."""

    def __init__(self, robot: Robot):
        self.robot = robot

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        let_bodies_collide(spec, self.robot)


class Drops(Part):
    """Starts from the states after drops; in training some are in the home pose."""

    def __init__(self, robot: Robot, config: RecoverConfig):
        self.robot = robot
        self.config = config
        self.standing = StartPoses(robot)

    def bind(self, env: TaskEnv[Any]) -> None:
        super().bind(env)
        self.standing.bind(env)
        self._tables: dict[int, tuple[Tensor, ...]] = {}
        self.fallen = self._drops(0)
        self.trial = False

    def _drops(self, seed: int) -> tuple[Tensor, ...]:
        if seed not in self._tables:
            drops = dropped(self.robot, self.config, seed, self.env.num_threads)
            self._tables[seed] = tuple(part.to(self.env.device) for part in drops)
        return self._tables[seed]

    def schedule(self, steps: int, generator: torch.Generator | None) -> None:
        """As `Part.schedule`: in a trial all robots start from drops that training does not use."""
        self.trial = generator is not None
        self.fallen = self._drops(1 if self.trial else 0)

    def start(self, ids: Tensor, generator: torch.Generator, **where: Tensor) -> Start:
        """As `Starts`."""
        draw = torch.rand(2, len(ids), generator=generator, device=ids.device)
        row = (draw[0] * len(self.fallen[0])).long()
        standing = 0.0 if self.trial else self.config.standing_starts
        up = (draw[1] < standing).unsqueeze(-1)
        home = self.standing.sample(len(ids), generator)
        parts = zip((home.qpos, home.qvel, home.state.pack()), self.fallen, strict=True)
        qpos, qvel, state = (torch.where(up, own, fallen[row]) for own, fallen in parts)
        return Start(qpos, qvel, RobotState.unpack(state))


class Standing(Part):
    """Distance of robots from standing upright, high and still: `error` of a step, and the loss
    over imagined steps."""

    def __init__(self, config: RecoverConfig, home_height: float):
        """home_height: of the root in the home pose [m]."""
        self.config = config
        self.home_height = home_height

    def _missing(self, state: RobotState, goal: Tensor) -> tuple[Tensor, Tensor]:
        """1 - cos(tilt), and the missing share of the target height, (...) each."""
        target = goal[..., 0]
        missing = torch.relu(target - state.root_pos[..., 2] / self.home_height) / target
        return 1.0 - state.root_rot[..., 2, 2], missing

    def error(self, state: RobotState, goal: Tensor) -> Tensor:
        """0 for a standing robot; tilt and height contribute up to 0.5 each."""
        tilt, low = self._missing(state, goal)
        return (0.5 * (0.5 * tilt + low.clamp(max=1.0))).nan_to_num(1.0)

    def reward(self, state: RobotState, goal: Tensor) -> Tensor:
        """1 - `error`."""
        return 1.0 - self.error(state, goal)

    def up(self, state: RobotState, goal: Tensor) -> Tensor:
        """`is_up` at the target height."""
        return is_up(state, goal[..., 0], self.home_height, self.config)

    def __call__(
        self, before: RobotState, after: RobotState, goals: Tensor, patch: Tensor
    ) -> TaskLoss:
        """Tilt and missing height, and for upright robots the distance from the home pose and the
        joint speed. Weights of steps increase linearly."""
        c = self.config
        tilt, low = self._missing(after, goals)
        upright = torch.relu(after.root_rot[..., 2, 2]).square().detach()
        pose = (after.joint_pos - self.env.home).abs().mean(-1)
        speed = after.joint_vel.abs().mean(-1)
        each = c.tilt_weight * tilt + c.height_weight * low
        each = each + upright * (c.pose_weight * pose + c.stillness_weight * speed)
        later = torch.arange(1, len(each) + 1, device=each.device).to(each)
        loss = (later.unsqueeze(-1) * each).sum(0) / later.sum()
        return TaskLoss(loss, torch.zeros_like(loss))


def is_up(
    state: RobotState, target: Tensor | float, home_height: float, config: RecoverConfig
) -> Tensor:
    """Whether robots stand upright and high enough, (...) bool. target: (...) height relative to
    home_height [m]."""
    high = state.root_pos[..., 2] > config.high_enough * target * home_height
    return high & (state.root_rot[..., 2, 2] > math.cos(math.radians(config.upright_deg)))


def recovery_figures(trial: Trial) -> dict[str, Any]:
    """`recovered`, the share of robots that are up within `IN_TIME_S` and stay up; `not_recovered`,
    1 minus it; `recovery_s`, the median time until robots stay up. Robots that landed on their feet
    do not count."""
    up = trial.metrics["up"]  # (T, n)
    up = up[:, ~up[0]] if not up[0].all() else up
    # steps until the robot stays up
    down = torch.where(up, 0, torch.arange(1, len(up) + 1).unsqueeze(-1)).amax(0)
    seconds = down * trial.dt
    recovered = (up[-1] & (seconds <= IN_TIME_S)).float().mean().item()
    return {
        "recovered": recovered,
        "not_recovered": 1.0 - recovered,
        "recovery_s": seconds.median().item(),
    }


class Recover(Task):
    """Stand up to a commanded height and stay there. Episodes do not fail and last `episode_s`.

    The policy's input is the commanded height, relative to the home pose's.
    """

    name = "recover"
    config_type = RecoverConfig
    main_figure = "not_recovered"

    def __init__(
        self, robot: Robot, config: RecoverConfig | None = None, motions: MotionSet | None = None
    ):
        """robot: its joint limits are widened by `joint_range_rad`. motions: not used."""
        c = config or RecoverConfig()
        robot = robot.with_joint_ranges(c.joint_range_rad)
        standing = Standing(c, float(robot.home_qpos[2]))
        parts = Parts(
            commands=UniformGoals(*c.stand),
            starts=Drops(robot, c),
            observations=[Inputs(lambda state, goal: goal, {"stand_height": c.stand})],
            rewards=[Term(standing.reward)],
            loss=standing,
            error=standing.error,
            error_name="recovery_error",
            metrics={"up": standing.up},
            figures=Figures(
                recovery_figures,
                ("not_recovered", "recovery_s", "recovery_error"),
                trial_s=c.episode_s,
            ),
            memory=[BodiesCollide(robot)],
            episode_s=c.episode_s,
        )
        super().__init__(robot, c, parts)


def dropped(
    robot: Robot, config: RecoverConfig, seed: int = 0, num_threads: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """States after drops of a robot whose ideal drives hold its joints: qpos (S, nq) and qvel (S,
    nv) float64, packed states.

    Orientations are uniform. seed: 0 in training, 1 in trials.
    """
    c = config
    n = config.drops
    generator = torch.Generator().manual_seed(seed)
    sim = simulate(
        flat_scene(robot, lambda spec: let_bodies_collide(spec, robot)),
        n,
        control_rate_hz=robot.control_rate_hz,
        num_threads=num_threads,
    )
    turn = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    turn = torch.nn.functional.normalize(turn, dim=-1)
    bounds = robot.home_joints, robot.joint_lower, robot.joint_upper
    home, low, high = (torch.tensor(bound, dtype=torch.float64) for bound in bounds)
    uniform = torch.rand(n, len(home), generator=generator, dtype=torch.float64)
    joints = (home + c.joint_spread * (2.0 * uniform - 1.0)).clamp(low, high)
    position = torch.zeros(n, 3, dtype=torch.float64)
    position[:, 2] = c.drop_m
    still = torch.zeros(n, sim.model.nv)
    sim.set_state(torch.arange(n), torch.cat((position, turn, joints), -1), still)
    for _ in range(max(1, round(c.settle_s * robot.control_rate_hz))):
        sim.step(joints)
    kept = ~sim.broken() & torch.isfinite(sim.qpos).all(-1)
    qpos = sim.qpos[kept].clone()
    qvel = sim.qvel[kept].clone()
    setpoint = joints[kept].float()
    qpos[:, :2] = 0.0
    # with a constant history
    pose = pose_from_qpos(qpos)
    speed = qvel.float()
    linear = geometry.to_local(pose[1], speed[:, :3])
    state = RobotState.steady(pose, linear, speed[:, 3:6], speed[:, 6:])
    return qpos, qvel, state._replace(setpoint=setpoint).pack()
