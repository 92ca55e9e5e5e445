"""Frames per second of retargeting: the whole pipeline, and the pose solve alone.

Shapes: T frames, M markers, J joints.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import retarget
from mocap_data import Clip, read_motions
from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp import robots
from npmp.devices import cpus
from npmp.experiments import retarget as retarget_verb
from npmp.experiments.benchmarks import parser, settings, show
from npmp.experiments.command import Run
from npmp.experiments.recordings import gather
from npmp.experiments.retarget import part_of
from npmp.robots import Robot
from retarget import inverse_kinematics, kinematics
from retarget.pipeline import bodies_of
from retarget.quality import overall_rms
from retarget.targets import MIN_FRAMES


def main(arguments: list[str] | None = None) -> None:
    """Measure and show the figures."""
    options = parser(__doc__)
    options.add_argument(
        "--repeats", type=int, default=5, help="measured rounds; medians are shown"
    )
    options.add_argument(
        "--frames", type=int, default=6000, help="at most, for the pose solve alone"
    )
    given = options.parse_args(arguments)
    config, run = settings(retarget_verb.main, given.keys, [("report", "null")])
    robot = robots.load(config.robot)
    clips = gather(config.source, config.start, config.stop, robot, config).clips
    read = sum(clip.num_frames for clip in clips)
    options_given = part_of(config, retarget.Options)
    figures = {
        **pipeline_figures(config, run, given.repeats, read=read),
        **pose_figures(clips, robot, options_given, given.frames, given.repeats),
    }
    show("retarget", robot.name, figures)


# --- the whole pipeline ---


def pipeline_figures(
    config: retarget_verb.Retarget, run: Run, repeats: int, *, read: int
) -> dict[str, Any]:
    """`npmp retarget` as it is, without its report, `repeats` times: median frames per second, all
    of it counted.

    It reads the recordings, retargets, cleans, judges and writes them, and prints its table (to
    nowhere). read: frames of all recordings that could be read.
    """
    spent = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "motions.h5"
        for _ in range(repeats):
            begin = time.perf_counter()
            with (
                open(os.devnull, "w") as nowhere,
                redirect_stdout(nowhere),
                redirect_stderr(nowhere),
            ):
                retarget_verb.run(config, dataclasses.replace(run, verb="retarget", out=out))
            spent.append(time.perf_counter() - begin)
        motion_set = read_motions(out)
    seconds = statistics.median(spent)
    return {
        "pipeline_frames_per_s": round(read / seconds, 1),
        "rms_marker_m": round(overall_rms(motion_set.motions), 6),
        "frames": read,
        "seconds": round(seconds, 3),
        "clips": len(motion_set.motions),
    }


# --- the pose solve ---


@dataclass(frozen=True)
class BenchTrack:
    """One clip's pose problem."""

    problem: inverse_kinematics.Problem
    goal: Array  # (T, M, 3) [m]


def tracks_of(
    clips: Sequence[Clip], robot: Robot, given: Mapping[str, Any], frames: int
) -> list[BenchTrack]:
    """The first `frames` frames of the clips as pose problems: eq. 8 with the marker offsets held
    fixed.

    Clips of one skeleton, the first clip's; targets, weights and offsets as the pipeline makes them
    with the options `given`.

    Raises:
      InputError: where no clip can be retargeted.
    """
    options = retarget.Options(**given)
    chosen: list[Clip] = []
    for clip in clips:
        left = frames - sum(other.num_frames for other in chosen)
        if left < MIN_FRAMES or (chosen and clip.names != chosen[0].names):
            continue
        piece = clip.crop(0, min(left, clip.num_frames))
        try:
            bodies_of([piece], robot, options)
        except InputError:
            continue  # left out by the pipeline, too
        chosen.append(piece)
    if not chosen:
        raise InputError(f"no recording that robot '{robot.name}' can be retargeted to")
    tracks = []
    for body in bodies_of(chosen, robot, options):
        problem, layout = body.prepared.problem(body.theta), body.prepared.layout
        for track in (body.targets(clip, options) for clip in body.clips):
            goal = track.locked + layout.displacement(body.theta, track.heading)
            tracks.append(BenchTrack(problem, goal))
    return tracks


def pose_figures(
    clips: Sequence[Clip], robot: Robot, given: Mapping[str, Any], most: int, repeats: int
) -> dict[str, Any]:
    """The pose solve on all CPUs and on one, in turn, `repeats` times; medians."""
    tracks = tracks_of(clips, robot, given, most)
    frames = sum(len(track.goal) for track in tracks)
    for track in tracks:  # imports, caches, threads
        solve(BenchTrack(track.problem, track.goal[: 2 * MIN_FRAMES]), None)
    spent: dict[int | None, list[float]] = {None: [], 1: []}
    for _ in range(repeats):
        for threads, seconds in spent.items():
            begin = time.perf_counter()
            solutions = [solve(track, threads) for track in tracks]
            seconds.append(time.perf_counter() - begin)
    rms, cost = eq8(tracks, solutions)
    return {
        "pose_frames_per_s": round(frames / statistics.median(spent[None]), 1),
        "pose_frames_per_s_one_thread": round(frames / statistics.median(spent[1]), 1),
        "pose_rms_m": round(rms, 6),
        "pose_cost": float(f"{cost:.10g}"),
        "pose_frames": frames,
        "threads": cpus(),
    }


def solve(track: BenchTrack, threads: int | None) -> Array:
    """Poses (T, 7 + J) of a track, from nothing but its targets."""
    return inverse_kinematics.solve_track(track.problem, track.goal, threads=threads)


def eq8(tracks: Sequence[BenchTrack], solutions: Sequence[Array]) -> tuple[float, float]:
    """Root mean square marker error [m] and mean objective of eq. 8 [m^2] over the frames of all
    tracks."""
    squares, costs = [], []
    for track, qpos in zip(tracks, solutions, strict=True):
        problem = track.problem
        world = kinematics.positions_of(problem.points, *kinematics.forward(problem.tree, qpos))
        error = np.square(world - track.goal).sum(axis=-1)  # (T, M)
        weight = 1.0 if problem.weight is None else problem.weight
        bend = np.square(qpos[:, 7:] - problem.stand).sum(axis=-1)
        squares.append(error)
        costs.append((weight * error).sum(axis=-1) + problem.regularization * bend)
    return float(np.sqrt(np.concatenate(squares).mean())), float(np.concatenate(costs).mean())


if __name__ == "__main__":
    main()
