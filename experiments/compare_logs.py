"""`npmp compare-logs FIRST SECOND`: how two logs of a robot differ, channel by channel."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from omegaconf import DictConfig

from mocap_data.errors import InputError
from mocap_data.files import write_json
from mocap_data.hdf5 import attributes, open_hdf5
from npmp.deploy.comparison import (
    QUANTILES,
    Channels,
    Difference,
    channels,
    compare,
    in_words,
    refuse_unlike,
)
from npmp.deploy.recording import read_recording
from npmp.evaluation.rollouts import ClipRollout, read_rollouts
from npmp.experiments.common import Run, say, verb

SHOWN = 6  # channels that are drawn
Log = tuple[str, tuple[str, ...], Channels]  # robot, joints, channels


def run(config: DictConfig, run: Run) -> None:
    """Compare first= with second=."""
    first, second = (read_log(Path(str(config[side]))) for side in ("first", "second"))
    refuse_unlike(first[:2], second[:2])
    found = compare(first[2], second[2])
    run.begin()
    worst = in_words(found)
    alone = sorted(set(first[2]) ^ set(second[2]))
    told = {
        "first": str(config.first), "second": str(config.second), "robot": first[0], "worst": worst,
        "quantiles": QUANTILES, "channels": [asdict(one) for one in found], "on_one_side_only": alone,
    }  # fmt: skip
    write_json(run.folder / "comparison.json", told)
    page(run.folder / "comparison.html", first, second, found, worst)
    say("the most different channels:", *(f"  {line}" for line in worst))
    say(f"{len(found)} channels compared; tables and page: {run.folder}")


def read_log(path: Path) -> Log:
    """A recording of `npmp deploy`, or the rollouts of an evaluation. Raises InputError for
    neither."""
    file = path
    if path.is_dir():
        here = [path / name for name in ("recording.h5", "rollouts.h5") if (path / name).is_file()]
        if not here:
            raise InputError(f"no recording.h5 and no rollouts.h5 in {path}")
        file = here[0]
    with open_hdf5(file) as opened:
        is_recording = "schema" in attributes(opened)
    if is_recording:
        recording = read_recording(file)
        return recording.robot, recording.joint_names, channels(recording)
    rollouts = read_rollouts(file)
    return (
        rollouts.robot,
        rollouts.joint_names,
        rollout_channels(rollouts.joint_names, rollouts.clips),
    )


def rollout_channels(joint_names: Sequence[str], clips: Sequence[ClipRollout]) -> Channels:
    """Joint angles and velocities, and the vertical in the root frame, of an evaluation's clips
    while tracked."""
    parts: dict[str, list[np.ndarray]] = {}
    for clip in clips:
        qpos = clip.qpos[: max(2, clip.tracked_frames)]
        speed = np.diff(qpos[:, 7:], axis=0) * clip.rate_hz
        w, x, y, z = qpos[:, 3:7].T
        up = {"x": 2 * (x * z - w * y), "y": 2 * (y * z + w * x), "z": 1 - 2 * (x * x + y * y)}
        for i, name in enumerate(joint_names):
            parts.setdefault(f"joint_pos/{name}", []).append(qpos[:, 7 + i])
            parts.setdefault(f"joint_vel/{name}", []).append(speed[:, i])
        for axis, values in up.items():
            parts.setdefault(f"up/{axis}", []).append(values)
    return {name: np.concatenate(values) for name, values in parts.items()}


def page(
    path: Path, first: Log, second: Log, found: Sequence[Difference], worst: Sequence[str]
) -> None:
    """The table of all channels and the distributions of the most different ones."""
    from npmp.report import figures
    from npmp.report.parts import Cell, Charts, Lines, Row, Section, Table, assemble, number

    charts = []
    for one in found[:SHOWN]:
        lines = []
        for name, log, css in (("first", first, "robot"), ("second", second, "other")):
            values = np.sort(log[2][one.channel])
            lines.append(
                figures.Line(name, values, np.arange(1, len(values) + 1) / len(values), css)
            )
        charts.append(
            figures.line_chart(
                lines, title=one.channel, unit="share below", x_label=one.unit, y_range=(0.0, 1.0)
            )
        )
    quantiles = [f"{side} {100 * q:g} %" for side in ("1st", "2nd") for q in QUANTILES]
    columns = ("channel", "unit", "of spread", "Wasserstein", "KS", *quantiles)
    rows: list[Row] = [
        [one.channel, one.unit, Cell.of(one.relative, 2), Cell.of(one.wasserstein, 4), Cell.of(one.ks, 2),
         *(Cell.of(value, 3) for value in (*one.first, *one.second))]
        for one in found
    ]  # fmt: skip
    assemble(
        path,
        title=f"{first[0]}: two logs compared",
        subtitle="distributions while the policy acts",
        cards=[(f"{place} most different", one.channel, f"{number(one.relative)} of its spread apart")
               for place, one in zip(("The", "2nd", "3rd"), found)],
        sections=[
            Section("worst", "The most different channels", [Lines(worst), Charts(charts)]),
            Section("all", "All channels", [Table(columns, rows, sortable=True, tall=True)]),
        ],
    )  # fmt: skip


main = verb("compare-logs", run, torch=False, positional=("first", "second"), devices=("cpu",))


if __name__ == "__main__":
    sys.exit(main(None))
