"""What a sweep found: the best settings as a file for `experiment=`, and of a search a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from mocap_data.files import atomic_path
from npmp.experiments.groups import GROUPS
from npmp.experiments.sweeping.search import Search
from npmp.experiments.sweeping.sweep import FINISHED, PRUNED, Sweep

BEST, PAGE = "best.yaml", "search.html"


def report(sweep: Sweep, search: Search | None) -> list[str]:
    """Write best.yaml, and of a search search.html. Returns lines on what they hold."""
    lines = []
    if found := best(sweep):
        settings, score, count = found
        write_best(sweep, settings, score)
        runs = f", mean of {count}" if count > 1 else ""
        named = " ".join(settings) or "as without the sweep"
        file = f"experiment={sweep.folder / BEST}"
        lines.append(f"best: {named} ({sweep.launcher.score} {score:.4g}{runs}); {file}")
    if search is not None and any(job.score is not None for job in sweep.jobs):
        write_page(sweep, search)
        lines.append(f"page: {sweep.folder / PAGE}")
    return lines


def best(sweep: Sweep) -> tuple[list[str], float, int] | None:
    """The settings, less the seed, with the best mean score over finished jobs; that score, and
    over how many.

    None where nothing but the seed differs, or it is unknown which scores are better.
    """
    lower = sweep.launcher.lower
    groups: dict[tuple[str, ...], list[float]] = {}
    for job in sweep.jobs:
        own = tuple(entry for entry in job.overrides if not entry.startswith("seed="))
        if job.state == FINISHED and job.score is not None:
            groups.setdefault(own, []).append(job.score)
    if not any(groups) or lower is None:
        return None
    means = {own: sum(scores) / len(scores) for own, scores in groups.items()}
    own = (min if lower else max)(means, key=lambda key: means[key])
    return list(own), means[own], len(groups[own])


def write_best(sweep: Sweep, settings: Sequence[str], score: float) -> None:
    """SWEEP/best.yaml, in the form of conf/experiment/*.yaml."""
    groups: list[dict[str, Any]] = []
    values: dict[str, Any] = {}
    for entry in OverridesParser.create().parse_overrides(list(settings)):
        if entry.key_or_group in GROUPS:
            groups.append({entry.key_or_group: entry.value()})
            continue
        *sections, leaf = entry.key_or_group.split(".")
        inner = values
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[leaf] = entry.value()
    content = {"verb": sweep.verb} | ({"defaults": groups} if groups else {}) | values
    with atomic_path(sweep.folder / BEST) as path:
        why = f"{sweep.launcher.score} {score:.6g}, the best of {len(sweep.jobs)} jobs"
        path.write_text(f"# {why}\n" + yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def write_page(sweep: Sweep, search: Search) -> None:
    """SWEEP/search.html: scores as the search went, what they depend on, and all jobs."""
    from npmp.report import figures
    from npmp.report.figures import Line
    from npmp.report.parts import Bar, Bars, Section, Table, assemble

    lower, score = sweep.launcher.lower, str(sweep.launcher.score)
    importances = search.importances()
    keys = sorted(search.space, key=lambda key: -importances.get(key, 0.0))
    known = [(i, job, job.score) for i, job in enumerate(sweep.jobs) if job.score is not None]
    ranked = sorted(known, key=lambda e: (e[1].state != FINISHED, e[2] if lower else -e[2]))
    rows = []
    for _, job, value in ranked:
        own = dict(entry.split("=", 1) for entry in job.overrides)
        rows.append([job.name, job.state, f"{value:.4g}", *(_short(own[key]) for key in keys)])
    lines = []
    for state, css in ((FINISHED, "robot"), (PRUNED, "other")):
        numbers = [i for i, job, _ in known if job.state == state]
        scores = [value for _, job, value in known if job.state == state]
        # gaps between them: each is a dot
        x = np.repeat(np.array(numbers, dtype=float), 2)
        y = np.stack((scores, np.full(len(scores), np.nan)), -1).reshape(-1)
        lines.append(Line(state, x, y, css))
        if state == FINISHED:
            best_of = np.minimum if lower else np.maximum
            lines.append(Line("best so far", numbers, best_of.accumulate(scores), "ref"))
    name = score.replace("_", " ")
    history = figures.wide("Score of each job", name, *lines, x_label="job", height=280)
    shares = [Bar(key, share, f"{share:.0%}") for key, share in importances.items()]
    bars = Bars("Importance (PED-ANOVA)", shares)
    jobs = Table(("job", "state", score, *keys), rows, sortable=True)
    assemble(
        sweep.folder / PAGE,
        title=f"Search for {name}",
        subtitle=f"{len(sweep.jobs)} jobs",
        notes=["Pruned jobs were ended early; their score is the last that they had."],
        sections=[
            Section("history", "Scores", [history]),
            Section("settings", "What they depend on", [bars]) if shares else None,
            Section("jobs", "Jobs", [jobs]),
        ],
    )


def _short(value: str) -> str:
    try:
        return f"{float(value):.4g}"
    except ValueError:
        return value
