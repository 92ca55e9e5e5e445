"""`npmp render`: film a policy, a module, a motion beside its recording, rollouts, or a log."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.progress import MofNCompleteColumn

from mocap_data.clip import Clip
from mocap_data.errors import InputError, check_available
from mocap_data.input_files import read_text
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from mocap_data.synthetic import demo_clips
from npmp import robots, tasks
from npmp.core import ranges
from npmp.deploy.policy_description import is_external
from npmp.deploy.run_log import read_log
from npmp.envs import TaskEnv, load_motions
from npmp.envs.policy import Policy
from npmp.evaluation.rollouts import read_rollouts
from npmp.experiments.backend import (
    WithExternalPolicy,
    external_policy_of,
    module_of,
    motions_of,
    refuse_external_keys,
    report_other_drives,
    simulated_policy_of,
)
from npmp.experiments.command import NOW, Run, Verb, refuse_idle
from npmp.experiments.compose import compose
from npmp.experiments.recordings import SYNTHETIC, Reading, options_of_keys, with_keys
from npmp.experiments.store import group
from npmp.experiments.terminal import progress_bar, say
from npmp.robots import Robot
from npmp.skills.composition import over
from npmp.tasks import Imitation, ImitationConfig
from npmp.tasks.commands import as_command_range
from npmp.tasks.walk import Walk
from npmp.view import films
from npmp.view.log_replay import shot_of_log
from npmp.view.render import ReplayClip, Shot, View, check_format, draw, write
from npmp.view.render.clip import ground_of
from npmp.view.render.rerun_file import SUFFIX, load_rerun, write_rrd
from retarget.sources import excerpts, read_recordings


@dataclass(frozen=True, kw_only=True)
class Render(WithExternalPolicy, Reading):
    """Film a policy at its task, an imitating module, a motion beside its recording, an
    evaluation's rollouts, or a deployment's log; as mp4, GIF, WebP, a still, or for Rerun's viewer.

    npmp render policy=anymal_b_walk command=[0.6,0,0] out=walk.mp4
    npmp render policy=anymal_b_walk command=[[0,0.8,0,0],[3,0.5,0,0.8],[6,0,0.3,0]] out=walk.webp
    npmp render policy=anymal_b_walk task=path task.path=figure_eight camera=fixed out=eight.webp
    npmp render policy=policy.onnx robot=unitree_g1 command=[0.5,0,0] out=other.webp
    npmp render module=anymal_b_dog data=motions.h5 clip=synthetic_trot out=tracked.webp
    npmp render data=motions.h5 clip=synthetic_trot out=motion.webp
    npmp render rollouts=runs/evaluation/rollouts.h5 out=rollout.webp
    npmp render log=runs/robot out=run.rrd
    """

    # a policy to film: its folder, or a shipped one's name (npmp skill list); footsteps: a trot
    # planned over the ground, which module= tracks; or another project's velocity policy:
    # FILE.onnx, or FILE.pt of TorchScript
    policy: str | None = None
    # the task to film it at; null: its own
    task: Any = group(None)
    # command of a walking policy: [forward m/s, left m/s, turn rad/s], or [[from_s, forward, left,
    # turn], ...]; null: random ones of the task
    command: list[Any] | None = None
    # a skill module that imitates clip=: its folder, or a shipped one's name; for a policy: the
    # module it works through
    module: str | None = None
    # the motion dataset (HDF5), imitated or filmed beside its recording; for a policy: additional
    # start poses
    data: Path | None = None
    # the name of a motion of data=, or of a clip of rollouts=; null: the first
    clip: str | None = None
    # the recording that the motion was made from, drawn as a stick figure; null: that of
    # generated gaits
    source: str | list[str] | None = None
    # a rollouts.h5 of npmp evaluate
    rollouts: Path | None = None
    # a log of npmp deploy run or trial, or the folder of its run
    log: Path | None = None
    # a text file with the keys of a shot on each line; the shots are joined to a film
    story: Path | None = None
    # start time in the motion [s]
    start: float = 0.0
    # length of the film [s]; null: the whole motion, ten seconds of a policy, or a path's time
    seconds: float | None = None
    # time of a still (out=FILE.png) [s]; null: the middle
    at: float | None = None
    # parts to draw: robot, ghost, recording
    show: list[str] = field(default_factory=lambda: ["robot", "ghost", "recording"])
    # follow: follows the robot; fixed: shows the whole path; robot: the robot's camera
    camera: str = "follow"
    # camera direction from the robot's initial heading [degrees]: 0 behind, 90 right, 180 ahead
    azimuth: float = 125.0
    # elevation [degrees]; below 0 the camera looks down
    elevation: float = -20.0
    # distance [m]; null: the motion fills the image
    distance: float | None = None
    # show title, note and velocities
    caption: bool = True
    # title in the upper left corner; null: the subject
    title: str | None = None
    # below the title
    note: str | None = None
    # pixels
    size: tuple[int, int] = (640, 360)
    # largest frame rate [Hz], which divides the control rate
    fps: float = 25.0
    # largest size [1e6 bytes], reached by a lower quality; null: no limit
    max_mb: float | None = None
    # hold of setpoints, first_order or zero_order; null: as in the module's training
    hold: str | None = None
    # output file; its suffix is .mp4 (needs npmp[render]), .gif, .webp, .png (one frame), or .rrd
    # (Rerun's viewer, needs npmp[rerun]; camera=robot adds the camera's images)
    out: Path | None = Path(f"runs/render/{NOW}.webp")

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.above_zero(self, "fps", "seconds", "max_mb", "distance")
        if not all(64 <= pixels <= 4096 and pixels % 2 == 0 for pixels in self.size):
            raise ValueError(
                f"size={list(self.size)}: expected [width,height], even numbers from 64 to 4096"
            )


def run(config: Render, run: Run) -> None:
    """Simulate the robot, render it, write the file."""
    size = config.size
    suffix = run.folder.suffix.lower()
    if suffix == SUFFIX:
        load_rerun()
        refuse_idle(run, "needs a film or a still, not a .rrd", "max_mb", "at", "caption", "note")
        if config.camera != "robot":
            why = "needs camera=robot in a .rrd"
            refuse_idle(run, why, "fps", "size", "azimuth", "elevation", "distance")
    else:
        check_format(run.folder)
    began = time.perf_counter()
    shots = [shot_of(config, run)] if config.story is None else shots_of_story(config.story, run)
    if suffix in (".png", SUFFIX) and len(shots) > 1:
        raise InputError(f"out={run.folder}: needs one shot, but the story has {len(shots)}")
    if suffix == ".png":
        shots = [films.still(shots[0], config.at)]
    run.begin()
    if suffix == SUFFIX and shots[0].view.mode != "robot":
        size_bytes = write_rrd(run.folder, shots[0])
        say(f"{len(shots[0].qpos)} steps, {size_bytes / 1e6:.2f} MB: rerun {run.folder}")
        return
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("frames", total=None)
        film = draw(
            shots,
            size,
            config.fps,
            captions=config.caption and suffix != SUFFIX,
            progress=lambda done, count: bar.update(task, completed=done, total=count),
        )
    if suffix == SUFFIX:
        size_bytes = write_rrd(run.folder, shots[0], film)
        quality = None
    else:
        size_bytes, quality = write(run.folder, film, max_mb=config.max_mb)
    count = len(film.pictures)
    length = "" if suffix == ".png" else f"{count} frames, {count / film.fps:.1f} s, "
    lower = "" if None in (config.max_mb, quality) else f" (quality {quality})"
    say(
        f"{length}{size[0]}x{size[1]}, {size_bytes / 1e6:.2f} MB{lower}, drawn by {film.backend} "
        f"in {time.perf_counter() - began:.0f} s: {run.folder}"
    )


# --- stories ---


def shots_of_story(story: Path, run: Run) -> list[Shot]:
    """The shots of a story file, each line of which has the keys of `npmp render` for a shot."""
    shots = []
    for number, line in enumerate(read_text(story).splitlines(), 1):
        try:
            if arguments := shlex.split(line, comments=True):
                job = compose("render", Render, arguments)
                shot = replace(
                    run,
                    seed=job.config.seed,
                    chosen=job.chosen,
                    overridden=job.overridden,
                    values=job.values,
                )
                shots.append(shot_of(job.config, shot))
        except ValueError as error:
            raise InputError(f"{story}, line {number}: {error}") from error
    if not shots:
        raise InputError(
            f"{story}: no shots; expected the keys of npmp render for a shot on each line"
        )
    return shots


# --- shots ---


def shot_of(config: Render, run: Run) -> Shot:
    """The shot of a configuration."""
    subjects = [key for key in SUBJECTS if getattr(config, key) is not None]
    if not subjects:
        raise InputError(
            "npmp render: no subject; set policy=, module= and data=, data=, rollouts=, or log="
        )
    if not is_external(str(config.policy)):
        refuse_external_keys(run)
    shot, title = SUBJECTS[subjects[0]](config, run, robots.load(config.robot))
    view = View(
        config.camera, azimuth=config.azimuth, elevation=config.elevation, distance=config.distance
    )
    title = title if config.title is None else config.title
    title, note = (" ".join(text.split()) for text in (title, config.note or ""))
    return replace(shot, view=view, title=title, note=note, parts=tuple(config.show))


def of_policy(config: Render, run: Run, robot: Robot) -> tuple[Shot, str]:
    """A policy at its task."""
    if is_external(str(config.policy)):
        return of_external_policy(config, run, robot)
    folder, policy, _, skill, like = simulated_policy_of(config, run, robot)
    kind: Any = tasks.find(str(run.chosen["task"]))
    policy.check_task(kind)
    motions = motions_of(config.data, robot)
    task = kind(robot, kind.resolve(config.task, motions, policy.contract.input_settings), motions)
    report_other_drives(policy.contract.training, config.actuator)
    env = TaskEnv(task, 1, robots=like, seed=run.seed, **run.place)
    limits = policy.contract.command_range
    shot = of_trial(config, over(policy, skill), env, limits, run.seed)
    return shot, f"{folder.name}: {task.name}"


def of_external_policy(config: Render, run: Run, robot: Robot) -> tuple[Shot, str]:
    """Another project's velocity policy at task=walk."""
    if run.chosen["task"] != Walk.name:
        raise InputError(f"policy={config.policy}: expected task=walk, got {run.chosen['task']}")
    policy, robot, like = external_policy_of(config, run, robot)
    limits = as_command_range(policy.description.command_range.tolist())
    task = Walk(robot, Walk.resolve(config.task, None, {"command_range": limits}))
    env = TaskEnv(task, 1, robots=like, seed=run.seed, **run.place)
    title = f"{Path(str(config.policy)).stem}: {task.name}"
    return of_trial(config, policy, env, limits, run.seed), title


def of_trial(
    config: Render, policy: Policy, env: TaskEnv[Any], limits: Sequence[Sequence[float]], seed: int
) -> Shot:
    """A policy at the task of an environment. limits: lowest and highest of each command."""
    shot, fell = films.of_policy(
        policy, env, seconds=config.seconds, command=config.command, limits=limits, seed=seed
    )
    if fell is not None:
        say(f"the robot failed after {fell:.1f} s; the film ends there")
    return shot


def of_module(config: Render, run: Run, robot: Robot) -> tuple[Shot, str]:
    """A module that imitates a clip, its reference as a ghost, the recording beside."""
    motions = motion_of(config, robot)
    [motion] = motions.motions
    folder, skill, like = module_of(config, run, robot)
    skill.check_encoder(robot)
    observed = ImitationConfig(future_frames=skill.contract.context_horizon)
    task = Imitation(robot, observed, motions)
    env = TaskEnv(task, 1, robots=like, seed=run.seed, **run.place)
    shot, lost = films.of_module(skill, env, motion, recording_of(config, robot, motion))
    if lost is not None:
        say(f"the robot lost the motion after {lost:.1f} s; the film ends there")
    return shot, f"{folder.name} tracks {motion.name}"


def of_motion(config: Render, run: Run, robot: Robot) -> tuple[Shot, str]:
    """A motion of the dataset beside its recording."""
    [motion] = motion_of(config, robot).motions
    return films.of_motion(robot, motion, recording_of(config, robot, motion)), motion.name


def of_rollouts(config: Render, run: Run, robot: Robot) -> tuple[Shot, str]:
    """A clip of an evaluation's rollouts.h5 and its ghost."""
    rollouts = read_rollouts(str(config.rollouts))
    chosen = {clip.name: clip for clip in rollouts.clips}
    clip = chosen[one_named(config.clip, list(chosen))]
    first, last = cut(config, len(clip.qpos), clip.rate_hz)
    part = slice(first, max(first + 1, min(last, clip.tracked_frames)))
    reference = clip.reference_qpos[part]
    ground = ground_of(clip.ground)
    replay = ReplayClip(clip.name, clip.qpos[part], clip.rate_hz, reference=reference, **ground)
    return Shot(robots.load(rollouts.robot), replay), clip.name


def of_log(config: Render, run: Run, robot: Robot) -> tuple[Shot, str]:
    """A deployment's log, in place: its position is not measured."""
    log = read_log(str(config.log))
    first, last = cut(config, len(log.columns["time_s"]), log.rate_hz)
    columns = {name: values[first:last] for name, values in log.columns.items()}
    shot = shot_of_log(robots.load(log.robot), replace(log, columns=columns))
    return shot, shot.clip.name


# subjects of a film; the first key that is set is used
SUBJECTS = {
    "policy": of_policy,
    "module": of_module,
    "rollouts": of_rollouts,
    "log": of_log,
    "data": of_motion,
}


# --- motions and their recordings ---


def motion_of(config: Render, robot: Robot) -> MotionSet:
    """The motion of data= and clip=, from start= on."""
    if config.data is None:
        raise InputError("npmp render module=... needs data=... (the motion dataset, HDF5)")
    motions = load_motions(config.data, robot, None)
    motion = motions[one_named(config.clip, motions.names)]
    return replace(motions, motions=(motion.crop(*cut(config, motion.num_frames, motion.rate_hz)),))


def one_named(clip: str | None, names: Sequence[str]) -> str:
    """The clip named by clip=, or the first. Raises InputError."""
    if not names:
        raise InputError("no clips in the file")
    check_available("clip", [] if clip is None else [clip], names)
    return clip or names[0]


def cut(config: Render, frames: int, rate_hz: float) -> tuple[int, int]:
    """The range of frames [first, last) of start= and seconds=. Raises InputError."""
    first = round(config.start * rate_hz)
    if not 0 <= first <= frames - 2:
        raise InputError(f"start={config.start}: the clip has {frames / rate_hz:.2f} s")
    length = frames if config.seconds is None else max(2, round(config.seconds * rate_hz) + 1)
    return first, min(frames, first + length)


def recording_of(config: Render, robot: Robot, motion: ReferenceMotion) -> Clip | None:
    """The recording of a motion: from source=, or a generated gait; None if unknown."""
    name = motion.recording or motion.name
    if config.source in (None, SYNTHETIC):
        generated = motion.source.startswith("generated")
        return next((clip for clip in demo_clips() if generated and clip.name == name), None)
    chosen = excerpts(config.source, 0, None)
    recordings = read_recordings(chosen, robot, options_of_keys(config), with_keys)
    clips = {clip.name: clip for clip in recordings.clips}
    if not clips:
        why = recordings.failures[0][1] if recordings.failures else "no recording of keypoints"
        raise InputError(f"source={config.source}: {why}")
    return clips[name] if name in clips or len(clips) > 1 else recordings.clips[0]


main = Verb("render", Render, run, out="file")
