"""`npmp export`: a policy as a bundle for robots, or reference motions as mjlab's npz or Unitree's
CSV."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig

from mocap_data.errors import InputError, unknown
from mocap_data.export import write_mjlab_npz, write_unitree_csv
from mocap_data.files import write_json
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet, read_motions, splits_in
from npmp import robots
from npmp.experiments.common import (
    Run,
    above_zero,
    at_least,
    console,
    names_of,
    refuse_idle,
    say,
    table,
    verb,
)
from npmp.robots import Robot

CONFIG = "config.yaml"
MJLAB, UNITREE = "mjlab", "unitree_csv"
MANIFEST = "export.json"
RECORDED = 4  # robots of a golden rollout, one after another: as many resets at the least
Writer = Callable[[Path, ReferenceMotion, MotionSet, "Robot | None"], None]


def run(config: DictConfig, run: Run) -> int:
    """A bundle where a policy is named, else motions."""
    if config.policy is not None:
        if config.data is not None:
            raise InputError(
                "npmp export writes motions (data=) or a policy (policy=), not both at once"
            )
        of_motions = ("format", "clips", "split", "rate_hz")
        refuse_idle(config, run.given, "is of motions, data=..., not of a policy", *of_motions)
        return export_policy(config, run)
    if config.data is None:
        raise InputError(
            "npmp export needs data=... (a dataset of motions) or policy=... (a bundle is written)"
        )
    of_policies = ("module", "steps", "randomization", "actuator")
    refuse_idle(config, run.given, "is of a policy, not of motions", *of_policies)
    return export_motions(config, run)


def export_policy(config: DictConfig, run: Run) -> int:
    """A policy and its module as a bundle, with a rollout of the two at the policy's own task."""
    # torch takes seconds to import, and motions need none
    from npmp import modules, policies, tasks
    from npmp.artifact import sha256
    from npmp.deploy.bundle import FEWEST_STEPS
    from npmp.deploy.export import export
    from npmp.deploy.onnx_policy import check_parity
    from npmp.devices import seed_everything
    from npmp.envs import TaskEnv
    from npmp.experiments.backend import robots_config_of
    from npmp.reuse import HighLevelPolicy, find_module
    from npmp.skill import SkillModule

    at_least(config, steps=FEWEST_STEPS)
    seed_everything(run.seed, device="cpu", threads=int(config.torch_threads or 1), use_torch=True)
    folder = policies.find(str(config.policy))
    policy = HighLevelPolicy.load(folder)
    if config.module is None:
        module = find_module(folder, policy.contract.module_sha256)
    else:
        module = modules.find(str(config.module))
    policy.check_module(module)
    skill, robot = SkillModule.load(module), robots.load(config.robot.name)
    own, kind = policy.contract, cast(Any, tasks.find(policy.contract.task))
    settings = tasks.trained_config(kind, own.training)
    task = kind(robot, kind.resolve(settings, None, own.told))
    like = robots_config_of(config, skill)
    env = TaskEnv(task, RECORDED, robots=like, seed=run.seed, num_threads=run.threads)
    run.begin()
    bundle = export(
        run.folder,
        policy,
        skill,
        env,
        sha256=sha256(folder / "policy.safetensors"),
        steps=config.steps,
        about={"randomization": str(config.randomization.name), "seed": run.seed},
    )
    off = check_parity(bundle.policy(), bundle.golden()).difference
    # a bundle is given to others, and settings name files of this machine
    (run.folder / CONFIG).unlink()
    what = f"{folder.name} through {module.name}"
    say(f"{what}: {run.folder}, {off:.1e} rad from torch over {config.steps:,} steps")
    return 0


def export_motions(config: DictConfig, run: Run) -> int:
    """Write a file per clip and export.json. Nothing is written unless the dataset and the names
    are sound."""
    data, kind = Path(str(config.data)), MJLAB if config.format is None else str(config.format)
    if kind not in FORMATS:
        raise unknown("format to export", kind, FORMATS)
    if config.rate_hz is not None:
        above_zero(config, "rate_hz")
    names = chosen(data, names_of(config, "clips"), config.split)
    first = read_motions(data, clips=names[:1])
    robot = robot_of(first)
    if robot is None and kind == MJLAB:
        raise InputError(
            f"{data}: format=mjlab holds the bodies' poses; these need the model of robot "
            f"{first.robot!r} that the motions were made with, which is not here "
            "(format=unitree_csv needs none)"
        )
    run.begin()
    suffix, write = FORMATS[kind]
    columns, title = (
        ("clip", "frames", "rate hz", "licence", "file"),
        f"{kind} of robot {first.robot}",
    )
    shown = table(columns, title=title, title_justify="left")
    clips: list[dict[str, Any]] = []
    for name in names:  # one clip at a time: a dataset may be larger than memory
        motion = at_rate(read_motions(data, clips=[name]).motions[0], config.rate_hz, robot)
        path = run.folder / f"{name}{suffix}"
        write(path, motion, first, robot)
        clips.append(about(motion, path))
        shown.add_row(
            name, str(motion.num_frames), f"{motion.rate_hz:g}", motion.licence, path.name
        )
    write_json(run.folder / MANIFEST, manifest(kind, data, first, clips))
    console().print(shown)
    say(f"{len(names)} clips and {MANIFEST} in {run.folder}")
    return 0


def chosen(data: Path, asked: Sequence[str] | None, split: Any) -> list[str]:
    """The names of the clips to write.

    Raises:
      InputError: for one that there is not, or none.
    """
    of = splits_in(data)
    known = list(of)
    for name in asked or []:
        if name not in known:
            raise unknown(f"clip in {data}", name, known)
    names = known if asked is None else list(dict.fromkeys(asked))
    if split is not None:
        if str(split) not in of.values():
            raise unknown(f"split in {data}", split, sorted({*of.values()} - {""}))
        names = [name for name in names if of[name] == str(split)]
    if not names:
        raise InputError(
            f"{data} holds no clips"
            if split is None
            else f"{data}: no clip of clips= is of {split=!s}"
        )
    return names


def robot_of(motions: MotionSet) -> Robot | None:
    """The robot that a dataset is of, None where it is none of those here, or has another model by
    now."""
    try:
        robot = robots.load(motions.robot)
    except InputError:
        return None
    return robot if robot.model_sha256 == motions.model_sha256 else None


def at_rate(motion: ReferenceMotion, rate_hz: Any, robot: Robot | None) -> ReferenceMotion:
    """The motion at another rate (None: its own).

    Raises:
      InputError: where the robot that this needs is not here.
    """
    if rate_hz is None or float(rate_hz) == motion.rate_hz:
        return motion
    if robot is None:
        raise InputError(
            f"rate_hz={rate_hz}: resampling needs the robot's model, which is not here; "
            "leave rate_hz out"
        )
    from retarget.resampling import resample

    return resample(motion, robot, float(rate_hz))


def write_mjlab(
    path: Path, motion: ReferenceMotion, motions: MotionSet, robot: Robot | None
) -> None:
    assert robot is not None  # see `run`
    from retarget.kinematics import body_states, tree_of

    bodies = body_states(tree_of(robot.model(visuals=False)), motion)
    write_mjlab_npz(path, motion, motions.joint_names, motions.body_names, bodies)


def write_csv(path: Path, motion: ReferenceMotion, motions: MotionSet, robot: Robot | None) -> None:
    write_unitree_csv(path, motion, motions.joint_names, robot=motions.robot)


FORMATS: Mapping[str, tuple[str, Writer]] = {
    MJLAB: (".npz", write_mjlab),
    UNITREE: (".csv", write_csv),
}
CONVENTIONS = {
    MJLAB: "metres, radians, seconds; world Z up; quaternions w, x, y, z, body to world; "
    "velocities of body origins in world axes; bodies without the world, joints and bodies in "
    "MuJoCo's order",
    UNITREE: "metres, radians; world Z up; root x, y, z, quaternion x, y, z, w (root to world), "
    "joints; no header",
}


def about(motion: ReferenceMotion, path: Path) -> dict[str, Any]:
    """What the formats cannot say of a clip."""
    said = ("source", "licence", "recording", "mirror", "split")
    content = {
        "name": motion.name,
        "file": path.name,
        "frames": motion.num_frames,
        "rate_hz": motion.rate_hz,
    }
    return content | {key: getattr(motion, key) for key in said}


def manifest(
    kind: str, data: Path, motions: MotionSet, clips: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The contents of export.json."""
    return {
        "format": kind,
        "conventions": CONVENTIONS[kind],
        "data": str(data),
        "robot": motions.robot,
        "model_sha256": motions.model_sha256,
        "joint_names": list(motions.joint_names),
        "body_names": list(motions.body_names),
        "clips": list(clips),
    }


main = verb("export", run, torch=False, positional="data", devices=("cpu",))


if __name__ == "__main__":
    sys.exit(main(None))
