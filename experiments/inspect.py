"""`npmp inspect FILE`: what a file or folder of motion or of this project holds.

What is broken is described as far as it can be read. A last line "problems: ..." then gives what
the other verbs would refuse it for, and the exit code is 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError, unknown
from mocap_data.files import write_json
from mocap_data.outside import read_json_object, regular_file
from mocap_data.readers import READERS, is_recording, robot_motions
from npmp.experiments.command import Keys, Run, Verb
from npmp.experiments.compose import stored_config
from npmp.experiments.terminal import USER_ERROR, clean, console, one_line, say, table
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

# what kind= calls a file of keypoints, whatever its format
RECORDING = "recording"
KINDS = (RECORDING, *robot_motions.KINDS)
# of a table, and characters of a text, on the terminal; out= has all
ROWS_SHOWN, COLUMNS_SHOWN, LONGEST_TEXT = 60, 10, 200
# of a table with more columns than that
SHOWN_FIRST = ("frames", "seconds", "split", "weight", *FIGURES)


@dataclass(frozen=True, kw_only=True)
class Inspect(Keys):
    """Say what a file or folder holds, and what is wrong with it: a recording, a robot's motion, a
    dataset, a module, policy, bundle or actuator model, a run or evaluation.

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

    kind: one of KINDS, for a file that could be several things; None: by its name and contents.

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
    if (motion := kind or robot_motions.kind_of(path)) is not None:
        return inspect_robot_motion(path, motion)
    if suffix == ".csv" and robot_motions.ambiguous(path):
        raise InputError(
            f"{path}: these could be keypoints, or a robot's motion without a header (columns 4 "
            f"to 7 are a unit quaternion); give kind={RECORDING} or kind=unitree_csv"
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
    folders = "folders of modules, policies, bundles, actuator models, runs, evaluations"
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
    files = sorted(
        entry for entry in path.iterdir() if entry.is_file() and entry.suffix.lower() in READERS
    )
    kinds = {entry: robot_motions.kind_of(entry) for entry in files}
    recordings = [entry.name for entry in files if kinds[entry] is None and is_recording(entry)]
    motions = [f"{entry.name} ({kind})" for entry, kind in kinds.items() if kind is not None]
    if not recordings and not motions:
        raise InputError(
            f"{path}: no skill module, policy, bundle, actuator model, run, evaluation or "
            f"recordings (looked for {', '.join(FOLDERS)})"
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


def _load_module(path: Path) -> None:
    from npmp import robots
    from npmp.skill import SkillModule

    module = SkillModule.load(path)
    module.check_robot(robots.load(module.robot))


def _load_policy(path: Path) -> None:
    from npmp import robots
    from npmp.policy import HighLevelPolicy

    robots.load(HighLevelPolicy.load(path).contract.robot)


def _load_actuator(path: Path) -> None:
    from npmp import actuators

    actuators.load(path)


def _load_bundle(path: Path) -> None:
    from npmp.deploy.bundle import Bundle

    Bundle.read(path).golden()


# By the file that describes it: what an artefact is called and how it is loaded.
ARTEFACTS: Mapping[str, tuple[str, Callable[[Path], None]]] = {
    "module": ("skill module", _load_module),
    "policy": ("policy", _load_policy),
    "bundle": ("bundle", _load_bundle),
    "actuator": ("actuator model", _load_actuator),
}


def inspect_artefact(path: Path, name: str) -> Findings:
    """A folder with NAME.json and, but for bundles, NAME.safetensors: its contract and the size of
    its networks as far as they can be read, and whether it can be loaded here."""
    kind, load = ARTEFACTS[name]
    findings: Findings = {"path": str(path), "kind": kind}
    readers = [lambda: read_json_object(path / f"{name}.json")]
    if name != "bundle":
        readers.append(lambda: tensors(path / f"{name}.safetensors"))
    for read in readers:
        try:
            findings = {**read(), **findings}
        except (InputError, OSError):
            continue  # loading raises it, too
    try:
        load(path)
    except (InputError, OSError) as error:
        return with_problems(findings, [one_line(error)])
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        # contents so far from sound that no check names them
        return with_problems(findings, [f"cannot be loaded ({one_line(error)})"])
    return findings


def with_problems(findings: Findings, problems: list[str]) -> Findings:
    """`findings` with the problems, if any, as the last entry."""
    return {**findings, "problems": problems} if problems else findings


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
        known = ("data", "module", "steps", "seed", "device")
        findings |= {key: config[key] for key in known if key in config}
    except InputError as error:
        problems.append(one_line(error))
    try:
        rows = read_table(path / "metrics.csv") if (path / "metrics.csv").is_file() else []
        if rows:
            findings["rows of metrics.csv"] = len(rows)
            # without those that are judged only now and then
            findings["last metrics"] = {k: v for k, v in rows[-1].items() if k and v}
    except InputError as error:
        problems.append(one_line(error))
    for name in (".", "checkpoints"):
        if (path / name).is_dir():
            entries = sorted(entry.name + "/" * entry.is_dir() for entry in (path / name).iterdir())
            findings["holds" if name == "." else name] = entries
    return with_problems(findings, problems)


def inspect_evaluation(path: Path) -> Findings:
    """An evaluation folder: its figures."""
    return {"path": str(path), "kind": "evaluation", **read_json_object(path / "evaluation.json")}


# By the file that marks the kind of folder, the most telling first.
FOLDERS: Mapping[str, Callable[[Path], Findings]] = {
    **{f"{name}.json": partial(inspect_artefact, name=name) for name in ARTEFACTS},
    "evaluation.json": inspect_evaluation,
    "config.yaml": inspect_run,
}


def show(findings: Findings) -> None:
    """Plain values as lines, lists of records as tables."""
    for key, value in findings.items():
        if key == "problems":
            say(f"problems: {'; '.join(value)}")
        elif key == "path":
            say(f"path: {value}")
        elif key == "provenance" and isinstance(value, dict):
            say("provenance:", *(f"  {name}: {text(entry)}" for name, entry in value.items()))
        elif not (isinstance(value, list) and value and isinstance(value[0], dict)):
            say(f"{key}: {text(value)}")
        elif key == "clips" and findings["kind"] == MOTIONS:
            # a mirror image has the figures of what it mirrors
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
    return f"{value:.6g}" if isinstance(value, float) else clean(str(value))


def show_records(title: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """A table as far as there is room; of a single record a line per value."""
    if len(entries) == 1:
        lines = [f"  {key.replace('_', ' ')}: {text(value)}" for key, value in entries[0].items()]
        say(f"{title}: 1", *lines)
        return
    columns = list(dict.fromkeys(key for entry in entries for key in entry))
    if len(columns) > COLUMNS_SHOWN:
        columns = [column for column in columns if column in (columns[0], *SHOWN_FIRST)]
    rows = [[text(entry.get(key, "")) for key in columns] for entry in entries[:ROWS_SHOWN]]
    headings = [column.replace("_", " ") for column in columns]
    console().print(table(headings, rows, title=title, title_justify="left"))
    if len(entries) > ROWS_SHOWN:
        say(f"the first {ROWS_SHOWN} of {len(entries)}; out= writes all")


main = Verb("inspect", Inspect, run, out="optional_file", torch=False, positional=("file",))
