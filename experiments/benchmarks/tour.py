"""The tour with punches of rhoyn's teleop-walking-benchmark, for policies of a G1:

    python -m npmp.experiments.benchmarks.tour policy=g1_walk robot=unitree_g1 --tours 16
    python -m npmp.experiments.benchmarks.tour policy=FILE.onnx robot=unitree_g1 --random-arms

A tour has 18 waypoints of 5 s, within 1 m of a point 0.3 m ahead of the start, in any heading. A
proportional controller commands the velocity. At the start of each waypoint a force acts for 0.08 s
on a random joint in a random direction. The largest force increases from a third of `--force-n` to
all of it within 60 s; each punch has half to all of it. A robot falls when its pelvis is below
0.2 m. With `--random-arms` the arms walk at random and the policy reads them at rest, as most
policies of the benchmark do; `--read-arms`: as they are. By default the policy moves them.

Unlike there, robots start in the policy's default pose, without a crane; physics, feet and torque
limits are those of our model, and commands are clipped to the policy's own ranges. The keys are
those of npmp evaluate suite. [R: github.com/rhoyn/teleop-walking-benchmark, README.md, main.cpp]
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor

from npmp.core import geometry
from npmp.core.tree import Tree
from npmp.deploy.policy_description import is_external
from npmp.envs import RobotBatch, RobotBatchConfig, TaskEnv
from npmp.envs.policy import Observation, Policy, PolicyOutput
from npmp.envs.rollout import Transition, rollout
from npmp.experiments import suite
from npmp.experiments.benchmarks import parser, settings, show
from npmp.robots import Robot
from npmp.sim.randomization import JointPhysics, PushConfig
from npmp.tasks.commands import CommandRange
from npmp.tasks.walk import Walk

WAYPOINTS = 18
WAYPOINT_S = 5.0
RADIUS_M = 1.0
CENTRE_M = (0.3, 0.0)
# gain of position and heading [1/s]
GAIN = 1.5
# errors of position [m] and heading [rad] below which their commands become 0, and above which they
# begin again
ENTER = (0.10, 0.05)
EXIT = (0.20, 0.12)
PUNCH_DELAY_S = 0.1
PUNCH_S = 0.08
RAMP_S = 60.0
FALL_M = 0.20
# the arms: a walk of steps of up to 0.06 rad each 20 ms, and straight lines between its points
ARM_STEP_RAD = 0.06
ARM_STEPS = 25
ARM_TARGET_S = 0.5
ARM_TRIES = 8
# stance of the left arm [rad], in the order of the joints
ARM_STANCE = (0.2, 0.2, 0.0, 0.6, 0.0, 0.0, 0.0)
# highest hand above the torso's origin, below the head [m] [D]
ARM_TOP_M = 0.3
# gains of the arms, (kp, kd): wrists' pitch and yaw, the others
ARM_GAINS = ((16.78, 1.068), (14.25, 0.907))


class Punches(NamedTuple):
    """The punches of n tours."""

    joint: np.ndarray  # (n, W)
    force: np.ndarray  # (n, W, 3) world [N]

    @staticmethod
    def sample(n: int, joints: int, force_n: float, rng: np.random.Generator) -> Punches:
        """Punches of joints at random."""
        climbed = np.minimum(np.arange(WAYPOINTS) * WAYPOINT_S / RAMP_S, 1.0)
        ceiling = force_n * (1.0 + 2.0 * climbed) / 3.0
        size = ceiling * rng.uniform(0.5, 1.0, (n, WAYPOINTS))
        direction = rng.normal(size=(n, WAYPOINTS, 3))
        direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
        return Punches(rng.integers(0, joints, (n, WAYPOINTS)), size[..., None] * direction)

    def apply(self, robots: RobotBatch, data: mujoco.MjData, time_s: float, alive: Tensor) -> None:
        """Set the wrenches of the next control step: forces at the joints' anchors.

        data: for kinematics. time_s: since the start. alive: (n,) bool, robots to punch.
        """
        model = robots.model
        for body in range(1, model.nbody):
            robots.sim.wrench(body)[:] = 0.0
        index, since = divmod(time_s + 1e-9, WAYPOINT_S)
        if not PUNCH_DELAY_S <= since < PUNCH_DELAY_S + PUNCH_S or index >= WAYPOINTS:
            return
        joints = [model.joint(name).id for name in robots.robot.joint_names]
        for i in torch.nonzero(alive).flatten().tolist():
            joint = joints[self.joint[i, int(index)]]
            force = self.force[i, int(index)]
            data.qpos[:] = robots.scene_qpos[i].numpy()
            mujoco.mj_kinematics(model, data)
            body = int(model.jnt_bodyid[joint])
            arm = data.xanchor[joint] - data.xipos[body]
            robots.set_wrench(i, body, np.concatenate((force, np.cross(arm, force))))


def sample_waypoints(n: int, rng: np.random.Generator) -> Tensor:
    """Position [m] and heading [rad] relative to the start, (n, W, 3)."""
    radius = RADIUS_M * np.sqrt(rng.uniform(size=(n, WAYPOINTS)))
    bearing, yaw = rng.uniform(0.0, 2.0 * math.pi, (2, n, WAYPOINTS))
    x = CENTRE_M[0] + radius * np.cos(bearing)
    y = CENTRE_M[1] + radius * np.sin(bearing)
    return torch.tensor(np.stack((x, y, yaw), -1), dtype=torch.float32)


class Guide:
    """The controller that commands velocities towards the waypoints."""

    def __init__(self, waypoints: Tensor, pose: Tensor, command_range: CommandRange):
        """pose: (n, 3) position [m] and heading [rad] of the robots at the start."""
        offset = _rotated(waypoints[..., :2], pose[:, None, 2])
        heading = waypoints[..., 2] + pose[:, None, 2]
        self.waypoints = torch.cat((pose[:, None, :2] + offset, heading[..., None]), -1)
        self.low, self.high = torch.tensor(command_range).T
        self.reached = torch.zeros(len(pose), 2, dtype=torch.bool)
        self.current = -1

    def command(self, time_s: float, pose: Tensor) -> tuple[Tensor, Tensor]:
        """Velocities (n, 3), and the errors of position [m] and heading [rad], (n, 2)."""
        index = min(int(time_s / WAYPOINT_S + 1e-9), WAYPOINTS - 1)
        if index != self.current:
            self.current = index
            self.reached = torch.zeros_like(self.reached)
        target = self.waypoints[:, index]
        local = _rotated(target[:, :2] - pose[:, :2], -pose[:, 2])
        turn = torch.remainder(target[:, 2] - pose[:, 2] + math.pi, 2.0 * math.pi) - math.pi
        error = torch.stack((torch.linalg.vector_norm(local, dim=-1), turn.abs()), -1)
        self.reached = error < torch.where(self.reached, torch.tensor(EXIT), torch.tensor(ENTER))
        moving = (~self.reached).float()[:, [0, 0, 1]]
        command = GAIN * torch.cat((local, turn[:, None]), -1) * moving
        return command.clamp(self.low, self.high), error


class WalkingArms:
    """A policy whose arms are moved by others."""

    def __init__(self, policy: Policy, arms: list[int], offset: Tensor, *, reads: bool):
        """offset: (T, n, A) targets minus the default pose, per control step [rad]. reads: whether
        the policy reads the arms as they are, not at rest in its default pose."""
        self.policy = policy
        self.arms = arms
        self.offset = offset
        self.reads = reads
        self.step_count = 0
        self.initial_state = policy.initial_state

    def step(self, observation: Observation, state: Tree) -> tuple[PolicyOutput, Tree]:
        observed = observation if self.reads else self._hidden(observation)
        output, after = self.policy.step(observed, state)
        action = output.action.clone()
        action[:, self.arms] = self.offset[min(self.step_count, len(self.offset) - 1)]
        self.step_count += 1
        return output._replace(action=action), after

    def _hidden(self, observation: Observation) -> Observation:
        robot = observation.state
        velocities = {name: getattr(robot, name).clone() for name in ("joint_vel", "joint_vel_end")}
        for velocity in velocities.values():
            velocity[:, self.arms] = 0.0
        joints = robot.joint_pos.shape[-1]
        readings = observation.proprioception.clone()
        readings[:, [*self.arms, *(joints + arm for arm in self.arms)]] = 0.0
        return observation._replace(proprioception=readings, state=robot._replace(**velocities))


def arm_joints(robot: Robot) -> list[int]:
    """The arms' joints, left then right, from the shoulder to the wrist."""
    parts = ("shoulder", "elbow", "wrist")
    return [
        i
        for side in ("left", "right")
        for i, name in enumerate(robot.joint_names)
        if name.startswith(side) and any(part in name for part in parts)
    ]


def sample_arms(
    model: mujoco.MjModel, robot: Robot, n: int, dt: float, rng: np.random.Generator
) -> Tensor:
    """Targets of the arms (T, n, A) [rad], the right arm mirrored. A target is drawn again, at most
    eight times, if a hand is behind its place in the stance or near the head."""
    arms = arm_joints(robot)
    half = len(arms) // 2
    names = [robot.joint_names[i] for i in arms]
    mirror = np.array([-1.0 if "roll" in name or "yaw" in name else 1.0 for name in names[:half]])
    low, high = model.jnt_range[[model.joint(name).id for name in names[:half]]].T
    address = [model.joint(name).qposadr[0] for name in names]
    data = mujoco.MjData(model)
    hands = [model.body(f"{side}_wrist_yaw_link").id for side in ("left", "right")]
    torso = model.body("torso_link").id

    def places(left: np.ndarray) -> np.ndarray:
        data.qpos[address] = np.concatenate((left, mirror * left))
        mujoco.mj_kinematics(model, data)
        rotation = data.xmat[torso].reshape(3, 3)
        return np.asarray((data.xpos[hands] - data.xpos[torso]) @ rotation)

    front = places(np.array(ARM_STANCE))[:, 0].min()
    points = np.tile(ARM_STANCE, (round(WAYPOINTS * WAYPOINT_S / ARM_TARGET_S) + 1, n, 1))
    for t in range(1, len(points)):
        for i in range(n):
            points[t, i] = points[t - 1, i]
            for _ in range(ARM_TRIES):
                left = points[t - 1, i].copy()
                for step in rng.uniform(-ARM_STEP_RAD, ARM_STEP_RAD, (ARM_STEPS, half)):
                    left = np.clip(left + step, low, high)
                place = places(left)
                if place[:, 0].min() >= front and place[:, 2].max() <= ARM_TOP_M:
                    points[t, i] = left
                    break
    count = round(ARM_TARGET_S / dt)
    share = (np.arange(1, count + 1) / count)[None, :, None, None]
    left = (points[:-1, None] + share * np.diff(points, axis=0)[:, None]).reshape(-1, n, half)
    return torch.tensor(np.concatenate((left, mirror * left), -1), dtype=torch.float32)


def run_tours(
    subject: suite.Subject,
    n: int,
    *,
    random_arms: bool,
    read_arms: bool,
    force_n: float,
    seed: int,
    place: dict[str, Any],
) -> dict[str, Any]:
    """n tours at once: seconds survived of 90, tours completed, and errors at the waypoints."""
    robot = subject.robot
    robots = replace(subject.robots, pushes=PushConfig())
    if random_arms:
        robots = _with_arm_gains(robots, robot)
    env = TaskEnv(Walk(robot, subject.task), n, robots=robots, seed=seed, **place)
    rng = np.random.default_rng(seed)
    waypoints = sample_waypoints(n, rng)
    model = env.robots.model
    punches = Punches.sample(n, len(robot.joint_names), force_n, rng)
    policy = subject.policy
    if random_arms:
        ids = arm_joints(robot)
        offset = sample_arms(model, robot, n, env.dt, rng) - env.robots.home[ids]
        policy = WalkingArms(policy, ids, offset, reads=read_arms)
    env.reset()
    guide = Guide(waypoints, _pose(env), subject.command_range)
    data = mujoco.MjData(model)
    fell_at = torch.full((n,), WAYPOINTS * WAYPOINT_S)
    alive = torch.ones(n, dtype=torch.bool)
    errors: list[Tensor] = []

    def record(transition: Transition) -> bool:
        time_s = len(errors) * env.dt
        command, error = guide.command(time_s, _pose(env))
        errors.append(torch.where(alive[:, None], error, math.nan))
        env.task.commands.fix(command[None])
        punches.apply(env.robots, data, time_s, alive)
        fallen = alive & ((env.state.root_pos[:, 2] < FALL_M) | env.robots.broken)
        fell_at[fallen] = time_s
        alive[fallen] = False
        return not alive.any()

    command, _ = guide.command(0.0, _pose(env))
    env.task.commands.fix(command[None])
    steps = round(WAYPOINTS * WAYPOINT_S / env.dt)
    # a robot that lies on the ground may diverge
    rollout(policy, env, steps, record, resets=lambda step: ~alive)
    last = torch.stack(errors)[round(WAYPOINT_S / env.dt) - 1 :: round(WAYPOINT_S / env.dt)]
    return {
        "tours": n,
        "random_arms": random_arms,
        "read_arms": read_arms,
        "force_n": force_n,
        "survived_s": round(fell_at.mean().item(), 1),
        "completed": int(alive.sum()),
        "each_s": [round(value, 1) for value in fell_at.tolist()],
        "position_error_m": round(last[..., 0].nanmean().item(), 3),
        "heading_error_rad": round(last[..., 1].nanmean().item(), 3),
    }


def _pose(env: TaskEnv[Any]) -> Tensor:
    """Horizontal position [m] and heading [rad], (n, 3)."""
    state = env.state
    heading = geometry.yaw_of(state.root_rot)[:, None]
    return torch.cat((state.root_pos[:, :2], heading), -1).cpu()


def _rotated(v: Tensor, angle: Tensor) -> Tensor:
    """Vectors (..., 2) turned counter-clockwise by angles (...) [rad]."""
    cos, sin = torch.cos(angle), torch.sin(angle)
    x, y = v.unbind(-1)
    return torch.stack((cos * x - sin * y, sin * x + cos * y), -1)


def _with_arm_gains(robots: RobotBatchConfig, robot: Robot) -> RobotBatchConfig:
    """The benchmark's gains of the arms."""
    nominal = dict(robots.physics.nominal)
    for i in arm_joints(robot):
        name = robot.joint_names[i]
        wrist = "wrist_pitch" in name or "wrist_yaw" in name
        kp, kd = ARM_GAINS[0 if wrist else 1]
        nominal[name] = replace(nominal.get(name, JointPhysics()), kp=kp, kd=kd)
    return replace(robots, physics=replace(robots.physics, nominal=nominal))


def main(arguments: list[str] | None = None) -> None:
    """Measure and print the figures."""
    options = parser(__doc__)
    options.add_argument("--tours", type=int, default=16, help="simulated at once")
    options.add_argument("--random-arms", action="store_true", help="the arms walk at random")
    options.add_argument("--read-arms", action="store_true", help="the policy reads random arms")
    options.add_argument("--force-n", type=float, default=500.0, help="largest punch; 0: none")
    args = options.parse_intermixed_args(arguments)
    if args.tours < 1:
        options.error(f"--tours {args.tours}: must be at least 1")
    if args.read_arms and not args.random_arms:
        options.error("--read-arms needs --random-arms")
    keys = ["robot=unitree_g1", "randomization.physics.physics_rate_hz=500", *args.keys]
    config, run = settings(suite.main, keys, [])
    external = is_external(config.policy)
    subject = (suite.external_subject if external else suite.own_subject)(config, run)
    figures = run_tours(
        subject,
        args.tours,
        random_arms=args.random_arms,
        read_arms=args.read_arms,
        force_n=args.force_n,
        seed=run.seed,
        place=run.place,
    )
    show("tour", config.robot, {"policy": str(config.policy), **figures})


if __name__ == "__main__":
    main()
