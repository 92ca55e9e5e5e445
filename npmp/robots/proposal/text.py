"""The proposal as the text of a robot.yaml, guessed lines marked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import yaml

from npmp.robots.proposal.draft import Draft

# key of robot.yaml -> the comment above it
_TITLES = {
    "drives": "Position control [Nm/rad, Nm s/rad, Nm]: a number, one per joint, or the model's.",
    "joints": "One line a joint: home pose [rad], position limits [rad], speed limit [rad/s].",
    "feet": "Contact spheres of the feet: radius, and centre in the foot bodies' frames [m].",
    "feet.at": "The model's feet are shapes at these points; they become bodies.",
    "markers": "Points that recordings are matched to, each on a body [m].",
    "symmetries": (
        "Mirrors: parts of names that swap, across the plane through the base's origin with this"
        " normal."
    ),
    "licence": "Of the model: see its source.",
}


_ORDER = (
    *("name", "mjcf", "source", "licence"),
    *("control_rate_hz", "physics_rate_hz", "imu", "imu_site"),
    *("drives", "joints", "feet", "markers", "symmetries"),
)
# keys after a blank line
_GROUPS = ("control_rate_hz", "drives", "joints", "feet", "markers", "symmetries")
# mappings with one line per entry
_TABLES = (
    *("drives", "joints", "feet", "markers", "symmetries", "feet.at", "feet.points"),
    *("drives.kp", "drives.kd", "drives.torque_limit", "drives.armature"),
)


def text_of(draft: Draft) -> str:
    """The text of a draft's robot.yaml."""
    content = draft.robot_yaml()
    lines = [
        f"# {draft.name}: proposed by `npmp robots add` from {draft.mjcf.name}."
        ' Review lines with "guessed";',
        "# `npmp robots check` compares this file with the model.",
    ]
    for key in _ORDER:
        if key in content:
            lines += [""] * (key in _GROUPS) + _lines(draft.reasons, key, content[key])
    return "\n".join(lines) + "\n"


def _lines(reasons: Mapping[str, str], at: str, value: Any) -> list[str]:
    """The lines of one dotted key."""
    key = at.rpartition(".")[2]
    lines = [f"# {_TITLES[at]}"] if at in _TITLES else []
    columns = ("home", "velocity") if at == "joints" else ()
    lines += [
        f"# {column}: guessed: {reasons[f'joints.{column}']}"
        for column in columns
        if f"joints.{column}" in reasons
    ]
    guess = f"  # guessed: {reasons[at]}" if at in reasons else ""
    if at in _TABLES and isinstance(value, dict) and value:
        lines.append(f"{_flow(key)}:{guess}")
        for name, entry in value.items():
            lines += _lines(reasons, f"{at}.{name}", entry)
    else:
        lines.append(f"{_flow(key)}: {_flow(value)}{guess}")
    return [f"{'  ' * ('.' in at)}{line}" for line in lines]


def _flow(value: Any) -> str:
    """A value on one line."""
    options: dict[str, Any] = {"default_flow_style": True, "sort_keys": False, "width": math.inf}
    text = yaml.safe_dump(value, allow_unicode=True, **options)
    return text.removesuffix("\n").removesuffix("\n...")
