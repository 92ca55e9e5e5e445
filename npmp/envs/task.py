"""What a task is: everything about an environment but the robots and the bookkeeping of episodes.

A task is one file in `npmp/tasks/` and one YAML in `conf/task/`: what stands in the scene beside
the robot, where episodes start, what is asked and how the policy sees it, and how the outcome of a
control step is judged. `TaskEnv` does the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import mujoco
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.envs.features import true_state
from npmp.envs.state import RobotState
from npmp.robots import Robot

if TYPE_CHECKING:
    from npmp.envs.task_env import TaskEnv


class Start(NamedTuple):
    """Where k robots begin an episode."""

    qpos: Tensor  # (k, 7 + nu) of the robot
    qvel: Tensor  # (k, 6 + nu) of the robot
    state: RobotState  # (k, ...) the same, as the learner sees it
    others: tuple[Tensor, Tensor] | None = (
        None  # (k, nq), (k, nv): the whole scene; the robot's columns are overwritten
    )


class Judgement(NamedTuple):
    """What one control step was worth, n robots. Who failed has not ended."""

    rewards: Tensor  # (n, K) one column per objective; their sum is the reward
    failed: Tensor  # (n,) bool: the value of what follows is zero
    # (n,) bool: the task itself is over, a clip say; bootstrap the value of what follows
    ended: Tensor
    error: Tensor  # (n,) the task's error, in the unit that its name says
    # what figures and pictures are made of, (n, ...) by name; never written to
    seen: dict[str, Tensor] = {}  # noqa: RUF012


class EnvStep(NamedTuple):
    """What one control step brings; the environments are NOT reset yet, so `state` is the true
    successor everywhere."""

    state: RobotState  # (n, ...)
    rewards: Tensor  # (n, K) one column per objective; their sum is the reward
    terminated: Tensor  # (n,) bool: failed; the value of what follows is zero
    truncated: Tensor  # (n,) bool: the task or the time is over; bootstrap the value of `state`
    error: Tensor  # (n,) the task's error
    ended: Tensor  # (n,) bool: truncated as the task itself is over, not the time
    seen: dict[str, Tensor]  # `Judgement.seen`


class Trial(NamedTuple):
    """A trial of n robots over T control steps, on the CPU; who failed was put back at a start and
    went on."""

    seen: dict[str, Tensor]  # `Judgement.seen` of each step, (T, n, ...) by name
    error: Tensor  # (T, n)
    fell: Tensor  # (T, n) bool: this step ended an episode by failure
    # (T + 1, nq) float64, of robot 0, `unmoved`, with the start; jumps where it fell and was put
    # back
    qpos: Tensor
    dt: float  # control period [s]


class Traces(NamedTuple):
    """What a robot was asked and did, C channels over T control steps."""

    channels: tuple[tuple[str, str], ...]  # name and unit of each
    asked: Tensor  # (T, C)
    done: Tensor  # (T, C)


class Task(ABC):
    """One task of all robots of an environment. A subclass names itself, its objectives and its
    settings.

    A step goes `judge` (which changes nothing), then `advance`; a reset `start`, then, when the
    robots are placed, `begin`. Everything random comes from the generator that is passed in.
    """

    name: ClassVar[str]
    config_type: ClassVar[type]  # the dataclass that conf/task/NAME.yaml fills
    objectives: tuple[str, ...] = ("reward",)  # names of the K columns of rewards
    error_name: ClassVar[str] = "error"  # of `Judgement.error` in logs
    observation_name: ClassVar[str] = "task"  # of `observe` where observations have names
    inputs: ClassVar[tuple[str, ...]] = ()  # names of the columns of `observe`, where they are few
    # what `observe` has besides, after those, where the settings say so: names, and the range of
    # each
    clock_s: float | None = None  # period of a clock among them, which begins with the episode
    besides: Mapping[str, tuple[float, float]] = {}
    judged: ClassVar[tuple[str, ...]] = ()  # those of `figures` that a training run logs
    # that of `figures` by which policies are compared; less is better
    main_figure: ClassVar[str] = ""

    # other tasks whose inputs it gives, so that their policies can do it
    policies_of: ClassVar[tuple[str, ...]] = ()
    trial_s: float = 60.0  # of a trial by which a policy is judged

    # an episode is over then; None: when the task says so. `TaskEnv` may end it before
    episode_s: float | None = None

    robot: Robot
    config: Any  # of `config_type`
    env: TaskEnv[Any]  # set by `bind`

    @classmethod
    def settle(cls, config: Any, motions: MotionSet | None, training: Mapping[str, Any]) -> Any:
        """The settings with what they leave open, e.g. a range of commands.

        motions: to start from, where there are some. training: the record of the module whose
        skills are reused.

        Raises:
          InputError: where nothing settles it.
        """
        return config

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        """Add what the task needs to the robot on its floor: bodies after the robot's, sensors."""

    def bind(self, env: TaskEnv[Any]) -> None:
        """Join the environment, once its robots are there: make tables and state for `env.num_envs`
        on `env.device`."""
        self.env = env

    @abstractmethod
    def start(self, ids: Tensor, generator: torch.Generator, **where: Tensor) -> Start:
        """New episodes of robots ids (k,). where: what the caller of `TaskEnv.reset` settles
        itself, by the task's names."""

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """What is asked of robots ids (k,), which have just been placed at their start."""

    def begin_anew(self, mask: Tensor) -> None:
        """Robots (n,) bool go on within an episode with a policy that remembers nothing."""

    @abstractmethod
    def observe(self) -> Tensor:
        """What the policy is told of the task now, (n, c)."""

    def input_range(self) -> Sequence[tuple[float, float]]:
        """(low, high) of each of `inputs`, by which a network scales them."""
        return [(-1.0, 1.0)] * len(self.inputs)

    def local_state(self, state: RobotState) -> RobotState:
        """A state of all robots (n, ...) with heights above the ground where they are, for whoever
        judges heights; on flat ground it is the state."""
        return state

    def unmoved(self, state: RobotState) -> RobotState:
        """A state of all robots (n, ...) as an integral of its velocities, where the task moves
        robots about."""
        return state

    def footing(self, state: RobotState) -> Tensor:
        """Which ground all robots are on, (n, 2): its height around them [m], its field's index;
        (n, 0) if flat."""
        return state.root_pos[:, :0]

    def ground_at(self, place: Tensor, robots: Tensor) -> Tensor | None:
        """Height of the ground of k robots, indices (k,), at places (k, ..., 2), as `unmoved` has
        them: (k, ...) [m]; None where it is flat, at 0."""
        return None

    def logged(self) -> dict[str, float]:
        """What else a training run logs of the robots now, e.g. how far a curriculum is."""
        return {}

    def privileged(self) -> Tensor:
        """What a critic may know besides the latent: the true state, what is asked, the drawn
        physics and pushes, (n, p)."""
        env = self.env
        return torch.cat(
            (true_state(self.local_state(env.state), env.home), self.observe(), env.robots.physics),
            -1,
        )

    @abstractmethod
    def judge(self) -> Judgement:
        """The control step that has just been made. Robots whose simulation broke down
        (`env.robots.broken`) have failed."""

    def advance(self, judgement: Judgement, generator: torch.Generator) -> None:
        """On to what the next decision is about: the next frame, a new command."""

    def whereabouts(self, i: int) -> dict[str, Any]:
        """What is known of robot i where its simulation breaks down."""
        return {}

    def teacher(self) -> Any:
        """Who shows how the task is done: an actor (`npmp.rollout.Actor`) that acts from robots'
        true states and what the task asks, so that it can say at any moment what it would do; None
        where nobody does."""
        return None

    # --- trials: the same for every policy ---

    def script(self, steps: int, generator: torch.Generator) -> None:
        """Settle what is asked over the next `steps` control steps, whatever robots do; until
        `unscript`."""

    def unscript(self) -> None:
        """Ask as in training again."""

    def figures(self, trial: Trial) -> dict[str, Any]:
        """A trial in numbers; falls are counted for every task."""
        steps, n = trial.fell.shape
        minutes = steps * n * trial.dt / 60.0
        return {
            self.error_name: trial.error.mean().item(),
            "falls": int(trial.fell.sum()),
            "falls_per_minute": trial.fell.sum().item() / minutes,
            "survived": (~trial.fell.any(0)).float().mean().item(),
            "seconds": steps * trial.dt,
            "robots": n,
        }

    def traces(self, trial: Trial) -> Traces | None:
        """What robot 0 was asked and did in a trial, to be drawn over time; None where there is
        nothing to draw."""
        return None

    # --- checkpoints ---

    def state_dict(self) -> dict[str, Tensor]:
        """Everything of the task that the next step depends on."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was taken, to the bit. Raises ValueError where it does not
        fit."""


class DifferentiableTask(Task):
    """A task that can be learned through a model: how well it is done is a differentiable function
    of robots' states.

    What is asked of a robot is its goal, some numbers that the task draws and keeps; whatever else
    the policy is told or judged by follows from state and goal, for simulated and imagined robots
    alike. What stands or rolls about beside the robot is part of the goal: `carried_on` says what
    becomes of it while the robot moves.
    """

    @abstractmethod
    def goal(self) -> Tensor:
        """What is asked of the robots now, (n, g)."""

    @abstractmethod
    def see(self, state: RobotState, goal: Tensor) -> Tensor:
        """What a policy is told of the task in a state (B, ...) with a goal (B, g): (B, c)."""

    def observe(self) -> Tensor:
        """As `Task.observe`: `see` of the true state."""
        return self.see(self.env.state, self.goal())

    @abstractmethod
    def new_goals(self, goal: Tensor, generator: torch.Generator) -> Tensor:
        """What else might be asked of robots with goals (B, g)."""

    @abstractmethod
    def imagined_loss(self, states: RobotState, goals: Tensor) -> Tensor:
        """How far robots were from their goals over H control steps: (B,).

        states (H, B, ...), goals (H, B, g): after each step.
        """

    def carried_on(self, goal: Tensor, after: RobotState) -> Tensor:
        """Goals (B, g) after a control step that took the robots to states (B, ...), where nothing
        new is asked."""
        return goal

    def under_feet(self, state: RobotState, footing: Tensor) -> Tensor:
        """How high the ground is under the F feet of robots (B, ...) above a `footing` (B, 2), (B,
        F) [m]; (B, 0) where it is flat."""
        return footing[:, :0]

    def imagined_style(self, states: RobotState, footing: Tensor) -> Tensor:
        """What robots owe for how they move, whatever their goals, over H control steps: (B,).

        states (H, B, ...), with heights above the ground of their `footing` (B, 2).

        It counts once a policy obeys (`algo.style_ramp`): asked for both at once it learns neither.
        """
        return states.root_pos.new_zeros(states.root_pos.shape[1])

    def achieved(self, state: RobotState) -> Tensor | None:
        """The goal that the last control step has fulfilled, (..., g), by which a policy is cloned
        from what a module does of itself; None where there is no saying."""
        return None
