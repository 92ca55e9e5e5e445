"""What `npmp bench retarget` measures: the whole pipeline, the pose solve against mink, and memory.

The pose solve is held against `mink` (differential inverse kinematics, one frame after the other) on the same clips:
the same marker targets, offsets, home pose, joint limits and the same objective, eq. 8. Shapes: T frames, M markers, J
  joints.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

import retarget
from mocap_data import Clip, dog_gait, read_motions
from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp import robots
from npmp.cluster import ROOT
from npmp.experiments import retarget as retarget_verb
from npmp.experiments.common import Run, at_least, compose, cpus
from npmp.experiments.recordings import gather
from npmp.experiments.retarget import options_of
from npmp.memory import peak_bytes
from npmp.robots import Robot
from retarget import inverse_kinematics, kinematics
from retarget.pipeline import targets_of
from retarget.prepared_robot import PreparedRobot
from retarget.quality import overall_rms
from retarget.targets import MIN_FRAMES, prepared_for

FIRST_FRAME_STEPS = 20  # of mink on a track's first frame, which no earlier frame warms up
SAME_RMS = (
    1e-6  # [m] markers a micrometre apart; what is minimised, and compared to the last digit, is eq. 8's objective
)
WARM_UP_FRAMES = 120  # before memory is measured: loads the code; buffers of fixed size count in both lengths


def measure(config: DictConfig, run: Run) -> dict[str, Any]:
    """Frames per second of the recordings, through everything and of the pose solve alone; memory where asked for."""
    at_least(config, repeats=1, frames=MIN_FRAMES, mink_iterations=1, memory_frames=WARM_UP_FRAMES)
    settings = compose("retarget", [f"robot={config.robot.name}"])
    settings.source = config.source
    settings.report = None
    robot = robots.load(config.robot.name)
    clips = gather(settings, robot).clips
    return {
        **pipeline_figures(settings, run, int(config.repeats), read=sum(clip.num_frames for clip in clips)),
        **pose_figures(clips, robot, options_of(settings, retarget.Options), config),
        **(memory_figures(config.robot.name, int(config.memory_frames)) if config.memory else {}),
    }


# --- the whole pipeline ---


def pipeline_figures(settings: DictConfig, run: Run, repeats: int, *, read: int) -> dict[str, Any]:
    """`npmp retarget` as it is, without its report, `repeats` times: median frames per second, all of it counted.

    It reads the recordings, retargets, cleans, judges and writes them, and prints its table (to nowhere).
    read: frames of all recordings that could be read.
    """
    spent = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "motions.h5"
        for _ in range(repeats):
            begin = time.perf_counter()
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
                retarget_verb.run(settings, dataclasses.replace(run, verb="retarget", out=out))
            spent.append(time.perf_counter() - begin)
        motion_set = read_motions(out)
    seconds = statistics.median(spent)
    return {
        "pipeline_frames_per_s": round(read / seconds, 1),
        "frames_per_s": round(read / seconds, 1),  # the same by its older name
        "rms_marker_m": round(overall_rms(motion_set.motions), 6),
        "frames": read,
        "seconds": round(seconds, 3),
        "clips": len(motion_set.motions),
    }


# --- the pose solve against mink ---


@dataclass(frozen=True)
class Track:
    """One clip's pose problem: what both sides solve."""

    problem: inverse_kinematics.Problem
    goal: Array  # (T, M, 3) [m]


def tracks_of(clips: Sequence[Clip], robot: Robot, given: Mapping[str, Any], frames: int) -> list[Track]:
    """The first `frames` frames of the clips as pose problems: eq. 8 with the marker offsets held fixed.

    Clips of one skeleton, the first clip's; targets, weights and offsets as the pipeline makes them with the options
    `given`.

    Raises:
      InputError: where no clip can be retargeted.
    """
    options = retarget.Options(**given)
    prepared: PreparedRobot | None = None
    chosen: list[Clip] = []
    for clip in clips:
        left = frames - sum(other.num_frames for other in chosen)
        if left < MIN_FRAMES or (chosen and clip.names != chosen[0].names):
            continue
        piece = clip.crop(0, min(left, clip.num_frames))
        try:
            fitting = prepared_for(PreparedRobot.of(robot), piece)
            targets_of(piece, fitting, options)
        except InputError:
            continue  # left out by the pipeline, too
        prepared = fitting
        chosen.append(piece)
    if prepared is None:
        raise InputError(f"no recording that robot '{robot.name}' can be retargeted to")
    theta = prepared.layout.parameters(retarget.estimate_offsets(chosen, robot, **given))
    problem = prepared.problem(theta, prepared.regularization(options), prepared.weights(options.weights))
    ready = [targets_of(clip, prepared, options) for clip in chosen]
    return [Track(problem, targets.locked + prepared.layout.displacement(theta, targets.heading)) for targets in ready]


def pose_figures(clips: Sequence[Clip], robot: Robot, given: Mapping[str, Any], config: DictConfig) -> dict[str, Any]:
    """Our pose solve and mink's on the same tracks, in turn, `repeats` times; medians, and the median of the ratios.

    mink runs on one thread, as its Python loop over frames must; ours runs on all CPUs and once more on one.
    """
    tracks = tracks_of(clips, robot, given, int(config.frames))
    frames = sum(len(track.goal) for track in tracks)

    def ours(threads: int | None) -> list[Array]:
        return [solve(track, threads) for track in tracks]

    sides: dict[str, Callable[[], list[Array]]] = {"pose": lambda: ours(None), "pose_one_thread": lambda: ours(1)}
    note = ""
    try:
        loop = MinkLoop.of(robot, tracks, ours(1), int(config.mink_iterations))
        sides["mink"] = loop.run
    except ModuleNotFoundError as error:
        note = f"no {error.name} here: pip install 'npmp[bench]' for the comparison with mink"
    for track in tracks:  # both sides warm up on a few frames: imports, caches, threads
        solve(Track(track.problem, track.goal[: 2 * MIN_FRAMES]), None)
    if not note:
        loop.run(stop=2 * MIN_FRAMES)

    spent: dict[str, list[float]] = {name: [] for name in sides}
    solutions: dict[str, list[Array]] = {}
    for _ in range(int(config.repeats)):
        for name, side in sides.items():
            begin = time.perf_counter()
            solutions[name] = side()
            spent[name].append(time.perf_counter() - begin)
    rates = {name: frames / statistics.median(seconds) for name, seconds in spent.items()}
    errors = {name: eq8(tracks, found) for name, found in solutions.items()}
    figures: dict[str, Any] = {
        "pose_ratio_to_mink": None,
        "pose_frames_per_s": round(rates["pose"], 1),
        "pose_frames_per_s_one_thread": round(rates["pose_one_thread"], 1),
        "mink_frames_per_s": None,
        "pose_rms_m": round(errors["pose"][0], 6),
        "mink_rms_m": None,
        "pose_cost": float(f"{errors['pose'][1]:.10g}"),
        "mink_cost": None,
        "mink_iterations": int(config.mink_iterations),
        "pose_frames": frames,
        "threads": cpus(),
    }
    if note:
        return {**figures, "note": note}
    ratios = {
        name: statistics.median(np.divide(spent["mink"], spent[name]).tolist()) for name in ("pose", "pose_one_thread")
    }
    return figures | {
        "pose_ratio_to_mink": round(ratios["pose"], 2),
        "pose_ratio_to_mink_one_thread": round(ratios["pose_one_thread"], 2),
        "mink_frames_per_s": round(rates["mink"], 1),
        "mink_rms_m": round(errors["mink"][0], 6),
        "mink_cost": float(f"{errors['mink'][1]:.10g}"),
        "pose_error_within_minks": bool(
            errors["pose"][1] <= errors["mink"][1] and errors["pose"][0] <= errors["mink"][0] + SAME_RMS
        ),
    }


def solve(track: Track, threads: int | None) -> Array:
    """Our poses (T, 7 + J) of a track, from nothing but its targets."""
    return inverse_kinematics.solve_track(track.problem, track.goal, threads=threads)


def eq8(tracks: Sequence[Track], solutions: Sequence[Array]) -> tuple[float, float]:
    """Root mean square marker error [m] and mean objective of eq. 8 [m^2] over the frames of all tracks."""
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


class MinkLoop:
    """mink's loop over the frames of all tracks, prepared so that only the loop itself is timed.

    One FrameTask a marker (position only, on a site at the marker's point), a PostureTask with eq. 8's weight on the
    joints, joint limits as ConfigurationLimit, gain 1 and no damping: each iteration is a Gauss-Newton step of eq. 8,
    the fastest that mink takes here. Each frame starts from the one before.

    A FrameTask measures its error by the logarithm of a rigid motion. Its translation is the distance between the
    points only where the target is oriented as the frame is. So the targets get the orientations of our solution: mink
    is spared looking them up in its loop, and reaches eq. 8's very minimum (with targets that are not turned, its error
    is 2 % smaller and its objective 0.5 % above the minimum, at the same speed).
    """

    @classmethod
    def of(cls, robot: Robot, tracks: Sequence[Track], solutions: Sequence[Array], iterations: int) -> MinkLoop:
        """Model, tasks and targets.

        Raises:
          ModuleNotFoundError: without mink or daqp.
        """
        import daqp  # noqa: F401 - mink's solver; said here where it is missing, not in the loop
        import mink

        return cls(mink, robot, tracks, solutions, iterations)

    def __init__(self, mink: Any, robot: Robot, tracks: Sequence[Track], solutions: Sequence[Array], iterations: int):
        self.mink, self.iterations = mink, iterations
        problem = tracks[0].problem
        points = problem.points
        spec = robot.spec(visuals=False)
        sites = [f"bench_marker_{m}" for m in range(len(points.body))]
        for site, body, position in zip(sites, points.body, points.local, strict=True):
            spec.body(problem.tree.body_names[body]).add_site(name=site, pos=position)
        self.model = spec.compile()
        weight = np.ones(len(sites)) if problem.weight is None else np.asarray(problem.weight)
        self.markers = [
            mink.FrameTask(site, "site", position_cost=float(np.sqrt(w)), orientation_cost=0.0)
            for site, w in zip(sites, weight, strict=True)
        ]
        posture = mink.PostureTask(self.model, cost=float(np.sqrt(problem.regularization)))
        posture.set_target(np.concatenate([robot.home_qpos[:7], problem.stand]))
        self.tasks = [*self.markers, posture]
        self.limits = [mink.ConfigurationLimit(self.model, gain=1.0)]
        self.starts = [inverse_kinematics.fit_root(points, track.goal[:1], problem.stand)[0] for track in tracks]
        self.targets = [self._poses(track, qpos) for track, qpos in zip(tracks, solutions, strict=True)]

    def _poses(self, track: Track, solution: Array) -> list[list[Any]]:
        """The markers' targets as rigid poses, (T)(M)."""
        _, rotation = kinematics.forward(track.problem.tree, solution)
        turned = rotation[:, track.problem.points.body]  # (T, M, 3, 3)
        lie = self.mink.lie
        return [
            [
                lie.SE3.from_rotation_and_translation(lie.SO3.from_matrix(matrix), goal)
                for matrix, goal in zip(frame, goals, strict=True)
            ]
            for frame, goals in zip(turned, track.goal, strict=True)
        ]

    def run(self, stop: int | None = None) -> list[Array]:
        """Poses (T, 7 + J) of every track, or of its first `stop` frames."""
        return [self._follow(start, targets[:stop]) for start, targets in zip(self.starts, self.targets, strict=True)]

    def _follow(self, start: Array, targets: Sequence[Sequence[Any]]) -> Array:
        solve_ik = self.mink.solve_ik
        configuration = self.mink.Configuration(self.model, start)
        out = np.empty((len(targets), self.model.nq))
        for t, frame in enumerate(targets):
            for task, target in zip(self.markers, frame, strict=True):
                task.set_target(target)
            for _ in range(self.iterations if t else FIRST_FRAME_STEPS):
                velocity = solve_ik(configuration, self.tasks, 1.0, "daqp", damping=0.0, limits=self.limits)
                configuration.integrate_inplace(velocity, 1.0)
            out[t] = configuration.q
        return out


# --- memory ---


def memory_figures(robot: str, frames: int) -> dict[str, Any]:
    """How much `npmp retarget` grows at its peak with a generated recording of `frames` frames, and of ten times as
    many.

    Each in a process of its own, above what a short recording took before. `memory_ratio` is growth per frame at ten
    times over growth per frame at once the length: at most 1 where memory grows no faster than the frames.
    """
    once, tenfold = (_growth_in_child(robot, count) / count for count in (frames, 10 * frames))
    return {
        "bytes_per_frame": round(tenfold),
        "memory_ratio": round(tenfold / once, 3) if once > 0 else None,
        "memory_frames": [frames, 10 * frames],
    }


def _growth_in_child(robot: str, frames: int) -> int:
    code = f"from npmp.experiments.bench_retarget import print_growth; print_growth({robot!r}, {frames})"
    path = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
    child = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    return int(json.loads(child.stdout.strip().splitlines()[-1]))


def print_growth(robot: str, frames: int) -> None:
    """Print how many bytes this process grows by at its peak while it retargets a generated walk of `frames` frames."""
    with tempfile.TemporaryDirectory() as folder:
        for count in (WARM_UP_FRAMES, frames):
            clip = dog_gait("walk", duration_s=count / 60.0)
            np.savez(
                Path(folder) / f"{count}.npz", positions=clip.positions, names=np.array(clip.names), fps=clip.rate_hz
            )
        del clip

        def peak_after(count: int) -> int:
            arguments = [f"robot={robot}", f"source={folder}/{count}.npz", f"out={folder}/{count}.h5"]
            if retarget_verb.main([*arguments, "up=z", "report=null"]) != 0:
                raise RuntimeError(f"npmp retarget failed on {count} frames")
            return peak_bytes()

        before = peak_after(WARM_UP_FRAMES)
        print(json.dumps(peak_after(frames) - before))
