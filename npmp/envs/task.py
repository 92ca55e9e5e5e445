"""What a task is: everything about an environment but the robots, the ground and the bookkeeping of
episodes.

A task is one file in `npmp/tasks/` and one YAML in `conf/task/`: what stands in the scene beside
the robot, where episodes start, what is asked, what the policy observes of it, and how a control
step is judged. `TaskEnv` does the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Protocol, final

import mujoco
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.envs.features import true_state
from npmp.envs.state import RobotState
from npmp.robots import Robot


class Start(NamedTuple):
    """Where k robots begin an episode."""

    qpos: Tensor  # (k, 7 + nu) of the robot
    qvel: Tensor  # (k, 6 + nu) of the robot
    state: RobotState  # (k, ...) the same, as the learner sees it
    # (k, nq), (k, nv): the whole scene; the robot's columns are overwritten
    others: tuple[Tensor, Tensor] | None = None


class StepResult(NamedTuple):
    """What one control step of n robots was worth. A robot that failed has not ended."""

    rewards: Tensor  # (n, K) one column per objective; their sum is the reward
    failed: Tensor  # (n,) bool: the value of what follows is zero
    # (n,) bool: the task itself is over, a clip say; bootstrap the value of what follows
    ended: Tensor
    error: Tensor  # (n,) the task's error, in the unit of `error_name`
    # what figures and pictures are made of, (n, ...) by name; never written to
    seen: Mapping[str, Tensor] = {}


class EnvStep(NamedTuple):
    """What one control step brings; the environments are NOT reset yet, so `state` is the true
    successor everywhere."""

    state: RobotState  # (n, ...)
    rewards: Tensor  # (n, K) one column per objective; their sum is the reward
    terminated: Tensor  # (n,) bool: failed; the value of what follows is zero
    truncated: Tensor  # (n,) bool: the task or the time is over; bootstrap the value of `state`
    error: Tensor  # (n,) the task's error
    ended: Tensor  # (n,) bool: truncated as the task itself is over, not the time
    seen: Mapping[str, Tensor]  # `StepResult.seen`


class TaskLoss(NamedTuple):
    """What B robots owe over imagined control steps, (B,) each."""

    task: Tensor  # how far they were from what was asked
    # how they moved, whatever was asked; it counts once a policy obeys (`algo.style_ramp`)
    style: Tensor
    # (H, B) weights of the steps, also in the mean of other costs; None: all alike
    weight: Tensor | None = None


class Trial(NamedTuple):
    """A trial of n robots over T control steps, on the CPU; a robot that failed was put back at a
    start and went on."""

    seen: dict[str, Tensor]  # `StepResult.seen` of each step, (T, n, ...) by name
    error: Tensor  # (T, n)
    fell: Tensor  # (T, n) bool: this step ended an episode by failure
    # (T + 1, nq) float64, of robot 0, `Ground.integrated`, with the start; jumps where it fell
    qpos: Tensor
    dt: float  # control period [s]


class CommandTraces(NamedTuple):
    """What a robot was asked and did, C channels over T control steps."""

    channels: tuple[tuple[str, str], ...]  # name and unit of each
    asked: Tensor  # (T, C)
    done: Tensor  # (T, C)


class ExtraInput(Protocol):
    """What a policy observes beside the task's own inputs, by its settings."""

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        """(low, high) of each column by its name."""

    def read(self, env: Any) -> Tensor:
        """The columns of all robots now, (n, c)."""

    def imagined(
        self, env: Any, state: RobotState, patch: Tensor, drift: Tensor, draws: Tensor
    ) -> Tensor:
        """Those of imagined robots (..., ), (..., c); an input without this cannot be imagined.

        patch: (B, 2) `Ground.patch`, (..., 0) on flat ground. drift (..., 3), of a rollout, and
        draws (..., 2, c), of a step, are standard normal.
        """


class Task(ABC):
    """One task of all robots of an environment. A subclass names itself, its objectives and its
    settings, and overrides what it needs of the hooks below.

    A step goes `judge` (which changes nothing), then `advance`; a reset `start`, then, when the
    robots stand on the ground, `begin`. Everything random comes from the generator that is given.

    What is asked of a robot is its goal, numbers that the task keeps; what the policy observes and
    is judged by follows from state and goal, for simulated and imagined robots alike. What rolls
    about beside the robot is part of the goal, and `next_goal` its dynamics.
    """

    name: ClassVar[str]
    config_type: ClassVar[type]  # the dataclass that conf/task/NAME.yaml fills
    objectives: tuple[str, ...] = ("reward",)  # names of the K columns of rewards
    error_name: ClassVar[str] = "error"  # of `StepResult.error` in logs
    # range of each column of `see` by its name, for scaling it; {}: too many to name
    inputs: Mapping[str, tuple[float, float]] = {}
    # other ranges for scaling some of these, where a usual value is far within its range
    scales: ClassVar[Mapping[str, tuple[float, float]]] = {}
    extras: Sequence[ExtraInput] = ()  # observed after those
    camera: Mapping[str, Any] | None = None  # the settings of one among these
    # names of attributes that the next step depends on: what checkpoints hold
    kept: tuple[str, ...] = ()
    # attributes (n, ...) by name that describe a robot whose simulation breaks down
    described: ClassVar[Mapping[str, str]] = {}
    # names of attributes (n, c) that a critic knows beside what is observed
    hidden: Sequence[str] = ()
    guides: ClassVar[bool] = False  # its commands show a walking policy how it is done
    current_weight: float = 0.0  # eq. 14's, of imagined robots, too [1/A^2]
    # names and units of what `seen` holds as asked and done, to be drawn over time
    channels: ClassVar[tuple[tuple[str, str], ...]] = ()
    traced: ClassVar[tuple[str, str]] = ("command", "achieved")
    judged: ClassVar[tuple[str, ...]] = ()  # those of `figures` that a training run logs
    main_figure: ClassVar[str] = ""  # the one that policies are compared by; less is better
    # a function of states (...): the goal that their last control step has fulfilled, (..., g), by
    # which a policy is cloned from what a module does of itself
    achieved: ClassVar[Any] = None
    # makes of an environment of the task the actor that shows how it is done there
    teacher: ClassVar[Any] = None
    # a `npmp.envs.scripts.Script` that makes commands of what the task shows, for a policy below
    script: Any = None
    # whether it has `commands`, velocities that a caller may fix
    steerable: ClassVar[bool] = False
    # other tasks whose inputs it gives, so that their policies can do it
    policies_of: ClassVar[tuple[str, ...]] = ()
    trial_s: float = 60.0  # length of a trial that judges a policy
    # an episode is over then; None: when the task ends it. `TaskEnv` may end it before
    episode_s: float | None = None

    robot: Robot
    config: Any  # of `config_type`
    env: Any  # the `TaskEnv` that `bind` joins

    # --- settings and scene ---

    @classmethod
    def resolve(cls, config: Any, motions: MotionSet | None, training: Mapping[str, Any]) -> Any:
        """The settings with what they leave open, e.g. a range of commands.

        motions: to start from, where there are some. training: the record of the module whose
        skills are reused, or what a policy was trained to observe.

        Raises:
          InputError: where nothing resolves it.
        """
        return config

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        """Add what the task needs to the robot on its floor: bodies after the robot's, sensors."""

    def bind(self, env: Any) -> None:
        """Join a `TaskEnv`, once its robots are there: make tables and state for `env.num_envs`
        on `env.device`."""
        self.env = env

    # --- episodes ---

    @abstractmethod
    def start(self, ids: Tensor, generator: torch.Generator, **where: Tensor) -> Start:
        """New episodes of robots ids (k,). where: what the caller of `TaskEnv.reset` chooses
        itself, by the task's names."""

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """Ask something of robots ids (k,), which have just been placed at their start."""

    @abstractmethod
    def judge(self) -> StepResult:
        """The control step that has just been made. Robots whose simulation broke down
        (`env.robots.broken`) have failed."""

    def advance(self, outcome: StepResult, generator: torch.Generator) -> None:
        """Go on to what the next decision is about: the next frame, a new command."""

    def schedule(self, steps: int, generator: torch.Generator | None) -> None:
        """Fix what is asked over the next `steps` control steps of a trial, whatever robots do;
        without a generator ask as in training again."""

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

    # --- what is asked, for simulated and imagined robots ---

    def goal(self) -> Tensor:
        """What is asked of the robots now, (n, g)."""
        return self.env.state.root_pos[:, :0]  # type: ignore[no-any-return]

    @abstractmethod
    def see(self, state: RobotState, goal: Tensor) -> Tensor:
        """What a policy observes of the task in a state (B, ...) with a goal (B, g): (B, c)."""

    def next_goal(self, goal: Tensor, after: RobotState) -> Tensor:
        """Goals (B, g) after a control step that took the robots to states (B, ...), where nothing
        new is asked."""
        return goal

    def new_goals(self, goal: Tensor, generator: torch.Generator) -> Tensor:
        """What else might be asked of robots with goals (B, g)."""
        return goal

    def imagined_loss(
        self, before: RobotState, after: RobotState, goals: Tensor, patch: Tensor
    ) -> TaskLoss:
        """What robots owe over H imagined control steps, differentiable.

        Args:
          before, after: (H, B, ...) the states that each step sets out from and leads to, heights
            above the ground of their patch.
          goals: (H, B, g) after each step.
          patch: (B, 2) `Ground.patch` where imagination began, (B, 0) on flat ground.
        """
        raise NotImplementedError(f"task '{self.name}' cannot be imagined")

    # --- what follows from the above, the same for every task ---

    @property
    @final
    def extra_inputs(self) -> dict[str, tuple[float, float]]:
        """Range of each column that `extras` add to `observe`, by its name."""
        return {name: pair for extra in self.extras for name, pair in extra.ranges.items()}

    @property
    @final
    def clock_s(self) -> float | None:
        """Period of the clock that policies observe [s]; None: none."""
        periods = (getattr(extra, "period_s", None) for extra in self.extras)
        return next((period for period in periods if period is not None), None)

    @final
    def observe(self) -> Tensor:
        """What the policy observes of the task now, (n, c): `see` of the true state, `extras`."""
        seen = self.see(self.env.state, self.goal())
        return torch.cat((seen, *(extra.read(self.env) for extra in self.extras)), -1)

    @final
    def imagine(
        self, state: RobotState, goal: Tensor, patch: Tensor, drift: Tensor, draws: Tensor
    ) -> Tensor:
        """The same of imagined robots (..., c); arguments as `ExtraInput.imagined` takes them,
        draws for all `extra_inputs`."""
        seen = [self.see(state, goal)]
        for extra in self.extras:
            own, draws = draws.split((len(extra.ranges), draws.shape[-1] - len(extra.ranges)), -1)
            seen.append(extra.imagined(self.env, state, patch, drift, own))
        return torch.cat(seen, -1)

    @final
    def privileged(self) -> Tensor:
        """What a critic observes with the latent, (n, p): the true state, what is observed, the
        drawn physics and pushes, `hidden`, the ground around."""
        env = self.env
        hidden = [getattr(self, name) for name in self.hidden]
        state = true_state(env.ground.local(env.state), env.home)
        relief = env.ground.relief(env.state)
        return torch.cat((state, self.observe(), env.robots.physics, *hidden, relief), -1)

    @final
    def reset_memory(self, mask: Tensor) -> None:
        """Robots (n,) bool go on within an episode with a policy whose memory is empty."""
        for extra in self.extras:
            if hasattr(extra, "restart"):
                extra.restart(mask)

    @final
    def describe(self, i: int) -> dict[str, Any]:
        """What is known of robot i where its simulation breaks down."""
        values = {name: attrgetter(path)(self)[i] for name, path in self.described.items()}
        plain = {k: v.tolist() if isinstance(v, Tensor) else v for k, v in values.items()}
        return {**plain, "step": int(self.env.age[i])}

    @final
    def traces(self, trial: Trial) -> CommandTraces | None:
        """What robot 0 was asked and did in a trial; None where there is nothing to draw."""
        if not self.channels:
            return None
        return CommandTraces(self.channels, *(trial.seen[name][:, 0] for name in self.traced))

    @final
    def state_dict(self) -> dict[str, Tensor]:
        """Everything of the task that the next step depends on: `kept`."""
        return {name: attrgetter(name)(self) for name in self.kept}

    @final
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where `state_dict` was taken, to the bit. Attributes that may not fit check it
        where they are set. Raises ValueError where one does not."""
        for name in self.kept:
            *path, last = name.split(".")
            owner = attrgetter(".".join(path))(self) if path else self
            setattr(owner, last, state[name].to(self.env.device, copy=True))
