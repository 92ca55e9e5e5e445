"""`npmp data export`: reference motions for mjlab or Unitree, motions and rollouts for LeRobot."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mocap_data.store import read_motions
from npmp.core import ranges
from npmp.experiments.command import Keys, Run, Verb
from npmp.experiments.run_folder import CONFIG, HYDRA
from npmp.experiments.terminal import say, show_table
from npmp.view import lerobot
from retarget.export import MANIFEST, check_flat, clip_names, export, robot_of_dataset


@dataclass(frozen=True, kw_only=True)
class ExportMotions(Keys):
    """Export reference motions, a file per clip and export.json with the names; or motions or
    rollouts as a dataset of LeRobot.

    npmp data export motions.h5 format=mjlab out=exported
    npmp data export motions.h5 format=unitree_csv rate_hz=30 clips=[walk] out=exported
    npmp data export motions.h5 format=lerobot out=lerobot
    npmp data export runs/evaluation/rollouts.h5 format=lerobot out=rollouts
    """

    # the dataset of reference motions; for lerobot also a rollouts.h5
    data: Path
    # npz with joints, body poses and velocities in the world (mjlab), root x y z, quaternion x y z
    # w, joints (unitree_csv), or LeRobot's format v3.0 (lerobot, needs npmp[lerobot])
    format: Literal["mjlab", "unitree_csv", "lerobot"] = "mjlab"
    # names of the clips to write, [a,b]; null: all
    clips: str | list[str] | None = None
    # train or validation: only the clips of that split; null: all
    split: str | None = None
    # frame rate of the files [Hz]; null: the motion's (LAFAN1's CSV has 30, mjlab's trackers 50)
    rate_hz: float | None = None
    # the output folder; existing files are overwritten, but not a dataset of LeRobot
    out: Path | None = Path("exported")

    def __post_init__(self) -> None:
        ranges.above_zero(self, "rate_hz")


def run(config: ExportMotions, run: Run) -> None:
    """Write a file per clip and export.json, or a dataset of LeRobot. Nothing is written if the
    dataset or a name is invalid."""
    data = config.data
    kind = config.format
    clips = [config.clips] if isinstance(config.clips, str) else config.clips
    if kind == lerobot.FORMAT:
        run_lerobot(config, clips, run)
        return
    names = clip_names(data, clips, config.split)
    check_flat(kind, data, names)
    first = read_motions(data, clips=names[:1])
    robot = robot_of_dataset(kind, data, first)
    run.begin()
    written = export(run.folder, kind, data, names, robot, config.rate_hz)
    columns = ("clip", "frames", "rate hz", "licence", "file")
    rows = [
        (clip["name"], str(clip["frames"]), f"{clip['rate_hz']:g}", clip["licence"], clip["file"])
        for clip in written
    ]
    show_table(columns, rows, title=f"{kind} of robot {first.robot}", title_justify="left")
    say(f"{len(names)} clips and {MANIFEST} in {run.folder}")


def run_lerobot(config: ExportMotions, clips: list[str] | None, run: Run) -> None:
    """Write a dataset of LeRobot."""
    lerobot.load_pyarrow()
    lerobot.check_new(run.folder)
    content = lerobot.read_content(
        config.data, clips=clips, split=config.split, rate_hz=config.rate_hz
    )
    run.begin()
    try:
        lerobot.write_lerobot(run.folder, content)
    finally:
        # a dataset is shared, but settings contain paths of this machine
        (run.folder / CONFIG).unlink(missing_ok=True)
        shutil.rmtree(run.folder / HYDRA, ignore_errors=True)
    frames = content.rows[-1]["dataset_to_index"]
    licences = "; ".join(lerobot.licences_of(content.rows))
    say(
        f"{len(content.rows)} episodes, {frames:,} frames, {content.rate_hz:g} Hz in {run.folder}",
        f"licence: {licences}",
    )


main = Verb("data export", ExportMotions, run, torch=False, positional=("data",), devices=("cpu",))
