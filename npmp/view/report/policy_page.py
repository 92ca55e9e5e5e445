"""The page of `npmp evaluate policy=`: how well a policy does its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from npmp.envs import Task, Trial
from npmp.evaluation.gait import CONTACT_M
from npmp.sim.terrain import PERIOD_M
from npmp.tasks.dribble import FAR_M, before_jump
from npmp.view.report import figures, parts
from npmp.view.report.figures import Line
from npmp.view.report.gait_section import DEG, grid_section
from npmp.view.report.replay import ReplayClip, replay_section

# of the trial, in the gait diagram
GAIT_S = (10.0, 16.0)
# between the replay's points of rough ground
GROUND_M = 0.1
_ON_ROUGH = (
    "The ground is drawn from points 0.1 m apart, so edges of steps look beveled. The field "
    "repeats itself every 8 m; where the robot fell it is put down elsewhere."
)
# of a trial's figures; the rest say all by their names
MEANINGS = {
    "velocity_error": "mean length of commanded minus achieved (m/s, m/s, rad/s), at each step",
    "falls": "of all robots together",
    "falls_per_minute": "of one robot, mean of all",
    "survived": "share of robots that never fell",
    "mechanical_power_w": "positive power of the joints, mean",
    "energy_j_per_m": "positive work of the joints per metre of the base's path",
    "torque_rms_nm": "of all joints, root mean square",
    "torque_max_nm": "largest of any joint",
    "joint_speed_max_rps": "largest of any joint",
    "torque_rate_nm_s": "mean change of a joint's torque",
    "joint_jerk_rad_s3": "second difference of joint velocities, root mean square",
    "swing_share": f"share of time above {1000 * CONTACT_M:g} mm while the base moves, worst foot",
    "foot_lift_m": "how high a swing gets, median, worst foot",
    "stance_mps": f"horizontal speed below {1000 * CONTACT_M:g} mm, mean, worst foot",
    "path_error_mean_m": "distance from the path, mean",
    "path_error_max_m": "distance from the path, largest",
    "finished": "share of robots at the path's end without a fall",
    "path_lag_m": "behind the point that is to be followed, mean",
    "missed": "share of robots that did not arrive in time without a touch",
    "collided": "share of robots that touched a wall or fell before they arrived",
    "arrival_s": "mean time of robots that arrived",
    "recovered": "share of robots that got up in time and stayed up",
    "not_recovered": "share of robots that did not get up in time and stay up",
    "recovery_s": "time until a robot is up for good, median",
    "ball_target_median_m": "distance of the ball from its target, median over robots and time",
    "ball_target_before_jump_median_m": "the same in the last second before the target jumps",
    "ball_speed_mps": "mean",
    "lost_per_minute": "how often the ball got too far away, per robot",
}
_MEASURES = {
    "slopes": ("Slopes", "deg"),
    "stairs": ("Stairs, height of a step", "m"),
    "perlin": ("Perlin noise", "m"),
}


def judged(
    out: Path, task: Task, found: Mapping[str, Any], trial: Trial, provenance: Mapping[str, Any]
) -> Path:
    """Write the page; returns its path. found: the content of evaluation.json."""
    clip = clip_of(task, trial, task.name)
    disc = "The disc on the floor is where the ball should be."
    notes = [(clip.ball, disc), (clip.ground, _ON_ROUGH)]
    also = " ".join(words for thing, words in notes if thing is not None)
    sections = [
        parts.Section("task", "The trial", trial_parts(task, found, trial, 0)),
        replay_section(task.robot, [clip], also)[0],
        _gait(task, trial),
        grid_section(found.get("grid", ()), task.robot.foot_bodies),
        _pushes(found["pushes"]) if found.get("pushes") else None,
        _grounds(found["grounds"]) if found.get("grounds") else None,
    ]
    trials = f"{found['robots']} robots, {parts.number(found['seconds'])} s"
    cards = [
        (name.replace("_", " "), parts.number(found[name]), MEANINGS.get(name, trials))
        for name in task.judged
        if name in found and name.removesuffix("_1s") not in set(task.judged) - {name}
    ]
    look: Any = {"title": f"{found['policy']}: {task.name}", "subtitle": trials, "cards": cards}
    return parts.assemble(out, sections=sections, provenance=provenance, **look)


def clip_of(
    task: Task, trial: Trial, name: str, *, steps: int | None = None, spacing_m: float = GROUND_M
) -> ReplayClip:
    """Robot 0 of a trial to watch, with its velocities, ball and ground, for its first `steps`;
    spacing_m: between points of the ground."""
    there = [name for name in ("command", "achieved", "target", "ball") if name in trial.metrics]
    seen: dict[str, Any] = {name: trial.metrics[name][:steps, 0].numpy() for name in there}
    if "ball" in seen:
        seen["ball_m"] = radius = float(task.commands.radius[0])
        seen["ball"] = np.pad(seen["ball"], ((0, 0), (0, 1)), constant_values=radius)
    ground: np.ndarray | None = None
    if task.env.ground.rough:
        # (n, n) one period from the origin on, row by y
        at = torch.arange(round(PERIOD_M / spacing_m)) * spacing_m
        grid = torch.stack(torch.meshgrid(at, at, indexing="xy"), -1)[None]
        ground = task.env.ground.height_at(grid, torch.tensor([0]))[0].cpu().numpy()
    qpos = trial.qpos[1:][:steps].numpy()
    return ReplayClip(name, qpos, 1.0 / trial.dt, ground=ground, ground_m=spacing_m, **seen)


def trial_parts(
    task: Task, found: Mapping[str, Any], trial: Trial, clip: int | None
) -> list[parts.Words | parts.Table | parts.Chart]:
    """Figures of a trial, and robot 0 over time; clip: its number in the replay."""
    charts = [*_over_time(task, trial, clip), *_map(task, trial, clip)]
    return [_words(found), *_tables(found), *charts, *_to_target(task, trial, clip)]


def _words(found: Mapping[str, Any]) -> parts.Words:
    settled = "Settled: without the first half second after each change of the command. "
    return parts.Words(
        f"{found['robots']} robots for {parts.number(found['seconds'])} s, randomization "
        f"{found.get('randomization', 'none')}. A robot that falls is put back at a start; every "
        "step counts. "
        f"{settled if 'velocity_error' in found else ''}The curves are robot 0's."
    )


def _tables(found: Mapping[str, Any]) -> list[parts.Table]:
    """Errors of velocity, a column per way to take them; then all else that is a number."""
    ways = {
        "": "at each step",
        "_1s": "over a second",
        "_settled": "settled",
        "_1s_settled": "settled, over a second",
    }
    errors = [key for key in found if f"{key}_1s" in found and not key.endswith("_settled")]
    rows = [
        [key, *(parts.number(found.get(f"{key}{way}", np.nan)) for way in ways)] for key in errors
    ]
    listed = {f"{key}{way}" for key in errors for way in ways} | {"robots", "seconds", "seed"}
    plain = [(key, value) for key, value in found.items() if isinstance(value, float | int)]
    others = [
        (key, parts.number(value), parts.Cell(MEANINGS.get(key, ""), words=True))
        for key, value in plain
        if key not in listed
    ]
    tables = [parts.Table(("mean absolute error", *ways.values()), rows)] if rows else []
    return [*tables, parts.Table(("figure", "value", ""), others)]


def _time(trial: Trial) -> np.ndarray:
    """(T,) [s]."""
    return (np.arange(len(trial.fell)) + 1) * trial.dt


def _over_time(task: Task, trial: Trial, clip: int | None) -> list[parts.Chart]:
    if (traces := task.traces(trial)) is None:
        return []
    both = [
        ("commanded", traces.command.numpy(), "ref"),
        ("achieved", traces.achieved.numpy(), "robot"),
    ]
    charts = []
    for k, (title, unit) in enumerate(traces.channels):
        lines = [Line(name, _time(trial), values[:, k], css) for name, values, css in both]
        charts.append(figures.wide(title, unit, *lines, clip=clip))
    return charts


def _map(task: Task, trial: Trial, clip: int | None) -> list[parts.Chart]:
    """Of a task with a course: the path from above, and how far from it robots are."""
    course: Any = getattr(task.planner, "course", None)
    if course is None:
        return []
    path = course.point.cpu().numpy()
    place = trial.metrics["place"][:, 0].numpy().copy()
    jumps = np.linalg.norm(np.diff(place, axis=0), axis=-1) > 0.5  # m: put back at a start
    place[1:][jumps] = np.nan
    time = _time(trial)
    error = trial.error.numpy()
    lines = [Line("path", path[:, 0], path[:, 1], "ref"), Line("robot 0", place[:, 0], place[:, 1])]
    errors = [Line("mean of all", time, error.mean(-1), "other")]
    errors.append(Line("robot 0", time, error[:, 0]))
    return [
        figures.wide("From above", "(m)", *lines, x_label="x (m)", height=420, square=True),
        figures.wide("Distance to the path", "(m)", *errors, clip=clip),
    ]


def _to_target(task: Task, trial: Trial, clip: int | None) -> list[parts.Chart]:
    """Of a task with a ball: its distance to the target over the trial, and for what share of the
    time."""
    if "to_jump_s" not in trial.metrics:
        return []
    error = trial.error.numpy()
    far = np.linspace(0.0, FAR_M, 101)
    late = error[before_jump(trial).numpy()]
    over = [Line("median of all", _time(trial), np.median(error, axis=-1), "other")]
    over.append(Line("robot 0", _time(trial), error[:, 0]))
    times = ("at all times", error, "ref"), ("in the last second before a jump", late, "robot")
    within = [
        Line(name, far, [(values <= edge).mean() for edge in far], css)
        for name, values, css in times
        if len(values)
    ]
    share: dict[str, Any] = {"x_label": "(m)", "y_range": (0.0, 1.05)}
    return [
        figures.wide("Ball to target", "(m)", *over, clip=clip),
        figures.wide("Share of time that the ball is so near", "", *within, **share),
    ]


def _gait(task: Task, trial: Trial) -> parts.Section:
    """Which feet stand when, and how the base leans."""
    length = round((GAIT_S[1] - GAIT_S[0]) / trial.dt)
    start = min(round(GAIT_S[0] / trial.dt), max(len(trial.fell) - length, 0))
    window = slice(start, start + length)
    time = _time(trial)[window]
    stands = (trial.metrics["feet"][window, 0, :, 0] < CONTACT_M).numpy()
    names = parts.foot_labels(task.robot.foot_bodies)
    chart = figures.footfall_chart(time, None, stands, names, title="Gait diagram", clip=0)
    base = trial.metrics["base"][window, 0].numpy()
    channels = (("Roll", "(deg)", DEG), ("Pitch", "(deg)", DEG), ("Height", "(cm)", 100))
    charts = [
        figures.line_chart([Line(title, time, scale * base[:, k])], title=title, unit=unit, clip=0)
        for k, (title, unit, scale) in enumerate(channels)
    ]
    words = (
        f"A foot stands while it is under {1000 * CONTACT_M:g} mm above the ground under it, as "
        "for swing_share."
    )
    if task.env.ground.rough:
        words += " The base's height is that above the mean of the ground around."
    of_base = parts.Charts(charts, small=True)
    return parts.Section("gait", "Gait", [chart, parts.Words(words), of_base])


def _pushes(rows: Sequence[Mapping[str, Any]]) -> parts.Section:
    bars = [
        parts.Bar(f"{row['force_n']:g} N", row["upright"], f"{100 * row['upright']:.0f} %")
        for row in rows
    ]
    unit = f"share that stays up, pushed for {rows[0]['duration_s']:g} s from all sides"
    chart = parts.Bars("By size of push", bars, full=1.0, unit=unit)
    return parts.Section("pushes", "Recovery from pushes", [chart])


def _grounds(rows: Sequence[Mapping[str, Any]]) -> parts.Section:
    """How many stay up, and how far they get, by kind and size of ground."""
    charts = []
    went = [row["progress"] for row in rows]
    y_range = min(0.0, *went), max(1.0, *went) + 0.05
    for kind, (title, unit) in _MEASURES.items():
        if not (mine := [row for row in rows if row["terrain"] == kind]):
            continue
        lines = [
            Line(name, [row["value"] for row in mine], [row[name] for row in mine], css)
            for name, css in (("upright", "robot"), ("progress", "ref"))
        ]
        charts.append(figures.line_chart(lines, title=title, x_label=f"({unit})", y_range=y_range))
    columns = ("terrain", "value", "upright", "progress", "falls_per_minute")
    cells = [[row["terrain"], *(parts.number(row[name]) for name in columns[1:])] for row in rows]
    words = (
        "Trials straight ahead, each on one kind of ground. Upright: the share of robots that "
        "never fell. Progress: the distance of all over the commanded distance: a robot may stay "
        "upright in front of a step. Values: the slope in degrees, the height of a step or of the "
        "noise from its lowest to its highest point in metres."
    )
    table = parts.Table(tuple(name.replace("_", " ") for name in columns), cells)
    drawn = parts.Charts(charts, small=True)
    return parts.Section("grounds", "Rough ground", [parts.Words(words), drawn, table])
