"""Identified parameters as JSON, and as a randomization preset around the estimate."""

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
from npmp.core.settings import to_plain

# quantity of a preset -> the parameters whose spread it scales
_SPREADS = {
    "armature": (ARMATURE,),
    "damping": (DAMPING, KD),
    "friction_loss": (FRICTION,),
    "gain": (KP,),
}
# largest standard error of a determined parameter, over the prior's deviation
_OF_PRIOR = 0.5
# largest standard error of a determined parameter, over the estimate
_OF_ESTIMATE = 1.0


@dataclass(frozen=True)
class PresetConfig:
    """The width of a preset about an estimate. Raises ValueError for values out of range."""

    # half-width of a spread [standard errors]
    errors: float = 2.0
    # share of the estimate, at least: for wear, warmth and load, which a stand does not show
    least: float = 0.05
    # share of the estimate, at most
    most: float = 0.5

    def __post_init__(self) -> None:
        ranges.not_negative(self, "errors")
        ranges.share(self, "least", "most")
        if not self.least <= self.most < 1.0:
            raise ValueError(
                f"least={self.least:g}, most={self.most:g}: expected least <= most < 1"
            )


def summary(result: Identified) -> dict[str, Any]:
    """The content of sysid.json."""
    return {
        "units": UNITS,
        "joints": {name: _of_joint(result, j) for j, name in enumerate(result.joints)},
        "not_told_apart": undetermined(result),
    }


def _of_joint(result: Identified, j: int) -> dict[str, Any]:
    return {
        "estimate": dict(zip(KINDS, map(float, result.estimate[j]), strict=True)),
        "standard_error": {
            kind: float(e) if e > 0.0 else None
            for kind, e in zip(KINDS, result.error[j], strict=True)
        },
        "model": dict(zip(KINDS, map(float, result.nominal[j]), strict=True)),
        **{f"{KINDS[k]}_over_kp": _ratio(result, j, k) for k in (ARMATURE, DAMPING, FRICTION)},
        "condition_number": float(result.condition[j]),
        "most_correlated": list(result.most_correlated(j)),
        "residual_rms_before_rad": float(result.rms_before[j]),
        "residual_rms_after_rad": float(result.rms_after[j]),
        "saturated_share": float(result.saturated[j]),
        "residual_correlation_samples": float(result.correlation_time[j]),
    }


def _ratio(result: Identified, j: int, kind: int) -> dict[str, float]:
    """A parameter over kp and its standard error, to first order; damping includes kd."""
    kp = result.estimate[j, KP]
    slope = np.zeros(len(KINDS))
    value = result.estimate[j, kind] + (result.estimate[j, KD] if kind == DAMPING else 0.0)
    slope[kind] = 1.0 / kp
    slope[KP] = -value / kp**2
    if kind == DAMPING:
        slope[KD] = 1.0 / kp
    error = np.sqrt(slope @ result.covariance[j] @ slope)
    return {"estimate": float(value / kp), "standard_error": float(error)}


def undetermined(result: Identified) -> list[str]:
    """Sentences on parameters that the motions do not determine, with their joints."""
    error = result.error
    by_prior = error > _OF_PRIOR * result.prior
    uncertain = error > _OF_ESTIMATE * result.estimate
    doubts = {
        "kp: armature, damping and friction_loss are determined only relative to kp (log torques, "
        "or add a known weight to the limb)": by_prior[:, KP],
        "bias: the joint's gravity torque hardly depends on its angle": by_prior[:, BIAS],
        "armature: its standard error exceeds its estimate": uncertain[:, ARMATURE],
        "friction_loss: its standard error exceeds its estimate": uncertain[:, FRICTION],
        "gains: drives reach their torque limit, so errors are too small (move less)": (
            result.saturated > 0.0
        ),
    }
    names = np.array(result.joints)
    sentences = [f"{text}: {', '.join(names[at])}" for text, at in doubts.items() if at.any()]
    if not error[:, KD].any() and not result.torques:
        sentences.append(
            "damping of the joint and kd of its drive: angles depend only on their sum; kd stays "
            "the model's, the rest is damping"
        )
    sentences.append("delay of the command and delay of the encoder: delay_s is their sum")
    return sentences


def preset(
    result: Identified, base: Mapping[str, Any], name: str, config: PresetConfig | None = None
) -> dict[str, Any]:
    """A randomization preset with the estimates as nominal values and spreads from their errors;
    all else is from `base`."""
    config = config or PresetConfig()
    estimate = result.estimate
    error = result.error
    physics: dict[str, Any] = {**base.get("physics", {})}
    for key, kinds in _SPREADS.items():
        spread = _share(estimate[:, kinds].sum(1), error[:, kinds], config)
        physics[key] = {"whole": 0.0, "each": spread}
    offset = float(np.sqrt(np.square(error[:, BIAS]).mean()))
    physics["joint_offset"] = _rounded(config.errors * offset)
    physics["nominal"] = {
        joint: {KINDS[k]: _rounded(max(row[k], 0.0)) for k in (ARMATURE, DAMPING, FRICTION, KP, KD)}
        | {"offset": _rounded(row[BIAS])}
        for joint, row in zip(result.joints, estimate, strict=True)
    }
    # one range [s] for all joints
    delay = estimate[:, DELAY]
    width = config.errors * error[:, DELAY]
    delays = [_rounded(max(0.0, float(d))) for d in ((delay - width).min(), (delay + width).max())]
    sensors = {**base.get("sensors", {}), "delay_s": delays}
    pushes = {**base.get("pushes", {})}
    return {"name": name, "physics": physics, "pushes": pushes, "sensors": sensors}


def write_preset(path: Path, content: Mapping[str, Any], data: Path) -> None:
    """Write a preset as a file of conf/randomization. data: the log it was identified from."""
    head = f"# joints identified by npmp sysid from {data.name!r}\n"
    with atomic_path(path) as temporary:
        temporary.write_text(head + yaml.safe_dump(to_plain(content), sort_keys=False))


def _share(values: Floats, errors: Floats, config: PresetConfig) -> float:
    """Half-width of the joints' scales: RMS of their standard errors (n, k) over their values (n,)
    other than 0, on which scales have no effect."""
    positive = values > 0.0
    relative = 0.0
    if positive.any():
        ratios = np.square(errors[positive]).sum(1) / values[positive] ** 2
        relative = float(np.sqrt(np.mean(ratios)))
    return _rounded(min(max(config.errors * relative, config.least), config.most))


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
