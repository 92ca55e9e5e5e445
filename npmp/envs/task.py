"""A task as a list of parts: commands, observations, reward terms, terminations, starts.

A task is one file in `npmp/tasks/` and one YAML in `conf/task/`. It lists its parts; `TaskEnv` runs
them. A robot's goal is a vector. Rewards, terminations and the policy's inputs are functions of a
`RobotState` and a goal, the same for simulated and imagined robots.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar, final

import mujoco
import torch
from torch import Tensor

from mocap_data.errors import InputError, unknown
from mocap_data.store import MotionSet
from npmp.envs.features import true_state
from npmp.envs.ground import Ground, GroundConfig
from npmp.envs.state import RobotState
from npmp.robots import Robot

P = TypeVar("P", bound="Part")
# function of states (...) and goals (..., g)
Measure = Callable[[RobotState, Tensor], Tensor]


class Start(NamedTuple):
    """Start states of k robots."""

    qpos: Tensor  # (k, 7 + nu) of the robot
    qvel: Tensor  # (k, 6 + nu) of the robot
    state: RobotState  # (k, ...) the same as a `RobotState`
    # qpos (k, nq) and qvel (k, nv) of the whole scene; the robot's columns are overwritten
    others: tuple[Tensor, Tensor] | None = None


class StepResult(NamedTuple):
    """The evaluation of a control step of n robots; `failed` excludes `ended`."""

    rewards: Tensor  # (n, K) one column per objective; their sum is the reward
    failed: Tensor  # (n,) bool: the value of the next state is zero
    # (n,) bool: the task is over, e.g. at a clip's end; bootstrap the value of the next state
    ended: Tensor
    error: Tensor  # (n,) the task's error, in the unit of `error_name`
    # for figures and plots, (n, ...) by name; read only
    metrics: Mapping[str, Tensor] = {}


class EnvStep(NamedTuple):
    """The result of one control step, before any reset: `state` is the true next state."""

    state: RobotState  # (n, ...)
    rewards: Tensor  # (n, K) one column per objective; their sum is the reward
    terminated: Tensor  # (n,) bool: failed; the value of `state` is zero
    truncated: Tensor  # (n,) bool: the task or the time is over; bootstrap the value of `state`
    error: Tensor  # (n,) the task's error
    ended: Tensor  # (n,) bool: truncated by the end of the task, not by time
    metrics: Mapping[str, Tensor]  # `StepResult.metrics`


class TaskLoss(NamedTuple):
    """The loss of B robots over imagined control steps, (B,) each."""

    task: Tensor  # distance from the goal
    # loss of the motion, independent of the goal; scaled by `algo.style_ramp`
    style: Tensor
    # (H, B) weights of the steps, also in the means of other costs; None: equal
    weight: Tensor | None = None


class Trial(NamedTuple):
    """A trial of n robots over T control steps, on the CPU; robots are reset after a failure."""

    metrics: dict[str, Tensor]  # `StepResult.metrics` of each step, (T, n, ...) by name
    error: Tensor  # (T, n)
    fell: Tensor  # (T, n) bool: this step ended an episode by failure
    # (T + 1, nq) float64 of robot 0 (`Ground.integrated`), with the start; jumps at a reset
    qpos: Tensor
    dt: float  # control period [s]


class CommandTraces(NamedTuple):
    """A robot's commands and their achieved values, C channels over T control steps."""

    channels: tuple[tuple[str, str], ...]  # name and unit of each
    command: Tensor  # (T, C)
    achieved: Tensor  # (T, C)


# --- parts ---


class Part:
    """A part of a task that has state; methods do nothing by default.

    A control step is evaluated before parts advance. All random numbers come from the generator
    argument.
    """

    # attributes (n, ...) saved in checkpoints: {key: attribute}
    saved: ClassVar[Mapping[str, str]] = {}
    env: Any  # the `TaskEnv` of `bind`

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        """Add bodies, after the robot's, and sensors to the robot on its floor."""

    def bind(self, env: Any) -> None:
        """Allocate tables and state for the `env.num_envs` robots of a `TaskEnv` on
        `env.device`."""
        self.env = env

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """Begin episodes of robots ids (k,), after they were placed at their start."""

    def advance(self, result: StepResult, generator: torch.Generator) -> None:
        """Advance to the next control step: the next frame, a new command."""

    def schedule(self, steps: int, generator: torch.Generator | None) -> None:
        """Sample the commands of the next `steps` control steps of a trial, independent of the
        robots. generator: None: back to training."""

    def describe(self, i: int) -> dict[str, Any]:
        """Values of robot i, for the record of a simulation that diverged."""
        return {}


class Goals(Part):
    """The goals of robots (n, g), and their dynamics."""

    # the goal (..., g) that the last control step of states (...) achieved; labels demonstrations
    achieved: Callable[[RobotState], Tensor] | None = None

    def goal(self) -> Tensor:
        """Current goals (n, g)."""
        return self.env.state.root_pos[:, :0]  # type: ignore[no-any-return]

    def next_goal(self, goal: Tensor, after: RobotState) -> Tensor:
        """Goals (B, g) after a control step to states (B, ...): the goal's dynamics, e.g. of a
        ball."""
        return goal

    def new_goals(self, goal: Tensor, generator: torch.Generator) -> Tensor:
        """Sample new goals of robots with goals (B, g)."""
        return goal


class Inputs(NamedTuple):
    """Inputs of a policy that are functions of state and goal."""

    # (..., c)
    function: Measure
    # (low, high) of each column by its name, for scaling; {}: not named
    ranges: Mapping[str, tuple[float, float]]
    # narrower ranges for scaling, where usual values are far within `ranges`
    scales: Mapping[str, tuple[float, float]] = {}


class Sensor(Part, ABC):
    """Further inputs of a policy with state: a clock, a map, a camera."""

    # (low, high) of each column by its name
    ranges: Mapping[str, tuple[float, float]]
    # whether `imagined` is implemented
    imaginable: bool = True

    @abstractmethod
    def read(self) -> Tensor:
        """Current readings of all robots, (n, c)."""

    def imagined(
        self, state: RobotState, height: Callable[[Tensor], Tensor], drift: Tensor, noise: Tensor
    ) -> Tensor:
        """Readings of imagined robots (B, ...), (B, c).

        Args:
          height: of the ground at positions (B, ..., 2), relative to the same level as the states.
          drift: (B, 3) standard normal, constant over a rollout.
          noise: (B, 2, c) standard normal, of a step.

        Raises:
          TypeError: for a sensor that is not `imaginable`.
        """
        raise TypeError(f"{type(self).__name__} cannot be imagined")

    def restart(self, mask: Tensor) -> None:
        """Reset the readings' memory of robots (n,) bool within an episode, e.g. a clock."""

    def restarted(self, reading: Tensor) -> Tensor:
        """Readings (n, c) of this control step as they are after `restart`, with the same noise."""
        return reading


@dataclass(frozen=True)
class Term:
    """A reward term, which is one objective: weight times value.

    Raises:
      InputError: for a value that is no function, or a function without a name.
    """

    # function of a `RobotState` and a goal; differentiable if it is learned in imagination
    value: Measure
    weight: float = 1.0
    # name of the term; by default that of the function
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.value):
            raise InputError(
                f"Term({self.value!r}, ...): expected a function of state and goal, then its "
                "weight and name: Term(function, 1.0, 'name')"
            )
        name = self.name or getattr(self.value, "__name__", "")
        if not name.isidentifier():
            raise InputError(f"Term({self.value!r}): it needs a name: Term(value, 1.0, 'name')")
        object.__setattr__(self, "name", name)

    def __call__(self, state: RobotState, goal: Tensor) -> Tensor:
        return self.weight * self.value(state, goal)


class Starts(Protocol):
    """Start states of episodes."""

    def bind(self, env: Any) -> None:
        """As `Part.bind`."""

    def start(self, ids: Tensor, generator: torch.Generator, **where: Tensor) -> Start:
        """Start states of robots ids (k,). where: the caller's parameters (`TaskEnv.reset`), by the
        task's names."""


# differentiable function of: states before and after H steps (H, B, ...), heights above their
# patch; goals after each step (H, B, g); `Ground.patch` at the start (B, 2), (B, 0) on flat ground
Loss = Callable[[RobotState, RobotState, Tensor, Tensor], TaskLoss]


@dataclass(frozen=True)
class Figures:
    """Figures of a trial, and the names of those that are logged and plotted."""

    # the task's figures, added to those of every task (`Task.figures`)
    of: Callable[[Trial], dict[str, Any]] = lambda trial: {}
    # figures that a training run logs
    logged: tuple[str, ...] = ()
    # names and units of the channels of `traced`
    channels: tuple[tuple[str, str], ...] = ()
    # two metrics: the command and the achieved value
    traced: tuple[str, str] = ("command", "achieved")
    # duration of an evaluation [s]
    trial_s: float = 60.0


@dataclass(frozen=True)
class Parts:
    """The parts of a task."""

    # `Goals`; with `goals` a planner's intermediate commands
    commands: Any
    starts: Starts
    # the inputs of the policy: functions of state and goal, then sensors
    observations: Sequence[Inputs | Sensor]
    # reward terms; their names are the objectives
    rewards: Sequence[Term]
    # an episode fails where one is true, or its simulation diverges
    terminations: Sequence[Measure] = ()
    # an episode is complete where one is true; also metrics, by name
    ends: Mapping[str, Measure] = field(default_factory=dict)
    # the loss of imagined robots in place of the rewards; None: minus the mean reward
    loss: Loss | None = None
    # False: rewards and loss are not functions of imagined states
    imaginable: bool = True
    error: Measure = lambda state, goal: torch.zeros_like(state.root_pos[..., 0])
    error_name: str = "error"
    # measures for figures and plots, by name
    metrics: Mapping[str, Measure] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    # other parts with state: filters, clocks
    memory: Sequence[Part] = ()
    # part that sets the commands after all other parts
    planner: Part | None = None
    # the goals, if they differ from the commands
    goals: Goals | None = None
    # the terrain, or its settings
    ground: Ground | GroundConfig = field(default_factory=GroundConfig)
    # (n, c) further inputs of a critic
    privileged: Sequence[Callable[[], Tensor]] = ()
    # duration of episodes [s]; None: until the task ends. `TaskEnv` may end them before
    episode_s: float | None = None
    # a `npmp.tasks.teachers.scripts.Script`: from the task's inputs to commands of a lower policy
    script: Any = None
    # weight of the motors' currents in the loss of imagined robots [1/A^2]
    current_weight: float = 0.0


class Task:
    """The task of an environment's robots. A subclass has a name and settings, and makes `Parts`.

    A step calls `evaluate_step`, which changes nothing, then `advance`. A reset calls `start`, and
    `begin` after the robots were placed.
    """

    name: ClassVar[str]
    config_type: ClassVar[type]  # the dataclass that conf/task/NAME.yaml fills
    # the figure by which policies are compared, lower is better
    main_figure: ClassVar[str] = ""
    # whether high-level policies are trained for it
    reusable: ClassVar[bool] = True
    # other tasks with the same inputs, whose policies it accepts
    policies_of: ClassVar[tuple[str, ...]] = ()

    env: Any  # the `TaskEnv` of `bind`
    # terms of `with_rewards`, which `Parts.loss` does not stand for
    added_rewards: Sequence[Term] = ()
    # the factor of `Parts.loss`, by the weight of the one term that it stands for
    loss_scale: float = 1.0
    # names of the terms whose new weights `Parts.loss` ignores, as it stands for several
    ignored_weights: tuple[str, ...] = ()

    def __init__(self, robot: Robot, config: Any, parts: Parts):
        """robot: as it is simulated. config: of `config_type`."""
        self.robot = robot
        self.config = config
        self.parts = parts
        self.commands: Any = parts.commands
        self.planner: Any = parts.planner
        self.extras = [part for part in parts.observations if isinstance(part, Sensor)]
        inputs = [part for part in parts.observations if isinstance(part, Inputs)]
        self._observations = inputs
        self.inputs = {name: pair for part in inputs for name, pair in part.ranges.items()}
        self.scales = {name: pair for part in inputs for name, pair in part.scales.items()}
        self.objectives = tuple(term.name for term in parts.rewards)
        self.error_name = parts.error_name
        self.episode_s = parts.episode_s
        self.trial_s = parts.figures.trial_s
        self.logged_figures = parts.figures.logged
        self.script = parts.script
        self.current_weight = parts.current_weight
        self._goals = parts.goals or parts.commands
        self.achieved = self._goals.achieved
        planner = [] if parts.planner is None else [parts.planner]
        between = [*parts.memory, *self.extras]
        self._begun: list[Part] = list(dict.fromkeys([parts.commands, *between, *planner]))
        self._advanced: list[Part] = list(dict.fromkeys([*between, parts.commands, *planner]))
        others = [part for part in self._functions() if isinstance(part, Part)]
        self._all: list[Part] = list(dict.fromkeys([*self._begun, *others]))

    def _functions(self) -> list[Any]:
        parts = self.parts
        measures = [parts.error, *parts.terminations, *parts.ends.values(), *parts.metrics.values()]
        return [*measures, *(term.value for term in parts.rewards), parts.loss, parts.starts]

    def with_rewards(
        self, terms: Sequence[Term] = (), weights: Mapping[str, float] | None = None
    ) -> Self:
        """The same task, before `bind`, with more reward terms, and other weights by name.

        Raises:
          InputError: for two terms of a name, and for an unknown name.
        """
        weights = weights or {}
        if not terms and not weights:
            return self
        own = self.parts.rewards
        rewards = {term.name: term for term in own}
        for term in terms:
            if term.name in rewards:
                raise InputError(f"rewards: two terms are named '{term.name}'; rename one")
            rewards[term.name] = term
        for name, weight in weights.items():
            if name not in rewards:
                raise InputError(f"task.rewards.{name}: {unknown('reward term', name, rewards)}")
            rewards[name] = replace(rewards[name], weight=weight)

        task = copy.copy(self)
        parts = replace(self.parts, rewards=list(rewards.values()))
        Task.__init__(task, self.robot, self.config, parts)
        task.added_rewards = parts.rewards[len(own) :]
        if self.parts.loss is None:
            return task
        if len(own) == 1:
            before = own[0].weight
            after = parts.rewards[0].weight
            task.loss_scale = after if before == 0.0 else after / before
        else:
            task.ignored_weights = tuple(term.name for term in own if term.name in weights)
        return task

    def with_unobserved(self, sensors: Sequence[Sensor]) -> Self:
        """The same task, before `bind`, with sensors that its own policies do not observe. They
        begin, advance and are saved with the task; `reset_memory` leaves them."""
        task = copy.copy(self)
        parts = replace(self.parts, memory=[*self.parts.memory, *sensors])
        Task.__init__(task, self.robot, self.config, parts)
        return task

    def part(self, kind: type[P]) -> P | None:
        """The first part of a type; None: no such part."""
        return next((part for part in self._all if isinstance(part, kind)), None)

    @classmethod
    def resolve(cls, config: Any, motions: MotionSet | None, training: Mapping[str, Any]) -> Any:
        """Complete settings that are None, e.g. a range of commands.

        Args:
          motions: to start from; None: none.
          training: the record of the reused module, or the inputs that a policy was trained on.

        Raises:
          InputError: for a setting that cannot be completed.
        """
        return config

    # --- episodes ---

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        """As `Part.add_to_scene`."""
        for part in self._all:
            part.add_to_scene(spec)

    def bind(self, env: Any) -> None:
        """As `Part.bind`."""
        self.env = env
        for part in self._all:
            part.bind(env)
        if self.parts.starts not in self._all:
            self.parts.starts.bind(env)

    def start(self, ids: Tensor, generator: torch.Generator, **where: Tensor) -> Start:
        """As `Starts.start`."""
        return self.parts.starts.start(ids, generator, **where)

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """As `Part.begin`."""
        for part in self._begun:
            part.begin(ids, generator)

    def evaluate_step(self) -> StepResult:
        """Evaluate the last control step."""
        state = self.env.state
        goal = self.goal()
        parts = self.parts
        failed = self.env.robots.broken | ~torch.isfinite(state.pack()).all(-1)
        for termination in parts.terminations:
            failed = failed | termination(state, goal)
        ends = {name: end(state, goal) & ~failed for name, end in parts.ends.items()}
        ended = torch.zeros_like(failed)
        for end in ends.values():
            ended = ended | end
        rewards = [term(state, goal) for term in parts.rewards]
        return StepResult(
            torch.stack(rewards, -1).nan_to_num(0.0),
            failed,
            ended,
            parts.error(state, goal),
            {**{name: metric(state, goal) for name, metric in parts.metrics.items()}, **ends},
        )

    def advance(self, result: StepResult, generator: torch.Generator) -> None:
        """As `Part.advance`: commands after other parts, the planner last."""
        for part in self._advanced:
            part.advance(result, generator)

    def schedule(self, steps: int, generator: torch.Generator | None) -> None:
        """As `Part.schedule`. A planner's commands depend on the robots and are not scheduled."""
        for part in self._all:
            if self.parts.planner is None or part is not self.parts.commands:
                part.schedule(steps, generator)

    @final
    def figures(self, trial: Trial) -> dict[str, Any]:
        """Figures of a trial."""
        steps, n = trial.fell.shape
        minutes = steps * n * trial.dt / 60.0
        return {
            self.error_name: trial.error.mean().item(),
            "falls": int(trial.fell.sum()),
            "falls_per_minute": trial.fell.sum().item() / minutes,
            "survived": (~trial.fell.any(0)).float().mean().item(),
            "seconds": steps * trial.dt,
            "robots": n,
            **self.parts.figures.of(trial),
        }

    # --- goals and inputs, for simulated and imagined robots ---

    def goal(self) -> Tensor:
        """As `Goals.goal`."""
        return self._goals.goal()

    def next_goal(self, goal: Tensor, after: RobotState) -> Tensor:
        """As `Goals.next_goal`."""
        return self._goals.next_goal(goal, after)

    def new_goals(self, goal: Tensor, generator: torch.Generator) -> Tensor:
        """As `Goals.new_goals`."""
        return self._goals.new_goals(goal, generator)

    def inputs_of(self, state: RobotState, goal: Tensor) -> Tensor:
        """The policy's inputs (B, c) without sensors, from states (B, ...) and goals (B, g)."""
        return torch.cat([part.function(state, goal) for part in self._observations], -1)

    @final
    def imagined_loss(
        self, before: RobotState, after: RobotState, goals: Tensor, patch: Tensor
    ) -> TaskLoss:
        """As `Loss`, minus the mean of added rewards; by default minus the mean reward."""
        if self.parts.loss is None:
            reward = sum(term(after, goals) for term in self.parts.rewards)
            assert isinstance(reward, Tensor)
            return TaskLoss(-reward.mean(0), torch.zeros_like(reward[0]))
        loss = self.parts.loss(before, after, goals, patch)
        task = self.loss_scale * loss.task
        for term in self.added_rewards:
            reward = term(after, goals)
            if loss.weight is None:
                task = task - reward.mean(0)
            else:
                total = loss.weight.sum().clamp(min=1.0)
                task = task - len(task) * (reward * loss.weight).sum(0) / total
        return loss._replace(task=task)

    @property
    @final
    def imaginable(self) -> bool:
        """Whether the task can be learned in imagination."""
        return self.parts.imaginable

    @property
    @final
    def steerable(self) -> bool:
        """Whether its commands are velocities that a caller may set (`Commands.fix`)."""
        return hasattr(self.commands, "fix") and self.parts.planner is None

    @property
    @final
    def guides(self) -> bool:
        """Whether a planner's commands can be a walking policy's teacher."""
        return self.parts.planner is not None

    @property
    @final
    def extra_inputs(self) -> dict[str, tuple[float, float]]:
        """Lowest and highest value of each column of the sensors, by name."""
        return {name: pair for extra in self.extras for name, pair in extra.ranges.items()}

    @property
    @final
    def clock_s(self) -> float | None:
        """Period of the clock among the sensors [s]; None: none."""
        periods = (getattr(extra, "period_s", None) for extra in self.extras)
        return next((period for period in periods if period is not None), None)

    @property
    @final
    def camera(self) -> Mapping[str, Any] | None:
        """The settings of the camera among the sensors; None: none."""
        cameras = (getattr(extra, "recorded", None) for extra in self.extras)
        return next((camera for camera in cameras if camera is not None), None)

    @final
    def observe(self) -> Tensor:
        """The policy's current inputs (n, c): `inputs_of` the true state, then sensors."""
        state = self.env.ground.integrated(self.env.state)
        inputs = self.inputs_of(state, self.goal())
        return torch.cat((inputs, *(extra.read() for extra in self.extras)), -1)

    @final
    def imagine(
        self,
        state: RobotState,
        goal: Tensor,
        height: Callable[[Tensor], Tensor],
        drift: Tensor,
        noise: Tensor,
    ) -> Tensor:
        """As `observe`, of imagined robots (B, c); arguments as `Sensor.imagined`, noise of all
        `extra_inputs`."""
        columns = [self.inputs_of(state, goal)]
        for extra in self.extras:
            width = len(extra.ranges)
            of_sensor, noise = noise.split((width, noise.shape[-1] - width), -1)
            columns.append(extra.imagined(state, height, drift, of_sensor))
        return torch.cat(columns, -1)

    @final
    def privileged(self) -> Tensor:
        """The critic's observation without latents (n, p): true state, policy's inputs, randomized
        physics and pushes, `Parts.privileged`, heights of the ground."""
        env = self.env
        more = [value() for value in self.parts.privileged]
        state = true_state(env.ground.local(env.state), env.home)
        relief = env.ground.relief(env.state)
        return torch.cat((state, self.observe(), env.robots.physics, *more, relief), -1)

    @final
    def reset_memory(self, mask: Tensor) -> None:
        """As `Sensor.restart`."""
        for extra in self.extras:
            extra.restart(mask)

    @final
    def observed_again(self, inputs: Tensor) -> Tensor:
        """The policy's inputs (n, c) of this control step after `reset_memory`, as
        `Sensor.restarted`."""
        columns = self.columns_of(inputs)
        for i, extra in enumerate(self.extras, 1):
            columns[i] = extra.restarted(columns[i])
        return torch.cat(columns, -1)

    @final
    def columns_of(self, inputs: Tensor) -> list[Tensor]:
        """The policy's inputs (n, c) by part: `inputs_of` the true state, then each sensor."""
        widths = [len(extra.ranges) for extra in self.extras]
        return list(inputs.split([inputs.shape[-1] - sum(widths), *widths], -1))

    @final
    def describe(self, i: int) -> dict[str, Any]:
        """As `Part.describe`."""
        values = {name: value for part in self._all for name, value in part.describe(i).items()}
        plain = {k: v.tolist() if isinstance(v, Tensor) else v for k, v in values.items()}
        return {**plain, "step": int(self.env.age[i])}

    @final
    def traces(self, trial: Trial) -> CommandTraces | None:
        """Commands and achieved values of robot 0; None for a task without channels."""
        figures = self.parts.figures
        if not figures.channels:
            return None
        command, achieved = (trial.metrics[name][:, 0] for name in figures.traced)
        return CommandTraces(figures.channels, command, achieved)

    @final
    def state_dict(self) -> dict[str, Tensor]:
        """`Part.saved` of all parts."""
        return {key: getattr(part, name) for part in self._all for key, name in part.saved.items()}

    @final
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state_dict`, to the bit. Raises ValueError where it does not fit."""
        for part in self._all:
            for key, name in part.saved.items():
                setattr(part, name, state[key].to(self.env.device, copy=True))
