"""`npmp data export`: reference motions as mjlab's npz or Unitree's CSV."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mocap_data.store import read_motions
from npmp.core import ranges
from npmp.experiments.command import Keys, Run, Verb
from npmp.experiments.terminal import say, show_table
from retarget.export import MANIFEST, clip_names, export, robot_of_dataset


@dataclass(frozen=True, kw_only=True)
class ExportMotions(Keys):
    """Export reference motions, a file per clip and export.json with the names.

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
    # frame rate of the files [Hz]; null: the motion's (LAFAN1's CSV has 30, mjlab's trackers 50)
    rate_hz: float | None = None
    # the output folder; existing files are overwritten
    out: Path | None = Path("exported")

    def __post_init__(self) -> None:
        ranges.above_zero(self, "rate_hz")


def run(config: ExportMotions, run: Run) -> None:
    """Write a file per clip and export.json. Nothing is written if the dataset or a name is
    invalid."""
    data = config.data
    kind = config.format
    clips = [config.clips] if isinstance(config.clips, str) else config.clips
    names = clip_names(data, clips, config.split)
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


main = Verb("data export", ExportMotions, run, torch=False, positional=("data",), devices=("cpu",))
