"""Shots of a policy at its task, of a module that imitates, and of a motion beside its recording.

Shapes: T frames or control steps. World frame, Z up, metres.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mocap_data import rotations
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from npmp.envs import TaskEnv, Trial
from npmp.envs.camera import DepthCamera
from npmp.envs.policy import Policy
from npmp.evaluation.tracking import track
from npmp.evaluation.trial import run_trial
from npmp.robots import Robot
from npmp.skills.skill_module import SkillModule
from npmp.tasks import Imitation
from npmp.tasks.commands import CommandRange
from npmp.tasks.path import SampledPath
from npmp.tasks.velocity import COMMAND_NAMES
from npmp.view.render import Mount, ReplayClip, Shot
from npmp.view.render.clip import ground_of
from npmp.view.report.policy_page import clip_of
from retarget.keypoint_overlay import bones, keypoints_of

# spacing of rough ground [m]
GROUND_M = 0.05
# duration of a policy's shot [s]
TRIAL_S = 10.0
# longest shot of a policy on a path [s]
MAX_TRIAL_S = 60.0
# a shot, and the time of a fall or loss of the motion at its end [s]
FilmedShot = tuple[Shot, float | None]


def of_policy(
    policy: Policy,
    env: TaskEnv[Any],
    *,
    limits: CommandRange | Sequence[Sequence[float]],
    seconds: float | None = None,
    command: list[Any] | None = None,
    seed: int = 0,
) -> FilmedShot:
    """A policy at its task until the time is over, the path ends or robot 0 falls.

    Args:
      limits: lowest and highest of each command.
      command: for a task with velocity commands, as of `commands_of`; None: the task's own.

    Raises:
      InputError: for a command out of the policy's range, or for another task.
    """
    task: Any = env.task
    course = getattr(task.planner, "path", None)
    seconds = seconds or (min(task.trial_s, MAX_TRIAL_S) if course else TRIAL_S)
    commands = None
    if command is not None:
        if not task.steerable:
            raise InputError(f"command={command}: task={task.name} has no velocity commands")
        commands = commands_of(command, round(seconds / env.dt), env.dt, limits)
    trial = run_trial(policy, env, seconds=seconds, seed=seed, commands=commands)
    fell = trial.fell[:, 0]
    ends = (fell | trial.metrics.get("finished", trial.fell)[:, 0]).nonzero()
    count = int(ends[0]) + 1 if len(ends) else len(fell)
    clip = clip_of(task, trial, task.name, steps=count, spacing_m=GROUND_M)
    path = _world_path(course, trial) if course else None
    mount = None
    if camera := task.part(DepthCamera):
        config = camera.config
        mount = Mount(config.place_m, config.pitch_deg, config.fov_deg[1])
    shot = Shot(env.robot, clip, path=path, mount=mount)
    return shot, count * trial.dt if bool(fell[:count].any()) else None


def commands_of(
    value: list[Any], steps: int, dt: float, limits: CommandRange | Sequence[Sequence[float]]
) -> Tensor:
    """Commands over control steps (T, 1, 3).

    Args:
      value: [forward m/s, left m/s, turn rad/s], or rows [from_s, forward, left, turn].
      limits: lowest and highest of each.

    Raises:
      InputError: for any other list, times that do not increase from 0, and commands out of range.
    """
    rows: Any = value if value and isinstance(value[0], list) else [[0.0, *value]]
    if not all(
        isinstance(row, list) and len(row) == 4 and all(type(v) in (int, float) for v in row)
        for row in rows
    ):
        raise InputError(
            f"command={value}: expected [forward m/s, left m/s, turn rad/s], or rows"
            " [from_s, forward, left, turn]"
        )
    table = np.array(rows, dtype=np.float64)
    for name, column, (low, high) in zip(COMMAND_NAMES, table[:, 1:].T, limits, strict=True):
        if column.min() < low - 1e-9 or column.max() > high + 1e-9:
            raise InputError(
                f"command={value}: {name} must be from {low:g} to {high:g}, the policy's range"
            )
    if table[0, 0] != 0.0 or (np.diff(table[:, 0]) <= 0.0).any():
        raise InputError(f"command={value}: from_s must increase from 0 [s]")
    row = np.searchsorted(table[:, 0], np.arange(max(1, steps)) * dt + 1e-9, side="right") - 1
    return torch.tensor(table[row, 1:], dtype=torch.float32).unsqueeze(1)


def _world_path(course: SampledPath, trial: Trial) -> np.ndarray:
    """The path (S, 2) of robot 0 in the world [m]."""
    yaw = rotations.yaw(trial.qpos[0, 3:7])
    turn = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
    points = course.point.cpu().double().numpy()
    along = points[: round(course.length / 0.02) : 5]
    return np.asarray(along @ turn.T + trial.qpos[0, :2].numpy())


def of_module(
    skill: SkillModule, env: TaskEnv[Imitation], motion: ReferenceMotion, recording: Clip | None
) -> FilmedShot:
    """A module that imitates the environment's only motion until it is lost, beside the motion's
    recording."""
    first = torch.zeros(1, dtype=torch.long)
    result = track(skill, env, first, env.task.tracking.reference.start[first.to(env.device)])
    steps = int(result.steps[0])
    part = motion.crop(0, max(2, min(steps + 1, len(result.qpos))))
    qpos = result.qpos[: part.num_frames, 0].numpy()
    lost = steps / motion.rate_hz if steps < motion.num_frames - 1 else None
    return of_motion(env.robot, part, recording, qpos), lost


def of_motion(
    robot: Robot, motion: ReferenceMotion, recording: Clip | None, qpos: np.ndarray | None = None
) -> Shot:
    """A motion beside its recording. qpos: (T, nq) of a robot that tracks the motion, which is then
    its ghost."""
    extras: dict[str, Any] = ground_of(motion.ground)
    if recording is not None and motion.ground is None:
        scale = motion.quality.get("body_scale", 1.0)
        extras["keypoints"] = keypoints_of(motion, recording, scale)
        extras["bones"] = bones(recording)
    if qpos is not None:
        extras["reference"] = motion.qpos
    positions = motion.qpos if qpos is None else qpos
    return Shot(robot, ReplayClip(motion.name, positions, motion.rate_hz, **extras))


def still(shot: Shot, at_s: float | None) -> Shot:
    """One frame of a shot at a time [s], by default its middle."""
    frames = len(shot.qpos)
    rate = shot.clip.rate_hz
    frame = frames // 2 if at_s is None else round(at_s * rate)
    if not 0 <= frame < frames:
        raise InputError(f"at={at_s:g}: must be from 0 to {(frames - 1) / rate:.2f} [s]")
    return replace(shot, frame=frame)
