"""Evaluation of a module on motions: every clip from its first frame, and from random frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mocap_data import MotionSet
from mocap_data.errors import InputError
from mocap_data.files import new_hdf5
from mocap_data.motion import mean_speed, speeds
from npmp.core import artifact
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.envs.reference import Reference
from npmp.envs.sampling import StartSampler
from npmp.evaluation.rollouts import ARRAYS, GROUND
from npmp.evaluation.tracking import Tracking, track
from npmp.robots import Robot
from npmp.skills.skill_module import SkillModule
from npmp.tasks.imitation import Imitation, ImitationConfig


class TrackingTrial:
    """Tracking without action noise from random starts, uniform over all clips; starts, physics,
    pushes and sensor noise are the same at every call."""

    def __init__(
        self,
        robot: Robot,
        motions: MotionSet,
        robots: RobotBatchConfig,
        future_frames: int,
        *,
        starts: int,
        seed: int,
        **device_options: Any,
    ):
        """Args:
        future_frames: of the reference that the modules observe, `context_horizon`.
        device_options: `engine`, `device` and `num_threads` of the environment.
        """
        config = ImitationConfig(uniform_starts=1.0, future_frames=future_frames)
        self.env = TaskEnv(
            Imitation(robot, config, motions), starts, robots=robots, seed=seed, **device_options
        )
        # sampled on the CPU: the same starts on every device
        sampler = StartSampler(Reference(robot, motions), tail=config.start_tail, uniform_share=1.0)
        self.clip, self.frame = sampler.sample(starts, torch.Generator().manual_seed(seed))
        self.seed = seed

    def __call__(self, skill: SkillModule) -> dict[str, float]:
        """Mean tracked share of the remaining clip, and mean tracked time [s]."""
        self.env.generator.manual_seed(self.seed)
        result = track(skill, self.env, self.clip, self.frame)
        return {
            "tracked_fraction": result.fraction.mean().item(),
            "tracked_s": result.steps.float().mean().item() * self.env.dt,
        }


def evaluate_module(
    skill: SkillModule,
    robot: Robot,
    motions: MotionSet,
    out: Path,
    *,
    like: RobotBatchConfig | None = None,
    starts: int,
    seed: int,
    threads: int,
    device: str = "cpu",
    engine: str = "",
) -> dict[str, Any]:
    """Evaluate a module on every clip from its first frame, and from `starts` random frames, with
    mean latents and actions and the termination of eq. 2. Writes rollouts.h5 into `out`.

    Args:
      like: drives, sensors and physics; by default ideal robots, with the hold of the module's
        training.
      device, engine: as of `TaskEnv`; the module is moved to the device.

    Returns: the content of evaluation.json. Per clip, over the tracked steps: `base_deviation_m`,
    the distance of the root from the reference's (`last`: at the last step); `joint_error_rad`, the
    mean absolute difference of joint angles. `mean` and `median` are over clips, except
    `time_share`, the tracked share of all clips' time.
    """
    skill.check_robot(robot)
    like = like or RobotBatchConfig().like(skill)
    device_options: dict[str, Any] = {"device": device, "num_threads": threads, "engine": engine}
    frames = skill.contract.context_horizon
    env = TaskEnv(
        Imitation(robot, ImitationConfig(future_frames=frames), motions),
        len(motions.motions),
        robots=like,
        seed=seed,
        **device_options,
    )
    skill.to(env.device)
    clip = torch.arange(env.num_envs, device=env.device)
    result = track(skill, env, clip, env.task.tracking.reference.start[clip])
    licences = skill.contract.training.get("licences", [])
    clips = write_rollouts(out / "rollouts.h5", result, env, motions, licences)
    trial = TrackingTrial(
        robot, motions, like, frames, starts=starts, seed=seed + 1000, **device_options
    )
    return {
        "robot": robot.name,
        "seed": seed,
        "versions": artifact.versions(),
        "seen_in_training": seen_in_training(skill.contract.training, motions),
        "clips": clips,
        "mean": {"time_share": time_share(clips), **average_clips(clips, np.mean)},
        "median": average_clips(clips, np.median),
        "random_starts": {"starts": starts, **trial(skill)},
    }


def write_rollouts(
    path: Path,
    result: Tracking,
    env: TaskEnv[Imitation],
    motions: MotionSet,
    licences: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Write each clip's rollout and reference, for `read_rollouts`; returns the clips' metrics.

    licences: of the recordings behind the module.
    """
    clips: list[dict[str, Any]] = []
    with new_hdf5(path) as file:
        file.attrs["robot"] = env.robot.name
        file.attrs["joint_names"] = list(env.robot.joint_names)
        file.attrs["foot_names"] = list(env.robot.foot_bodies)
        for i, motion in enumerate(motions.motions):
            frames = min(len(result.qpos), motion.num_frames)
            qpos = result.qpos[:frames, i].numpy()
            steps = int(result.steps[i])
            heights = [env.feet.heights(q, motion.ground) for q in (qpos, motion.qpos[:frames])]
            tracked = slice(1, max(steps, 1) + 1)
            error = qpos[tracked] - motion.qpos[:frames][tracked]
            deviation = np.linalg.norm(error[:, :3], axis=-1)
            clips.append(
                {
                    "name": motion.name,
                    "tracked_s": steps * env.dt,
                    "duration_s": (motion.num_frames - 1) * env.dt,
                    "speed_mps": mean_speed(motion),
                    "top_speed_mps": float(speeds(motion).max()),
                    "base_deviation_m": {
                        "mean": float(deviation.mean()),
                        "max": float(deviation.max()),
                        "last": float(deviation[-1]),
                    },
                    "joint_error_rad": float(np.abs(error[:, 7:]).mean()),
                    "foot_height_m": float(heights[1].max()),
                    "tracked_fraction": float(result.fraction[i]),
                }
            )
            group = file.create_group(motion.name)
            group.attrs["rate_hz"] = motion.rate_hz
            group.attrs["tracked_frames"] = steps + 1
            group.attrs["source"] = motion.source
            group.attrs["licence"] = "; ".join(dict.fromkeys([motion.licence, *licences]))
            values = (qpos, motion.qpos[:frames], *heights)
            arrays = dict(zip(ARRAYS, values, strict=True))
            arrays["qvel"] = result.qvel[:frames, i].numpy()
            arrays["setpoints"] = result.setpoints[: frames - 1, i].numpy()
            for name, value in arrays.items():
                group.create_dataset(name, data=value, compression="gzip", compression_opts=1)
            if motion.ground is not None:
                group.create_dataset(GROUND, data=motion.ground.heights)
    return clips


def time_share(clips: Sequence[Mapping[str, Any]]) -> float:
    """The tracked share of all clips' time."""
    return float(sum(c["tracked_s"] for c in clips) / sum(c["duration_s"] for c in clips))


def average_clips(
    clips: Sequence[Mapping[str, Any]], average: Callable[[list[float]], Any]
) -> dict[str, Any]:
    """Averages of the clips' metrics."""
    metrics: dict[str, Any] = {
        key: float(average([c[key] for c in clips]))
        for key in ("tracked_fraction", "tracked_s", "joint_error_rad")
    }
    deviations = [c["base_deviation_m"] for c in clips]
    deviation = {key: float(average([d[key] for d in deviations])) for key in deviations[0]}
    return metrics | {"base_deviation_m": deviation}


def feasibility_rows(clips: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Number and averages of the clips that the robot can do, "feasible", and cannot, "infeasible".

    clips: with `infeasible_by`, "" for a feasible one; a row without clips is left out.
    """
    groups = {
        "feasible": [clip for clip in clips if not clip["infeasible_by"]],
        "infeasible": [clip for clip in clips if clip["infeasible_by"]],
    }
    return {
        name: {
            "number": len(group),
            "time_share": time_share(group),
            **average_clips(group, np.mean),
        }
        for name, group in groups.items()
        if group
    }


def seen_in_training(training: Mapping[str, Any], motions: MotionSet) -> int | None:
    """Number of motions that have the name, or the recording, of a motion trained on.

    training: the record in module.json. Returns None if it lists no motions.
    """
    if not isinstance(training.get("clips"), list):
        return None
    names = set(training["clips"])
    recordings = {m.recording for m in motions.motions if m.name in names} - {""}
    return sum(m.name in names or m.recording in recordings for m in motions.motions)


def filter_motions(motions: MotionSet, max_speed: float | None) -> MotionSet:
    """The motions whose speed never exceeds `max_speed` [m/s]; None: no limit.

    Raises:
      InputError: if no motion is left.
    """
    names = [m.name for m in motions.motions if max_speed is None or speeds(m).max() <= max_speed]
    if not names:
        raise InputError(
            f"max_speed={max_speed}: each of the {len(motions.motions)} motions is faster"
        )
    return motions.select(names)
