"""`npmp inspect FILE`: what a recording, a dataset, a skill module or a run folder holds."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from rich.table import Table

from experiments.common import Run, console, stored_config, verb
from mocap_data import read
from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from mocap_data.readers import READERS
from mocap_data.store import SCHEMA, summarize_motions

Findings = dict[str, Any]


def run(config: DictConfig, run: Run) -> int:
    """Say what file= is and what it holds."""
    path = Path(str(config.file))
    findings = inspect(path)
    show(findings)
    if run.out is not None:
        with atomic_path(run.out) as temporary:
            temporary.write_text(json.dumps(findings, indent=2) + "\n", encoding="utf-8")
    return 0


def inspect(path: Path) -> Findings:
    """What `path` is, as plain values. Raises InputError for what does not exist, is damaged or is of no known kind."""
    if not path.exists():
        raise InputError(f"no file or folder {str(path)!r}")
    if path.is_dir():
        for marker, describe in FOLDERS.items():
            if (path / marker).is_file():
                return describe(path)
        recordings = sorted(entry.name for entry in path.iterdir() if entry.suffix.lower() in READERS)
        if recordings:
            return {"path": str(path), "kind": "folder of recordings", "recordings": recordings}
        raise InputError(f"{path}: no skill module, run folder, evaluation or recordings (looked for {', '.join(FOLDERS)})")
    suffix = path.suffix.lower()
    if suffix in READERS:
        return inspect_recording(path)
    if suffix in (".h5", ".hdf5"):
        return inspect_hdf5(path)
    if path.name in FOLDERS:
        return FOLDERS[path.name](path.parent)
    known = ", ".join([*READERS, ".h5"])
    raise InputError(f"{path}: no known kind of file; there are: {known}, and folders of modules, runs, evaluations")


def inspect_recording(path: Path) -> Findings:
    """A BVH, CSV or npz recording: times, keypoints, extent, speed."""
    clip = read(path)
    low, high = clip.positions.min(axis=(0, 1)), clip.positions.max(axis=(0, 1))
    steps = np.linalg.norm(np.diff(clip.positions[:, 0, :2], axis=0), axis=-1) * clip.rate_hz
    return {
        "path": str(path),
        "kind": f"recording ({path.suffix.lower()[1:]})",
        "name": clip.name,
        "frames": clip.num_frames,
        "rate_hz": round(clip.rate_hz, 6),
        "duration_s": round(clip.duration_s, 3),
        "source": clip.source,
        "licence": clip.licence,
        "extent_m": {axis: [round(float(a), 3), round(float(b), 3)] for axis, a, b in zip("xyz", low, high)},
        "speed_mps": {
            "mean": round(float(steps.mean()), 3) if len(steps) else 0.0,
            "max": round(float(steps.max()), 3) if len(steps) else 0.0,
        },
        "keypoints": list(clip.names),
    }


def inspect_hdf5(path: Path) -> Findings:
    """A dataset of reference motions, or the rollouts of an evaluation."""
    import h5py

    try:
        file = h5py.File(path, "r")
    except PermissionError:
        raise
    except OSError as error:
        reason = "it is cut short" if "truncated" in str(error) else "not HDF5, or damaged"
        raise InputError(f"{path}: {reason}") from None
    with file:
        root = {key: plain(value) for key, value in file.attrs.items()}
        groups = [name for name in file if isinstance(file[name], h5py.Group)]
        rollouts = {
            name: {
                **{key: list(dataset.shape) for key, dataset in file[name].items() if isinstance(dataset, h5py.Dataset)},
                **{key: plain(value) for key, value in file[name].attrs.items()},
            }
            for name in groups
        }
    if root.get("schema") == SCHEMA:
        return {
            "path": str(path),
            "kind": "reference motions",
            **{key: value for key, value in root.items() if key != "provenance"},
            "provenance": json.loads(root["provenance"]) if "provenance" in root else {},
            "clips": [
                {
                    "name": clip.name,
                    "frames": clip.num_frames,
                    "seconds": round(clip.num_frames / clip.rate_hz, 2),
                    "rate_hz": clip.rate_hz,
                    "licence": clip.licence,
                    **{key: float(f"{value:.4g}") for key, value in clip.quality.items()},
                }
                for clip in summarize_motions(path)
            ],
        }
    if all("qpos" in entry and "reference_qpos" in entry for entry in rollouts.values()) and rollouts:
        clips = [{"name": name, **entry} for name, entry in rollouts.items()]
        return {"path": str(path), "kind": "rollouts of an evaluation", **root, "clips": clips}
    raise InputError(f"{path}: HDF5, but neither reference motions (schema {SCHEMA!r}) nor rollouts of an evaluation")


def plain(value: Any) -> Any:
    """An HDF5 attribute as a JSON value."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray):
        return [plain(entry) for entry in value.tolist()]
    return value.item() if isinstance(value, np.generic) else value


def inspect_module(path: Path) -> Findings:
    """A skill module: its contract and the size of its networks, without loading them."""
    contract = read_json(path / "module.json")
    findings: Findings = {"path": str(path), "kind": "skill module", **contract}
    weights = path / "module.safetensors"
    if not weights.is_file():
        raise InputError(f"{path}: module.safetensors is missing beside module.json")
    return {**findings, **tensors(weights)}


def tensors(path: Path) -> Findings:
    """The number and size of a safetensors file's arrays, from its header."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size <= path.stat().st_size - 8:
            raise InputError(f"{path}: not a safetensors file, or cut short")
        try:
            header = json.loads(file.read(size))
        except ValueError:
            raise InputError(f"{path}: not a safetensors file (its header is no JSON)") from None
    arrays = {name: entry for name, entry in header.items() if name != "__metadata__"}
    end = max((entry["data_offsets"][1] for entry in arrays.values()), default=0)
    if path.stat().st_size < 8 + size + end:
        raise InputError(f"{path}: cut short ({path.stat().st_size} of {8 + size + end} bytes)")
    return {"tensors": len(arrays), "weights": sum(int(np.prod(entry["shape"])) for entry in arrays.values())}


def inspect_run(path: Path) -> Findings:
    """A run folder: its settings, how far it came, what it left."""
    owner, config = stored_config(path)
    findings: Findings = {"path": str(path), "kind": "run folder" if owner is None else f"run folder of npmp {owner}"}
    for key in ("robot", "task", "algo", "net"):
        value = config.get(key)
        name = value.get("name") if isinstance(value, DictConfig) else value
        if name is not None:
            findings[key] = name
    findings.update({key: config[key] for key in ("data", "module", "steps", "seed", "device") if key in config})
    metrics = path / "metrics.csv"
    if metrics.is_file():
        with metrics.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        findings["rows of metrics.csv"] = len(rows)
        if rows:
            findings["last metrics"] = {key: value for key, value in rows[-1].items() if key}
    findings["holds"] = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir())
    checkpoints = path / "checkpoints"
    if checkpoints.is_dir():
        findings["checkpoints"] = sorted(entry.name for entry in checkpoints.iterdir())
    return findings


def inspect_evaluation(path: Path) -> Findings:
    """An evaluation folder: its figures."""
    return {"path": str(path), "kind": "evaluation", **read_json(path / "evaluation.json")}


def read_json(path: Path) -> Findings:
    """A JSON object from a file. Raises InputError for anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: a JSON object is expected")
    return value


# By the file that marks the kind of folder, the most telling first.
FOLDERS: Mapping[str, Callable[[Path], Findings]] = {
    "module.json": inspect_module,
    "evaluation.json": inspect_evaluation,
    "config.yaml": inspect_run,
}


def show(findings: Findings) -> None:
    """Plain values as lines, lists of records as tables."""
    out = console()
    for key, value in findings.items():
        if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            out.print(records(key, value))
        else:
            out.print(f"{key}: {text(value)}", highlight=False, markup=False, soft_wrap=True)


def text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {text(entry)}" for key, entry in value.items()) or "-"
    if isinstance(value, list):
        inner = ", ".join(text(entry) for entry in value[:40])
        return f"{inner} ... ({len(value)} in all)" if len(value) > 40 else inner or "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def records(title: str, entries: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    columns = list(dict.fromkeys(key for entry in entries for key in entry))
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for entry in entries:
        table.add_row(*(text(entry.get(column, "")).replace("[", "\\[") for column in columns))
    return table


main = verb("inspect", run, out="optional_file", torch=False, positional="file")

if __name__ == "__main__":
    sys.exit(main(None))
