"""What was identified in words, as JSON, and as a randomization preset around the estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mocap_data.files import atomic_path
from npmp.actuators.actuator_log import Floats
from npmp.actuators.identification.estimation import Identified
from npmp.actuators.identification.stand import (
    ARMATURE,
    BIAS,
    DAMPING,
    DELAY,
    FRICTION,
    KD,
    KINDS,
    KP,
    UNITS,
)
from npmp.core import ranges
from npmp.core.settings import as_plain

# each scaled quantity of a preset -> the parameters that it is the spread of
_SPREADS = {
    "armature": (ARMATURE,),
    "damping": (DAMPING, KD),
    "friction_loss": (FRICTION,),
    "gain": (KP,),
}
# a standard error above this share of the prior's deviation: the motions did not determine it
_LEARNED = 0.5
# a standard error as large as the estimate
_LOST = 1.0


@dataclass(frozen=True)
class PresetConfig:
    """How wide a preset is about an estimate. Raises ValueError for numbers out of range."""

    # half-width of a spread [standard errors]
    errors: float = 2.0
    # share of the estimate, at least: for what a stand does not show (wear, warmth, load)
    least: float = 0.05
    # share of the estimate, at most
    most: float = 0.5

    def __post_init__(self) -> None:
        ranges.not_negative(self, "errors")
        ranges.share(self, "least", "most")
        if not self.least <= self.most < 1.0:
            raise ValueError(
                f"least {self.least:g} must not exceed most {self.most:g}, which must be below 1"
            )


def summary(found: Identified) -> dict[str, Any]:
    """The content of sysid.json."""
    return {
        "units": UNITS,
        "joints": {name: _of_joint(found, j) for j, name in enumerate(found.joints)},
        "not_told_apart": not_told_apart(found),
    }


def _of_joint(found: Identified, j: int) -> dict[str, Any]:
    return {
        "estimate": dict(zip(KINDS, map(float, found.estimate[j]), strict=True)),
        "standard_error": {
            kind: float(e) if e > 0.0 else None
            for kind, e in zip(KINDS, found.error[j], strict=True)
        },
        "model": dict(zip(KINDS, map(float, found.nominal[j]), strict=True)),
        **{f"{KINDS[k]}_over_kp": _ratio(found, j, k) for k in (ARMATURE, DAMPING, FRICTION)},
        "condition_number": float(found.condition[j]),
        "most_correlated": list(found.most_correlated(j)),
        "residual_rms_before_rad": float(found.rms_before[j]),
        "residual_rms_after_rad": float(found.rms_after[j]),
        "saturated_share": float(found.saturated[j]),
        "residual_correlation_samples": float(found.correlation_time[j]),
    }


def _ratio(found: Identified, j: int, kind: int) -> dict[str, float]:
    """A parameter over kp, and its standard error, to first order. Damping: with the drive's."""
    kp = found.estimate[j, KP]
    slope = np.zeros(len(KINDS))
    whole = found.estimate[j, kind] + (found.estimate[j, KD] if kind == DAMPING else 0.0)
    slope[kind] = 1.0 / kp
    slope[KP] = -whole / kp**2
    if kind == DAMPING:
        slope[KD] = 1.0 / kp
    error = np.sqrt(slope @ found.covariance[j] @ slope)
    return {"estimate": float(whole / kp), "standard_error": float(error)}


def not_told_apart(found: Identified) -> list[str]:
    """Sentences on what these motions do not determine, each with its joints."""
    error = found.error
    little = found.error > _LEARNED * found.prior
    lost = found.error > _LOST * found.estimate
    lacks = {
        "kp: of armature, damping and friction_loss only their ratios to kp are known (a torque "
        "log, or a known weight on the limb, would tell)": little[:, KP],
        "bias: its weight hardly depends on its angle": little[:, BIAS],
        "armature: as uncertain as it is large": lost[:, ARMATURE],
        "friction_loss: as uncertain as it is large": lost[:, FRICTION],
        "gains: drives reach their torque limit, so errors are too small (move less)": (
            found.saturated > 0.0
        ),
    }
    names = np.array(found.joints)
    sentences = [f"{text}: {', '.join(names[at])}" for text, at in lacks.items() if at.any()]
    if not error[:, KD].any() and not found.torques:
        sentences.append(
            "damping of the joint and kd of its drive: angles show their sum only; kd stays the "
            "model's, the rest is damping"
        )
    sentences.append("delay of the command and delay of the encoder: their sum is given")
    return sentences


def preset(
    found: Identified, base: Mapping[str, Any], name: str, config: PresetConfig | None = None
) -> dict[str, Any]:
    """A randomization preset: nominal values are the estimates, spreads follow their errors, and
    all else is of `base`."""
    config = config or PresetConfig()
    estimate = found.estimate
    error = found.error
    physics: dict[str, Any] = {**base.get("physics", {})}
    for key, kinds in _SPREADS.items():
        spread = _share(estimate[:, kinds].sum(1), error[:, kinds], config)
        physics[key] = {"whole": 0.0, "each": spread}
    offset = float(np.sqrt(np.square(error[:, BIAS]).mean()))
    physics["joint_offset"] = _rounded(config.errors * offset)
    physics["nominal"] = {
        joint: {KINDS[k]: _rounded(max(row[k], 0.0)) for k in (ARMATURE, DAMPING, FRICTION, KP, KD)}
        | {"offset": _rounded(row[BIAS])}
        for joint, row in zip(found.joints, estimate, strict=True)
    }
    # one range for all joints [s], from the quickest to the slowest
    delay = estimate[:, DELAY]
    width = config.errors * error[:, DELAY]
    delays = [_rounded(max(0.0, float(d))) for d in ((delay - width).min(), (delay + width).max())]
    sensors = {**base.get("sensors", {}), "delay_s": delays}
    pushes = {**base.get("pushes", {})}
    return {"name": name, "physics": physics, "pushes": pushes, "sensors": sensors}


def write_preset(path: Path, content: Mapping[str, Any], data: Path) -> None:
    """A preset as a file of conf/randomization. data: the log that it follows from."""
    head = f"# Joints as npmp sysid found them in {data.name!r}\n"
    with atomic_path(path) as temporary:
        temporary.write_text(head + yaml.safe_dump(as_plain(content), sort_keys=False))


def _share(values: Floats, errors: Floats, config: PresetConfig) -> float:
    """Half-width of the joints' scales: root mean square of their standard errors (n, k) over their
    values (n,), where these are not 0: scales do nothing to a 0."""
    some = values > 0.0
    relative = 0.0
    if some.any():
        relative = float(np.sqrt(np.mean(np.square(errors[some]).sum(1) / values[some] ** 2)))
    return _rounded(min(max(config.errors * relative, config.least), config.most))


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
