"""The page of `npmp evaluate policy=`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from npmp.envs import Task, Trial
from npmp.evaluation.gait import CONTACT_M
from npmp.evaluation.terrains import ACROSS, TERRAIN_TRIALS
from npmp.sim.terrain import PERIOD_M
from npmp.view.report import figures, parts
from npmp.view.report.figures import Line
from npmp.view.report.gait_section import grid_section, transitions_section
from npmp.view.report.replay import ReplayClip, replay_section
from retarget.kinematics import tree_of
from retarget.quality import leg_length

# time in the trial of the gait diagram [s]
GAIT_S = (10.0, 16.0)
# spacing of the replay's rough ground [m]
GROUND_M = 0.1
# colours of a chart's lines of success
LINE_STYLES = ("robot", "third", *parts.FOOT_CSS)
# tooltips of metrics whose names are not self-explanatory
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
    "foot_lift_m": "height of a swing, median, worst foot",
    "stance_mps": f"horizontal speed below {1000 * CONTACT_M:g} mm, mean, worst foot",
    "path_error_mean_m": "distance from the path, mean",
    "path_error_max_m": "distance from the path, largest",
    "finished": "share of robots at the path's end without a fall",
    "path_lag_m": "distance behind the point to follow, mean",
    "missed": "share of robots that did not arrive in time without a collision",
    "collided": "share of robots that touched a wall or fell before they arrived",
    "arrival_s": "mean time of robots that arrived",
    "recovered": "share of robots that got up in time and stayed up",
    "not_recovered": "share of robots that did not get up in time and stay up",
    "recovery_s": "time until a robot stays up, median",
    "ball_target_median_m": "distance of the ball from its target, median over robots and time",
    "ball_target_before_jump_median_m": "the same in the last second before the target jumps",
    "ball_speed_mps": "mean",
    "lost_per_minute": "number of times that the ball got too far away, per robot",
}


def write(
    out: Path, task: Task, result: Mapping[str, Any], trial: Trial, provenance: Mapping[str, Any]
) -> Path:
    """Write the page; returns its path. result: the content of evaluation.json."""
    clip = clip_of(task, trial, task.name)
    notes = []
    if clip.ball is not None:
        notes.append("The disc on the floor is the ball's target.")
    if clip.ground is not None:
        notes.append(
            f"The ground has points {GROUND_M:g} m apart, so edges of steps look beveled. It "
            "repeats every 8 m; a robot that falls is reset elsewhere."
        )
    conditions = f"{result['robots']} robots, {parts.number(result['seconds'])} s"
    cards = [
        (name.replace("_", " "), parts.number(result[name]), MEANINGS.get(name, conditions))
        for name in task.logged_figures
        if name in result and name.removesuffix("_1s") not in set(task.logged_figures) - {name}
    ]
    return parts.assemble(
        out,
        title=f"{result['policy']}: {task.name}",
        subtitle=conditions,
        cards=cards,
        sections=[
            parts.Section("task", "The trial", trial_parts(task, result, trial, 0)),
            replay_section(task.robot, [clip], " ".join(notes))[0],
            _gait(task, trial),
            grid_section(result.get("grid", ()), task.robot.foot_bodies),
            transitions_section(result.get("transitions", ())),
            _pushes(result["pushes"]) if result.get("pushes") else None,
            _grounds(task, result["grounds"]) if result.get("grounds") else None,
        ],
        provenance=provenance,
    )


def clip_of(
    task: Task, trial: Trial, name: str, *, steps: int | None = None, spacing_m: float = GROUND_M
) -> ReplayClip:
    """Robot 0 of a trial with its velocities, ball and ground, for its first `steps`. spacing_m: of
    the ground's points."""
    available = [key for key in ("command", "achieved", "target", "ball") if key in trial.metrics]
    channels: dict[str, Any] = {key: trial.metrics[key][:steps, 0].numpy() for key in available}
    if "ball" in channels:
        radius = float(task.commands.radius[0])
        channels["ball_m"] = radius
        channels["ball"] = np.pad(channels["ball"], ((0, 0), (0, 1)), constant_values=radius)
    ground: np.ndarray | None = None
    if task.env.ground.rough:
        # (n, n) one period from the origin, row by y
        points = torch.arange(round(PERIOD_M / spacing_m)) * spacing_m
        grid = torch.stack(torch.meshgrid(points, points, indexing="xy"), -1)[None]
        ground = task.env.ground.height_at(grid, torch.tensor([0]))[0].cpu().numpy()
    qpos = trial.qpos[1:][:steps].numpy()
    return ReplayClip(name, qpos, 1.0 / trial.dt, ground=ground, ground_m=spacing_m, **channels)


def trial_parts(
    task: Task, result: Mapping[str, Any], trial: Trial, clip: int | None
) -> list[parts.Paragraph | parts.Table | parts.Chart]:
    """The metrics of a trial, and robot 0 over time. clip: its number in the replay."""
    charts = [*_over_time(task, trial, clip), *_map(task, trial, clip), *_ball(trial, clip)]
    return [_lead(result), *_tables(result), *charts]


def _lead(result: Mapping[str, Any]) -> parts.Paragraph:
    settled = "Settled: without the first half second after each change of the command. "
    return parts.Paragraph(
        f"{result['robots']} robots for {parts.number(result['seconds'])} s, randomization "
        f"{result.get('randomization', 'none')}. A robot that falls is reset; every step counts. "
        f"{settled if 'velocity_error' in result else ''}The curves are robot 0's."
    )


def _tables(result: Mapping[str, Any]) -> list[parts.Table]:
    """Velocity errors by kind of mean, then all other numbers."""
    kinds = {
        "": "at each step",
        "_1s": "over a second",
        "_settled": "settled",
        "_1s_settled": "settled, over a second",
    }
    errors = [key for key in result if f"{key}_1s" in result and not key.endswith("_settled")]
    rows = [
        [key, *(parts.number(result.get(f"{key}{kind}", np.nan)) for kind in kinds)]
        for key in errors
    ]
    listed = {f"{key}{kind}" for key in errors for kind in kinds} | {"robots", "seconds", "seed"}
    others = [
        (key, parts.number(value), parts.Cell(MEANINGS.get(key, ""), wrap=True))
        for key, value in result.items()
        if isinstance(value, float | int) and key not in listed
    ]
    tables = [parts.Table(("mean absolute error", *kinds.values()), rows)] if rows else []
    return [*tables, parts.Table(("metric", "value", ""), others)]


def _time(trial: Trial) -> np.ndarray:
    """Times of the control steps, (T,) [s]."""
    return (np.arange(len(trial.fell)) + 1) * trial.dt


def _over_time(task: Task, trial: Trial, clip: int | None) -> list[parts.Chart]:
    if (traces := task.traces(trial)) is None:
        return []
    sides = [
        ("commanded", traces.command.numpy(), "ref"),
        ("achieved", traces.achieved.numpy(), "robot"),
    ]
    charts = []
    for k, (title, unit) in enumerate(traces.channels):
        lines = [Line(name, _time(trial), values[:, k], css) for name, values, css in sides]
        charts.append(figures.wide(title, unit, *lines, clip=clip))
    return charts


def _map(task: Task, trial: Trial, clip: int | None) -> list[parts.Chart]:
    """The path from above and the distance from it, for a task with a path."""
    course: Any = getattr(task.planner, "path", None)
    if course is None:
        return []
    path = course.point.cpu().numpy()
    position = trial.metrics["place"][:, 0].numpy().copy()
    resets = np.linalg.norm(np.diff(position, axis=0), axis=-1) > 0.5
    position[1:][resets] = np.nan
    time = _time(trial)
    error = trial.error.numpy()
    lines = [
        Line("path", path[:, 0], path[:, 1], "ref"),
        Line("robot 0", position[:, 0], position[:, 1]),
    ]
    errors = [
        Line("mean of all", time, error.mean(-1), "other"),
        Line("robot 0", time, error[:, 0]),
    ]
    return [
        figures.wide("From above", "(m)", *lines, x_label="x (m)", height=420, square=True),
        figures.wide("Distance to the path", "(m)", *errors, clip=clip),
    ]


def _ball(trial: Trial, clip: int | None) -> list[parts.Chart]:
    """The distance of the ball from its target, for a task with a ball."""
    if "to_jump_s" not in trial.metrics:
        return []
    error = trial.error.numpy()
    time = _time(trial)
    median = Line("median of all", time, np.median(error, axis=-1), "other")
    return [
        figures.wide("Ball to target", "(m)", median, Line("robot 0", time, error[:, 0]), clip=clip)
    ]


def _gait(task: Task, trial: Trial) -> parts.Section:
    """The gait diagram of robot 0."""
    length = round((GAIT_S[1] - GAIT_S[0]) / trial.dt)
    start = min(round(GAIT_S[0] / trial.dt), max(len(trial.fell) - length, 0))
    window = slice(start, start + length)
    stance = (trial.metrics["feet"][window, 0, :, 0] < CONTACT_M).numpy()
    names = parts.foot_labels(task.robot.foot_bodies)
    time = _time(trial)[window]
    chart = figures.footfall_chart(time, None, stance, names, title="Gait diagram", clip=0)
    text = f"A foot stands while it is less than {1000 * CONTACT_M:g} mm above the ground."
    return parts.Section("gait", "Gait", [chart, parts.Paragraph(text)])


def _pushes(rows: Sequence[Mapping[str, Any]]) -> parts.Section:
    bars = [
        parts.Bar(f"{row['force_n']:g} N", row["upright"], f"{100 * row['upright']:.0f} %")
        for row in rows
    ]
    unit = f"share that stays up, pushed for {rows[0]['duration_s']:g} s from all sides"
    chart = parts.Bars("By size of push", bars, full=1.0, unit=unit)
    return parts.Section("pushes", "Recovery from pushes", [chart])


def ground_table(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Headings and cells of the rows of `evaluate_terrains`."""
    columns = ("success", "upright", "displacement", "falls_per_minute")
    cells = []
    for row in rows:
        unit = TERRAIN_TRIALS[row["terrain"]].unit
        values = [parts.number(row[name]) for name in columns]
        cells.append([row["terrain"].replace("_", " "), f"{row['value']:g} {unit}", *values])
    return ("terrain", "size", *(name.replace("_", " ") for name in columns)), cells


def _grounds(task: Task, rows: Sequence[Mapping[str, Any]]) -> parts.Section:
    text = (
        "Trials straight ahead, each on one kind of ground. Size: of slopes the angle, of gaps and "
        "stepping stones the width between them, otherwise the height. Success: share of robots "
        f"whose displacement along their first heading is {100 * ACROSS:g} % of the commanded "
        "distance or more, without a fall. Upright: share without a fall. Displacement: its mean "
        "until the first fall, as a share of the commanded distance."
    )
    leg_m = leg_length(task.robot, tree_of(task.robot.model(visuals=False)))
    charts = []
    legs = f"leg lengths ({leg_m:.2f} m)"
    for size, unit, x_label in (
        ("height", leg_m, f"height in {legs}"),
        ("width", leg_m, f"width in {legs}"),
        ("slope", 1.0, "slope (deg)"),
    ):
        names = dict.fromkeys(row["terrain"] for row in rows if row["terrain"] != "flat")
        of_size = [name for name in names if TERRAIN_TRIALS[name].size == size]
        lines = [
            Line(name.replace("_", " "), *_success(rows, name, unit), css)
            for name, css in zip(of_size, LINE_STYLES)
        ]
        if lines:
            look: Any = {"x_label": x_label, "y_range": (0.0, 1.02)}
            charts.append(figures.wide(f"Success by {size}", "(share of robots)", *lines, **look))
    table = parts.Table(*ground_table(rows))
    return parts.Section("grounds", "Rough ground", [parts.Paragraph(text), *charts, table])


def _success(
    rows: Sequence[Mapping[str, Any]], name: str, unit: float
) -> tuple[list[float], list[float]]:
    """Sizes in a unit, and the success on flat ground and on each of them."""
    points = [(row["value"] / unit, row["success"]) for row in rows if row["terrain"] == name]
    flat = [(0.0, row["success"]) for row in rows if row["terrain"] == "flat"]
    size, success = zip(*flat, *points)
    return list(size), list(success)
