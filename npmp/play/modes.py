"""Modes of a robot on the page: steered, dribbling, imitating, wandering, between two clips.

A mode owns the environment of one robot and the actor in it; both are those of training and
evaluation.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocap_data.errors import InputError, unknown
from mocap_data.store import MotionSet
from npmp import analysis, geometry, ranges
from npmp.actors import LatentActor, PriorActor, SkillMemory, TrackingActor
from npmp.analysis.interpolation import aligned, at_times, frame_pairs, mixed, tracked_latents
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.task import EnvStep, Start, Task
from npmp.envs.task_env import TaskEnv
from npmp.handover import GetUpActor, Recovery
from npmp.policy import PolicyActor
from npmp.robots import Robot
from npmp.rollout import Actor
from npmp.sim.terrain import PERIOD_M, TERRAINS
from npmp.skill import SkillModule
from npmp.tasks.dribble import BALL, Dribble, DribbleConfig
from npmp.tasks.imitation import Imitation
from npmp.tasks.walk import Walk, WalkConfig
from npmp.tasks.walk_on import WalkOn

Floats = NDArray[np.float64]

GROUNDS = tuple(kind for kind in TERRAINS if kind != "mixed")  # there is one field only
LATENTS_SHOWN = 6  # sliders of wandering [D]
LATENT_REACH = 3.0  # of a slider, in the prior's standard deviations
AHEAD_M = 0.7  # where a ball is put back to, in front of the robot
BESIDE_M = 1.0  # from a robot to its ghost
# the last as a share of the robot's mass
MOST_DELAY_MS, FRICTIONS, MOST_PAYLOAD = 100.0, (0.05, 2.0), 0.5


@dataclass(frozen=True)
class World:
    """What can be changed while the robot runs. Raises ValueError for values out of range."""

    # one of `GROUNDS`, where a mode's ground may be rough
    terrain: str = "flat"
    # of it, from flat at 0
    level: float = 0.5
    # the name of a preset
    randomization: str = "none"
    # of all senses [ms]; 0: the preset's
    delay_ms: float = 0.0
    # of the feet; None: the preset's
    friction: float | None = None
    # on the trunk [kg], beside the preset's
    payload_kg: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.randomization, str):
            raise ValueError(f"randomization must be a name, got {self.randomization!r:.40}")
        if self.terrain not in GROUNDS:
            known = ", ".join(GROUNDS)
            raise ValueError(f"terrain must be one of {known}; got {self.terrain!r:.40}")
        ranges.share(self, "level")
        ranges.not_negative(self, "delay_ms", "payload_kg")
        if self.delay_ms > MOST_DELAY_MS:
            raise ValueError(f"delay_ms must be at most {MOST_DELAY_MS:g}, got {self.delay_ms}")
        if self.friction is not None and not FRICTIONS[0] <= self.friction <= FRICTIONS[1]:
            raise ValueError(f"friction must lie in {FRICTIONS}, got {self.friction}")

    def robots(self, preset: RobotBatchConfig) -> RobotBatchConfig:
        """The robots of a preset in this world."""
        physics, sensors = preset.physics, preset.sensors
        if self.friction is not None:
            physics = replace(physics, friction=(self.friction, self.friction))
        if self.payload_kg > 0.0:
            low, high = physics.payload or (0.0, 0.0)
            physics = replace(physics, payload=(low + self.payload_kg, high + self.payload_kg))
        if self.delay_ms > 0.0:
            sensors = replace(sensors, delay_s=(1e-3 * self.delay_ms, 1e-3 * self.delay_ms))
        return replace(preset, physics=physics, sensors=sensors)


class Control(NamedTuple):
    """What a viewer may set of a mode while it runs: a choice or a number."""

    key: str
    label: str
    value: str | float | None  # None: a number left to itself
    choices: tuple[str, ...] = ()
    range: tuple[float, float] = (0.0, 1.0)


@dataclass
class Cast:
    """What there is to play with. Raises InputError for nothing."""

    robot: Robot
    # for imitation, wandering and interpolation
    skill: SkillModule | None = None
    # by their tasks' names
    policies: Mapping[str, PolicyActor] = field(default_factory=dict)
    # of tasks, by name; else their own
    settings: Mapping[str, Any] = field(default_factory=dict)
    # randomizations by name
    presets: Mapping[str, RobotBatchConfig] = field(
        default_factory=lambda: {"none": RobotBatchConfig()}
    )
    # called once, when motions are first needed
    make_motions: Callable[[], MotionSet] | None = None
    # gets the robot up after a fall while it is steered; None: it is put back
    recovery: Recovery | None = None
    num_threads: int = 1

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        if not self.modes:
            raise InputError("nothing to play with: neither a policy nor a skill module")

    @property
    def modes(self) -> tuple[str, ...]:
        """Names of the modes that are possible."""
        others = (task for task in self.policies if task not in ("walk", "dribble"))
        return *(name for name, mode in MODES.items() if mode.possible(self)), *others

    @property
    def motions(self) -> MotionSet:
        """The motions, made at the first call. Raises InputError where there are none."""
        with self._lock:
            return self._motions

    @cached_property
    def _motions(self) -> MotionSet:
        if self.make_motions is None:
            raise InputError("there are no motions")
        return self.make_motions()

    @property
    def latents(self) -> list[int]:
        """The latent dimensions by how much they carry while the module imitates."""
        if self.make_motions is None:  # then those that imitation drove furthest
            order = torch.argsort(self._skill.latent_range, descending=True, stable=True)
            return [int(i) for i in order]
        motions = self.motions
        with self._lock:
            if not hasattr(self, "_latents"):
                short: Any = {"num_robots": 8, "steps": 60, "threads": self.num_threads}
                use = analysis.latent_use(self._skill, motions, robot=self.robot, **short)
                self._latents = use.order
            return self._latents

    @property
    def _skill(self) -> SkillModule:
        assert self.skill is not None  # of a mode that is possible
        return self.skill

    def mode(self, name: str, world: World, seed: int = 0) -> Mode:
        """A mode by its name, its robot placed. Raises InputError for one that is not possible."""
        if name not in self.modes:
            raise unknown("mode", name, self.modes)
        return MODES[name](self, world, seed) if name in MODES else Perform(self, world, seed, name)


class Mode(ABC):
    """One robot in one task: `env` holds it, `actor` drives it."""

    name: str
    # whether its ground may be rough
    rough: ClassVar[bool] = False
    # whether it takes commands
    steers: ClassVar[bool] = False
    # (nq,) a pose to be shown beside
    ghost: Floats | None = None
    # gets the robot up after a fall; None: it is put back
    rescuer: Actor | None = None
    actor: Actor
    task: Any

    @staticmethod
    @abstractmethod
    def possible(cast: Cast) -> bool:
        """Whether the cast has what it needs."""

    def __init__(self, cast: Cast, world: World, seed: int, task: Task, wired: SkillModule):
        """wired: the module whose hold of setpoints and accelerometer the robot has."""
        self.cast, self.task, self._seed, self._wired = cast, task, seed, wired
        self.env = self._made(world)

    def _made(self, world: World) -> TaskEnv[Any]:
        if world.randomization not in self.cast.presets:
            raise unknown("randomization", world.randomization, self.cast.presets)
        config = world.robots(self.cast.presets[world.randomization]).like(self._wired)
        given: dict[str, Any] = {"robots": config, "num_threads": self.cast.num_threads}
        return TaskEnv(self.task, 1, seed=self._seed, **given)

    @property
    def everyone(self) -> Tensor:
        """The index of the robot, (1,)."""
        return torch.zeros(1, dtype=torch.long)

    def change(self, world: World) -> None:
        """Continue in another world on the same ground, from the present state."""
        old, kept = self.env, {k: value.clone() for k, value in self.task.state_dict().items()}
        whole = old.sim.qpos.clone(), old.sim.qvel.clone()
        now = Start(old.robots.qpos.clone(), old.robots.qvel.clone(), old.state, whole)
        self.env = self._made(world)
        self.env.robots.place(self.everyone, now, self.env.generator)
        self.task.load_state_dict(kept)

    def ask(self, axes: tuple[float, float, float]) -> None:
        """Set the command. axes: forward, left, turn to the left, each in [-1, 1]."""

    def command(self) -> list[float] | None:
        """The commanded velocity: forward, left [m/s], turn [rad/s]."""
        return None

    def lost(self, step: EnvStep) -> bool:
        """Whether the robot, though on its feet, cannot continue."""
        return False

    def over(self, step: EnvStep) -> bool:
        """Whether it starts again, as after the end of a clip."""
        return False

    def put_back(self) -> None:
        """Upright and at rest where it is, or where the mode starts."""
        env = self.env
        place, yaw = env.state.root_pos[:, :2].clone(), geometry.yaw_of(env.state.root_rot)
        env.reset()
        if not env.ground.rough:
            turn = geometry.yaw_matrix(yaw - geometry.yaw_of(env.state.root_rot))
            env.robots.carry(self.everyone, place, turn)

    def again(self) -> None:
        """What follows `over`."""
        self.put_back()

    def controls(self) -> list[Control]:
        """What can be set."""
        return []

    def set(self, key: str, value: Any) -> bool:
        """Set a control. Returns whether the robot starts again.

        Raises InputError for one that there is not, or a value out of range.
        """
        raise unknown("control", key, (control.key for control in self.controls()))

    def point(self, x: float, y: float) -> None:
        """A place on the floor is pointed at [m]."""

    def place_ball(self, x: float, y: float) -> None:
        """The ball, where there is one, lies there then [m]."""

    @property
    def ball(self) -> tuple[Floats, float] | None:
        """Position and quaternion (7,) of the ball, and its radius [m]."""
        return None

    @property
    def target(self) -> tuple[float, float] | None:
        """Where the ball is to go [m]."""
        return None

    @property
    def ground(self) -> tuple[Floats, tuple[float, float]] | None:
        """Heights (P + 1, P + 1) of one period of rough ground, row by y [m], and where it begins
        [m]."""
        return _period(self.task) if self.rough else None


class Steer(Mode):
    """A walking policy by the viewer's command."""

    name, rough, steers = "steer", True, True
    actor: PolicyActor

    @staticmethod
    def possible(cast: Cast) -> bool:
        """With a policy that walks."""
        return "walk" in cast.policies

    def __init__(self, cast: Cast, world: World, seed: int):
        self.actor = cast.policies["walk"]
        (a, b), (c, d), (e, f) = self.actor.policy.contract.command_range
        self.range = torch.tensor([[a, c, e], [b, d, f]])
        asked = _on_ground(cast, world, command_range=((a, b), (c, d), (e, f)))
        asked = Walk.resolve(asked, None, self.actor.policy.contract.told)
        walk = Walk(cast.robot, asked)
        if cast.recovery is not None:
            walk = WalkOn(cast.robot, asked, cast.recovery.task, dropped=False)
            self.rescuer = GetUpActor(cast.recovery.actor)
        super().__init__(cast, world, seed, walk, self.actor.skill)

    def ask(self, axes: tuple[float, float, float]) -> None:
        """The end of the command's range in the direction of each axis, times the axis."""
        low, high = self.range
        share = torch.tensor(axes)
        command = (torch.where(share > 0.0, high, -low) * share).clamp(low, high)
        self.env.task.commands.follow(command.view(1, 1, 3))

    def command(self) -> list[float]:
        """As `Mode.command`."""
        found: list[float] = self.env.task.goal()[0].tolist()
        return found


class Wander(Mode):
    """A module on latents of its prior, some of which the viewer holds."""

    name, rough = "wander", True
    actor: HeldPrior

    @staticmethod
    def possible(cast: Cast) -> bool:
        """With a skill module."""
        return cast.skill is not None

    def __init__(self, cast: Cast, world: World, seed: int):
        self.shown = cast.latents[:LATENTS_SHOWN]
        self.actor = HeldPrior(cast._skill, torch.Generator().manual_seed(seed))
        super().__init__(cast, world, seed, Walk(cast.robot, _on_ground(cast, world)), cast._skill)

    def controls(self) -> list[Control]:
        """The latents that carry most."""
        reach = (-LATENT_REACH, LATENT_REACH)
        values = [self.actor.held[i].item() for i in self.shown]
        return [
            Control(f"z{i}", f"Latent {i}", None if np.isnan(value) else value, range=reach)
            for i, value in zip(self.shown, values, strict=True)
        ]

    def set(self, key: str, value: Any) -> bool:
        """Hold a latent, or let it go by None."""
        for i in self.shown:
            if key == f"z{i}":
                held = value if value is None else _within(key, value, -LATENT_REACH, LATENT_REACH)
                self.actor.held[i] = float("nan") if held is None else held
                return False
        return super().set(key, value)


class HeldPrior(PriorActor):
    """The prior, but for the latents that are `held` (d,), NaN where they are free."""

    def __init__(self, skill: SkillModule, generator: torch.Generator):
        super().__init__(skill, generator)
        self.held = torch.full((skill.latent_dim,), float("nan"))

    def latent(self, memory: SkillMemory, first: Tensor) -> Tensor:
        """As `PriorActor.latent`."""
        return torch.where(self.held.isnan(), super().latent(memory, first), self.held)


class Dribbling(Mode):
    """A dribbling policy, whose target is where the viewer points."""

    name = "dribble"

    @staticmethod
    def possible(cast: Cast) -> bool:
        """With a policy that dribbles."""
        return "dribble" in cast.policies

    def __init__(self, cast: Cast, world: World, seed: int):
        self.actor = cast.policies["dribble"]
        config = cast.settings.get("dribble", DribbleConfig())
        names = ("radius_m", "mass_kg", "drag")
        middle: Any = {name: (0.5 * sum(getattr(config, name)),) * 2 for name in names}
        # the target stays where it is pointed at
        config = replace(config, jump_m=0.0, at_feet=1.0, **middle)
        super().__init__(cast, world, seed, Dribble(cast.robot, config), self.actor.skill)

    def lost(self, step: EnvStep) -> bool:
        """The ball is too far away."""
        return bool(step.seen["lost"])

    def point(self, x: float, y: float) -> None:
        """The target, as near to the ball as it may be."""
        away = torch.tensor([[x, y]]) - self.task.ball[:, :2]
        farthest = 0.8 * self.task.config.far_m
        share = farthest / away.norm().clamp(min=farthest)
        self.task.target = self.task.ball[:, :2] + away * share

    def place_ball(self, x: float, y: float) -> None:
        """At rest."""
        sim, model = self.env.sim, self.env.sim.model
        q, v = int(model.joint(BALL).qposadr[0]), int(model.joint(BALL).dofadr[0])
        qpos, qvel = sim.qpos.clone(), sim.qvel.clone()
        qpos[0, q : q + 3] = torch.tensor([x, y, self.task.ball_radius[0].item()], dtype=qpos.dtype)
        qvel[0, v : v + 6] = 0.0
        sim.move(self.everyone, qpos, qvel)

    @property
    def ball(self) -> tuple[Floats, float]:
        """As `Mode.ball`."""
        sim, radius = self.env.sim, self.task.ball_radius[0].item()
        q = int(sim.model.joint(BALL).qposadr[0])
        return sim.qpos[0, q : q + 7].double().numpy().copy(), radius

    @property
    def target(self) -> tuple[float, float]:
        """As `Mode.target`."""
        x, y = self.task.target[0].tolist()
        return x, y


class Imitate(Mode):
    """A module that tracks a clip, over and over; the ghost beside is the clip itself."""

    name = "imitate"

    @staticmethod
    def possible(cast: Cast) -> bool:
        """With a skill module that has an encoder, and motions."""
        skill, motions = cast.skill, cast.make_motions
        return skill is not None and skill.contract.decoder != "joints" and motions is not None

    def __init__(self, cast: Cast, world: World, seed: int):
        skill = cast._skill
        skill.check_encoder(cast.robot)
        self.clips = cast.motions.names
        self.clip, self.actor = 0, TrackingActor(skill)
        super().__init__(cast, world, seed, Imitation(cast.robot, motions=cast.motions), skill)
        self.again()

    def again(self) -> None:
        """From the clip's first frame."""
        self._begin(int(self.task.reference.start[self.clip]))

    def put_back(self) -> None:
        """Onto the clip, where it is now."""
        self._begin(min(int(self.task.frame[0]), int(self.task.last_frame[0]) - 1))

    def _begin(self, frame: int) -> None:
        self.env.reset(clip=torch.tensor([self.clip]), frame=torch.tensor([frame]))

    def lost(self, step: EnvStep) -> bool:
        """Too far from the clip."""
        return bool(step.terminated)

    def over(self, step: EnvStep) -> bool:
        """At the clip's end."""
        return bool(step.ended)

    @property
    def ghost(self) -> Floats:  # type: ignore[override]
        """The clip's pose now, a metre to its left at first."""
        motion = self.cast.motions.motions[self.clip]
        pose = np.array(motion.qpos[int(self.task.frame[0] - self.task.reference.start[self.clip])])
        w, x, y, z = motion.qpos[0, 3:7]
        yaw = np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
        pose[:2] += BESIDE_M * np.array([-np.sin(yaw), np.cos(yaw)])
        return pose

    def controls(self) -> list[Control]:
        """Which clip."""
        return [Control("clip", "Clip", self.clips[self.clip], tuple(self.clips))]

    def set(self, key: str, value: Any) -> bool:
        """Track another clip, from its beginning."""
        if key != "clip":
            return super().set(key, value)
        self.clip = _index("clip", value, self.clips)
        self.again()
        return True


class Interpolate(Mode):
    """Between two clips: their latents mixed, through the decoder, over and over
    (`npmp.analysis.interpolation`)."""

    name = "interpolate"
    actor: Looped
    possible = staticmethod(Imitate.possible)

    def __init__(self, cast: Cast, world: World, seed: int):
        skill = cast._skill
        skill.check_encoder(cast.robot)
        self.cast, self.clips = cast, cast.motions.names
        self.pair, self.weight = [0, min(1, len(self.clips) - 1)], 0.5
        self._tracked: dict[int, Tensor] = {}
        self.actor = Looped(skill, self._mixed())
        super().__init__(cast, world, seed, Imitation(cast.robot, motions=cast.motions), skill)
        self.put_back()

    def _latents(self, clip: int) -> Tensor:
        if clip not in self._tracked:
            name, cast = self.clips[clip], self.cast
            only, pair = cast.motions.select([name]), (name, name)
            found = tracked_latents(cast._skill, cast.robot, only, pair, cast.num_threads)
            self._tracked[clip] = found[0]
        return self._tracked[clip]

    def _mixed(self) -> Tensor:
        """The latents of one turn, whole strides where there are some, (T, 1, d)."""
        clips = self.cast.motions.motions
        phases = aligned(clips[self.pair[0]], clips[self.pair[1]], self.cast.robot, "auto")
        first, second = (self._latents(i) for i in self.pair)
        a, b = frame_pairs(phases[0][: len(first) + 1], phases[1][: len(second) + 1], self.weight)
        if len(a) == 0:
            raise InputError(
                "no frames of equal phase in what the module tracks of these clips: take others"
            )
        if phases[2] != "frames":
            phase = np.interp(a, np.arange(len(phases[0])), phases[0]) - phases[0][0]
            whole = np.flatnonzero(phase - phase[0] < np.floor(phase[-1] - phase[0]) - 1e-6)
            a, b = (times[: whole[-1] + 1] if len(whole) else times for times in (a, b))
        return mixed(at_times(first, a), at_times(second, b), self.weight, "variance").unsqueeze(1)

    def put_back(self) -> None:
        """On the nearer clip's first frame."""
        clip = torch.tensor([self.pair[self.weight > 0.5]])
        self.env.reset(clip=clip, frame=self.task.reference.start[clip])
        self.task.free[:] = True  # it tracks nothing

    def controls(self) -> list[Control]:
        """Both clips, and where between them."""
        names = tuple(self.clips)
        first, second = (self.clips[i] for i in self.pair)
        return [
            Control("from", "From", first, names),
            Control("to", "To", second, names),
            Control("weight", "Weight", self.weight),
        ]

    def set(self, key: str, value: Any) -> bool:
        """Another weight continues where it is; another clip starts again."""
        before = list(self.pair), self.weight
        if key == "weight":
            self.weight = _within(key, value, 0.0, 1.0)
        elif key in ("from", "to"):
            self.pair[key == "to"] = _index("clip", value, self.clips)
        else:
            return super().set(key, value)
        try:
            self.actor.change(self._mixed())
        except InputError:
            self.pair, self.weight = before
            raise
        if key != "weight":
            self.put_back()
        return key != "weight"


class Looped(LatentActor):
    """Given latents, over and over."""

    def change(self, latents: Tensor) -> None:
        """Others from now on, as far into them as before."""
        self._t = int(self._t / len(self.latents) * len(latents))
        self.latents = latents

    def act(self, env: TaskEnv[Any], memory: SkillMemory, first: Tensor) -> Any:
        """As `Actor.act`."""
        self._t %= len(self.latents)
        return super().act(env, memory, first)


class Perform(Mode):
    """A policy at its task, which the viewer only watches."""

    @staticmethod
    def possible(cast: Cast) -> bool:
        """With a policy of another task."""
        return False

    def __init__(self, cast: Cast, world: World, seed: int, task: str):
        from npmp import tasks

        self.name, self.actor = task, cast.policies[task]
        kind: Any = tasks.find(task)
        asked = kind.resolve(
            cast.settings.get(task, kind.config_type()), None, self.actor.policy.contract.told
        )
        super().__init__(cast, world, seed, kind(cast.robot, asked, None), self.actor.skill)

    def over(self, step: EnvStep) -> bool:
        """At the episode's end."""
        return bool(step.terminated | step.truncated)

    def put_back(self) -> None:
        """Where episodes begin."""
        self.env.reset()


MODES: dict[str, Any] = {m.name: m for m in (Steer, Dribbling, Imitate, Wander, Interpolate)}


def _on_ground(cast: Cast, world: World, **settings: Any) -> WalkConfig:
    config = cast.settings.get("walk", WalkConfig())
    settings |= {"terrain": world.terrain, "terrain_level": world.level, "terrain_fields": 1}
    return replace(config, terrain_curriculum=False, terrain_starts="gentle", **settings)


def _period(task: Walk) -> tuple[Floats, tuple[float, float]] | None:
    ground = task.env.ground
    if not ground.rough:
        return None
    terrain = ground.terrain
    x, y = terrain.corner[0].tolist()
    points = round(PERIOD_M / terrain.cell)
    margin = (terrain.heights.shape[0] - points) // 2
    cut = slice(margin, margin + points + 1)
    return terrain.heights[cut, cut].double().numpy(), (x, y)


def _within(key: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InputError(f"{key} must be a number from {low:g} to {high:g}, got {value!r:.40}")
    return float(value)


def _index(kind: str, value: Any, names: Any) -> int:
    if value not in names:
        raise unknown(kind, f"{value!s:.80}", names)
    return list(names).index(value)
