"""Modes of a robot on the page: steered, finding its way, dribbling, imitating, wandering.

A mode owns the environment of one robot and the policy in it; both are those of training and
evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from mocap_data import rotations
from mocap_data.errors import InputError, unknown
from mocap_data.store import MotionSet
from npmp import tasks
from npmp.core import geometry, ranges
from npmp.core.settings import changed, plain_fields
from npmp.envs.camera import camera_of
from npmp.envs.policy import Policy
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.task import EnvStep, Task
from npmp.envs.task_env import TaskEnv
from npmp.evaluation.handover import Recovery, get_up
from npmp.robots import Robot
from npmp.sim.terrain import TERRAINS
from npmp.skills.composition import Composition, tracking, wandering
from npmp.skills.skill_module import SkillModule
from npmp.tasks.dribble import FAR_M, Dribble, DribbleConfig
from npmp.tasks.imitation import Imitation, ImitationConfig
from npmp.tasks.navigate import Mapped, NavigateConfig
from npmp.tasks.walk import Walk, WalkConfig
from npmp.tasks.walk_on import WalkOn

Floats = NDArray[np.float64]

# there is one field only
GROUNDS = tuple(kind for kind in TERRAINS if kind != "mixed")
# from a robot to its ghost
BESIDE_M = 1.0

# keys and gestures, and what they do: of every mode, of those that take commands, and of those
# that take a place on the floor
KEYS = (("P", "pause"), ("N", "one step"), ("drag robot", "push it"), ("drag", "look around"))
DRIVING = (
    ("W S, ↑ ↓", "forwards, backwards"),
    ("A D, ← →", "turn"),
    ("Q E", "sideways"),
    ("Shift", "half as fast"),
    ("gamepad", "left stick drives, right stick turns"),
)
AIMING = (("click floor", "choose the goal"), ("drag red disc", "move the goal"))


@dataclass(frozen=True)
class World:
    """What can be changed while the robot runs. Raises ValueError for values out of range."""

    # one of `GROUNDS`, where a mode's ground may be rough
    terrain: str = "flat"
    # of it, from flat at 0
    level: float = 0.5
    # the name of a preset
    randomization: str = "none"

    def __post_init__(self) -> None:
        if not isinstance(self.randomization, str):
            raise ValueError(f"randomization must be a name, got {self.randomization!r:.40}")
        if self.terrain not in GROUNDS:
            available = ", ".join(GROUNDS)
            raise ValueError(f"terrain must be one of {available}; got {self.terrain!r:.40}")
        ranges.share(self, "level")


@dataclass
class Cast:
    """What there is to play with. Raises InputError for nothing."""

    robot: Robot
    # for imitation and wandering
    skill: SkillModule | None = None
    # by their tasks' names
    policies: Mapping[str, Composition] = field(default_factory=dict)
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
        if not self.modes:
            raise InputError("nothing to play with: neither a policy nor a skill module")

    @property
    def modes(self) -> tuple[str, ...]:
        """Names of the modes that are possible."""
        skill = self.skill
        imitates = skill is not None and skill.contract.decoder == "lstm"
        possible = {
            "steer": Walk.name in self.policies,
            "navigate": Walk.name in self.policies and len(self.robot.foot_bodies) == 4,
            "dribble": Dribble.name in self.policies,
            "imitate": imitates and self.make_motions is not None,
            "wander": skill is not None,
        }
        covered = (Walk.name, Dribble.name, Mapped.name)
        others = (task for task in self.policies if task not in covered)
        return *(name for name, able in possible.items() if able), *others

    @cached_property
    def motions(self) -> MotionSet:
        """The motions, made at the first call. Raises InputError where there are none."""
        if self.make_motions is None:
            raise InputError("there are no motions")
        return self.make_motions()

    def mode(self, name: str, world: World, seed: int = 0) -> Mode:
        """A mode by its name, its robot placed. Raises InputError for one that is not possible."""
        if name not in self.modes:
            raise unknown("mode", name, self.modes)
        return MODES[name](self, world, seed) if name in MODES else Perform(self, world, seed, name)


class Mode:
    """One robot in one task: `env` holds it, `policy` drives it."""

    name: str
    # whether its ground may be rough
    rough: ClassVar[bool] = False
    # whether it takes commands
    steers: ClassVar[bool] = False
    # the task's attribute (n, 2) that says where ball or robot is to go [m]; "": none
    aim: ClassVar[str] = ""
    # its keys and gestures beside `KEYS`
    keys: ClassVar[tuple[tuple[str, str], ...]] = (("R", "upright again"),)
    # names of the clips to choose from, and the index of the present one
    clips: Sequence[str] = ()
    clip: int = 0
    # (nq,) a pose beside the robot's
    ghost: Floats | None = None
    # gets the robot up after a fall; None: it is put back
    rescuer: Policy | None = None
    policy: Any
    task: Any

    def __init__(self, cast: Cast, world: World, seed: int, task: Task, wired: SkillModule):
        """wired: the module whose hold of setpoints and accelerometer the robot has."""
        self.cast = cast
        self.task = task
        if world.randomization not in cast.presets:
            raise unknown("randomization", world.randomization, cast.presets)
        robots = cast.presets[world.randomization].like(wired)
        self.env = TaskEnv[Any](task, 1, robots=robots, seed=seed, num_threads=cast.num_threads)
        # along x, as the page looks on
        self.env.reset(yaw=torch.zeros(1))

    def steer(self, axes: tuple[float, float, float]) -> None:
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
        place = env.state.root_pos[:, :2].clone()
        yaw = geometry.yaw_of(env.state.root_rot)
        env.reset(yaw=yaw)
        if not env.ground.rough:
            turn = geometry.yaw_matrix(yaw - geometry.yaw_of(env.state.root_rot))
            env.robots.carry(torch.zeros(1, dtype=torch.long), place, turn)

    def again(self) -> None:
        """What follows `over`."""
        self.put_back()

    def choose(self, clip: str) -> None:
        """Switch to another clip, from its beginning. Raises InputError for one that is not
        there."""
        raise unknown("clip", f"{clip!s:.80}", self.clips)

    def point(self, x: float, y: float) -> None:
        """Aim at a place on the floor [m]."""

    @property
    def ball(self) -> tuple[Floats, float] | None:
        """Position and quaternion (7,) of the ball, and its radius [m]."""
        return None

    @property
    def target(self) -> tuple[float, float] | None:
        """Where the ball, or the robot, is to go [m]."""
        if not self.aim:
            return None
        x, y = getattr(self.task.planner or self.task.commands, self.aim)[0].tolist()
        return x, y

    @property
    def eye(self) -> NDArray[np.uint8] | None:
        """What the robot's camera shows, (rows, columns), the nearer the brighter."""
        return None

    @property
    def caption(self) -> str:
        """What `eye` is, in words."""
        return ""

    @property
    def house(self) -> bool:
        """Whether its ground is floor and walls."""
        return self.env.task.parts.ground.terrain == "rooms"

    @property
    def ground(self) -> tuple[Floats, tuple[float, float]] | None:
        """Heights (P + 1, P + 1) of one period of rough ground, row by y [m], and where it begins
        [m]."""
        ground: Any = self.env.ground
        if not ground.rough:
            return None
        x, y = ground.terrain.corner[0].tolist()
        return ground.terrain.period(0).double().numpy(), (x, y)


class Steer(Mode):
    """A walking policy by the viewer's command."""

    name = "steer"
    rough = True
    steers = True
    keys = (*DRIVING, ("R", "upright again"))
    policy: Composition

    def __init__(self, cast: Cast, world: World, seed: int):
        self.policy = cast.policies[Walk.name]
        (a, b), (c, d), (e, f) = self.policy.upper.contract.command_range
        self.range = torch.tensor([[a, c, e], [b, d, f]])
        config = _on_ground(cast, world, command_range=((a, b), (c, d), (e, f)))
        config = Walk.resolve(config, None, self.policy.upper.contract.input_settings)
        walk = Walk(cast.robot, config)
        if cast.recovery is not None:
            walk = WalkOn(cast.robot, config, cast.recovery.task, dropped=False)
            self.rescuer = get_up(cast.recovery.policy)
        super().__init__(cast, world, seed, walk, self.policy.lower)

    def steer(self, axes: tuple[float, float, float]) -> None:
        """The end of the command's range in the direction of each axis, times the axis."""
        low, high = self.range
        share = torch.tensor(axes)
        command = (torch.where(share > 0.0, high, -low) * share).clamp(low, high)
        self.env.task.commands.fix(command.view(1, 1, 3))

    def command(self) -> list[float]:
        return self.env.task.commands.current[0].tolist()


class Navigating(Mode):
    """A walking policy in a house, by a planner that maps what a camera shows; it goes where the
    viewer points."""

    name = "navigate"
    aim = "place"
    keys = (*AIMING, ("R", "to another place, with another goal"))
    command = Steer.command  # type: ignore[assignment]  # the planner's

    def __init__(self, cast: Cast, world: World, seed: int):
        self.policy = cast.policies[Walk.name]
        config = cast.settings.get(Mapped.name, changed(NavigateConfig(), terrain_seed=seed))
        settings = self.policy.upper.contract.input_settings
        resolved = Mapped.resolve(changed(config, terrain_fields=1), None, settings)
        if camera_of(resolved.walk.camera).renderer == "mujoco":
            raise InputError("renderer=mujoco draws in one thread: npmp play has several")
        super().__init__(cast, world, seed, Mapped(cast.robot, resolved), self.policy.lower)

    def point(self, x: float, y: float) -> None:
        """The goal, as near as the house allows."""
        self.task.planner.aim(torch.tensor([[x, y]]))

    def put_back(self) -> None:
        """Elsewhere in the house, with another goal."""
        self.env.reset()

    @property
    def eye(self) -> NDArray[np.uint8]:
        """As `Mode.eye`, from the latest image."""
        camera = self.task.planner.camera
        columns, rows = camera.config.size
        near, far = camera.config.range_m
        nearer = 255.0 * (far - camera.past[0, 0]) / (far - near)
        return nearer.view(rows, columns).byte().numpy()

    @property
    def caption(self) -> str:
        config = self.task.planner.camera.config
        near, far = config.range_m
        wide, high = config.fov_deg
        what = "Depth that a network estimates" if config.network else "Depth camera"
        view = f"{wide:g}° × {high:g}°, {config.rate_hz:g} images/s"
        return f"{what}, {view}. White: {near:g} m; black: {far:g} m, beyond, or no reading."


class Wander(Mode):
    """A module on latents of its prior."""

    name = "wander"
    rough = True

    def __init__(self, cast: Cast, world: World, seed: int):
        skill = cast.skill
        # of a mode that is possible
        assert skill is not None
        self.policy = wandering(skill, torch.Generator().manual_seed(seed))
        super().__init__(cast, world, seed, Walk(cast.robot, _on_ground(cast, world)), skill)


class Dribbling(Mode):
    """A dribbling policy, whose target is where the viewer points."""

    name = "dribble"
    aim = "target"
    keys = (*AIMING, ("R", "upright again, the ball at its feet"))

    def __init__(self, cast: Cast, world: World, seed: int):
        self.policy = cast.policies[Dribble.name]
        config = cast.settings.get(Dribble.name, DribbleConfig())
        names = ("radius_m", "mass_kg", "drag")
        middle: Any = {name: (0.5 * sum(getattr(config, name)),) * 2 for name in names}
        # the target stays where it is pointed at
        config = replace(config, jump_m=0.0, at_feet=1.0, **middle)
        super().__init__(cast, world, seed, Dribble(cast.robot, config), self.policy.lower)

    def put_back(self) -> None:
        """With the ball at its feet."""
        self.env.reset(yaw=geometry.yaw_of(self.env.state.root_rot))

    def lost(self, step: EnvStep) -> bool:
        """The ball is too far away."""
        return bool(step.metrics["lost"])

    def point(self, x: float, y: float) -> None:
        """The target, as near to the ball as it may be."""
        balls = self.task.commands
        away = torch.tensor([[x, y]]) - balls.ball[:, :2]
        farthest = 0.8 * FAR_M
        share = farthest / away.norm().clamp(min=farthest)
        balls.target = balls.ball[:, :2] + away * share

    @property
    def ball(self) -> tuple[Floats, float]:
        balls = self.task.commands
        return balls.body.pose[0].numpy().copy(), balls.radius[0].item()


class Imitate(Mode):
    """A module that tracks a clip, over and over; the ghost beside is the clip itself."""

    name = "imitate"
    keys = (("R", "onto the clip again"),)

    def __init__(self, cast: Cast, world: World, seed: int):
        skill = cast.skill
        # of a mode that is possible
        assert skill is not None
        skill.check_encoder(cast.robot)
        self.clips = cast.motions.names
        self.policy = tracking(skill)
        config = ImitationConfig(future_frames=skill.contract.context_horizon)
        task = Imitation(cast.robot, config, cast.motions)
        super().__init__(cast, world, seed, task, skill)
        self.again()

    def again(self) -> None:
        """From the clip's first frame."""
        self._begin(int(self.task.tracking.reference.start[self.clip]))

    def put_back(self) -> None:
        """Onto the clip, where it is now."""
        self._begin(
            min(int(self.task.tracking.frame[0]), int(self.task.tracking.last_frame[0]) - 1)
        )

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
        pose = np.array(
            motion.qpos[
                int(self.task.tracking.frame[0] - self.task.tracking.reference.start[self.clip])
            ]
        )
        yaw = rotations.yaw(motion.qpos[0, 3:7])
        pose[:2] += BESIDE_M * np.array([-np.sin(yaw), np.cos(yaw)])
        return pose

    def choose(self, clip: str) -> None:
        if clip not in self.clips:
            super().choose(clip)
        self.clip = self.clips.index(clip)
        self.again()


class Perform(Mode):
    """A policy at its task, which the viewer only watches."""

    keys = (("R", "to where episodes begin"),)

    def __init__(self, cast: Cast, world: World, seed: int, task: str):
        self.name = task
        self.policy = cast.policies[task]
        kind: Any = tasks.find(task, source="the policy")
        config = cast.settings.get(task, kind.config_type())
        if "terrain_fields" in plain_fields(kind.config_type):
            config = changed(config, terrain_fields=1)  # the one that is drawn
        resolved = kind.resolve(config, None, self.policy.upper.contract.input_settings)
        super().__init__(cast, world, seed, kind(cast.robot, resolved, None), self.policy.lower)

    def over(self, step: EnvStep) -> bool:
        """At the episode's end."""
        return bool(step.terminated | step.truncated)

    def put_back(self) -> None:
        """Where episodes begin."""
        self.env.reset()


MODES: dict[str, Any] = {m.name: m for m in (Steer, Navigating, Dribbling, Imitate, Wander)}


def _on_ground(cast: Cast, world: World, **settings: Any) -> WalkConfig:
    config = cast.settings.get(Walk.name, WalkConfig())
    settings |= {"terrain": world.terrain, "terrain_level": world.level, "terrain_fields": 1}
    return changed(config, terrain_curriculum=False, terrain_starts="gentle", **settings)
