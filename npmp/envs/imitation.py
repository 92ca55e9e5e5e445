"""Imitation of reference motions (robot-NPMP): many robots, each tracking its own stretch of its own clip."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp import geometry, ranges
from npmp.envs import rewards as rew
from npmp.envs.kinematics import Kinematics
from npmp.envs.plant import Plant, PlantConfig, PlantEnv
from npmp.envs.reference import Reference
from npmp.envs.sampling import StartSampler
from npmp.envs.state import RobotState
from npmp.envs.threads import serial_if_small
from npmp.robots import Robot
from npmp.sim import flat_scene


@dataclass(frozen=True)
class ImitationConfig:
    """The imitation task's settings. Raises ValueError for values out of range."""

    reward: rew.RewardConfig = field(default_factory=rew.RewardConfig)
    plant: PlantConfig = field(default_factory=lambda: PlantConfig(hold="first_order"))  # as published
    start_tail: int = 10  # frames at a clip's end where no episode starts
    uniform_starts: float = 0.5  # share of start frames drawn uniformly; the rest go where tracking fails
    num_threads: int = 0  # of the physics; 0: all cores

    def __post_init__(self) -> None:
        ranges.not_negative(self, "start_tail", "num_threads")
        ranges.share(self, "uniform_starts")


class EnvStep(NamedTuple):
    """What one control step brings; the environments are NOT reset yet, so `state` is the true successor everywhere."""

    state: RobotState  # (n, ...)
    rewards: Tensor  # (n, K) one column per objective; their sum is the reward
    terminated: Tensor  # (n,) bool: failed; the value of what follows is zero
    truncated: Tensor  # (n,) bool: the clip or the time is over; bootstrap the value of `state`
    error: Tensor  # (n,) the task's error: eq. 2 in imitation, of the velocity in walking


class ImitationEnv(PlantEnv):
    """Robots on flat ground, tracking reference motions.

    Actions are joint position targets centred on the home pose [rad], unfiltered and unclipped; setpoint = home +
    action. The caller resets finished robots: `step`, look at the result, then `reset(done)`.
    """

    objectives = rew.REWARD_TERMS

    def __init__(
        self,
        robot: Robot,
        motions: MotionSet,
        num_envs: int,
        *,
        seed: int = 0,
        config: ImitationConfig | None = None,
        sim: str = "batch",
        device: torch.device | str = "cpu",
    ):
        """Build the simulations, each reset to a random frame.

        sim: "batch" or "warp" (`npmp.sim.make_simulator`). device: where all tensors are, those that go in included.

        The same seed gives the same bits with sim="batch" on the CPU only.

        Raises: InputError for an empty dataset or one at another rate than the robot's control rate.
        """
        self.robot = robot
        self.config = config or ImitationConfig()
        self.reference = Reference(robot, motions, device)
        self.plant = Plant(
            robot, flat_scene(robot), num_envs, self.config.plant,
            num_threads=self.config.num_threads, sim=sim, device=device,
        )  # fmt: skip
        self.kinematics = Kinematics(robot.model()).to(self.device)
        self.sampler = StartSampler(
            self.reference, tail=self.config.start_tail, uniform_share=self.config.uniform_starts
        )
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._qpos = torch.from_numpy(np.concatenate([m.qpos for m in motions.motions])).to(self.device)
        self._appendages = torch.tensor([robot.body_names.index(b) for b in robot.foot_bodies], device=self.device)
        self.clip, self.frame, self.last_frame = (
            torch.zeros(num_envs, dtype=torch.long, device=self.device) for _ in range(3)
        )
        self.reset()

    @serial_if_small()
    def reset(self, mask: Tensor | None = None, clip: Tensor | None = None, frame: Tensor | None = None) -> RobotState:
        """Start new episodes exactly on the reference.

        Args:
          mask: (n,) bool, which robots; all by default.
          clip, frame: (k,) clip index and global frame for the k robots of the mask; drawn by the sampler by default.

        Returns: the state of all robots.
        """
        ids = torch.arange(self.num_envs, device=self.device) if mask is None else torch.nonzero(mask).squeeze(-1)
        if len(ids) == 0:
            return self.state
        if clip is None or frame is None:
            clip, frame = self.sampler.sample(len(ids), self.generator)
        self.clip[ids], self.frame[ids] = clip, frame
        self.last_frame[ids] = self.reference.last_frame(clip)
        target = self.reference.at(frame)
        fresh = self.reference.tracked(target)
        qvel = torch.cat((target.root_vel_w, fresh.root_ang, fresh.joint_vel), -1)
        self.plant.place(ids, self._qpos[frame], qvel, fresh, self.generator)
        return self.state

    @serial_if_small()
    def rejoin(self, mask: Tensor) -> None:
        """Let robots track from another random frame on, in the posture they are in.

        They are moved and turned in the horizontal plane onto the new frame, which flat-ground physics does not notice.
        Tracking from a posture that is not the reference's is how recovery is learned (ControlVAE switches targets
        likewise). mask (n,) bool.
        """
        ids = torch.nonzero(mask).squeeze(-1)
        if len(ids) == 0:
            return
        clip, frame = self.sampler.sample(len(ids), self.generator)
        self.clip[ids], self.frame[ids] = clip, frame
        self.last_frame[ids] = self.reference.last_frame(clip)
        target = self.reference.at(frame)
        turn = geometry.yaw_matrix(geometry.yaw_of(target.root_rot) - geometry.yaw_of(self.state.root_rot[ids]))
        rotation = turn @ self.state.root_rot[ids]
        position = torch.cat((target.root_pos[:, :2], self.state.root_pos[ids, 2:]), -1)
        self.state = self.state._replace(
            root_pos=self.state.root_pos.index_copy(0, ids, position),
            root_rot=self.state.root_rot.index_copy(0, ids, rotation),
        )
        half = 0.5 * geometry.yaw_of(turn).to(self.sim.qpos)
        qpos, qvel = self.sim.qpos[ids], self.sim.qvel[ids]
        w, x, y, z = qpos[:, 3:7].unbind(-1)
        cosine, sine = torch.cos(half), torch.sin(half)
        qpos[:, 3:7] = torch.stack(
            (cosine * w - sine * z, cosine * x - sine * y, cosine * y + sine * x, cosine * z + sine * w), -1
        )
        qpos[:, :2] = position[:, :2].to(qpos)
        qvel[:, :3] = geometry.to_world(turn.to(qvel), qvel[:, :3])  # the angular part is in the root frame
        self.sim.move(ids, qpos, qvel)

    @serial_if_small()
    def step(self, action: Tensor, free: Tensor | None = None) -> EnvStep:
        """One control step.

        Args:
          action: (n, nu) joint targets minus home pose [rad].
          free: (n,) bool, robots that do not track now: they fail when they fall, not by eq. 2, and have no end of
            clip.
        """
        setpoint = self.plant.step(action, self.generator)
        self.plant.note_broken(self.whereabouts)
        state = self.state
        self.frame = torch.minimum(self.frame + 1, self.last_frame)
        reference = self.reference.at(self.frame)
        poses = self.kinematics(state.root_pos, state.root_rot, state.joint_pos)
        c = self.config.reward
        error = rew.tracking_error(poses, state.joint_pos, reference, c.termination_factor)
        terms = rew.rewards(state, poses, reference, error, self._appendages, c)
        # a diverged simulation is a failure, not a crash; the simulator takes controls that are not finite for zero
        finite = torch.isfinite(error + setpoint.sum(-1)) & ~self.plant.broken
        lost, ended = error > c.termination_threshold, self.frame >= self.last_frame
        if free is None:
            self.sampler.record(self.frame, lost | ~finite)
        else:
            lost, ended = torch.where(free, self.fallen(state), lost), ended & ~free
            self.sampler.record(self.frame[~free], (lost | ~finite)[~free])
        terminated = lost | ~finite
        truncated = ended & ~terminated
        return EnvStep(state, terms, terminated, truncated, error)

    def whereabouts(self, i: int) -> dict[str, Any]:
        """The clip that robot i tracks, and the frame of it."""
        clip = int(self.clip[i])
        return {"clip": self.reference.names[clip], "frame": int(self.frame[i] - self.reference.start[clip])}

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, for checkpoints."""
        return {
            **{f"plant.{k}": v for k, v in self.plant.state_dict().items()},
            "clip": self.clip,
            "frame": self.frame,
            "clip_lengths": self.reference.length,
            "rng": self.generator.get_state(),
            **{f"sampler.{k}": v for k, v in self.sampler.state_dict().items()},
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was taken, to the bit.

        Raises: ValueError where it was taken with other clips.
        """
        lengths = state.get("clip_lengths")  # not there in states of before 2026-11-21
        if lengths is not None and lengths.tolist() != self.reference.length.tolist():
            raise ValueError("other clips, or the same in another order")
        self.plant.load_state_dict({k.removeprefix("plant."): v for k, v in state.items() if k.startswith("plant.")})
        self.clip, self.frame = (state[name].to(self.device, copy=True) for name in ("clip", "frame"))
        self.last_frame = self.reference.last_frame(self.clip)
        self.generator.set_state(state["rng"])
        self.sampler.load_state_dict({k: state[f"sampler.{k}"] for k in ("failures", "visits")})
