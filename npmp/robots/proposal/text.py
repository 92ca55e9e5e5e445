"""The proposal as the text of a robot.yaml, guessed lines marked."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import yaml

from npmp.robots.proposal.draft import Draft


def text_of(draft: Draft) -> str:
    """The text of robot.yaml."""
    content, why = draft.content, draft.why

    def guess(key: str) -> str:
        return f"  # guessed: {why[key]}" if key in why else ""

    lines = [
        f'# {draft.name}: proposed by `npmp robots add` from {draft.mjcf.name}. Lines with "guessed" want a look;',
        "# `npmp robots check` holds this file against the model.",
        f"name: {_quoted(draft.name)}",
        f"mjcf: {_quoted(draft.reference)}",
        f"source: {_quoted(draft.mjcf.name)}",
        'licence: ""  # of the model: see where it comes from',
        *(
            ["drop_missing: true  # shapes that collide but whose mesh files are missing"]
            if draft.drop_missing
            else []
        ),
        "",
        f"control_rate_hz: {_number(content['control_rate_hz'])}{guess('control_rate_hz')}",
    ]
    if "physics_rate_hz" in content:
        lines.append(
            f"physics_rate_hz: {_number(content['physics_rate_hz'])}{guess('physics_rate_hz')}"
        )
    if "imu" in content:
        lines.append(f"imu: {_flow(content['imu'])}{guess('imu')}")
    else:
        lines.append(f"imu_site: {_quoted(content['imu_site'])}")
    lines += [
        "",
        "# Position control [Nm/rad, Nm s/rad, Nm]; a number, one per joint, or the model's own.",
        "drives:",
    ]
    for key, value in content["drives"].items():
        if isinstance(value, dict):
            lines += [f"  {key}:{guess(f'drives.{key}')}"]
            lines += [f"    {_quoted(joint)}: {_flow(entry)}" for joint, entry in value.items()]
        else:
            lines += [f"  {key}: {_flow(value)}{guess(f'drives.{key}')}"]
    lines += [
        "",
        "# One line a joint: home pose [rad], position limits [rad], speed limit [rad/s].",
    ]
    for key, title in (("joints.home", "home"), ("joints.velocity", "velocity")):
        lines += [f"# {title}: guessed: {why[key]}"] if key in why else []
    lines.append("joints:")
    lines += [
        f"  {_quoted(name)}: {_flow(row)}{guess(f'joints.{name}')}"
        for name, row in content["joints"].items()
    ]
    feet = content["feet"]
    lines += [
        "",
        "# Contact spheres of the feet: radius, and centre in the foot bodies' frames [m].",
        "feet:",
    ]
    lines += [f"  bodies: [{', '.join(_quoted(body) for body in feet['bodies'])}]"]
    lines += [f"  radius: {_number(feet['radius'])}", f"  offset: {_flow(feet['offset'])}"]
    if "at" in feet:
        lines.append(
            "  at:  # the model's feet are shapes at these points of its bodies; they become bodies of their own"
        )
        lines += [f"    {_quoted(foot)}: {_flow(entry)}" for foot, entry in feet["at"].items()]
    if "points" in feet:
        lines.append(f"  points:{guess('feet.points')}")
        lines += [
            f"    {_quoted(foot)}: {_flow(points)}" for foot, points in feet["points"].items()
        ]
    lines += ["", "# Points that motion capture is matched to, each on a body [m].", "markers:"]
    lines += [
        f"  {name}: {_flow(marker)}{guess(f'markers.{name}')}"
        for name, marker in content["markers"].items()
    ]
    lines += [
        "",
        "# Mirrors: parts of names that swap, across the plane through the base's origin with this normal.",
    ]
    if content["symmetries"]:
        lines.append("symmetries:")
        lines += [
            f"  {name}: {_flow(entry)}{guess(f'symmetries.{name}')}"
            for name, entry in content["symmetries"].items()
        ]
    else:
        lines.append("symmetries: {}")
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    """Text as YAML reads it back."""
    plain = re.fullmatch(r"[A-Za-z_./~][\w./~:+-]*(?<!:)", value)
    return (
        value
        if plain and yaml.safe_load(value) == value
        else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    )


def _flow(value: Any) -> str:
    """Nested lists, mappings and numbers on one line."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{_quoted(key)}: {_flow(entry)}" for key, entry in value.items()) + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_flow(entry) for entry in value) + "]"
    return _quoted(value) if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    """Without a power of ten: YAML 1.1 takes 5e-06 for a word."""
    return str(value) if isinstance(value, int) else np.format_float_positional(value, trim="0")
