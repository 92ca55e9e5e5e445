"""`npmp data export`: reference motions as mjlab's npz or Unitree's CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mocap_data.errors import InputError, unknown
from mocap_data.export import write_mjlab_npz, write_unitree_csv
from mocap_data.files import write_json
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet, read_motions, splits_in
from npmp import ranges, robots
from npmp.experiments.command import Command, Keys, Run
from npmp.experiments.terminal import console, say, table
from npmp.robots import Robot

MJLAB, UNITREE = "mjlab", "unitree_csv"
MANIFEST = "export.json"
Writer = Callable[[Path, ReferenceMotion, MotionSet, "Robot | None"], None]


@dataclass(frozen=True, kw_only=True)
class Export(Keys):
    """Write reference motions for others, a file per clip and an export.json with the names.

    npmp data export motions.h5 format=mjlab out=exported
    npmp data export motions.h5 format=unitree_csv rate_hz=30 clips=[walk] out=exported
    """

    # the dataset of reference motions
    data: Path
    # npz with joints, body poses and velocities in the world (mjlab), or root x y z, quaternion x y
    # z w, joints (unitree_csv)
    format: Literal["mjlab", "unitree_csv"] = "mjlab"
    # names of the clips to write, [a,b]; null: all
    clips: str | list[str] | None = None
    # train or validation: only the clips of that split; null: all
    split: str | None = None
    # frames per second to write; null: each motion's own (LAFAN1's CSV has 30, mjlab's trackers 50)
    rate_hz: float | None = None
    # the folder to write to; files there of the same names are replaced
    out: Path | None = Path("exported")

    def __post_init__(self) -> None:
        ranges.above_zero(self, *(("rate_hz",) if self.rate_hz is not None else ()))


def run(config: Export, run: Run) -> None:
    """Write a file per clip and export.json. Nothing is written unless the dataset and the names
    are sound."""
    data, kind = config.data, config.format
    clips = [config.clips] if isinstance(config.clips, str) else config.clips
    names = chosen(data, clips, config.split)
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
    written: list[dict[str, Any]] = []
    for name in names:  # one clip at a time: a dataset may be larger than memory
        motion = at_rate(read_motions(data, clips=[name]).motions[0], config.rate_hz, robot)
        path = run.folder / f"{name}{suffix}"
        write(path, motion, first, robot)
        written.append(about(motion, path))
        shown.add_row(
            name, str(motion.num_frames), f"{motion.rate_hz:g}", motion.licence, path.name
        )
    write_json(run.folder / MANIFEST, manifest(kind, data, first, written))
    console().print(shown)
    say(f"{len(names)} clips and {MANIFEST} in {run.folder}")


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
        if split not in of.values():
            raise unknown(f"split in {data}", split, sorted({*of.values()} - {""}))
        names = [name for name in names if of[name] == split]
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
    told = {
        "name": motion.name,
        "file": path.name,
        "frames": motion.num_frames,
        "rate_hz": motion.rate_hz,
    }
    return told | {key: getattr(motion, key) for key in said}


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


main = Command("data export", Export, run, torch=False, positional=("data",), devices=("cpu",))
