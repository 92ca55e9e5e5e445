"""`npmp inspect FILE`: what a recording, a robot's motion, a dataset, a skill module, a policy, a
bundle, a model of actuators, a run or a sweep holds.

What is broken is described as far as it can be read; a last line "problems: ..." then says what the
other verbs would refuse it for, and the exit code is 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mocap_data.errors import InputError, unknown
from mocap_data.files import write_json
from mocap_data.outside import read_json_object, regular_file
from mocap_data.readers import READERS, is_recording, robot_motions
from npmp.experiments.command import Keys, Run, Verb
from npmp.experiments.compose import stored_config
from npmp.experiments.motion_tables import motion_table
from npmp.experiments.terminal import USER_ERROR, clean, console, one_line, say
from npmp.training.tables import read_table
from retarget.findings import (
    FIGURES,
    MOTIONS,
    Findings,
    inspect_description,
    inspect_hdf5,
    inspect_recording,
    inspect_robot_motion,
    inspect_skeleton,
)

RECORDING = "recording"  # what kind= calls a file of keypoints, whatever its format
KINDS = (RECORDING, *robot_motions.KINDS)
ROWS_SHOWN = 60  # of a table; out= has all
COLUMNS_SHOWN = 10
# of a table with more columns than that
SHOWN_FIRST = ("frames", "seconds", "split", "weight", *FIGURES)
LONGEST_TEXT = 200  # characters of a text on the terminal


@dataclass(frozen=True, kw_only=True)
class Inspect(Keys):
    """Say what a file or folder holds, and what is wrong with it: a recording, a robot's motion, a
    dataset, a module, policy, bundle or actuator model, a run, sweep or evaluation.

    npmp inspect motions.h5
    npmp inspect dance1_subject2.csv
    """

    # the file or folder
    file: Path
    # what a file is where it could be several things: recording, mjlab or unitree_csv
    kind: str | None = None
    # also write the findings to this JSON file
    out: Path | None = None


def run(config: Inspect, run: Run) -> int:
    """Say what file= is and what it holds."""
    findings = inspect(config.file, config.kind)
    show(findings)
    if run.out is not None:
        write_json(run.out, findings)
    return USER_ERROR if findings.get("problems") else 0


def inspect(path: Path, kind: str | None = None) -> Findings:
    """What `path` is, as plain values; "problems", where there are any, comes last and lists why
    other verbs would refuse it.

    kind: one of KINDS, for a file that could be several things; None: told by its name and
    contents.

    Raises:
      InputError: for what does not exist, is of no known kind or cannot be read at all.
    """
    if not path.exists():
        raise InputError(f"no file or folder {str(path)!r}")
    if kind is not None and kind not in KINDS:
        raise unknown("kind of file", kind, KINDS)
    if path.is_dir():
        return inspect_folder(path)
    regular_file(path)
    suffix = path.suffix.lower()
    if kind == RECORDING:
        return inspect_recording(path)
    if kind is None and suffix in (".h5", ".hdf5"):
        return inspect_hdf5(path)
    if kind is not None or (of := robot_motions.kind_of(path)) is not None:
        return inspect_robot_motion(path, kind or str(of))
    if suffix == ".csv" and robot_motions.ambiguous(path):
        raise InputError(
            f"{path}: these could be keypoints, or a robot's motion without a header (columns 4 "
            "to 7 are a unit "
            f"quaternion); say kind={RECORDING} or kind=unitree_csv"
        )
    if path.name in FOLDERS:
        return FOLDERS[path.name](path.parent)
    if suffix == ".asf":
        return inspect_skeleton(path)
    if suffix == ".json" and (found := inspect_description(path)):
        return found
    if suffix in READERS:
        return inspect_recording(path)
    known = ", ".join(dict.fromkeys([*READERS, ".asf", ".h5"]))
    folders = "folders of modules, policies, bundles, actuator models, runs, sweeps, evaluations"
    raise InputError(f"{path}: no known kind of file; there are: {known}, and {folders}")


def inspect_folder(path: Path) -> Findings:
    """A folder that this project wrote, or one of recordings and robots' motions.

    Raises:
      InputError: for any other.
    """
    if (path / "export.json").is_file() and (found := inspect_description(path / "export.json")):
        return {**found, "path": str(path)}
    for marker, describe in FOLDERS.items():
        if (path / marker).is_file():
            return describe(path)
    if any((entry / "config.yaml").is_file() for entry in path.iterdir()):
        return inspect_sweep(path)
    files = sorted(
        entry for entry in path.iterdir() if entry.is_file() and entry.suffix.lower() in READERS
    )
    kinds = {entry: robot_motions.kind_of(entry) for entry in files}
    recordings = [entry.name for entry in files if kinds[entry] is None and is_recording(entry)]
    motions = [f"{entry.name} ({kind})" for entry, kind in kinds.items() if kind is not None]
    if not recordings and not motions:
        looked_for = ", ".join(FOLDERS)
        raise InputError(
            f"{path}: no skill module, policy, bundle, actuator model, run, sweep, evaluation or "
            "recordings "
            f"(looked for {looked_for})"
        )
    findings: Findings = {
        "path": str(path),
        "kind": "folder of recordings" if recordings else "folder of robots' motions",
    }
    if recordings:
        findings["recordings"] = recordings
    if motions:
        findings["robots' motions"] = motions
    return findings


def refusal(load: Callable[[], Any]) -> list[str]:
    """The one line that loading ends with, or nothing where it succeeds."""
    try:
        load()
    except InputError as error:
        return [one_line(error)]
    except (OSError, RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        # contents so far from sound that no check names them
        return [f"cannot be loaded ({one_line(error)})"]
    return []


def with_problems(findings: Findings, problems: list[str]) -> Findings:
    """`findings` with the problems, each once, as the last entry; without the entry where there are
    none."""
    findings = {key: value for key, value in findings.items() if key != "problems"}
    return {**findings, "problems": list(dict.fromkeys(problems))} if problems else findings


def inspect_module(path: Path) -> Findings:
    """A skill module: its contract, the size of its networks, and whether it can be loaded here."""

    def load() -> None:
        from npmp import robots
        from npmp.skill import SkillModule

        module = SkillModule.load(path)
        module.check_robot(robots.load(module.robot))

    return inspect_artifact(path, "module", "skill module", load)


def inspect_policy(path: Path) -> Findings:
    """A high-level policy: its contract, the size of its network, and whether it can be loaded
    here."""

    def load() -> None:
        from npmp import robots
        from npmp.policy import HighLevelPolicy

        robots.load(HighLevelPolicy.load(path).contract.robot)

    return inspect_artifact(path, "policy", "policy", load)


def inspect_actuator(path: Path) -> Findings:
    """A model of actuators: what it was fitted to, the size of its network, and whether it can be
    loaded here."""

    def load() -> None:
        from npmp import actuators

        actuators.load(path)

    return inspect_artifact(path, "actuator", "actuator model", load)


def inspect_artifact(path: Path, name: str, kind: str, load: Callable[[], None]) -> Findings:
    """A folder of NAME.json and NAME.safetensors, as far as it can be read. Imports torch, to load
    it."""
    parts = (
        lambda: read_json_object(path / f"{name}.json"),
        lambda: tensors(path / f"{name}.safetensors"),
    )
    return described(path, kind, parts, load)


def inspect_bundle(path: Path) -> Findings:
    """A policy for a robot: its contract, and whether the files are those that were exported."""

    def load() -> None:
        from npmp.deploy.bundle import Bundle

        Bundle.read(path).golden()

    return described(path, "bundle", (lambda: read_json_object(path / "bundle.json"),), load)


def described(
    path: Path, kind: str, parts: Sequence[Callable[[], Findings]], load: Callable[[], None]
) -> Findings:
    """What the parts that can be read say, and what loading it ends with."""
    findings: Findings = {"path": str(path), "kind": kind}
    for part in parts:
        try:
            findings.update((key, value) for key, value in part().items() if key not in findings)
        except (InputError, OSError):
            continue  # loading says it too
    return with_problems(findings, refusal(load))


def tensors(path: Path) -> Findings:
    """The number and size of a safetensors file's arrays. Raises InputError for a damaged one."""
    from npmp.artifact import read_tensors

    arrays = read_tensors(path).values()
    return {"tensors": len(arrays), "weights": sum(array.numel() for array in arrays)}


def inspect_run(path: Path) -> Findings:
    """A run folder: its settings, how far it came, what it left."""
    findings: Findings = {"path": str(path), "kind": "run folder"}
    problems = []
    try:
        owner, config = stored_config(path)
        findings["kind"] = "run folder" if owner is None else f"run folder of npmp {owner}"
        for key in ("robot", "task", "algo", "net", "high_level"):
            value = config.get(key)
            name = value.get("name") if isinstance(value, dict) else value
            if name is not None:
                findings[key] = name
        findings.update(
            {
                key: config[key]
                for key in ("data", "module", "steps", "seed", "device")
                if key in config
            }
        )
    except InputError as error:
        problems.append(one_line(error))
    try:
        rows = metrics_rows(path)
        if rows is not None:
            findings["rows of metrics.csv"] = len(rows)
        if rows:
            findings["last metrics"] = last_metrics(rows)
    except InputError as error:
        problems.append(one_line(error))
    findings["holds"] = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir())
    checkpoints = path / "checkpoints"
    if checkpoints.is_dir():
        findings["checkpoints"] = sorted(entry.name for entry in checkpoints.iterdir())
    return with_problems(findings, problems)


def metrics_rows(path: Path) -> list[dict[str, Any]] | None:
    """The rows of a run's metrics.csv, None where it has none.

    Raises:
      InputError: for a damaged one.
    """
    metrics = path / "metrics.csv"
    return read_table(metrics) if metrics.is_file() else None


def last_metrics(rows: list[dict[str, Any]]) -> Findings:
    """The figures of the last row, without those that are judged only now and then."""
    return {key: value for key, value in rows[-1].items() if key and value}


def inspect_sweep(path: Path) -> Findings:
    """A folder of run folders: each with the figures it ended on."""
    runs: dict[str, Any] = {}
    problems = []
    for folder in sorted(entry for entry in path.iterdir() if (entry / "config.yaml").is_file()):
        runs[folder.name] = "no metrics yet"
        try:
            stored_config(folder)
            rows = metrics_rows(folder)
            if rows:
                runs[folder.name] = last_metrics(rows)
            elif rows is None and (folder / "evaluation.json").is_file():
                figures = read_json_object(folder / "evaluation.json").items()
                runs[folder.name] = {
                    key: value for key, value in figures if isinstance(value, int | float)
                }
        except InputError as error:
            problems.append(one_line(error))
    return with_problems({"path": str(path), "kind": "sweep folder", "runs": runs}, problems)


def inspect_evaluation(path: Path) -> Findings:
    """An evaluation folder: its figures."""
    return {"path": str(path), "kind": "evaluation", **read_json_object(path / "evaluation.json")}


# By the file that marks the kind of folder, the most telling first.
FOLDERS: Mapping[str, Callable[[Path], Findings]] = {
    "module.json": inspect_module,
    "policy.json": inspect_policy,
    "bundle.json": inspect_bundle,
    "actuator.json": inspect_actuator,
    "evaluation.json": inspect_evaluation,
    "config.yaml": inspect_run,
}


def show(findings: Findings) -> None:
    """Plain values as lines, lists of records as tables."""
    out = console()
    for key, value in findings.items():
        if key == "problems":
            say(f"problems: {'; '.join(value)}")
        elif key == "runs" and isinstance(value, dict):
            say(*(f"  {name}: {text(figures)}" for name, figures in value.items()))
        elif key == "provenance" and isinstance(value, dict):
            say("provenance:", *(f"  {name}: {text(entry)}" for name, entry in value.items()))
        elif key == "path":
            say(f"path: {value}")
        elif key == "medians":  # stand below the clips
            continue
        elif key == "clips" and findings["kind"] == MOTIONS and len(value) > 1:
            out.print(motion_table(value, findings.get("medians", ())))
            known = [clip for clip in value if not clip.get("mirror")] or value
            out.print(
                *beside(
                    known, ("name", "seconds", "frames", "recording", "split", "weight", *FIGURES)
                ),
                sep="\n",
            )
        elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            out.print(records(key, value))
        else:
            say(f"{key}: {text(value)}")


def text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {text(entry)}" for key, entry in value.items()) or "-"
    if isinstance(value, list):
        inner = ", ".join(text(entry) for entry in value[:40])
        return f"{inner} ... ({len(value)} in all)" if len(value) > 40 else inner or "-"
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"{value[:LONGEST_TEXT]}... (out= writes all)"
    return f"{value:.6g}" if isinstance(value, float) else clean(str(value))


def records(title: str, entries: list[dict[str, Any]]) -> Group:
    """A table of what differs from row to row, as far as there is room; what is the same in all
    stands in a line below it.

    A single record is no table but a line per value.
    """
    if len(entries) == 1:
        lines = [f"  {key.replace('_', ' ')}: {text(value)}" for key, value in entries[0].items()]
        return Group(Text(f"{title}: 1"), *map(Text, lines))
    first, *_ = columns = list(dict.fromkeys(key for entry in entries for key in entry))
    shared = shared_in(entries, columns)
    varying = [column for column in columns if column not in shared]
    shown = (
        varying
        if len(varying) <= COLUMNS_SHOWN
        else [column for column in varying if column in (first, *SHOWN_FIRST)]
    )
    table = Table(title=title, title_justify="left")
    for column in shown:
        table.add_column(column.replace("_", " "), overflow="fold", no_wrap=column == first)
    for entry in entries[:ROWS_SHOWN]:
        table.add_row(*(text(entry.get(column, "")).replace("[", "\\[") for column in shown))
    below = (
        [Text(f"the first {ROWS_SHOWN} of {len(entries)}; out= writes all")]
        if len(entries) > ROWS_SHOWN
        else []
    )
    return Group(table, *below, *beside(entries, shown))


def shared_in(entries: list[dict[str, Any]], columns: Sequence[str]) -> list[str]:
    """The columns, but the first, that are the same in all of three or more entries."""
    if len(entries) < 3:
        return []
    return [
        c
        for c in columns[1:]
        if all(text(entry.get(c, "")) == text(entries[0].get(c, "")) for entry in entries)
    ]


def beside(entries: list[dict[str, Any]], shown: Sequence[str]) -> list[Text]:
    """Lines about what a table of the entries does not show: what differs from row to row, and what
    is the same in all."""
    columns = list(dict.fromkeys(key for entry in entries for key in entry))
    shared = shared_in(entries, columns)
    lines = []
    if hidden := [
        column.replace("_", " ") for column in columns if column not in (*shown, *shared)
    ]:
        lines.append(Text(f"no room for: {', '.join(hidden)}; out= writes all"))
    said = {
        c.replace("_", " "): entries[0][c] for c in shared if entries[0].get(c) not in (None, "")
    }
    return [*lines, Text(f"all of them: {text(said)}")] if said else lines


main = Verb("inspect", Inspect, run, out="optional_file", torch=False, positional=("file",))
