"""A task as a list of parts: commands, observations, reward terms, terminations, starts.

A task is one file in `npmp/tasks/` and one YAML in `conf/task/`. It lists its parts; `TaskEnv` runs
them. The goal of a robot is a row of numbers. Rewards, terminations and the policy's own inputs are
functions of a `RobotState` and a goal, the same for simulated and imagined robots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, final

import mujoco
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.envs.features import true_state
from npmp.envs.ground import GroundConfig
from npmp.envs.state import RobotState
from npmp.robots import Robot

P = TypeVar("P", bound="Part")
# of states (..., ) and goals (..., g)
Measure = Callable[[RobotState, Tensor], Tensor]


class Start(NamedTuple):
    """Where k robots begin an episode."""

    qpos: Tensor  # (k, 7 + nu) of the robot
    qvel: Tensor  # (k, 6 + nu) of the robot
    state: RobotState  # (k, ...) the same, as the learner sees it
    # (k, nq), (k, nv): the whole scene; the robot's columns are overwritten
    others: tuple[Tensor, Tensor] | None = None


class StepResult(NamedTuple):
    """A control step of n robots, evaluated. A robot that failed has not ended."""

    rewards: Tensor  # (n, K) one column per objective; their sum is the reward
    failed: Tensor  # (n,) bool: the value of what follows is zero
    # (n,) bool: the task itself is over, a clip say; bootstrap the value of what follows
    ended: Tensor
    error: Tensor  # (n,) the task's error, in the unit of `error_name`
    # for figures and plots, (n, ...) by name; never written to
    metrics: Mapping[str, Tensor] = {}


class EnvStep(NamedTuple):
    """The result of one control step; the environments are NOT reset yet, so `state` is the true
    successor everywhere."""

    state: RobotState  # (n, ...)
    rewards: Tensor  # (n, K) one column per objective; their sum is the reward
    terminated: Tensor  # (n,) bool: failed; the value of what follows is zero
    truncated: Tensor  # (n,) bool: the task or the time is over; bootstrap the value of `state`
    error: Tensor  # (n,) the task's error
    ended: Tensor  # (n,) bool: truncated as the task itself is over, not the time
    metrics: Mapping[str, Tensor]  # `StepResult.metrics`


class TaskLoss(NamedTuple):
    """The loss of B robots over imagined control steps, (B,) each."""

    task: Tensor  # distance from the goal
    # of how they moved, whatever the goal; it counts once a policy obeys (`algo.style_ramp`)
    style: Tensor
    # (H, B) weights of the steps, also in the mean of other costs; None: all alike
    weight: Tensor | None = None


class Trial(NamedTuple):
    """A trial of n robots over T control steps, on the CPU; a robot that failed was put back at a
    start and went on."""

    metrics: dict[str, Tensor]  # `StepResult.metrics` of each step, (T, n, ...) by name
    error: Tensor  # (T, n)
    fell: Tensor  # (T, n) bool: this step ended an episode by failure
    # (T + 1, nq) float64, of robot 0, `Ground.integrated`, with the start; jumps where it fell
    qpos: Tensor
    dt: float  # control period [s]


class CommandTraces(NamedTuple):
    """A robot's commands and what it achieved, C channels over T control steps."""

    channels: tuple[tuple[str, str], ...]  # name and unit of each
    command: Tensor  # (T, C)
    achieved: Tensor  # (T, C)


# --- parts ---


class Part:
    """A part of a task with memory of its own; a subclass overrides what it needs.

    A control step is evaluated before parts advance. Everything random comes from the generator
    that is passed.
    """

    # attributes (n, ...) that the next step depends on, by their keys in checkpoints
    saved: ClassVar[Mapping[str, str]] = {}
    env: Any  # the `TaskEnv` that `bind` joins

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        """Add bodies, after the robot's, and sensors to the robot on its floor."""

    def bind(self, env: Any) -> None:
        """Join a `TaskEnv`, once its robots are there: make tables and state for `env.num_envs`
        robots on `env.device`."""
        self.env = env

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """Begin episodes of robots ids (k,), which have just been placed at their start."""

    def advance(self, result: StepResult, generator: torch.Generator) -> None:
        """Go on to the next decision: the next frame, a new command."""

    def schedule(self, steps: int, generator: torch.Generator | None) -> None:
        """Draw what the next `steps` control steps of a trial need, whatever robots do; without a
        generator go back to training."""

    def describe(self, i: int) -> dict[str, Any]:
        """Robot i, for the record of a simulation that broke down."""
        return {}


class Goals(Part):
    """The goals of robots (n, g), and how they change."""

    # a function of states (...): the goal that their last control step has fulfilled, (..., g), by
    # which a policy is cloned from its module's own motion
    achieved: Callable[[RobotState], Tensor] | None = None

    def goal(self) -> Tensor:
        """The goals now, (n, g)."""
        return self.env.state.root_pos[:, :0]  # type: ignore[no-any-return]

    def next_goal(self, goal: Tensor, after: RobotState) -> Tensor:
        """Goals (B, g) after a control step that took the robots to states (B, ...): the goal's own
        dynamics, a ball's for example."""
        return goal

    def new_goals(self, goal: Tensor, generator: torch.Generator) -> Tensor:
        """Other goals for robots with goals (B, g)."""
        return goal


class Inputs(NamedTuple):
    """Inputs of a policy that are a function of state and goal."""

    # (..., c)
    function: Measure
    # range of each column by its name, for scaling it; {}: too many to name
    ranges: Mapping[str, tuple[float, float]]
    # other ranges for scaling some of these, where a usual value is far within its range
    scales: Mapping[str, tuple[float, float]] = {}


class Sensor(Part):
    """Inputs of a policy beside those of the task: a clock, a map, a camera."""

    # (low, high) of each column by its name
    ranges: Mapping[str, tuple[float, float]]
    # whether imagined robots have it, by `imagined`
    imaginable: bool = True

    def read(self) -> Tensor:
        """The columns of all robots now, (n, c)."""
        raise NotImplementedError

    def imagined(self, state: RobotState, patch: Tensor, drift: Tensor, noise: Tensor) -> Tensor:
        """Those of imagined robots (..., ), (..., c).

        patch: (B, 2) `Ground.patch`, (..., 0) on flat ground. drift (..., 3), of a rollout, and
        noise (..., 2, c), of a step, are standard normal.
        """
        raise NotImplementedError

    def restart(self, mask: Tensor) -> None:
        """Robots (n,) bool go on within an episode with a policy whose memory is empty."""


class Term(NamedTuple):
    """A term of the reward, an objective of its own."""

    name: str
    value: Measure
    weight: float = 1.0

    def __call__(self, state: RobotState, goal: Tensor) -> Tensor:
        return self.weight * self.value(state, goal)


class Starts(Protocol):
    """Where episodes begin."""

    def bind(self, env: Any) -> None:
        """As `Part.bind`."""

    def start(self, ids: Tensor, generator: torch.Generator, **where: Tensor) -> Start:
        """New episodes of robots ids (k,). where: the caller's choice (`TaskEnv.reset`), by the
        task's names."""


# of states before and after H steps (H, B, ...), heights above the ground of their patch, goals
# after each (H, B, g), and the patch (B, 2) `Ground.patch` where imagination began, (B, 0) on flat
# ground; differentiable
Loss = Callable[[RobotState, RobotState, Tensor, Tensor], TaskLoss]


@dataclass(frozen=True)
class Figures:
    """A trial in numbers, and the names of those that are logged and plotted."""

    # more figures than `Task.figures` has of every task
    of: Callable[[Trial], dict[str, Any]] = lambda trial: {}
    # those that a training run logs
    logged: tuple[str, ...] = ()
    # names and units of two metrics, command and achieved, that are plotted over time
    channels: tuple[tuple[str, str], ...] = ()
    traced: tuple[str, str] = ("command", "achieved")
    # length of a trial [s]
    trial_s: float = 60.0


@dataclass(frozen=True)
class Parts:
    """The parts of a task."""

    # `Goals`; with `goals` those that a planner sets on the way there
    commands: Any
    starts: Starts
    # the inputs of the policy: functions of state and goal, then sensors
    observations: Sequence[Inputs | Sensor]
    # their names are the objectives
    rewards: Sequence[Term]
    # an episode fails where one is true, and where its simulation diverges
    terminations: Sequence[Measure] = ()
    # an episode is complete where one is true; its name is that of a metric
    ends: Mapping[str, Measure] = field(default_factory=dict)
    # the loss of imagined robots; None: minus the mean reward
    loss: Loss | None = None
    # False: no function of imagined states says how well the task is done
    imaginable: bool = True
    error: Measure = lambda state, goal: torch.zeros_like(state.root_pos[..., 0])
    error_name: str = "error"
    # for figures and plots, by name
    metrics: Mapping[str, Measure] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    # other parts with memory: filters, clocks
    memory: Sequence[Part] = ()
    # sets the commands after all other parts
    planner: Part | None = None
    # where they are not the commands
    goals: Goals | None = None
    # what robots stand on
    ground: GroundConfig = field(default_factory=GroundConfig)
    # (n, c) that a critic observes beside the policy's inputs
    privileged: Sequence[Callable[[], Tensor]] = ()
    # an episode is over then [s]; None: when the task ends it. `TaskEnv` may end it before
    episode_s: float | None = None
    # a `npmp.envs.scripts.Script` that makes commands of the task's inputs, for a policy below
    script: Any = None
    # weight of the motors' currents in the loss of imagined robots [1/A^2]
    current_weight: float = 0.0


class Task:
    """One task of all robots of an environment.

    A subclass has a name, settings, and makes its `Parts`. A step goes `evaluate_step`, which
    changes nothing, then `advance`; a reset `start`, then, when the robots stand on the ground,
    `begin`.
    """

    name: ClassVar[str]
    config_type: ClassVar[type]  # the dataclass that conf/task/NAME.yaml fills
    # the figure that policies are compared by; less is better
    main_figure: ClassVar[str] = ""
    # whether policies are trained for it that command a skill module
    reusable: ClassVar[bool] = True
    # other tasks with the same inputs, whose policies can do it
    policies_of: ClassVar[tuple[str, ...]] = ()

    env: Any  # the `TaskEnv` that `bind` joins

    def __init__(self, robot: Robot, config: Any, parts: Parts):
        """robot: as it is simulated. config: of `config_type`."""
        self.robot = robot
        self.config = config
        self.parts = parts
        self.commands: Any = parts.commands
        self.planner: Any = parts.planner
        self.extras = [part for part in parts.observations if isinstance(part, Sensor)]
        own = [part for part in parts.observations if isinstance(part, Inputs)]
        self._observations = own
        self.inputs = {name: pair for part in own for name, pair in part.ranges.items()}
        self.scales = {name: pair for part in own for name, pair in part.scales.items()}
        self.objectives = tuple(term.name for term in parts.rewards)
        self.error_name = parts.error_name
        self.episode_s = parts.episode_s
        self.trial_s = parts.figures.trial_s
        self.judged = parts.figures.logged
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

    def part(self, kind: type[P]) -> P | None:
        """Its first part of a kind, None without."""
        return next((part for part in self._all if isinstance(part, kind)), None)

    @classmethod
    def resolve(cls, config: Any, motions: MotionSet | None, training: Mapping[str, Any]) -> Any:
        """The settings with what they leave open, e.g. a range of commands.

        motions: to start from, where there are some. training: the record of the module whose
        skills are reused, or the inputs that a policy was trained on.

        Raises:
          InputError: where nothing resolves it.
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
        """The last control step."""
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
        """As `Part.advance`: new commands after everything that this step was about, planners
        last."""
        for part in self._advanced:
            part.advance(result, generator)

    def schedule(self, steps: int, generator: torch.Generator | None) -> None:
        """As `Part.schedule`. A planner's commands follow from where the robots are."""
        for part in self._all:
            if self.parts.planner is None or part is not self.parts.commands:
                part.schedule(steps, generator)

    @final
    def figures(self, trial: Trial) -> dict[str, Any]:
        """A trial in numbers."""
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

    def see(self, state: RobotState, goal: Tensor) -> Tensor:
        """The policy's inputs without sensors in states (B, ...) with goals (B, g): (B, c)."""
        return torch.cat([part.function(state, goal) for part in self._observations], -1)

    @final
    def imagined_loss(
        self, before: RobotState, after: RobotState, goals: Tensor, patch: Tensor
    ) -> TaskLoss:
        """As `Loss`; by default minus the mean reward."""
        if self.parts.loss is not None:
            return self.parts.loss(before, after, goals, patch)
        reward = sum(term(after, goals) for term in self.parts.rewards)
        assert isinstance(reward, Tensor)
        return TaskLoss(-reward.mean(0), torch.zeros_like(reward[0]))

    @property
    @final
    def imaginable(self) -> bool:
        """Whether the task can be learned in imagination."""
        return self.parts.imaginable

    @property
    @final
    def steerable(self) -> bool:
        """Whether its commands are velocities that a caller may fix (`Commands.fix`)."""
        return hasattr(self.commands, "fix") and self.parts.planner is None

    @property
    @final
    def guides(self) -> bool:
        """Whether a planner's commands teach a walking policy the task."""
        return self.parts.planner is not None

    @property
    @final
    def extra_inputs(self) -> dict[str, tuple[float, float]]:
        """Range of each column of the sensors by its name."""
        return {name: pair for extra in self.extras for name, pair in extra.ranges.items()}

    @property
    @final
    def clock_s(self) -> float | None:
        """Period of the clock that policies observe [s]; None: none."""
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
        """The policy's inputs of the task now, (n, c): `see` of the true state, then sensors."""
        own = self.see(self.env.state, self.goal())
        return torch.cat((own, *(extra.read() for extra in self.extras)), -1)

    @final
    def imagine(
        self, state: RobotState, goal: Tensor, patch: Tensor, drift: Tensor, draws: Tensor
    ) -> Tensor:
        """The same of imagined robots (..., c); arguments as `Sensor.imagined`, noise for all
        `extra_inputs`."""
        columns = [self.see(state, goal)]
        for extra in self.extras:
            own, draws = draws.split((len(extra.ranges), draws.shape[-1] - len(extra.ranges)), -1)
            columns.append(extra.imagined(state, patch, drift, own))
        return torch.cat(columns, -1)

    @final
    def privileged(self) -> Tensor:
        """The critic's observation beside the latent, (n, p): the true state, the policy's inputs,
        randomized physics and pushes, `Parts.privileged`, the ground around."""
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
    def describe(self, i: int) -> dict[str, Any]:
        """As `Part.describe`."""
        values = {name: value for part in self._all for name, value in part.describe(i).items()}
        plain = {k: v.tolist() if isinstance(v, Tensor) else v for k, v in values.items()}
        return {**plain, "step": int(self.env.age[i])}

    @final
    def traces(self, trial: Trial) -> CommandTraces | None:
        """Commands and achievements of robot 0 in a trial; None where the task has no channels."""
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
        """Continue where `state_dict` was taken, to the bit. Raises ValueError where it does not
        fit."""
        for part in self._all:
            for key, name in part.saved.items():
                setattr(part, name, state[key].to(self.env.device, copy=True))
