"""`npmp render`: a film of a policy at its task, of a module that imitates, of a motion beside its
recording, or of an evaluation's rollouts."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import MofNCompleteColumn

from mocap_data.clip import Clip
from mocap_data.errors import InputError, unknown
from mocap_data.motion import ReferenceMotion
from mocap_data.outside import read_text
from mocap_data.store import MotionSet
from mocap_data.synthetic import demo_clips
from npmp import modules, ranges, robots, tasks
from npmp.envs import TaskEnv, Trial, load_motions
from npmp.evaluation.rollouts import read_rollouts
from npmp.evaluation.trial import run_trial
from npmp.experiments.backend import (
    Simulating,
    motions_of,
    note_other_drives,
    place_of,
    policy_of,
    robot_of,
    robots_config_of,
)
from npmp.experiments.command import Run, Verb
from npmp.experiments.compose import compose, group, split
from npmp.experiments.groups import task_of
from npmp.experiments.recordings import SYNTHETIC, Reading, options_of_keys, with_keys
from npmp.experiments.terminal import progress_bar, say
from npmp.policy import PolicyActor
from npmp.render import ReplayClip, Shot, View, check_format, draw, write
from npmp.report.policy_page import clip_of
from npmp.robots import Robot
from npmp.skill import SkillModule
from npmp.tasks import Imitation
from npmp.tasks.commands import CommandRange
from npmp.tasks.velocity import COMMAND_NAMES
from npmp.tracking import track
from retarget.recorded import bones, keypoints_of
from retarget.sources import excerpts, read_recordings

# what a film may be of; the first that is given
SUBJECTS = ("policy", "module", "rollouts", "data")
GROUND_M = 0.05  # between the points of rough ground
# of a policy where seconds= does not say; of a path, which takes what it takes
TRIAL_S, LONGEST_S = 10.0, 60.0


@dataclass(frozen=True, kw_only=True)
class Render(Simulating, Reading):
    """Film a robot: a policy at its task, a module that imitates, a motion beside its recording, or
    an evaluation's rollouts; as mp4, GIF, WebP or a still.

    npmp render policy=anymal_b_walk command=[0.6,0,0] out=walk.mp4
    npmp render policy=anymal_b_walk command=[[0,0.8,0,0],[3,0.5,0,0.8],[6,0,0.3,0]] out=walk.webp
    npmp render policy=anymal_b_walk task=path task.path=figure_eight camera=fixed out=eight.webp
    npmp render module=anymal_b_dog data=motions.h5 clip=synthetic_trot out=tracked.webp
    npmp render data=motions.h5 clip=synthetic_trot out=motion.webp
    npmp render rollouts=runs/evaluation/rollouts.h5 out=rollout.webp
    """

    # a policy to film: its folder, or a shipped one's name (npmp skill list)
    policy: str | None = None
    # what it is filmed at; null: its own task
    task: Any = group(None)
    # of a walking policy: [forward m/s, left m/s, turn rad/s], or [[from_s, forward, left, turn],
    # ...]; null: as the task draws them
    command: list[Any] | None = None
    # a skill module that imitates clip=: its folder, or a shipped one's name; of a policy: the
    # module it works through
    module: str | None = None
    # the motion dataset (HDF5): what is imitated, or filmed beside its recording; of a policy:
    # poses that it also starts from
    data: Path | None = None
    # the name of a motion of data=, or of a clip of rollouts=; null: the first
    clip: str | None = None
    # the recording that the motion was made from, drawn as a stick figure; null: none, but of
    # generated gaits
    source: str | list[str] | None = None
    # a rollouts.h5 that npmp evaluate wrote
    rollouts: Path | None = None
    # a text file whose lines have the keys of a shot each, to be joined into one film
    story: Path | None = None
    # s of the motion, from where it is filmed
    start: float = 0.0
    # of film; null: the whole motion, ten seconds of a policy, the time that a path takes
    seconds: float | None = None
    # s, of a still (out=FILE.png); null: its middle
    at: float | None = None
    # which of robot, ghost and recording, where there are any
    show: list[str] = field(default_factory=lambda: ["robot", "ghost", "recording"])
    # follow: with the robot, smoothly; fixed: it stands, and sees the whole way
    camera: str = "follow"
    # degrees from the robot's first heading: 0 from behind, 90 from its right, 180 from ahead
    azimuth: float = 125.0
    # degrees; below 0 it looks down
    elevation: float = -20.0
    # m; null: so that what is shown fills the picture
    distance: float | None = None
    # title, note and velocities in the picture
    caption: bool = True
    # in the upper left corner; null: what is filmed
    title: str | None = None
    # below the title
    note: str | None = None
    # pixels
    size: tuple[int, int] = (640, 360)
    # frames per second at most: whole numbers of the control steps' frames are passed over
    fps: float = 25.0
    # millions of bytes at most: quality is given up for it, then frames; null: no limit
    max_mb: float | None = None
    # of setpoints, first_order or zero_order; null: as the module was trained
    hold: str | None = None
    # the file; its name says as what: .mp4 (needs npmp[render]), .gif, .webp, or .png for a still
    out: Path | None = Path("runs/render/{now}.webp")

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [key for key in ("seconds", "max_mb", "distance") if getattr(self, key) is not None]
        ranges.above_zero(self, "fps", *given)
        if not all(64 <= pixels <= 4096 and pixels % 2 == 0 for pixels in self.size):
            raise ValueError(
                f"size must be [width,height], even numbers from 64 to 4096, got {list(self.size)}"
            )


def run(config: Render, run: Run) -> None:
    """Let the robot move, draw it, write the file."""
    size, suffix = config.size, check_format(run.folder)
    began = time.perf_counter()
    shots = [shot_of(config, run)] if config.story is None else told(config.story, run)
    if suffix == ".png":
        if len(shots) > 1:
            raise InputError(
                f"out={run.folder}: a still is of one shot, and the story has {len(shots)}"
            )
        shots = [still(shots[0], config.at)]
    run.begin()
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("frames", total=None)
        drawn = draw(
            shots,
            size,
            config.fps,
            words=config.caption,
            progress=lambda done, count: bar.update(task, completed=done, total=count),
        )
    size_bytes, quality = write(run.folder, drawn, max_mb=config.max_mb)
    count = len(drawn.pictures)
    length = "" if suffix == ".png" else f"{count} frames, {count / drawn.fps:.1f} s, "
    lower = "" if config.max_mb is None else f" (quality {quality})"
    say(
        f"{length}{size[0]}x{size[1]}, {size_bytes / 1e6:.2f} MB{lower}, drawn by "
        f"{drawn.backend} in "
        f"{time.perf_counter() - began:.0f} s: {run.folder}"
    )


# --- stories ---


def told(story: Path, run: Run) -> list[Shot]:
    """The shots of a story: a file with the keys of a shot on each line, as `npmp render` takes
    them."""
    shots = []
    for number, line in enumerate(read_text(story).splitlines(), 1):
        try:
            arguments = shlex.split(line, comments=True)
        except ValueError as error:
            raise InputError(f"{story}, line {number}: {error}") from error
        if not arguments:
            continue
        try:
            job = compose("render", Render, split(arguments))
            shot = replace(run, seed=job.config.seed, chosen=job.chosen, given=job.given)
            shots.append(shot_of(job.config, shot))
        except InputError as error:
            raise InputError(f"{story}, line {number}: {error}") from error
    if not shots:
        raise InputError(
            f"{story}: no shots; each line has the keys of one, as npmp render takes them"
        )
    return shots


def still(shot: Shot, at_s: float | None) -> Shot:
    """The moment of a shot at a time [s], its middle by default."""
    frames, rate = len(shot.qpos), shot.clip.rate_hz
    frame = frames // 2 if at_s is None else round(at_s * rate)
    if not 0 <= frame < frames:
        raise InputError(f"at={at_s:g}: from 0 to {(frames - 1) / rate:.2f} s is expected")
    return replace(shot, moment=frame)


# --- shots ---


def shot_of(config: Render, run: Run) -> Shot:
    """What the configuration asks to be filmed."""
    given = [key for key in SUBJECTS if getattr(config, key) is not None]
    if not given:
        raise InputError(
            "npmp render needs something to film: policy=, module= and data=, data=, or rollouts="
        )
    kinds = {"policy": of_policy, "module": of_module, "data": of_motion, "rollouts": of_rollouts}
    shot = kinds[given[0]](config, run, robot_of(config))
    view = View(
        config.camera, azimuth=config.azimuth, elevation=config.elevation, distance=config.distance
    )
    return replace(
        shot,
        view=view,
        title=shot.title if config.title is None else " ".join(config.title.split()),
        note=shot.note if config.note is None else " ".join(config.note.split()),
        shown=tuple(config.show),
    )


def of_policy(config: Render, run: Run, robot: Robot) -> Shot:
    """A policy at its task, until the time is up, the path is walked or the robot falls."""
    folder, policy, _, skill = policy_of(str(config.policy), config.module, run.device)
    skill.check_robot(robot)
    kind: Any = tasks.find(task_of(str(run.chosen["task"])))
    policy.check_task(kind)
    within = policy.contract.command_range
    motions = motions_of(config.data, robot)
    settings = kind.resolve(config.task, motions, policy.contract.input_settings)
    task = kind(robot, settings, motions)
    note_other_drives(policy.contract.training, config.actuator)
    like = robots_config_of(config, skill, hold=config.hold)
    env = TaskEnv(task, 1, robots=like, seed=run.seed, **place_of(config, run))
    on_course = task.name == "path"
    seconds = config.seconds or (min(task.trial_s, LONGEST_S) if on_course else TRIAL_S)
    commands = None
    if config.command is not None:
        if task.name != "walk":
            raise InputError(f"command= is for task=walk, not for {task.name}")
        commands = commands_of(config.command, round(seconds / env.dt), env.dt, within)
    actor = PolicyActor(policy, skill)
    trial = run_trial(actor, env, seconds=seconds, seed=run.seed, commands=commands)
    count = steps_shown(trial)
    clip = clip_of(task, trial, task.name, steps=count, spacing_m=GROUND_M)
    path = course_of(task, trial) if on_course else None
    return Shot(robot, clip, path=path, title=f"{folder.name}: {task.name}")


def steps_shown(trial: Trial) -> int:
    """Steps until robot 0 falls or has walked its path; says so where it falls."""
    fell, ended = trial.fell[:, 0], trial.seen.get("finished", trial.fell)[:, 0]
    over = (fell | ended).nonzero()
    count = len(fell) if not len(over) else int(over[0]) + 1
    if bool(fell[:count].any()):
        say(f"the robot failed after {count * trial.dt:.1f} s, where the film ends")
    return count


def commands_of(
    value: Any, steps: int, dt: float, within: CommandRange | Sequence[Sequence[float]]
) -> torch.Tensor:
    """command= over control steps (T, 1, 3): [forward, left, turn], or several [from_s, forward,
    left, turn]. Raises InputError."""
    rows: Any = value if value and isinstance(value[0], list) else [[0.0, *value]]
    if not all(
        isinstance(row, list) and len(row) == 4 and all(map(_is_number, row)) for row in rows
    ):
        raise InputError(
            f"command={value}: [forward m/s, left m/s, turn rad/s] is expected, or a list of rows"
            " [from_s, forward, left, turn]"
        )
    table = np.array(rows, dtype=np.float64)
    for name, column, (low, high) in zip(COMMAND_NAMES, table[:, 1:].T, within, strict=True):
        if column.min() < low - 1e-9 or column.max() > high + 1e-9:
            raise InputError(
                f"command={value}: {name} from {low:g} to {high:g} is what the policy knows"
            )
    if table[0, 0] != 0.0 or (np.diff(table[:, 0]) <= 0.0).any():
        raise InputError(f"command={value}: times must rise from 0")
    row = np.searchsorted(table[:, 0], np.arange(max(1, steps)) * dt + 1e-9, side="right") - 1
    return torch.tensor(table[row, 1:], dtype=torch.float32).unsqueeze(1)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def course_of(task: Any, trial: Trial) -> np.ndarray:
    """The path (S, 2) where robot 0 began it, in the world [m]."""
    w, x, y, z = (float(v) for v in trial.qpos[0, 3:7])
    yaw = np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    turn = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
    points = task.course.point.cpu().double().numpy()
    along = points[: round(task.course.length / 0.02) : 5]
    return np.asarray(along @ turn.T + trial.qpos[0, :2].numpy())


def of_module(config: Render, run: Run, robot: Robot) -> Shot:
    """A module that imitates a clip, its reference as a ghost, the recording beside."""
    motions = motion_of(config, robot)
    [motion] = motions.motions
    folder = modules.find(str(config.module))
    skill = SkillModule.load(folder, run.device)
    skill.check_robot(robot)
    skill.check_encoder(robot)
    like, place = robots_config_of(config, skill, hold=config.hold), place_of(config, run)
    env = TaskEnv(Imitation(robot, motions=motions), 1, robots=like, seed=run.seed, **place)
    first = torch.zeros(1, dtype=torch.long)
    found = track(skill, env, first, env.task.reference.start[first.to(env.device)])
    steps = int(found.steps[0])
    if steps < motion.num_frames - 1:
        say(f"the robot lost the motion after {steps / motion.rate_hz:.1f} s, where the film ends")
    motion = motion.crop(0, max(2, min(steps + 1, len(found.qpos))))
    return recorded(
        config,
        robot,
        motion,
        found.qpos[: motion.num_frames, 0].numpy(),
        f"{folder.name} tracks {motion.name}",
    )


def of_motion(config: Render, run: Run, robot: Robot) -> Shot:
    """A motion of the dataset beside its recording."""
    [motion] = motion_of(config, robot).motions
    return recorded(config, robot, motion, None, motion.name)


def of_rollouts(config: Render, run: Run, robot: Robot) -> Shot:
    """A clip of an evaluation's rollouts.h5 and its ghost."""
    found = read_rollouts(str(config.rollouts))
    robot = robots.load(found.robot)
    chosen = {clip.name: clip for clip in found.clips}
    clip = chosen[one_named("clip", config.clip, list(chosen))]
    first, last = cut(config, len(clip.qpos), clip.rate_hz)
    part = slice(first, max(first + 1, min(last, clip.tracked_frames)))
    shown = ReplayClip(
        clip.name, clip.qpos[part], clip.rate_hz, reference=clip.reference_qpos[part]
    )
    return Shot(robot, shown, title=clip.name)


# --- motions and their recordings ---


def motion_of(config: Render, robot: Robot) -> MotionSet:
    """The motion that data= and clip= name, from start= on, by itself."""
    if config.data is None:
        raise InputError("npmp render module=... needs data=... (the motion dataset, HDF5)")
    motions = load_motions(config.data, robot, None)
    motion = motions[one_named("clip", config.clip, motions.names)]
    return replace(motions, motions=(motion.crop(*cut(config, motion.num_frames, motion.rate_hz)),))


def one_named(key: str, value: Any, names: Sequence[str]) -> str:
    """One of some names; the first where none is asked for. Raises InputError."""
    if not names:
        raise InputError("there are no clips in it")
    if value is not None and str(value) not in names:
        raise unknown(key, str(value), names)
    return names[0] if value is None else str(value)


def cut(config: Render, frames: int, rate_hz: float) -> tuple[int, int]:
    """First frame and the one after the last that start= and seconds= ask for. Raises
    InputError."""
    first = round(config.start * rate_hz)
    if not 0 <= first <= frames - 2:
        raise InputError(f"start={config.start}: the clip has {frames / rate_hz:.2f} s")
    length = frames if config.seconds is None else max(2, round(config.seconds * rate_hz) + 1)
    return first, min(frames, first + length)


def recorded(
    config: Render, robot: Robot, motion: ReferenceMotion, qpos: np.ndarray | None, title: str
) -> Shot:
    """A motion beside its recording; qpos (T, nq): the robot's own, whose ghost the motion is
    then."""
    clip = recording_of(config, robot, motion)
    drawn: dict[str, Any] = {}
    if clip is not None:
        drawn = {
            "keypoints": keypoints_of(motion, clip, motion.quality.get("body_scale", 1.0)),
            "bones": bones(clip),
        }
    reference = None if qpos is None else motion.qpos
    shown = ReplayClip(
        motion.name,
        motion.qpos if qpos is None else qpos,
        motion.rate_hz,
        reference=reference,
        **drawn,
    )
    return Shot(robot, shown, title=title)


def recording_of(config: Render, robot: Robot, motion: ReferenceMotion) -> Clip | None:
    """The recording that a motion was made from: of source=, or one of the generated gaits; None
    where neither has it."""
    name = motion.recording or motion.name
    if config.source in (None, SYNTHETIC):
        return (
            {clip.name: clip for clip in demo_clips()}.get(name)
            if motion.source.startswith("generated")
            else None
        )
    found = read_recordings(
        excerpts(config.source, 0, None), robot, options_of_keys(config), with_keys
    )
    clips = {clip.name: clip for clip in found.clips}
    if not clips:
        raise InputError(
            f"source={config.source}: "
            f"{found.failures[0][1] if found.failures else 'no recording of keypoints'}"
        )
    return clips[name] if name in clips or len(clips) > 1 else next(iter(clips.values()))


main = Verb("render", Render, run, out="file")
