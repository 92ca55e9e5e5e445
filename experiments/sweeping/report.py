"""What a sweep found: the best settings as a file for `experiment=`, and of a search a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from mocap_data.files import atomic_path
from npmp.experiments.help import CONF
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
        if (CONF / entry.key_or_group).is_dir():
            groups.append({f"override /{entry.key_or_group}": entry.value()})
            continue
        *sections, leaf = entry.key_or_group.split(".")
        inner = values
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[leaf] = entry.value()
    content = ({"defaults": groups} if groups else {}) | values
    with atomic_path(sweep.folder / BEST) as path:
        why = f"{sweep.launcher.score} {score:.6g}, the best of {len(sweep.jobs)} jobs"
        head = f"# @package _global_\n# for: {sweep.verb}\n# {why}\n"
        path.write_text(head + yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def write_page(sweep: Sweep, search: Search) -> None:
    """SWEEP/search.html: scores as the search went, what they depend on, and all jobs."""
    from npmp.report.parts import Bar, Bars, Picture, Section, Table, assemble

    importances = search.importances()
    keys = sorted(search.space, key=lambda key: -importances.get(key, 0.0))
    known = [(i, job, job.score) for i, job in enumerate(sweep.jobs) if job.score is not None]
    sign = 1.0 if sweep.launcher.lower else -1.0
    ranked = sorted(known, key=lambda entry: (entry[1].state != FINISHED, sign * entry[2]))
    values = {
        i: {key: value for key, _, value in (own.partition("=") for own in job.overrides)}
        for i, job, _ in known
    }
    rows = [
        [job.name, job.state, f"{score:.4g}", *(_short(values[i][key]) for key in keys)]
        for i, job, score in ranked
    ]
    history = _image(lambda sheet: _history(sheet, sweep))
    lines = _image(lambda sheet: _parallel(sheet, sweep, search, keys, values))
    shares = [Bar(key, share, f"{share:.0%}") for key, share in importances.items()]
    bars = [Bars("Importance (PED-ANOVA)", shares)] if shares else []
    score = str(sweep.launcher.score)
    assemble(
        sweep.folder / PAGE,
        title=f"Search for {score.replace('_', ' ')}",
        subtitle=f"{len(sweep.jobs)} jobs",
        notes=["Pruned jobs were ended early; their score is the last that they had."],
        sections=[
            Section("history", "Scores", [Picture(history, "score of each job", "plot")]),
            Section(
                "settings", "What they depend on", [Picture(lines, "a line per job", "plot"), *bars]
            ),
            Section("jobs", "Jobs", [Table(("job", "state", score, *keys), rows)]),
        ],
    )


def _short(value: str) -> str:
    try:
        return f"{float(value):.4g}"
    except ValueError:
        return value


def _image(draw: Any) -> str:
    """A picture as a data URL. draw: fills matplotlib's Figure."""
    from matplotlib.figure import Figure

    sheet = Figure(figsize=(9.6, 3.6), layout="constrained")
    draw(sheet)
    buffer = io.BytesIO()
    sheet.savefig(buffer, dpi=130, format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _history(sheet: Any, sweep: Sweep) -> None:
    """The score of each job in the order in which they were proposed, and the best so far."""
    panel = sheet.subplots()
    known = [(i, job.score, job.state) for i, job in enumerate(sweep.jobs) if job.score is not None]
    for state, marker in ((FINISHED, "o"), (PRUNED, "x")):
        if points := [(i, score) for i, score, one in known if one == state]:
            numbers, scores = zip(*points, strict=True)
            panel.plot(numbers, scores, marker, label=state, color="#0072b2", markersize=5)
            if state == FINISHED:
                best_of = np.minimum if sweep.launcher.lower else np.maximum
                running, look = best_of.accumulate(scores), {"color": "#d55e00"}
                panel.step(numbers, running, where="post", label="best so far", **look)
    panel.set_xlabel("job")
    panel.set_ylabel(str(sweep.launcher.score).replace("_", " "))
    panel.grid(color="0.9", linewidth=0.7)
    panel.legend(frameon=False)


def _parallel(
    sheet: Any,
    sweep: Sweep,
    search: Search,
    keys: Sequence[str],
    values: Mapping[int, Mapping[str, str]],
) -> None:
    """A line per job through its values, each key on an axis of its own, coloured by score: the
    better the darker."""
    panel = sheet.subplots()
    scores = {i: float(sweep.jobs[i].score or 0.0) for i in values}
    low, high = min(scores.values()), max(scores.values())
    axes = [
        (key, *_axis(search.space[key], {i: own[key] for i, own in values.items()})) for key in keys
    ]
    heights = {i: _share(score, low, high) for i, score in scores.items()}
    axes.append((str(sweep.launcher.score), [f"{low:.3g}", f"{high:.3g}"], heights))
    # the best on top
    order = sorted(scores, key=lambda i: scores[i], reverse=bool(sweep.launcher.lower))
    for rank, i in enumerate(order):
        shade = 0.08 + 0.8 * (rank / max(1, len(order) - 1)) ** 3
        line = [at[i] for _, _, at in axes]
        panel.plot(range(len(axes)), line, color=(0.0, 0.35, 0.6), alpha=shade, linewidth=1.6)
    for x, (_, ends, _) in enumerate(axes):
        panel.axvline(x, color="0.6", linewidth=0.8)
        for k, text in enumerate(ends):
            place: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points"}
            panel.annotate(text, (x, k / max(1, len(ends) - 1)), fontsize=8, **place)
    panel.set_xticks(range(len(axes)), [name for name, _, _ in axes], fontsize=8)
    panel.set_yticks([])
    panel.spines[:].set_visible(False)


def _axis(distribution: Any, values: Mapping[int, str]) -> tuple[list[str], dict[int, float]]:
    """The labels along a key's axis from below to above, and each job's height on it, 0 to 1."""
    if known := getattr(distribution, "choices", None):
        top = max(1, len(known) - 1)
        return list(known), {i: known.index(value) / top for i, value in values.items()}
    scale = np.log if distribution.log else float
    low, high = float(scale(distribution.low)), float(scale(distribution.high))
    ends = [f"{distribution.low:.3g}", f"{distribution.high:.3g}"]
    return ends, {i: _share(float(scale(float(value))), low, high) for i, value in values.items()}


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5
