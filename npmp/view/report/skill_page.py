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
from npmp.view.report.parts import Section, Table, Words, assemble, number
from npmp.view.report.replay import ReplayClip, replay_section


def wandering(
    out: Path,
    robot: Robot,
    found: Mapping[str, Any],
    trial: Wandering,
    provenance: Mapping[str, Any],
) -> Path:
    """Write the page of robots on latents of the prior; returns its path.

    found: the content of wander.json.
    """
    clips = []
    for i in range(trial.qpos.shape[1]):
        qpos = trial.qpos[:, i].numpy()
        up = trial.up_frames(i)
        clips.append(ReplayClip(f"prior {i}", qpos, 1.0 / trial.dt, tracked_frames=up))
    time = np.linspace(0.0, trial.cap_s, 201)
    ended = np.where(trial.still_up().numpy(), np.inf, trial.up_s.numpy())
    up_at = Line("prior", time, (ended[None, :] > time[:, None]).mean(1))
    chart = figures.wide("Robots still up", "share", up_at, height=240, y_range=(0.0, 1.0))
    columns = {
        "up_s_mean": "up, mean (s)",
        "up_s_median": "up, median (s)",
        "up_to_the_end": "share up to the end",
        "path_m": "path (m)",
        "speed_mps": "speed (m/s)",
    }
    best = found["latents"]
    seconds = number(found["seconds"])
    words = (
        f"{found['robots']} robots from the {found['starts']}, {seconds} s at most: times of those "
        "still up then count as that. Latents are samples of the AR(1) prior."
    )
    table = Table([*columns.values()], [[number(best[key]) for key in columns]])
    staying = Section("up", "How long they stay up", [Words(words), table, chart])
    sections = [replay_section(robot, clips, end="fallen")[0], staying]
    most = f"mean of {found['robots']} robots, {seconds} s at most"
    path = f"mean until the fall, {number(best['speed_mps'])} m/s"
    cards = [("Up on the prior", f"{number(best['up_s_mean'])} s", most)]
    cards.append(("Path", f"{number(best['path_m'])} m", path))
    title = f"{found['module']}: wandering without a task"
    return assemble(out, title=title, cards=cards, sections=sections, provenance=provenance)
