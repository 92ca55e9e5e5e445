"""Frames per second of `npmp retarget` as it is, without its report: it reads the recordings,
retargets, cleans, judges and writes them."""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from mocap_data import read_motions
from npmp import robots
from npmp.devices import cpus
from npmp.experiments import retarget as retarget_verb
from npmp.experiments.benchmarks import parser, settings, show
from npmp.experiments.recordings import gather
from retarget.quality import overall_rms


def main(arguments: list[str] | None = None) -> None:
    """Measure and show the figures."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=5, help="rounds; the median is shown")
    given = options.parse_args(arguments)
    config, run = settings(retarget_verb.main, given.keys, [("report", "null")])
    robot = robots.load(config.robot)
    clips = gather(config.source, config.start, config.stop, robot, config).clips
    frames, spent = sum(clip.num_frames for clip in clips), []
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        out = Path(folder) / "motions.h5"
        for _ in range(given.repeats):
            begin = time.perf_counter()
            with redirect_stdout(nowhere), redirect_stderr(nowhere):
                retarget_verb.run(config, dataclasses.replace(run, out=out))
            spent.append(time.perf_counter() - begin)
        motion_set = read_motions(out)
    seconds = statistics.median(spent)
    figures = {
        "pipeline_frames_per_s": round(frames / seconds, 1),
        "rms_marker_m": round(overall_rms(motion_set.motions), 6),
        "frames": frames,
        "seconds": round(seconds, 3),
        "clips": len(motion_set.motions),
        "threads": cpus(),
    }
    show("retarget", robot.name, figures)


if __name__ == "__main__":
    main()
