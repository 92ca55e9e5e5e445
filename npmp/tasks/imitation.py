"""Imitation of reference motions (robot-NPMP): many robots, each tracking its own stretch of its
own clip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.core import geometry, ranges
from npmp.envs.features import ReferenceFeatures, encoder_context
from npmp.envs.kinematics import Kinematics
from npmp.envs.reference import Reference
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.sampling import StartSampler
from npmp.envs.state import RobotState
from npmp.envs.task import Start, StepResult, Task, TaskLoss
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.tasks import rewards as rew


@dataclass(frozen=True)
class ImitationConfig:
    """The imitation task's settings. Raises ValueError for values out of range."""

    # frames at a clip's end where no episode starts
    start_tail: int = 10
    # share of start frames drawn uniformly; the rest go where tracking fails
    uniform_starts: float = 0.5
    # of the reference that the policy sees [P]
    future_frames: int = 5
    # of setpoints, as `RobotBatchConfig`: what a module trained on this expects of its user
    hold: str = "first_order"
    # imu: its mean over the last control step, at the IMU; root: of the root's origin over two
    accelerometer: str = "imu"
    # after `rejoin` a robot fails by falling only, for so long: it has to get there first [D]
    grace_s: float = 0.5
    reward: rew.RewardConfig = field(default_factory=rew.RewardConfig)
    # weights of the loss of imagined robots
    tracking: rew.TrackingWeights = field(default_factory=rew.TrackingWeights)
    # of each imagined step's loss over the one before
    discount: float = 0.97

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "future_frames")
        ranges.not_negative(self, "start_tail", "grace_s")
        ranges.share(self, "uniform_starts", "discount")
        RobotBatchConfig().like(self)  # raises where there is no such hold or accelerometer


class Imitation(Task):
    """Robots on flat ground, tracking reference motions; an episode is the rest of a clip.

    A robot fails where it leaves eq. 2's corridor. One that is `free` tracks nothing: it fails when
    it falls, and has no end of clip. One that was sent to another frame (`rejoin`) fails by falling
    only, too, for `grace_s`.

    Its goal is (clip, frame, last frame of the clip), global frames; a free robot is at its last.
    A start is chosen by `clip` and `frame` (k,): clip index and global frame.
    """

    name = "imitation"
    config_type: ClassVar[type] = ImitationConfig
    objectives: tuple[str, ...] = rew.REWARD_TERMS
    kept: tuple[str, ...] = ("clip_lengths", "tracked", "free", "grace", "sampler.counts")
    described: ClassVar[Mapping[str, str]] = {"clip": "clip_name", "frame": "clip_frame"}

    def __init__(
        self, robot: Robot, config: ImitationConfig | None = None, motions: MotionSet | None = None
    ):
        """motions: what is tracked.

        Raises:
          InputError: for none, for an empty dataset and one at another rate than the robot's
            control rate.
        """
        if motions is None:
            raise InputError("task 'imitation' needs data: the motion dataset to imitate")
        self.robot = robot
        self.config = config or ImitationConfig()
        self._motions = motions
        self.current_weight = self.config.reward.current_weight
        if self.current_weight:
            self.objectives = (*rew.REWARD_TERMS, rew.CURRENT)
        self.reference, self._grace_s = Reference(robot, motions), self.config.grace_s

    def bind(self, env: TaskEnv[Any]) -> None:
        """As `Task.bind`. Raises InputError for a penalty on currents where drives have none."""
        super().bind(env)
        if rew.CURRENT in self.objectives and env.robots.current_squares is None:
            actuator = env.robots.config.actuator
            why = f"the drives of actuator={actuator} are ideal and tell no current"
            if env.robots.config.real_drives:
                why = f"the actuator model {actuator} tells no current: its log had none"
                why += ", or it is no model=conv"
            raise InputError(
                f"task.reward.current_weight={self.config.reward.current_weight:g}: {why}; use "
                "actuator=FOLDER of a model=conv fitted to a log with R/current "
                "(docs/actuators.md), or task.reward.current_weight=0"
            )
        device = env.device
        motions = self._motions.motions
        if device.type != "cpu":
            self.reference = Reference(self.robot, self._motions, device)
        self.kinematics = Kinematics(self.robot.model()).to(device)
        self.sampler = StartSampler(
            self.reference, tail=self.config.start_tail, uniform_share=self.config.uniform_starts
        )
        self._qpos = torch.from_numpy(np.concatenate([m.qpos for m in motions])).to(device)
        bodies = self.robot.body_names
        feet = [bodies.index(body) for body in self.robot.foot_bodies]
        self._appendages = torch.tensor(feet, device=device)
        self._features: dict[int, ReferenceFeatures] = {}
        self._grace_steps = round(self._grace_s / env.dt)
        n = env.num_envs
        self.clip, self.frame, self.last_frame = (
            torch.zeros(n, dtype=torch.long, device=device) for _ in range(3)
        )
        self.free = torch.zeros(n, dtype=torch.bool, device=device)  # it tracks nothing
        self.grace = torch.zeros(n, dtype=torch.long, device=device)  # control steps left

    # --- episodes ---

    def start(self, ids: Tensor, generator: torch.Generator, **where: Tensor) -> Start:
        """Exactly on the reference: at `clip` and `frame` (k,) where they are given, else at frames
        drawn by the sampler."""
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
        return Start(self._qpos[frame], qvel, state)

    def _track(self, ids: Tensor, clip: Tensor, frame: Tensor) -> None:
        self.clip[ids] = clip
        self.frame[ids] = frame
        self.last_frame[ids] = self.reference.last_frame(clip)

    def rejoin(self, mask: Tensor) -> None:
        """Let robots track from another random frame on, in the posture they are in.

        They are moved and turned in the horizontal plane onto the new frame, which flat-ground
        physics does not notice. Tracking from a posture that is not the reference's is how recovery
        is learned (ControlVAE switches targets likewise). mask (n,) bool.
        """
        ids = torch.nonzero(mask).squeeze(-1)
        if len(ids) == 0:
            return
        clip, frame = self.sampler.sample(len(ids), self.env.generator)
        self._track(ids, clip, frame)
        self.grace[ids] = self._grace_steps
        target = self.reference.at(frame)
        state = self.env.state
        turn = geometry.yaw_of(target.root_rot) - geometry.yaw_of(state.root_rot[ids])
        self.env.robots.carry(ids, target.root_pos[:, :2], geometry.yaw_matrix(turn))

    # --- observation ---

    def features(self, horizon: int) -> ReferenceFeatures:
        """The reference relative to the robot, so many frames ahead."""
        if horizon not in self._features:
            self._features[horizon] = ReferenceFeatures(self.robot, self.reference, horizon)
        return self._features[horizon]

    def goal(self) -> Tensor:
        """Clip, frame and last frame, (n, 3); exact in float32 up to 16 million frames."""
        last = torch.where(self.free, self.frame, self.last_frame)
        return torch.stack((self.clip, self.frame, last), -1).float()

    def see(self, state: RobotState, goal: Tensor) -> Tensor:
        """The encoder's context, (B, c)."""
        frame = goal[:, 1].long()
        last = goal[:, 2].long()
        features = self.features(self.config.future_frames)
        return encoder_context(features, state, frame, last, self.env.home)

    def next_goal(self, goal: Tensor, after: RobotState) -> Tensor:
        """The next frame; past the clip's end it goes on, and does not count any more."""
        return goal + goal.new_tensor((0.0, 1.0, 0.0))

    def imagined_loss(
        self, before: RobotState, after: RobotState, goals: Tensor, patch: Tensor
    ) -> TaskLoss:
        """As `Task.imagined_loss`: the discounted tracking loss per step that has a reference; the
        mean over B is that over all these steps."""
        frame = goals[..., 1].long()
        last = goals[..., 2].long()
        steps = torch.arange(len(goals), device=goals.device).unsqueeze(-1)
        weight = (frame <= last) * self.config.discount**steps
        reference = self.reference.at(torch.minimum(frame, last))
        each = rew.tracking_loss(after, before, reference, self.config.tracking)
        owed = len(frame[0]) * (each * weight).sum(0) / weight.sum().clamp(min=1.0)
        return TaskLoss(owed, torch.zeros_like(owed), weight)

    # --- episodes as they are judged ---

    def judge(self) -> StepResult:
        """Eq. 2, 9 and 14 against the frame that should have been reached."""
        env = self.env
        c = self.config.reward
        state = self.env.state
        frame = torch.minimum(self.frame + 1, self.last_frame)
        reference = self.reference.at(frame)
        poses = self.kinematics(state.root_pos, state.root_rot, state.joint_pos)
        error = rew.tracking_error(poses, state.joint_pos, reference, c.termination_factor)
        terms = rew.rewards(state, poses, reference, error, self._appendages, c)
        if c.current_weight and (squares := env.robots.current_squares) is not None:
            terms = torch.cat((terms, rew.current_penalty(squares, c).unsqueeze(-1)), -1)
        # a diverged simulation is a failure, not a crash; the simulator takes controls that are not
        # finite for zero
        finite = torch.isfinite(error + state.setpoint.sum(-1)) & ~env.robots.broken
        lost = torch.where(self._lenient, env.fallen(state), error > c.termination_threshold)
        return StepResult(terms, lost | ~finite, (frame >= self.last_frame) & ~self.free, error)

    @property
    def _lenient(self) -> Tensor:
        """Whether robots fail by falling only, (n,) bool."""
        return self.free | (self.grace > 0)

    def advance(self, outcome: StepResult, generator: torch.Generator) -> None:
        """The next frame. Failures of robots that track are counted: starts are drawn by them."""
        self.frame = torch.minimum(self.frame + 1, self.last_frame)
        tracking = ~self._lenient
        self.sampler.record(self.frame[tracking], outcome.failed[tracking])
        self.grace = (self.grace - 1).clamp(min=0)

    def schedule(self, steps: int, generator: torch.Generator | None) -> None:
        """As `Task.schedule`: starts are drawn as if no robot had ever failed."""
        if generator is not None:
            self.sampler.forget()

    # --- what is kept ---

    @property
    def clip_name(self) -> list[str]:
        """Name of the clip of each robot."""
        return [self.reference.names[clip] for clip in self.clip.tolist()]

    @property
    def clip_frame(self) -> Tensor:
        """Frame within it, (n,)."""
        return self.frame - self.reference.start[self.clip]

    @property
    def clip_lengths(self) -> Tensor:
        """Frames of each clip; nothing else can be set."""
        return self.reference.length

    @clip_lengths.setter
    def clip_lengths(self, lengths: Tensor) -> None:
        if lengths.tolist() != self.reference.length.tolist():
            raise ValueError("other clips, or the same in another order")

    @property
    def tracked(self) -> Tensor:
        """Clip and frame of each robot, (n, 2); only such as there are can be set."""
        return torch.stack((self.clip, self.frame), -1)

    @tracked.setter
    def tracked(self, tracked: Tensor) -> None:
        clip, frame = tracked.unbind(-1)
        if not ((clip >= 0) & (clip < len(self.reference.length))).all():
            raise ValueError("a clip that there is not")
        first, last = self.reference.start[clip], self.reference.last_frame(clip)
        if not ((first <= frame) & (frame <= last)).all():
            raise ValueError("a frame outside its clip")
        self.clip = clip.clone()
        self.frame = frame.clone()
        self.last_frame = last


ImitationEnv = TaskEnv[Imitation]
