"""Imitation of reference motions (robot-NPMP): each robot tracks a clip from a start frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp.core import geometry, ranges
from npmp.core.host_waits import rows_of
from npmp.envs.features import ReferenceFeatures, encoder_context
from npmp.envs.ground import GroundConfig
from npmp.envs.kinematics import BodyPoses, Kinematics
from npmp.envs.reference import Reference, ReferenceFrames
from npmp.envs.reference_ground import ReferenceGround
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.sampling import StartSampler
from npmp.envs.state import RobotState
from npmp.envs.task import (
    Goals,
    Inputs,
    Measure,
    Part,
    Parts,
    Start,
    StepResult,
    Task,
    TaskLoss,
    Term,
)
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.tasks import rewards as rew


@dataclass(frozen=True)
class ImitationConfig:
    """The imitation task's settings. Raises ValueError for values out of range."""

    # frames at a clip's end where no episode starts
    start_tail: int = 10
    # share of uniformly sampled start frames; the others are sampled by failure rates
    uniform_starts: float = 0.5
    # number of future reference frames that the policy observes [P]
    future_frames: int = 5
    # hold of setpoints, as of `RobotBatchConfig`; users of the module need the same
    hold: str = "first_order"
    # imu: mean over the last control step at the robot's IMU; root: at the root, over two steps
    accelerometer: str = "imu"
    # time after `rejoin` during which a robot fails by falling only [D]
    grace_s: float = 0.5
    reward: rew.RewardConfig = field(default_factory=rew.RewardConfig)
    # weights of the loss of imagined robots
    tracking: rew.TrackingWeights = field(default_factory=rew.TrackingWeights)
    # discount of the loss per imagined step
    discount: float = 0.97

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "future_frames")
        ranges.not_negative(self, "start_tail", "grace_s")
        ranges.share(self, "uniform_starts", "discount")
        RobotBatchConfig().like(self)  # checks hold and accelerometer


class ClipGoal(NamedTuple):
    """The columns of a goal (..., 3): global indices, exact in float32 up to 16 million."""

    clip: Tensor  # (...,) long
    frame: Tensor  # (...,) long, the current reference frame
    last: Tensor  # (...,) long, the clip's last frame; `frame` for robots on the prior

    @staticmethod
    def of(goal: Tensor) -> ClipGoal:
        """The columns by name."""
        return ClipGoal(*goal.long().unbind(-1))


class Tracking(Goals):
    """Clip and frame of each robot, starts of episodes, and tracking error and rewards of a step.

    Robots that are `free` track no clip and fail by falling only. For `grace_s` after `rejoin`
    robots also fail by falling only.
    """

    saved: ClassVar[Mapping[str, str]] = {
        "clip_lengths": "clip_lengths",
        "tracked": "tracked",
        "free": "free",
        "grace": "grace",
        "sampler.counts": "counts",
    }

    def __init__(self, robot: Robot, config: ImitationConfig, motions: MotionSet):
        """Raises InputError for an empty dataset and one at another rate than the robot's control
        rate."""
        self.robot = robot
        self.config = config
        self._motions = motions
        self.ground = ground_of(motions.motions)
        self._origins = None if self.ground is None else self.ground.origins
        self.reference = Reference(robot, motions, origins=self._origins)
        self._measured: tuple[RobotState, tuple[ReferenceFrames, BodyPoses, Tensor]] | None = None

    def bind(self, env: TaskEnv[Any]) -> None:
        super().bind(env)
        device = env.device
        if device.type != "cpu":
            self.reference = Reference(self.robot, self._motions, device, self._origins)
        self.kinematics = Kinematics(self.robot.model()).to(device)
        self.sampler = StartSampler(
            self.reference, tail=self.config.start_tail, uniform_share=self.config.uniform_starts
        )
        bodies = self.robot.body_names
        feet = [bodies.index(body) for body in self.robot.foot_bodies]
        self._appendages = torch.tensor(feet, device=device)
        self._features: dict[int, ReferenceFeatures] = {}
        self._grace_steps = round(self.config.grace_s / env.dt)
        n = env.num_envs
        self.clip, self.frame, self.last_frame = (
            torch.zeros(n, dtype=torch.long, device=device) for _ in range(3)
        )
        self.free = torch.zeros(n, dtype=torch.bool, device=device)  # tracks no clip
        self.grace = torch.zeros(
            n, dtype=torch.long, device=device
        )  # remaining control steps of `grace_s`

    # --- episodes ---

    def start(self, ids: Tensor, generator: torch.Generator, **where: Tensor) -> Start:
        """As `Starts`, exactly on the reference. where: `clip` and `frame` (k,), clip index and
        global frame; by default they are sampled."""
        if "clip" in where:
            clip = where["clip"]
            frame = where["frame"]
        else:
            clip, frame = self.sampler.sample(len(ids), generator)
        self._track(ids, clip, frame)
        self.free[ids] = False
        self.grace[ids] = 0
        target = self.reference.at(frame)
        state = self.reference.tracked(target)
        qvel = torch.cat((target.root_vel_w, state.root_ang, state.joint_vel), -1)
        return Start(self.reference.qpos[frame], qvel, state)

    def _track(self, ids: Tensor, clip: Tensor, frame: Tensor) -> None:
        self.clip[ids] = clip
        self.frame[ids] = frame
        self.last_frame[ids] = self.reference.last_frame(clip)
        self._measured = None

    def rejoin(self, mask: Tensor) -> None:
        """Let robots track another random frame from their current posture.

        They are moved and turned in the horizontal plane onto the new frame, which does not affect
        physics on flat ground; on other ground they are put down on it. Tracking from other
        postures than the reference's teaches recovery (as in ControlVAE). mask: (n,) bool.
        """
        ids, rejoins = rows_of(mask)
        if len(ids) == 0:
            return
        clip, frame = self.sampler.sample(len(ids), self.env.generator)
        clip = torch.where(rejoins, clip, self.clip[ids])
        frame = torch.where(rejoins, frame, self.frame[ids])
        self._track(ids, clip, frame)
        self.grace[ids] = torch.where(rejoins, self._grace_steps, self.grace[ids])
        target = self.reference.at(frame)
        state = self.env.state
        turn = geometry.yaw_of(target.root_rot) - geometry.yaw_of(state.root_rot[ids])
        turn = torch.where(rejoins, turn, 0.0)
        position = torch.where(
            rejoins.unsqueeze(-1), target.root_pos[:, :2], state.root_pos[ids, :2]
        )
        self.env.robots.carry(ids, position, geometry.yaw_matrix(turn))
        if self.ground is not None:
            self.ground.put_down(ids, rejoins)

    def qpos(self) -> Tensor:
        """Poses of the robots (n, 7 + nu) in the frames of their motions."""
        state = self.env.state
        origin = self.reference.origin[self.clip]
        moved = self.env.ground.integrated(state).root_pos - state.root_pos
        qpos: Tensor = self.env.robots.qpos.clone()
        qpos[:, :3] += moved.to(qpos) - origin.to(qpos)
        return qpos

    def advance(self, result: StepResult, generator: torch.Generator) -> None:
        """Advance to the next frame, and record failures of tracking robots for the sampling of
        starts."""
        self.frame = torch.minimum(self.frame + 1, self.last_frame)
        tracking = ~self._falls_only
        self.sampler.record(self.frame, result.failed, tracking)
        self.grace = (self.grace - 1).clamp(min=0)
        self._measured = None

    def schedule(self, steps: int, generator: torch.Generator | None) -> None:
        """As `Part.schedule`: reset the failure rates of the sampler."""
        if generator is not None:
            self.sampler.forget()

    def describe(self, i: int) -> dict[str, Any]:
        clip = self.clip[i]
        frame = self.frame[i] - self.reference.start[clip]
        return {"clip": self.reference.names[int(clip)], "frame": frame}

    # --- goals ---

    def goal(self) -> Tensor:
        """`ClipGoal`, as float32."""
        last = torch.where(self.free, self.frame, self.last_frame)
        return torch.stack((self.clip, self.frame, last), -1).float()

    def next_goal(self, goal: Tensor, after: RobotState) -> Tensor:
        """The next frame; frames beyond the clip's end have no weight in the loss."""
        return goal + goal.new_tensor((0.0, 1.0, 0.0))

    # --- observations ---

    def features(self, horizon: int) -> ReferenceFeatures:
        """Features of the next `horizon` reference frames."""
        if horizon not in self._features:
            self._features[horizon] = ReferenceFeatures(self.robot, self.reference, horizon)
        return self._features[horizon]

    def encoder_input(self, state: RobotState, goal: Tensor) -> Tensor:
        """The encoder's context, (B, c)."""
        columns = ClipGoal.of(goal)
        features = self.features(self.config.future_frames)
        return encoder_context(features, state, columns.frame, columns.last, self.env.home)

    # --- measures in the simulation, relative to the reference frame after the step ---

    def measured(self, state: RobotState) -> tuple[ReferenceFrames, BodyPoses, Tensor]:
        """Reference frame, poses of the robots, and tracking error of eq. 2 (n,), computed once per
        step."""
        if self._measured is None or self._measured[0] is not state:
            reference = self.reference.at(torch.minimum(self.frame + 1, self.last_frame))
            root_pos = self.env.ground.integrated(state).root_pos
            poses = self.kinematics(root_pos, state.root_rot, state.joint_pos)
            factor = self.config.reward.termination_factor
            error = rew.tracking_error(poses, state.joint_pos, reference, factor)
            self._measured = state, (reference, poses, error)
        return self._measured[1]

    def error(self, state: RobotState, goal: Tensor) -> Tensor:
        """The tracking error of eq. 2, (n,)."""
        return self.measured(state)[2]

    def rewards(self, state: RobotState) -> Tensor:
        """Eq. 9, (n, 5)."""
        reference, poses, error = self.measured(state)
        feet = self._appendages
        return rew.rewards(state, poses, reference, error, feet, self.config.reward)

    @property
    def _falls_only(self) -> Tensor:
        """Whether robots only fail by falling, (n,) bool."""
        return self.free | (self.grace > 0)

    def lost(self, state: RobotState, goal: Tensor) -> Tensor:
        """Whether robots exceed the threshold of eq. 2, or, if `_falls_only`, fell, (n,) bool."""
        far = self.error(state, goal) > self.config.reward.termination_threshold
        return torch.where(self._falls_only, self.env.fallen(state), far)

    def finished(self, state: RobotState, goal: Tensor) -> Tensor:
        """Whether robots are at their clip's end, (n,) bool."""
        frame = torch.minimum(self.frame + 1, self.last_frame)
        return (frame >= self.last_frame) & ~self.free

    # --- checkpoints ---

    @property
    def counts(self) -> Tensor:
        """Failures and visits of the start sampler."""
        return self.sampler.counts

    @counts.setter
    def counts(self, counts: Tensor) -> None:
        self.sampler.counts = counts

    @property
    def clip_lengths(self) -> Tensor:
        """Frames of each clip; setting other lengths raises ValueError."""
        return self.reference.length

    @clip_lengths.setter
    def clip_lengths(self, lengths: Tensor) -> None:
        if lengths.tolist() != self.reference.length.tolist():
            raise ValueError(
                "the clips' lengths differ from those in the checkpoint; set the data= of the run"
            )

    @property
    def tracked(self) -> Tensor:
        """Clip and frame of each robot, (n, 2); setting invalid ones raises ValueError."""
        return torch.stack((self.clip, self.frame), -1)

    @tracked.setter
    def tracked(self, tracked: Tensor) -> None:
        clip, frame = tracked.unbind(-1)
        if not ((clip >= 0) & (clip < len(self.reference.length))).all():
            raise ValueError("an unknown clip")
        start = self.reference.start[clip]
        last = self.reference.last_frame(clip)
        if not ((start <= frame) & (frame <= last)).all():
            raise ValueError("a frame outside its clip")
        self.clip = clip.clone()
        self.frame = frame.clone()
        self.last_frame = last


class TrackingLoss(Part):
    """The discounted tracking loss, averaged over all steps that have a reference."""

    def __init__(self, tracking: Tracking):
        self.tracking = tracking

    def __call__(
        self, before: RobotState, after: RobotState, goals: Tensor, patch: Tensor
    ) -> TaskLoss:
        c = self.tracking.config
        columns = ClipGoal.of(goals)
        frame = columns.frame
        steps = torch.arange(len(goals), device=goals.device).unsqueeze(-1)
        weight = (frame <= columns.last) * c.discount**steps
        reference = self.tracking.reference.at(torch.minimum(frame, columns.last))
        each = rew.tracking_loss(after, before, reference, c.tracking)
        loss = len(frame[0]) * (each * weight).sum(0) / weight.sum().clamp(min=1.0)
        return TaskLoss(loss, torch.zeros_like(loss), weight)


class CurrentPenalty(Part):
    """The penalty of eq. 14 on the motor currents of the simulated drives, (n,)."""

    def __init__(self, config: rew.RewardConfig):
        self.config = config

    def bind(self, env: TaskEnv[Any]) -> None:
        """As `Part.bind`. Raises InputError for drives that do not model currents."""
        super().bind(env)
        if env.robots.current_squares is not None:
            return
        actuator = env.robots.config.actuator
        why = f"actuator={actuator} does not model currents"
        if env.robots.config.real_drives:
            why = f"actuator={actuator} does not model currents (its log has none"
            why += ", or it is not a model=conv)"
        raise InputError(
            f"task.reward.current_weight={self.config.current_weight:g}: {why}; use "
            "actuator=FOLDER of a model=conv fitted to a log with R/current "
            "(docs/actuators.md), or task.reward.current_weight=0"
        )

    def __call__(self, state: RobotState, goal: Tensor) -> Tensor:
        squares = self.env.robots.current_squares
        return rew.current_penalty(squares, self.config)


class Imitation(Task):
    """Track reference motions on their ground, to the end of a clip.

    Terminations are those of eq. 2, rewards those of eq. 9 and 14.
    """

    name = "imitation"
    config_type = ImitationConfig
    reusable = False

    def __init__(
        self, robot: Robot, config: ImitationConfig | None = None, motions: MotionSet | None = None
    ):
        """motions: the reference.

        Raises:
          InputError: without motions, for an empty dataset and one at another rate than the robot's
            control rate.
        """
        if motions is None:
            raise InputError("task 'imitation' needs data=, the motion dataset to imitate")
        c = config or ImitationConfig()
        self.tracking = tracking = Tracking(robot, c, motions)
        rewards = [Term(_column(tracking, k), name=name) for k, name in enumerate(rew.REWARD_TERMS)]
        if c.reward.current_weight:
            rewards.append(Term(CurrentPenalty(c.reward), name=rew.CURRENT))
        parts = Parts(
            commands=tracking,
            starts=tracking,
            observations=[Inputs(tracking.encoder_input, {})],
            rewards=rewards,
            terminations=[tracking.lost],
            ends={"finished": tracking.finished},
            ground=tracking.ground or GroundConfig(),
            loss=TrackingLoss(tracking),
            error=tracking.error,
            current_weight=c.reward.current_weight,
        )
        super().__init__(robot, c, parts)


def ground_of(motions: Sequence[ReferenceMotion]) -> ReferenceGround | None:
    """The ground of motions; None if it is flat for all."""
    if all(motion.ground is None for motion in motions):
        return None
    return ReferenceGround(motions)


def _column(tracking: Tracking, k: int) -> Measure:
    """A column of `Tracking.rewards`."""
    return lambda state, goal: tracking.rewards(state)[..., k]


ImitationEnv = TaskEnv[Imitation]
