"""Environments: torch functions on the simulator's arrays.

`make(task, ...)` builds any of them by name; the pieces (state, features, rewards) serve imagination as well.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from mocap_data.errors import InputError
from mocap_data.store import MotionSet, read_motions
from npmp import robots
from npmp.envs.imitation import EnvStep, ImitationConfig, ImitationEnv
from npmp.envs.walking import WalkingConfig, WalkingEnv
from npmp.robots import Robot

__all__ = ["EnvStep", "ImitationConfig", "ImitationEnv", "WalkingConfig", "WalkingEnv", "load_motions", "make"]

TASKS = ("imitation", "walk")


def make(
    task: str,
    *,
    robot: str | Robot,
    data: str | Path | MotionSet | None = None,
    num_envs: int = 256,
    seed: int = 0,
    device: str = "cpu",
    sim: str = "batch",
    **options: Any,
) -> ImitationEnv | WalkingEnv:
    """An environment by its task's name.

    Args:
      task: "imitation" (needs `data`) or "walk" (`data` gives start poses).
      robot: a robot or its name.
      data: a motion dataset, or the path of its HDF5 file.
      num_envs: robots simulated at once.
      device: where all tensors are, e.g. "cpu" or "cuda".
      sim: who computes the physics: "batch", MuJoCo on the CPU's threads, or "warp", mujoco_warp on the device.
      options: fields of `ImitationConfig` or `WalkingConfig`.

    Raises: InputError for an unknown task, robot, option, simulator or device, and for a dataset of another robot.
    """
    if task not in TASKS:
        raise InputError(f"no task '{task}'; there are: {', '.join(TASKS)}")
    _check_device(str(device))
    if num_envs < 1:
        raise InputError(f"num_envs must be at least 1, got {num_envs}")
    if not isinstance(robot, Robot):
        robot = robots.load(robot)
    cls = ImitationConfig if task == "imitation" else WalkingConfig
    known = [f.name for f in fields(cls)]
    if unknown := sorted(set(options) - set(known)):
        raise InputError(f"task '{task}' has no option '{unknown[0]}'; there are: {', '.join(known)}")
    motions = data if data is None or isinstance(data, MotionSet) else load_motions(data, robot)
    try:
        config = cls(**options)
    except (TypeError, ValueError) as error:
        raise InputError(f"task '{task}': {error}") from error
    if isinstance(config, WalkingConfig):
        return WalkingEnv(robot, num_envs, motions=motions, seed=seed, config=config, sim=sim, device=device)
    if motions is None:
        raise InputError("task 'imitation' needs data: the motion dataset to imitate")
    return ImitationEnv(robot, motions, num_envs, seed=seed, config=config, sim=sim, device=device)


def _check_device(device: str) -> None:
    try:
        asked = torch.device(device)
    except RuntimeError:
        raise InputError(f"no device '{device}'; there are: cpu, cuda, cuda:N") from None
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked.type == "cuda" and (asked.index or 0) >= found:
        raise InputError(f"device={device}: torch sees {found or 'no'} CUDA devices here; use device='cpu'")


def load_motions(path: str | Path, robot: Robot, split: str | None = None) -> MotionSet:
    """A motion dataset made for this robot; of it, only the motions of `split` ("train", "validation"), or all for
    None.

    Raises: InputError for one that cannot be read or was made for another robot or model, naming what differs, and for
      a split that it does not have.
    """
    motions = read_motions(
        path,
        robot=robot.name,
        model_sha256=robot.model_sha256,
        joint_names=robot.joint_names,
        body_names=robot.body_names,
    )
    if split is None:
        return motions
    try:
        return motions.select(split=split)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
