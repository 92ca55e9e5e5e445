"""The description of another project's velocity policy, read from the field's conventions.

Sources, a later one replaces keys of an earlier one: the metadata in an ONNX file (mjlab, Isaac
Lab, holosoma); Unitree's deploy.yaml beside the policy or in `../params`; a YAML file of `KEYS`.
[R: mjlab's exporter_utils.py, unitree_rl_lab's export_deploy_cfg.py, holosoma_inference]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.errors import InputError, check_available
from mocap_data.input_files import read_text
from mocap_data.safe_yaml import MAX_YAML_BYTES, parse_yaml
from npmp.deploy.robot import FloatArray

# files of policies: ONNX, TorchScript
SUFFIXES = (".onnx", ".pt", ".jit", ".pth")
# keys of a description, and their units or form
KEYS = {
    "joint_names": "",
    "joint_stiffness": " [Nm/rad]",
    "joint_damping": " [Nm s/rad]",
    "default_joint_pos": " [rad]",
    "action_scale": " [rad]",
    "step_dt": " [s]",
    "command_ranges": " {lin_vel_x: [low, high], lin_vel_y, ang_vel_z} [m/s, rad/s]",
    "observations": " {NAME: {scale, clip, history_length, params}}",
}
# optional keys: the default pose, and no clipping
OPTIONAL = ("action_offset", "action_clip")
PER_JOINT = ("joint_stiffness", "joint_damping", "default_joint_pos", "action_scale", *OPTIONAL)
AXES = ("lin_vel_x", "lin_vel_y", "ang_vel_z")
# names in holosoma's metadata
HOLOSOMA = {"dof_names": "joint_names", "kp": "joint_stiffness", "kd": "joint_damping"}
# observation -> its width; 0: one number per joint
OBSERVATIONS = {
    "base_lin_vel": 3,
    "base_ang_vel": 3,
    "projected_gravity": 3,
    "velocity_commands": 3,
    "command_lin_vel": 2,
    "command_ang_vel": 1,
    "joint_pos_rel": 0,
    "joint_vel_rel": 0,
    "last_action": 0,
    # sine and cosine of a clock
    "gait_phase": 2,
    # of two clocks half a period apart
    "sin_phase": 2,
    "cos_phase": 2,
}
# names of the same in mjlab, Isaac Lab, holosoma, legged_gym and rl_sar
ALIASES = {
    "command": "velocity_commands",
    "commands": "velocity_commands",
    "keyboard_velocity_commands": "velocity_commands",
    "joint_pos": "joint_pos_rel",
    "dof_pos": "joint_pos_rel",
    "joint_vel": "joint_vel_rel",
    "dof_vel": "joint_vel_rel",
    "actions": "last_action",
    "phase": "gait_phase",
    "ang_vel": "base_ang_vel",
    "gravity_vec": "projected_gravity",
}
CLOCKS = ("gait_phase", "sin_phase", "cos_phase")
# keys among the observations that are about all of them: each frame has all observations; clip
# after scaling; the newest frame of a history is the first (HIMLoco)
SWITCHES = ("use_gym_history", "scale_first", "newest_first")
TERM_KEYS = ("scale", "clip", "history_length", "params")


@dataclass(frozen=True)
class Term:
    """A part of the policy's input: clipped, scaled, and repeated for its history."""

    # one of OBSERVATIONS
    name: str
    # (w,)
    scale: FloatArray
    # [low, high], of all numbers
    clip: tuple[float, float]
    # frames, the current one included
    history_length: int
    # period of a clock [s]
    period_s: float


@dataclass(frozen=True)
class PolicyDescription:
    """The interface of a velocity policy of J joints."""

    joint_names: tuple[str, ...]
    # (J,) [Nm/rad]
    joint_stiffness: FloatArray
    # (J,) [Nm s/rad]
    joint_damping: FloatArray
    # (J,) [rad]
    default_joint_pos: FloatArray
    # (J,) target = offset + scale * action [rad]
    action_scale: FloatArray
    action_offset: FloatArray
    # (J, 2) limits of the target [rad]
    action_clip: FloatArray
    # control period [s]
    step_dt: float
    # (3, 2) forward, lateral [m/s], yaw rate [rad/s]
    command_range: FloatArray
    # in the order of the input
    terms: tuple[Term, ...]
    # SWITCHES
    use_gym_history: bool = False
    scale_first: bool = False
    newest_first: bool = False

    @property
    def width(self) -> int:
        """Width of the policy's input."""
        return sum(len(term.scale) * term.history_length for term in self.terms)


def is_external(policy: Path | str) -> bool:
    """Whether policy= names a file of another project, by its suffix; npmp's policies are
    folders."""
    return Path(policy).suffix in SUFFIXES and not Path(policy).is_dir()


def read_description(
    policy: Path, metadata: Mapping[str, str], motors: Sequence[str], own: Path | None = None
) -> PolicyDescription:
    """The description of a policy.

    Args:
      metadata: of its ONNX file. motors: the robot's joints in the order of Unitree's motors, for
        the joint_ids_map of a deploy.yaml; () if unknown.
      own: a YAML file of KEYS; None: the policy's name with .yaml, if it exists.

    Raises:
      InputError: for missing, unknown or invalid keys, by name.
    """
    beside = [policy.parent / "deploy.yaml", policy.parent.parent / "params" / "deploy.yaml"]
    paths = [path for path in beside if path.is_file()][:1]
    usual = policy.with_suffix(".yaml")
    if own is not None or (usual.is_file() and usual not in paths):
        paths.append(own or usual)

    settings = from_metadata(metadata, policy.name)
    for path in paths:
        update = from_yaml(path, motors)
        names = settings.get("joint_names"), update.get("joint_names")
        if None not in names and names[0] != names[1]:
            raise InputError(f"{path}: joint_names: {names[1]}: {policy.name} has {names[0]}")
        settings |= update

    if missing := [key + KEYS[key] for key in KEYS if settings.get(key) is None]:
        raise InputError(
            f"'{policy.name}': missing {', '.join(missing)}: write them to {own or usual}"
        )
    return _description(settings, str(paths[-1] if paths else policy))


def from_metadata(metadata: Mapping[str, str], name: str) -> dict[str, Any]:
    """The `KEYS` in an ONNX file's metadata. Raises InputError for a policy that follows a
    motion."""
    values = {
        HOLOSOMA.get(key, key): _parsed(text, f"'{name}': {key}")
        for key, text in metadata.items()
        if key in (*KEYS, *OPTIONAL, *HOLOSOMA, "command_names") or key.startswith("observation_")
    }
    if "motion" in _listed(values.pop("command_names", ())):
        raise InputError(
            f"'{name}': command_names: motion: expected a policy commanded by velocities"
        )
    if names := values.pop("observation_names", None):
        lengths = _listed(values.pop("observation_history_lengths", 1))
        lengths = lengths * len(_listed(names)) if len(lengths) == 1 else lengths
        if len(lengths) != len(_listed(names)):
            raise InputError(
                f"'{name}': observation_history_lengths={lengths}: expected one, or one of each of "
                f"{len(_listed(names))} observations"
            )
        values["observations"] = {
            term: {"history_length": max(1, int(length))}
            for term, length in zip(_listed(names), lengths, strict=True)
        }
    return {key: value for key, value in values.items() if value is not None}


def from_yaml(path: Path, motors: Sequence[str]) -> dict[str, Any]:
    """The `KEYS` in a YAML file of these, or in a deploy.yaml.

    Raises:
      InputError: for unknown keys, or another file.
    """
    # Isaac Lab's deploy.yaml has tags of Python, as of a slice; their lists remain
    text = re.sub(r"!!python/\S+", "", read_text(path, at_most=MAX_YAML_BYTES))
    content = parse_yaml(text, str(path))
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected keys: {', '.join(KEYS)}")
    if "joint_ids_map" in content:
        try:
            return _from_deploy(content, motors)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise InputError(
                f"{path}: {error!s:.80}: expected Unitree's deploy.yaml of a velocity policy"
            ) from error
    check_available(f"key of {path}", content, (*KEYS, *OPTIONAL))
    return content


def _from_deploy(content: Mapping[str, Any], motors: Sequence[str]) -> dict[str, Any]:
    """Gains are in the order of the motors, everything else in the policy's."""
    actions = content["actions"]
    if list(actions) != ["JointPositionAction"]:
        raise InputError(f"actions: {', '.join(actions)}: expected JointPositionAction")
    action = actions["JointPositionAction"]
    ids = [int(index) for index in content["joint_ids_map"]]
    driven = action.get("joint_ids")
    if driven and driven not in ([None] * 3, list(range(len(ids)))):
        raise InputError(f"actions.JointPositionAction.joint_ids={driven}: expected all joints")
    by_motor = {}
    if motors:
        by_motor = {
            "joint_names": [motors[index] for index in ids],
            "joint_stiffness": [content["stiffness"][index] for index in ids],
            "joint_damping": [content["damping"][index] for index in ids],
        }
    observations = content["observations"]
    if len(observations) == 1 and "history_length" not in next(iter(observations.values())):
        # a group, which is the name of the graph's input
        observations = next(iter(observations.values()))
    return by_motor | {
        "default_joint_pos": content["default_joint_pos"],
        "action_scale": action["scale"],
        "action_offset": action.get("offset"),
        "action_clip": action.get("clip"),
        "step_dt": content["step_dt"],
        "command_ranges": content["commands"]["base_velocity"]["ranges"],
        "observations": observations,
    }


def _description(settings: Mapping[str, Any], where: str) -> PolicyDescription:
    """The description of valid settings. Raises InputError by key."""
    joints = [str(name) for name in _listed(settings["joint_names"])]
    if not joints or len(set(joints)) < len(joints):
        raise InputError(f"{where}: joint_names={joints}: expected different names")

    def numbers(key: str, value: Any, shape: tuple[int, ...]) -> FloatArray:
        try:
            array = np.broadcast_to(np.asarray(value, np.float64), shape)
        except (TypeError, ValueError):
            array = np.array(np.nan)
        if not np.isfinite(array).all():
            size = " x ".join(map(str, shape)) or "1"
            raise InputError(f"{where}: {key}={value!s:.80}: expected {size} numbers, or one")
        return np.array(array)

    def limits(key: str, value: Any, shape: tuple[int, ...]) -> FloatArray:
        """Pairs [low, high], (*shape, 2); one pair stands for all."""
        array = numbers(key, value, (*shape, 2))
        if np.ndim(value) == 0 or np.shape(value)[-1] != 2 or (array[..., 0] > array[..., 1]).any():
            raise InputError(f"{where}: {key}={value!s:.80}: expected [low, high]")
        return array

    count = len(joints)
    values: dict[str, Any] = {
        key: numbers(key, settings[key], (count,)) for key in PER_JOINT if key not in OPTIONAL
    }
    for key, low in (("joint_stiffness", 1e-6), ("joint_damping", 0.0)):
        if (values[key] < low).any():
            raise InputError(f"{where}: {key}={values[key].min():g}: must not be negative or 0")
    step_dt = float(numbers("step_dt", settings["step_dt"], ()))
    if not 0.001 <= step_dt <= 0.1:
        raise InputError(f"{where}: step_dt={step_dt:g}: must be from 0.001 to 0.1 [s]")

    ranges = settings["command_ranges"]
    if isinstance(ranges, Mapping):
        # holosoma's name of the last axis
        ranges = {"ang_vel_z": ranges.get("ang_vel_yaw"), **ranges}
        ranges = [ranges.get(axis) for axis in AXES]
    observations, switches = _observations(settings["observations"], where)
    offset = settings.get("action_offset")
    clip = settings.get("action_clip")
    return PolicyDescription(
        joint_names=tuple(joints),
        **values,
        action_offset=values["default_joint_pos"]
        if offset is None
        else numbers("action_offset", offset, (count,)),
        action_clip=np.array([[-np.inf, np.inf]] * count)
        if clip is None
        else limits("action_clip", clip, (count,)),
        step_dt=step_dt,
        command_range=limits("command_ranges", ranges, (3,)),
        terms=tuple(
            _term(name, entry, count, where, numbers, limits)
            for name, entry in observations.items()
        ),
        **switches,
    )


def _observations(value: Any, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The terms, and the SWITCHES among them."""
    if not isinstance(value, Mapping):
        value = dict.fromkeys(_listed(value))
    terms = {str(name): entry or {} for name, entry in value.items() if name not in SWITCHES}
    for name, entry in terms.items():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("params") or {}, Mapping):
            raise InputError(
                f"{where}: observations.{name}={entry!s:.80}: expected keys {', '.join(TERM_KEYS)}"
            )
    available = [*OBSERVATIONS, *ALIASES]
    if unknown := [name for name in terms if name not in available]:
        raise InputError(
            f"{where}: observations.{unknown[0]}: unknown; available: {', '.join(available)}"
        )
    switches = {name: bool(value[name]) for name in SWITCHES if name in value}
    lengths = {_history_length(name, entry, where) for name, entry in terms.items()}
    if switches.get("use_gym_history") and len(lengths) > 1:
        raise InputError(f"{where}: use_gym_history: needs equal history_length, got {lengths}")
    return terms, switches


def _history_length(name: str, entry: Mapping[str, Any], where: str) -> int:
    """Frames of a term, with the current one; Isaac Lab writes 0 for no history."""
    length = entry.get("history_length") or 1
    if not isinstance(length, int) or length < 1:
        raise InputError(
            f"{where}: observations.{name}.history_length={length!s:.80}: expected an integer from"
            " 1 on"
        )
    return length


def _term(
    name: str, entry: Mapping[str, Any], joints: int, where: str, numbers: Any, limits: Any
) -> Term:
    key = f"observations.{name}"
    check_available(f"key of {where}, {key}", entry, TERM_KEYS)
    kind = ALIASES.get(name, name)
    params = entry.get("params") or {}
    if (params.get("asset_cfg") or {}).get("joint_ids") is not None:
        raise InputError(
            f"{where}: {key}.params.asset_cfg.joint_ids: expected all joints in their order"
        )
    period = params.get("period")
    if kind in CLOCKS and period is None:
        raise InputError(f"{where}: missing {key}.params.period (of the gait's clock [s])")
    period_s = 1.0 if period is None else float(numbers(f"{key}.params.period", period, ()))
    if period_s <= 0.0:
        raise InputError(f"{where}: {key}.params.period={period_s:g}: must be above 0 [s]")
    scale = 1.0 if entry.get("scale") is None else entry["scale"]
    low, high = -np.inf, np.inf
    if entry.get("clip") is not None:
        low, high = limits(f"{key}.clip", entry["clip"], ())
    return Term(
        name=kind,
        scale=numbers(f"{key}.scale", scale, (OBSERVATIONS[kind] or joints,)),
        clip=(float(low), float(high)),
        history_length=_history_length(name, entry, where),
        period_s=period_s,
    )


def _parsed(text: str, where: str) -> Any:
    """The value of metadata: JSON, or numbers or names with commas between them."""
    text = text.strip()
    if text[:1] in ("[", "{", "(") or text in ("null", "None", ""):
        return parse_yaml(text.replace("(", "[").replace(")", "]"), where) if text[:1] else None
    values: list[Any] = [part.strip() for part in text.split(",")]
    try:
        values = [float(part) for part in values]
    except ValueError:
        return values
    return values[0] if len(values) == 1 else values


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
