"""Describe a file or folder of motions or of this project as plain values.

A broken file is described as far as it can be read, with a list of its problems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError, check_available, one_line
from mocap_data.input_files import read_json_object, regular_file
from mocap_data.readers import READERS, is_recording, robot_motions
from mocap_data.readers.unsupported import check_supported
from npmp.core.progress import counted, phase
from npmp.core.settings import read_run_settings
from npmp.core.tables import read_table
from retarget.inspection import (
    Findings,
    inspect_description,
    inspect_hdf5,
    inspect_recording,
    inspect_robot_motion,
    inspect_skeleton,
)
from retarget.sources import assumes_rate, failure_line, files_below

# the kind of a file of keypoints in any format
RECORDING = "recording"
KINDS = (RECORDING, *robot_motions.KINDS)


def inspect(
    path: Path, kind: str | None = None, options: Mapping[str, Any] | None = None
) -> Findings:
    """Describe a file or folder; the last entry "problems" lists why other verbs would refuse it.

    kind: one of KINDS, for an ambiguous file; None: by its name and contents.
    options: of the readers of recordings and robots' motions.

    Raises:
      InputError: for a path that does not exist, is of an unknown kind or cannot be read.
    """
    if not path.exists():
        raise InputError(f"no file or folder {str(path)!r}")
    check_available("kind of file", [kind] if kind else [], KINDS)
    if path.is_dir():
        return inspect_folder(path, options)
    regular_file(path)
    suffix = path.suffix.lower()
    if kind == RECORDING:
        return inspect_recording(path, options)
    if kind is None and suffix in (".h5", ".hdf5"):
        return inspect_hdf5(path)
    names = (options or {}).get("names", ())
    if (motion := kind or robot_motions.kind_of(path, names)) is not None:
        return inspect_robot_motion(path, motion, options)
    if suffix == ".csv" and not names and robot_motions.ambiguous(path):
        raise InputError(
            f"{path}: could be keypoints, or a robot's motion without a header (columns 4 to 7 are "
            f"a unit quaternion); set kind={RECORDING} or kind=unitree_csv"
        )
    if path.name in FOLDERS:
        return FOLDERS[path.name](path.parent)
    if suffix == ".asf":
        return inspect_skeleton(path)
    if suffix == ".json" and (findings := inspect_description(path)):
        return findings
    if suffix in READERS:
        return inspect_recording(path, options)
    check_supported(path)
    suffixes = ", ".join(dict.fromkeys([*READERS, ".asf", ".h5"]))
    folders = "folders of modules, policies, bundles, actuator models, runs, evaluations"
    raise InputError(f"{path}: unknown kind of file; expected {suffixes}, or {folders}")


def inspect_folder(path: Path, options: Mapping[str, Any] | None = None) -> Findings:
    """Describe a folder of this project, or of recordings and robots' motions.

    options: as of `inspect`.

    Raises:
      InputError: for any other folder.
    """
    if (path / "export.json").is_file() and (findings := inspect_description(path / "export.json")):
        return {**findings, "path": str(path)}
    for marker, describe in FOLDERS.items():
        if (path / marker).is_file():
            return describe(path)
    with phase("inspecting files"):
        return _inspect_files(path, options)


def _inspect_files(path: Path, options: Mapping[str, Any] | None) -> Findings:
    """As `inspect_folder`, for recordings and robots' motions."""
    inside = files_below(path)
    suffixed = [entry for entry in inside if entry.suffix.lower() in READERS]
    kinds = {entry: robot_motions.kind_of(entry) for entry in suffixed}
    files = [entry for entry, kind in kinds.items() if kind or is_recording(entry)]
    if not files:
        for entry in inside:
            check_supported(entry)
        raise InputError(
            f"{path}: no skill module, policy, bundle, actuator model, run, evaluation or "
            f"recordings (looked for {', '.join(FOLDERS)})"
        )

    rows: list[Findings] = []
    problems: list[str] = []
    for i in counted(len(files)):
        name = str(files[i].relative_to(path))
        try:
            rows.append({"file": name} | _row(inspect(files[i], options=options)))
        except (InputError, OSError) as error:
            message = one_line(error).replace(str(files[i]), name)
            rows.append({"file": name, "doubts": message})
            problems.append(failure_line((name, message)))
    only_motions = all(kinds[entry] for entry in files)
    findings: Findings = {
        "path": str(path),
        "kind": "folder of robots' motions" if only_motions else "folder of recordings",
        "files": rows,
    }
    return with_problems(findings, problems)


def _row(findings: Findings) -> Findings:
    """A row in the table of a folder."""
    rate = findings.get("rate_hz", "")
    row: Findings = {"kind": findings["kind"]}
    row["seconds"] = findings.get("duration_s", findings.get("in all", {}).get("seconds", ""))
    row["rate_hz"] = f"{rate:g} assumed" if assumes_rate(findings) else rate
    doubts = [*findings.get("remarks", []), *findings.get("warnings", [])]
    row["doubts"] = "; ".join(doubts) or "-"
    return row


# names of artefacts by the stem of their file
ARTEFACTS = {
    "module": "skill module",
    "policy": "policy",
    "bundle": "bundle",
    "actuator": "actuator model",
}


def _load(name: str, path: Path) -> None:
    """Load an artefact; imports torch."""
    from npmp import actuators, robots
    from npmp.deploy.bundle import Bundle
    from npmp.skills.high_level_policy import HighLevelPolicy
    from npmp.skills.skill_module import SkillModule

    if name == "module":
        module = SkillModule.load(path)
        module.check_robot(robots.load(module.robot))
    elif name == "policy":
        robots.load(HighLevelPolicy.load(path).contract.robot)
    elif name == "bundle":
        Bundle.read(path).golden()
    else:
        actuators.load(path)


def inspect_artefact(path: Path, name: str) -> Findings:
    """Describe a folder with NAME.json and, except for bundles, NAME.safetensors: contract, size of
    the networks, and problems with loading it."""
    findings: Findings = {"path": str(path), "kind": ARTEFACTS[name]}
    readers = [lambda: read_json_object(path / f"{name}.json")]
    if name != "bundle":
        readers.append(lambda: tensors(path / f"{name}.safetensors"))
    for read in readers:
        try:
            findings = {**read(), **findings}
        except (InputError, OSError):
            continue  # loading raises it again
    try:
        _load(name, path)
    except (InputError, OSError) as error:
        return with_problems(findings, [one_line(error)])
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        # damage that no check covers
        return with_problems(findings, [f"cannot be loaded ({one_line(error)})"])
    return findings


def with_problems(findings: Findings, problems: list[str]) -> Findings:
    """`findings` with the problems, if any, as its last entry."""
    return {**findings, "problems": problems} if problems else findings


def tensors(path: Path) -> Findings:
    """Number and size of the arrays in a safetensors file. Raises InputError if it is damaged."""
    from npmp.core.artifact import read_tensors

    arrays = read_tensors(path).values()
    return {"tensors": len(arrays), "weights": sum(array.numel() for array in arrays)}


def inspect_run(path: Path) -> Findings:
    """Describe a run folder: settings, progress, files."""
    findings: Findings = {"path": str(path), "kind": "run folder"}
    problems = []
    try:
        owner, config = read_run_settings(path)
        findings["kind"] = "run folder" if owner is None else f"run folder of npmp {owner}"
        for key in ("robot", "task", "algo", "net", "high_level"):
            value = config.get(key)
            name = value.get("name") if isinstance(value, dict) else value
            if name is not None:
                findings[key] = name
        keys = ("data", "module", "steps", "seed", "device")
        findings |= {key: config[key] for key in keys if key in config}
    except InputError as error:
        problems.append(one_line(error))
    try:
        rows = read_table(path / "metrics.csv") if (path / "metrics.csv").is_file() else []
        if rows:
            findings["rows of metrics.csv"] = len(rows)
            # without metrics that are measured less often
            findings["last metrics"] = {k: v for k, v in rows[-1].items() if k and v}
    except InputError as error:
        problems.append(one_line(error))
    for name in (".", "checkpoints"):
        if (path / name).is_dir():
            entries = sorted(entry.name + "/" * entry.is_dir() for entry in (path / name).iterdir())
            findings["holds" if name == "." else name] = entries
    return with_problems(findings, problems)


# inspections by the file that identifies a kind of folder, the most specific first
FOLDERS: Mapping[str, Callable[[Path], Findings]] = {
    **{f"{name}.json": partial(inspect_artefact, name=name) for name in ARTEFACTS},
    "evaluation.json": lambda path: (
        {"path": str(path), "kind": "evaluation"} | read_json_object(path / "evaluation.json")
    ),
    "config.yaml": inspect_run,
}
