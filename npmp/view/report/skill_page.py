"""The page of `npmp skill wander`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npmp.evaluation.analysis import Wandering
from npmp.robots import Robot
from npmp.view.report import figures
from npmp.view.report.figures import Line
from npmp.view.report.parts import Paragraph, Section, Table, assemble, number
from npmp.view.report.replay import ReplayClip, replay_section


def write(
    out: Path,
    robot: Robot,
    result: Mapping[str, Any],
    trial: Wandering,
    provenance: Mapping[str, Any],
) -> Path:
    """Write the page of robots on latents of the prior; returns its path.

    result: the content of wander.json.
    """
    clips = []
    for i in range(trial.qpos.shape[1]):
        qpos = trial.qpos[:, i].numpy()
        frames = trial.up_frames(i)
        clips.append(ReplayClip(f"prior {i}", qpos, 1.0 / trial.dt, tracked_frames=frames))
    time = np.linspace(0.0, trial.cap_s, 201)
    fall_s = np.where(trial.still_up().numpy(), np.inf, trial.up_s.numpy())
    up = Line("prior", time, (fall_s[None, :] > time[:, None]).mean(1))
    chart = figures.wide("Robots still up", "share", up, height=240, y_range=(0.0, 1.0))
    columns = {
        "up_s_mean": "up, mean (s)",
        "up_s_median": "up, median (s)",
        "up_to_the_end": "share up to the end",
        "path_m": "path (m)",
        "speed_mps": "speed (m/s)",
    }
    latents = result["latents"]
    seconds = number(result["seconds"])
    text = (
        f"{result['robots']} robots from the {result['starts']}, at most {seconds} s, which also "
        "counts for robots still up then. Latents are samples of the module's prior."
    )
    table = Table([*columns.values()], [[number(latents[key]) for key in columns]])
    return assemble(
        out,
        title=f"{result['module']}: wandering without a task",
        cards=[
            (
                "Up on the prior",
                f"{number(latents['up_s_mean'])} s",
                f"mean of {result['robots']} robots, at most {seconds} s",
            ),
            (
                "Path",
                f"{number(latents['path_m'])} m",
                f"mean until the fall, {number(latents['speed_mps'])} m/s",
            ),
        ],
        sections=[
            replay_section(robot, clips, end="fallen")[0],
            Section("up", "Time until the fall", [Paragraph(text), table, chart]),
        ],
        provenance=provenance,
    )
