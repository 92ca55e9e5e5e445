"""Walking learned by PPO from nothing, beside `npmp reuse`: CPU seconds to a velocity error.

The robots, commands and trials are those of `npmp reuse task=walk`; its keys stand after the
options. There is no module: rsl_rl's PPO learns joint targets from the true state, base velocity
included. Rewards are legged_gym's for ANYmal on flat ground; rollouts, networks and learning rate
mjbatch's for its Go1. Writes ppo_control.json, ppo_control.md and ppo.pt to out=.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import Tensor

from mocap_data.files import write_json
from npmp.envs import TaskEnv
from npmp.envs.features import true_state
from npmp.envs.policy import Observation, PolicyOutput
from npmp.envs.state import RobotState
from npmp.envs.task import Part, StepResult, Task, Term
from npmp.evaluation.gait import CONTACT_M, worst, worst_foot
from npmp.evaluation.policy import command_grid, evaluate_commands
from npmp.evaluation.trial import effort, run_trial
from npmp.experiments import reuse
from npmp.experiments.benchmarks import settings, show
from npmp.experiments.command import Run
from npmp.learning.reuse import RepeatedTrial
from npmp.skills.nets.skill_nets import JOINT_SCALE
from npmp.skills.skill_module import SkillModule
from npmp.tasks.velocity import heading_velocity

KEYS = [
    "module=anymal_b_dog",
    "task.command_range=[[-0.5,1.5],[-0.3,0.3],[-1.0,1.0]]",
    "num_envs=256",
    "steps=20000000",
    "evaluation.every=40",
    "threads=1",
    "out=runs/ppo_control",
]
# control steps of a rollout
ROLLOUT = 24
NETWORK = {"hidden_dims": (128, 128), "activation": "elu", "obs_normalization": True}
ALGORITHM = {
    "num_learning_epochs": 5,
    "num_mini_batches": 4,
    "gamma": 0.99,
    "lam": 0.95,
    "entropy_coef": 0.005,
    "schedule": "fixed",
}
INITIAL_STD = 0.5
# learning rate at the start, and from an iteration on; linear between
RATES = (1e-3, 5e-4)
RATES_UNTIL = 400
# width of the rewards of velocities [m^2/s^2, rad^2/s^2]
TRACKING_SIGMA = 0.25
# a swing of this duration is rewarded by 0, longer ones more [s]
SWING_S = 0.5
# horizontal command from which on swings count [m/s]
MOVING_MPS = 0.1


class StepMemory(Part):
    """The last setpoints (n, nu) and the duration of each foot's swing (n, F) [s], for rewards."""

    def bind(self, env: TaskEnv[Any]) -> None:
        super().bind(env)
        self.setpoint = torch.zeros(env.num_envs, env.num_actions, device=env.device)
        self.swing_s = torch.zeros(env.num_envs, env.feet.shape[0], device=env.device)

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        self.setpoint = self.setpoint.index_copy(0, ids, self.env.state.setpoint[ids])
        self.swing_s = self.swing_s.index_fill(0, ids, 0.0)

    def advance(self, result: StepResult, generator: torch.Generator) -> None:
        self.setpoint = self.env.state.setpoint
        on_ground = self.on_ground(self.env.state)
        self.swing_s = torch.where(on_ground, 0.0, self.swing_s + self.env.dt)

    def on_ground(self, state: RobotState) -> Tensor:
        """Whether each foot touches the flat ground, (n, F) bool."""
        points = self.env.feet(state.root_pos, state.root_rot, state.joint_pos)
        return points[..., 2].amin(-1) - self.env.feet.radius < CONTACT_M

    def action_rate(self, state: RobotState, goal: Tensor) -> Tensor:
        """Squared change of the action, summed over joints."""
        return ((state.setpoint - self.setpoint) / JOINT_SCALE).square().sum(-1)

    def air_time(self, state: RobotState, goal: Tensor) -> Tensor:
        """Durations of the swings that end in this step, minus `SWING_S`, summed over feet."""
        lands = self.on_ground(state) & (self.swing_s > 0.0)
        moving = torch.linalg.vector_norm(goal[:, :2], dim=-1) > MOVING_MPS
        return ((self.swing_s - SWING_S) * lands).sum(-1) * moving

    def torque(self, state: RobotState, goal: Tensor) -> Tensor:
        """Squared torques, summed over joints."""
        return self.env.robots.torque.square().sum(-1)


def linear(state: RobotState, goal: Tensor) -> Tensor:
    """exp(-|v_xy - v_cmd|^2 / sigma)."""
    difference = heading_velocity(state)[..., :2] - goal[..., :2]
    return torch.exp(-difference.square().sum(-1) / TRACKING_SIGMA)


def angular(state: RobotState, goal: Tensor) -> Tensor:
    """exp(-(yaw rate - command)^2 / sigma)."""
    difference = heading_velocity(state)[..., 2] - goal[..., 2]
    return torch.exp(-difference.square() / TRACKING_SIGMA)


def vertical(state: RobotState, goal: Tensor) -> Tensor:
    """Squared velocity along the base's vertical axis."""
    return state.root_vel[..., 2].square()


def roll_pitch(state: RobotState, goal: Tensor) -> Tensor:
    """Squared roll and pitch rates."""
    return state.root_ang[..., :2].square().sum(-1)


def flat(state: RobotState, goal: Tensor) -> Tensor:
    """Squared sine of the base's tilt."""
    return state.root_rot[..., 2, :2].square().sum(-1)


def control_task(walk: Task) -> Task:
    """Walking with legged_gym's rewards, per second."""
    memory = StepMemory()
    rewards = [
        Term(linear, 1.0),
        Term(angular, 0.5),
        Term(vertical, -2.0),
        Term(roll_pitch, -0.05),
        Term(flat, -5.0),
        Term(memory.torque, -2.5e-5),
        Term(memory.action_rate, -0.01),
        Term(memory.air_time, 2.0),
    ]
    parts = replace(walk.parts, rewards=rewards, memory=[*walk.parts.memory, memory])
    return Task(walk.robot, walk.config, parts)


def observed(state: RobotState, command: Tensor, home: Tensor) -> TensorDict:
    """The input of actor and critic."""
    inputs = torch.cat((true_state(state, home), command), -1)
    return TensorDict({"state": inputs}, batch_size=[len(inputs)])


class JointPolicy:
    """rsl_rl's actor as a `Policy`: its mean action."""

    def __init__(self, actor: MLPModel, home: Tensor):
        self.actor = actor
        self.home = home

    def initial_state(self, n: int) -> None:
        """The network has no memory."""

    def step(self, observation: Observation, state: None) -> tuple[PolicyOutput, None]:
        """As `Policy.step`."""
        inputs = observed(observation.state, observation.task, self.home)
        return PolicyOutput(JOINT_SCALE * self.actor(inputs)), None


class Training:
    """PPO and its environment."""

    def __init__(self, env: TaskEnv[Any]):
        self.env = env
        inputs = self.observe()
        groups = {"actor": ["state"], "critic": ["state"]}
        noise = {"class_name": "GaussianDistribution", "init_std": INITIAL_STD}
        actor = MLPModel(
            inputs, groups, "actor", env.num_actions, distribution_cfg=noise, **NETWORK
        )
        critic = MLPModel(inputs, groups, "critic", 1, **NETWORK)
        storage = RolloutStorage("rl", env.num_envs, ROLLOUT, inputs, [env.num_actions])
        self.algorithm = PPO(actor, critic, storage, **ALGORITHM)
        self.iterations = 0

    def observe(self) -> TensorDict:
        """Current inputs of all robots."""
        return observed(self.env.state, self.env.task.observe(), self.env.home)

    def iteration(self) -> None:
        """A rollout and its updates."""
        share = min(self.iterations / RATES_UNTIL, 1.0)
        for group in self.algorithm.optimizer.param_groups:
            group["lr"] = RATES[0] + share * (RATES[1] - RATES[0])
        with torch.no_grad():
            for _ in range(ROLLOUT):
                inputs = self.observe()
                step = self.env.step(JOINT_SCALE * self.algorithm.act(inputs))
                # never negative, so that falling does not pay
                reward = step.rewards.sum(-1).clamp(min=0.0)
                done = step.terminated | step.truncated
                self.env.reset(done)
                ends = {"time_outs": step.truncated}
                self.algorithm.process_env_step(inputs, self.env.dt * reward, done, ends)
            self.algorithm.compute_returns(self.observe())
        self.algorithm.update()
        self.iterations += 1


def learn(
    training: Training, trial: RepeatedTrial, config: reuse.Reuse, folder: Path, args: Any
) -> list[dict[str, Any]]:
    """Train until the error or a limit is reached. Returns the figures of each trial."""
    policy = JointPolicy(training.algorithm.actor, training.env.home)
    begin = time.perf_counter()
    trials_s = 0.0
    curve: list[dict[str, Any]] = []
    while True:
        before = time.process_time()
        record = run_trial(policy, trial.env, seconds=trial.seconds, seed=trial.seed)
        figures = trial.env.task.figures(record) | effort(record) | worst_foot(record)
        trials_s += time.process_time() - before
        times = {
            "cpu_s": time.process_time(),
            "trials_cpu_s": trials_s,
            "wall_s": time.perf_counter() - begin,
        }
        env_steps = training.iterations * ROLLOUT * training.env.num_envs
        curve.append({"env_steps": env_steps, **times, **figures})
        write_json(folder / "ppo_control.json", {"curve": curve})
        torch.save(training.algorithm.save(), folder / "ppo.pt")
        sys.stderr.write(curve_row(curve[-1]) + "\n")
        at_limit = env_steps >= config.steps or times["wall_s"] >= 60.0 * args.minutes
        if figures["velocity_error"] <= args.error or at_limit:
            return curve
        for _ in range(config.evaluation.every):
            training.iteration()


def measure(config: reuse.Reuse, run: Run, args: Any) -> dict[str, Any]:
    """The learning curve, and the gait of the final policy by command."""
    inputs = reuse.inputs(config, run)
    train = inputs["settings"]
    skill = SkillModule.load(inputs["module"])

    def make_task() -> Task:
        task: Task = inputs["task"](inputs["robot"], inputs["config"], inputs["motions"])
        return task

    env = train.env(control_task(make_task()), train.robots_at_once, skill, run.seed)
    training = Training(env)
    trial = RepeatedTrial(make_task(), train, skill, seed=run.seed + 1000)
    curve = learn(training, trial, config, run.folder, args)
    commands = command_grid(trial.env.task.commands.config.range)
    robots = len(commands) * train.evaluation_robots
    grid = evaluate_commands(
        JointPolicy(training.algorithm.actor, env.home),
        train.env(make_task(), robots, skill, run.seed),
        commands,
        seconds=trial.seconds,
        seed=run.seed,
    )
    result = {"num_envs": env.num_envs, "seed": run.seed, "curve": curve, "grid": grid}
    write_json(run.folder / "ppo_control.json", result)
    rows = [CURVE, *map(curve_row, curve), "", GRID, *map(grid_row, grid)]
    (run.folder / "ppo_control.md").write_text("\n".join(rows) + "\n")
    return curve[-1]


CURVE = """\
| CPU-s | wall time [min] | environment steps | velocity error | falls/min | lift [cm] |
|---|---|---|---|---|---|"""
GRID = """\
| command | achieved | lift [cm] | slide [m/s] | opposite feet | falls | faults |
|---|---|---|---|---|---|---|"""


def curve_row(figures: dict[str, Any]) -> str:
    """A row of `CURVE`; lift is that of the worst foot."""
    lift = 100.0 * figures.get("foot_lift_m", 0.0)
    return (
        f"| {figures['cpu_s']:.0f} | {figures['wall_s'] / 60.0:.1f} | {figures['env_steps']:,} "
        f"| {figures['velocity_error']:.3f} | {figures['falls_per_minute']:.2f} | {lift:.1f} |"
    )


def grid_row(row: dict[str, Any]) -> str:
    """A row of `GRID`; lift and slide are those of the worst foot."""
    command = ", ".join(f"{value:g}" for value in row["command"])
    achieved = ", ".join(f"{value:.2f}" for value in row.get("achieved", []))
    lift = 100.0 * worst(row.get("lift_m", [0.0]), min)
    slide = worst(row.get("stance_mps", [0.0]), max)
    opposite = row.get("opposite_correlation") or 0.0
    return (
        f"| {command} | {achieved} | {lift:.1f} | {slide:.2f} | {opposite:.2f} | {row['falls']} "
        f"| {'; '.join(row['faults'])} |"
    )


def main(arguments: list[str] | None = None) -> None:
    """Train, measure and show the figures."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    options.add_argument("--error", type=float, default=0.10, help="velocity error to stop at")
    options.add_argument("--minutes", type=float, default=45.0, help="time limit of training")
    options.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    args = options.parse_args(arguments)
    config, run = settings(reuse.main, args.keys, KEYS)
    run = replace(run, out=config.out)
    run.folder.mkdir(parents=True, exist_ok=True)
    show("ppo_control", config.robot, measure(config, run, args))


if __name__ == "__main__":
    main()
