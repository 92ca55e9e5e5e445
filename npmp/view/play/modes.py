"""Modes of `npmp play`: steer, navigate, dribble, imitate, wander.

A mode has the environment of one robot and its policy, both as in training and evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mocap_data import rotations
from mocap_data.errors import InputError, unknown
from mocap_data.store import MotionSet
from npmp import tasks
from npmp.core import geometry, ranges
from npmp.core.settings import changed, plain_fields
from npmp.envs.camera import DepthCamera, camera_of
from npmp.envs.policy import Policy
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.task import EnvStep, Task
from npmp.envs.task_env import TaskEnv
from npmp.evaluation.handover import Recovery, get_up
from npmp.robots import Robot
from npmp.sim.terrain import TERRAINS
from npmp.skills.composition import Composition, tracking, wandering
from npmp.skills.footsteps import FootstepPolicy
from npmp.skills.skill_module import SkillModule
from npmp.tasks.dribble import FAR_M, Dribble
from npmp.tasks.imitation import Imitation, ImitationConfig
from npmp.tasks.inputs import GroundMap
from npmp.tasks.navigate import Mapped, NavigateConfig
from npmp.tasks.walk import Walk, WalkConfig
from npmp.tasks.walk_on import WalkOn

Floats = NDArray[np.float64]

# a scene has one field only, so "mixed" is not among them
GROUNDS = tuple(kind for kind in TERRAINS if kind != "mixed")
# distance from a robot to its ghost [m]
BESIDE_M = 1.0

# (key or gesture, action): of every mode, of modes with commands, of modes with a target
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
    """Settings that can be changed during play. Raises ValueError for values out of range."""

    # one of `GROUNDS`, in modes with rough ground
    terrain: str = "flat"
    # level of the terrain; 0: flat
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


class Markers(NamedTuple):
    """What a policy knows of the ground, for display; world frame."""

    ground: Floats  # (k, 3) points of its map [m]
    footholds: Floats  # (F, 3) where a planner puts the feet [m], or (0, 3)


@dataclass
class Cast:
    """Robot, policies and settings of a play session. Raises InputError without any policy."""

    robot: Robot
    # skill module for imitation and wandering
    skill: SkillModule | None = None
    # policies by their tasks' names
    policies: Mapping[str, Composition] = field(default_factory=dict)
    # settings of tasks by name; others have their defaults
    settings: Mapping[str, Any] = field(default_factory=dict)
    # randomizations by name
    presets: Mapping[str, RobotBatchConfig] = field(
        default_factory=lambda: {"none": RobotBatchConfig()}
    )
    # called once, when motions are first needed
    make_motions: Callable[[], MotionSet] | None = None
    # recovery policy after falls in mode steer; None: the robot is reset
    recovery: Recovery | None = None
    num_threads: int = 1

    def __post_init__(self) -> None:
        if not self.modes:
            raise InputError("nothing to play with: neither a policy nor a skill module")

    @property
    def modes(self) -> tuple[str, ...]:
        """Names of the available modes."""
        skill = self.skill
        imitates = skill is not None and skill.contract.decoder == "lstm"
        available = {
            "steer": Walk.name in self.policies,
            "navigate": Walk.name in self.policies and len(self.robot.foot_bodies) == 4,
            "dribble": Dribble.name in self.policies,
            "imitate": imitates and self.make_motions is not None,
            "wander": skill is not None,
        }
        covered = (Walk.name, Dribble.name, Mapped.name)
        others = (task for task in self.policies if task not in covered)
        return *(name for name, included in available.items() if included), *others

    @cached_property
    def motions(self) -> MotionSet:
        """The motions, loaded at the first access. Raises InputError without any."""
        if self.make_motions is None:
            raise InputError("data: not set; imitation needs motions; set data=FILE.h5")
        return self.make_motions()

    def mode(self, name: str, world: World, seed: int = 0) -> Mode:
        """Make a mode by its name and reset it. Raises InputError for an unavailable one."""
        if name not in self.modes:
            raise unknown("mode", name, self.modes)
        return MODES[name](self, world, seed) if name in MODES else Perform(self, world, seed, name)


class Mode:
    """One robot in one task: its environment `env` and its policy `policy`."""

    name: str
    # whether its ground may be rough
    rough: ClassVar[bool] = False
    # whether it takes commands
    steers: ClassVar[bool] = False
    # the task's attribute (n, 2) with the target of ball or robot [m]; "": none
    aim: ClassVar[str] = ""
    # further keys and gestures, added to `KEYS`
    keys: ClassVar[tuple[tuple[str, str], ...]] = (("R", "upright again"),)
    # names of the available clips
    clips: Sequence[str] = ()
    # index of the current clip
    clip: int = 0
    # (nq,) pose of the ghost; None: none
    ghost: Floats | None = None
    # recovery policy after a fall; None: the robot is reset
    rescuer: Policy | None = None
    policy: Any
    task: Any

    def __init__(self, cast: Cast, world: World, seed: int, task: Task, skill: SkillModule):
        """skill: the module whose hold and accelerometer the robot has."""
        self.cast = cast
        self.task = task
        if world.randomization not in cast.presets:
            raise unknown("randomization", world.randomization, cast.presets)
        robots = cast.presets[world.randomization].like(skill)
        self.env = TaskEnv[Any](task, 1, robots=robots, seed=seed, num_threads=cast.num_threads)
        # heading along x, towards which the page's camera is set
        self.env.reset(yaw=torch.zeros(1))

    def steer(self, axes: tuple[float, float, float]) -> None:
        """Set the command. axes: forward, left, turn to the left, each in [-1, 1]."""

    def command(self) -> list[float] | None:
        """The commanded velocity: forward, left [m/s], turn [rad/s]."""
        return None

    def lost(self, step: EnvStep) -> bool:
        """Whether the robot cannot continue without having fallen."""
        return False

    def over(self, step: EnvStep) -> bool:
        """Whether to start again, e.g. at the end of a clip."""
        return False

    def put_back(self) -> None:
        """Reset the robot, upright and at rest, at its position or the mode's start."""
        env = self.env
        position = env.state.root_pos[:, :2].clone()
        yaw = geometry.yaw_of(env.state.root_rot)
        env.reset(yaw=yaw)
        if not env.ground.rough:
            turn = geometry.yaw_matrix(yaw - geometry.yaw_of(env.state.root_rot))
            env.robots.carry(torch.zeros(1, dtype=torch.long), position, turn)

    def again(self) -> None:
        """Start again after `over`."""
        self.put_back()

    def choose(self, clip: str) -> None:
        """Switch to the first frame of another clip. Raises InputError for an unknown one."""
        raise unknown("clip", f"{clip!s:.80}", self.clips)

    def point(self, x: float, y: float) -> None:
        """Aim at a point on the floor [m]."""

    @property
    def ball(self) -> tuple[Floats, float] | None:
        """Position and quaternion (7,) of the ball, and its radius [m]."""
        return None

    @property
    def target(self) -> tuple[float, float] | None:
        """Target of the ball or the robot [m]."""
        if not self.aim:
            return None
        x, y = getattr(self.task.planner or self.task.commands, self.aim)[0].tolist()
        return x, y

    @property
    def camera(self) -> DepthCamera | None:
        """The robot's depth camera; None: it has none."""
        return self.task.part(DepthCamera)

    @property
    def camera_image(self) -> NDArray[np.uint8] | None:
        """The latest image of the camera, (rows, columns), brighter is nearer; None: none."""
        if self.camera is None:
            return None
        columns, rows = self.camera.config.size
        near, far = self.camera.config.range_m
        nearer = 255.0 * (far - self.camera.past[0, 0]) / (far - near)
        return nearer.view(rows, columns).byte().numpy()

    @property
    def caption(self) -> str:
        """Caption of `camera_image`."""
        if self.camera is None:
            return ""
        config = self.camera.config
        near, far = config.range_m
        horizontal, vertical = config.fov_deg
        source = "Depth estimated by a network" if config.network else "Depth camera"
        view = f"{horizontal:g}° × {vertical:g}°, {config.rate_hz:g} images/s"
        return f"{source}, {view}. White: {near:g} m; black: {far:g} m, beyond, or no reading."

    def markers(self, state: Any) -> Markers | None:
        """What the policy knows of the ground. state: of the policy after its step, before that of
        the environment."""
        return None

    @property
    def has_rooms(self) -> bool:
        """Whether the terrain is rooms."""
        return getattr(self.env.task.parts.ground, "terrain", None) == "rooms"

    @property
    def ground(self) -> tuple[Floats, tuple[float, float]] | None:
        """Heights (P + 1, P + 1) [m] of one period of rough ground, row by y, and its corner [m];
        None on flat ground."""
        ground: Any = self.env.ground
        if not ground.rough:
            return None
        x, y = ground.terrain.corner[0].tolist()
        return ground.terrain.period(0).double().numpy(), (x, y)


class Steer(Mode):
    """A walking policy with the user's command."""

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
        """Command each axis times the end of its range in that direction."""
        low, high = self.range
        share = torch.tensor(axes)
        command = (torch.where(share > 0.0, high, -low) * share).clamp(low, high)
        self.env.task.commands.fix(command.view(1, 1, 3))

    def command(self) -> list[float]:
        return self.env.task.commands.current[0].tolist()

    def markers(self, state: Any) -> Markers | None:
        upper = self.policy.upper
        if isinstance(upper, FootstepPolicy):
            footholds, ground = upper.markers(state.upper)
            return Markers(ground.double().numpy(), footholds.double().numpy())
        if (seen := self.task.part(GroundMap)) is not None:
            return Markers(seen.points()[0].double().numpy(), np.zeros((0, 3)))
        return None


class Navigating(Mode):
    """A walking policy in rooms, commanded by a planner that maps them with a depth camera; the
    user sets the goal."""

    name = "navigate"
    aim = "goal_position"
    keys = (*AIMING, ("R", "to another position, with another goal"))
    command = Steer.command  # type: ignore[assignment]  # the planner's

    def __init__(self, cast: Cast, world: World, seed: int):
        self.policy = cast.policies[Walk.name]
        config = cast.settings.get(Mapped.name, changed(NavigateConfig(), terrain_seed=seed))
        settings = self.policy.upper.contract.input_settings
        resolved = Mapped.resolve(changed(config, terrain_fields=1), None, settings)
        if camera_of(resolved.walk.camera).renderer == "mujoco":
            raise InputError(
                "renderer=mujoco renders in one thread, npmp play uses several; use"
                " renderer=generated"
            )
        super().__init__(cast, world, seed, Mapped(cast.robot, resolved), self.policy.lower)

    def point(self, x: float, y: float) -> None:
        """Set the goal, to the nearest free position."""
        self.task.planner.aim(torch.tensor([[x, y]]))

    def put_back(self) -> None:
        """Reset to another position, with another goal."""
        self.env.reset()

    @property
    def camera(self) -> DepthCamera:
        camera: DepthCamera = self.task.planner.camera
        return camera


class Wander(Mode):
    """A module on latents of its prior."""

    name = "wander"
    rough = True

    def __init__(self, cast: Cast, world: World, seed: int):
        skill = cast.skill
        # for the type checker
        assert skill is not None
        self.policy = wandering(skill, torch.Generator().manual_seed(seed))
        super().__init__(cast, world, seed, Walk(cast.robot, _on_ground(cast, world)), skill)


class Dribbling(Mode):
    """A dribbling policy, to a target that the user sets."""

    name = "dribble"
    aim = "target"
    keys = (*AIMING, ("R", "upright again, the ball at its feet"))

    def __init__(self, cast: Cast, world: World, seed: int):
        self.policy = cast.policies[Dribble.name]
        # its ball is that of the policy's training
        training = self.policy.upper.contract.training
        config = cast.settings.get(Dribble.name) or tasks.trained_config(Dribble, training)
        names = ("radius_m", "mass_kg", "drag")
        middle: Any = {name: (0.5 * sum(getattr(config, name)),) * 2 for name in names}
        # the target does not jump
        config = replace(config, jump_m=0.0, at_feet=1.0, **middle)
        super().__init__(cast, world, seed, Dribble(cast.robot, config), self.policy.lower)

    def put_back(self) -> None:
        """Reset with the ball at the robot's feet."""
        self.env.reset(yaw=geometry.yaw_of(self.env.state.root_rot))

    def lost(self, step: EnvStep) -> bool:
        """Whether the ball is too far away."""
        return bool(step.metrics["lost"])

    def point(self, x: float, y: float) -> None:
        """Set the target, at most 0.8 `FAR_M` from the ball."""
        balls = self.task.commands
        offset = torch.tensor([[x, y]]) - balls.ball[:, :2]
        farthest = 0.8 * FAR_M
        share = farthest / offset.norm().clamp(min=farthest)
        balls.target = balls.ball[:, :2] + offset * share

    @property
    def ball(self) -> tuple[Floats, float]:
        balls = self.task.commands
        return balls.body.pose[0].numpy().copy(), balls.radius[0].item()


class Imitate(Mode):
    """A module that tracks a clip repeatedly; the ghost shows the clip."""

    name = "imitate"
    keys = (("R", "onto the clip again"),)

    def __init__(self, cast: Cast, world: World, seed: int):
        skill = cast.skill
        # for the type checker
        assert skill is not None
        skill.check_encoder(cast.robot)
        # the page shows one field
        flat = tuple(motion for motion in cast.motions.motions if motion.ground is None)
        if not flat:
            raise InputError("all motions of data= are over stairs, which the page does not show")
        self.motions = replace(cast.motions, motions=flat)
        self.clips = self.motions.names
        self.policy = tracking(skill)
        config = ImitationConfig(future_frames=skill.contract.context_horizon)
        task = Imitation(cast.robot, config, self.motions)
        super().__init__(cast, world, seed, task, skill)
        self.again()

    def again(self) -> None:
        """Start at the clip's first frame."""
        self._begin(int(self.task.tracking.reference.start[self.clip]))

    def put_back(self) -> None:
        """Reset to the clip's current frame."""
        self._begin(
            min(int(self.task.tracking.frame[0]), int(self.task.tracking.last_frame[0]) - 1)
        )

    def _begin(self, frame: int) -> None:
        self.env.reset(clip=torch.tensor([self.clip]), frame=torch.tensor([frame]))

    def lost(self, step: EnvStep) -> bool:
        """Whether tracking failed."""
        return bool(step.terminated)

    def over(self, step: EnvStep) -> bool:
        """Whether the clip is over."""
        return bool(step.ended)

    @property
    def ghost(self) -> Floats:  # type: ignore[override]
        """The clip's current pose, `BESIDE_M` to the left of its start."""
        motion = self.motions.motions[self.clip]
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
    """A policy at its task, without user commands."""

    keys = (("R", "to where episodes begin"),)

    def __init__(self, cast: Cast, world: World, seed: int, task: str):
        self.name = task
        self.policy = cast.policies[task]
        kind: Any = tasks.find(task, source="the policy")
        config = cast.settings.get(task, kind.config_type())
        if "terrain_fields" in plain_fields(kind.config_type):
            config = changed(config, terrain_fields=1)  # the page shows one field
        resolved = kind.resolve(config, None, self.policy.upper.contract.input_settings)
        super().__init__(cast, world, seed, kind(cast.robot, resolved, None), self.policy.lower)

    def over(self, step: EnvStep) -> bool:
        """Whether the episode is over."""
        return bool(step.terminated | step.truncated)

    def put_back(self) -> None:
        """Reset to a start of the task."""
        self.env.reset()


MODES: dict[str, Any] = {m.name: m for m in (Steer, Navigating, Dribbling, Imitate, Wander)}


def _on_ground(cast: Cast, world: World, **settings: Any) -> WalkConfig:
    config = cast.settings.get(Walk.name, WalkConfig())
    settings |= {"terrain": world.terrain, "terrain_level": world.level, "terrain_fields": 1}
    return changed(config, terrain_curriculum=False, terrain_starts="gentle", **settings)
