"""`npmp inspect FILE`: describe a file or folder of motion or of this project.

A broken file is described as far as it can be read. The last line, "problems: ...", lists the
errors that other commands would raise; the exit code is then 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.progress import MofNCompleteColumn

from mocap_data.errors import InputError, printable
from mocap_data.files import atomic_path, write_json
from npmp.core.progress import listening
from npmp.experiments.command import Run, Verb
from npmp.experiments.recordings import Reading, check_used, options_of_keys
from npmp.experiments.terminal import USER_ERROR, progress_bar, say, show_table
from npmp.view.inspection import inspect
from retarget.inspection import FIGURES, MOTIONS, Findings
from retarget.skeleton_template import skeleton_template
from retarget.sources import RATE_KEY, assumes_rate, files_of

# rows of a table, and characters of a text, in the terminal; out= has all
ROWS_SHOWN = 60
COLUMNS_SHOWN = 10
LONGEST_TEXT = 200
PROBLEMS_SHOWN = 8
# rows of a table with more columns than that
SHOWN_FIRST = ("frames", "seconds", "split", "weight", *FIGURES)


@dataclass(frozen=True, kw_only=True)
class Inspect(Reading):
    """Describe a file or folder and its problems: a recording, robot motion, dataset, module,
    policy, bundle, actuator model, run or evaluation.

    npmp inspect motions.h5
    npmp inspect dance1_subject2.csv
    npmp inspect walk.npz up=z scale=cm
    npmp inspect recordings/dog
    """

    # the file or folder
    file: Path
    # the kind of an ambiguous file: recording, mjlab or unitree_csv
    kind: str | None = None
    # metres per unit of a recording, or the unit: m, cm, mm, in, ft; null: as npmp retarget
    scale: float | str | None = None
    # a recording's upward axis: x, y, z, or -x, -y, -z for one that points down; null: as npmp
    # retarget
    up: str | None = None
    # also write the findings to this JSON file, or a recording's skeleton to this YAML file
    out: Path | None = None


def run(config: Inspect, run: Run) -> int:
    """Print the description of file=."""
    options = options_of_keys(config)
    if options and config.file.exists():
        paths = files_of([config.file]) if config.file.is_dir() else [config.file]
        check_used(options, paths)
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("", total=None, visible=False)

        def tell(phase: str, done: int, total: int) -> None:
            bar.update(task, description=phase, completed=done, total=total, visible=total > 0)

        with listening(tell):
            findings = inspect(config.file, config.kind, options)
    show(findings)
    if run.out is not None and run.out.suffix in (".yaml", ".yml"):
        text = skeleton_file(findings)
        with atomic_path(run.out) as temporary:
            temporary.write_text(text, encoding="utf-8")
    elif run.out is not None:
        write_json(run.out, findings)
    return USER_ERROR if findings.get("problems") else 0


def skeleton_file(findings: Findings) -> str:
    """Write the skeleton of a recording, or a draft to edit for skeleton=.

    Raises:
      InputError: for anything but a recording of named keypoints.
    """
    if "markers" in findings:
        head = f"# {findings['skeleton']}: keypoints of each marker\n"
        chosen = {key: findings[key] for key in ("markers", "guesses") if key in findings}
        return head + yaml.safe_dump(chosen, sort_keys=False, allow_unicode=True)
    why = findings.get("skeleton", "it is not a recording of named keypoints")
    if not isinstance(findings.get("keypoints"), list):
        raise InputError(f"{findings['path']}: no skeleton to write: {why}")
    return skeleton_template(findings["keypoints"], why.split("; name its")[0])


def show(findings: Findings) -> None:
    """Plain values as lines, lists of records as tables."""
    for key, value in findings.items():
        if key == "rate_hz" and assumes_rate(findings):
            say(f"{key}: {text(value)} assumed, as the file has none ({RATE_KEY}=)")
        elif key == "warnings" and len(value) > 1:
            say("warnings:", *(f"  {warning}" for warning in value))
        elif key == "problems":
            more = len(value) - PROBLEMS_SHOWN
            rest = [f"{more} more (out= writes all)"] if more > 0 else []
            say(f"problems: {'; '.join([*value[:PROBLEMS_SHOWN], *rest])}")
        elif key == "path":
            say(f"path: {value}")
        elif key == "provenance" and isinstance(value, dict):
            say("provenance:", *(f"  {name}: {text(entry)}" for name, entry in value.items()))
        elif not (isinstance(value, list) and value and isinstance(value[0], dict)):
            say(f"{key}: {text(value)}")
        elif key == "clips" and findings["kind"] == MOTIONS:
            # a mirror image has the figures of its original
            show_records(key, [clip for clip in value if not clip.get("mirror")] or value)
        else:
            show_records(key, value)


def text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {text(entry)}" for key, entry in value.items()) or "-"
    if isinstance(value, list):
        inner = ", ".join(text(entry) for entry in value[:40])
        return f"{inner} ... ({len(value)} in all)" if len(value) > 40 else inner or "-"
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"{value[:LONGEST_TEXT]}... (out= writes all)"
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))


def show_records(title: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Print a table that fits the terminal; for a single record a line per value."""
    if len(entries) == 1 and title != "files":
        lines = [f"  {key.replace('_', ' ')}: {text(value)}" for key, value in entries[0].items()]
        say(f"{title}: 1", *lines)
        return
    columns = list(dict.fromkeys(key for entry in entries for key in entry))
    if len(columns) > COLUMNS_SHOWN:
        columns = [column for column in columns if column in (columns[0], *SHOWN_FIRST)]
    rows = [[text(entry.get(key, "")) for key in columns] for entry in entries[:ROWS_SHOWN]]
    headings = [column.replace("_", " ") for column in columns]
    show_table(headings, rows, title=title, title_justify="left")
    if len(entries) > ROWS_SHOWN:
        say(f"the first {ROWS_SHOWN} of {len(entries)}; out= writes all")


main = Verb("inspect", Inspect, run, out="optional_file", torch=False, positional=("file",))
