"""What was identified in words, as JSON, and as a randomization preset around the estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npmp import ranges
from npmp.identification.estimation import Identified
from npmp.identification.stand import KINDS, UNITS, Floats

_ARMATURE, _DAMPING, _FRICTION, _DELAY, _BIAS, _KP, _KD = range(len(KINDS))
# each scaled quantity of a preset, and whose estimates it spreads about
_SPREADS = {
    "armature": (_ARMATURE,),
    "damping": (_DAMPING, _KD),
    "friction_loss": (_FRICTION,),
    "gain": (_KP,),
}
_LEARNED = 0.5  # of the prior's standard deviation: where the motions left more, they did not tell
_LOST = 1.0  # a standard error as large as the estimate


@dataclass(frozen=True)
class PresetConfig:
    """How wide a preset is about an estimate. Raises ValueError for numbers out of range."""

    errors: float = 2.0  # standard errors to either side
    # of the estimate, at least: for what a stand does not show (wear, warmth, load)
    least: float = 0.05
    most: float = 0.5  # of the estimate, at most

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
    error, correlation = found.error[j], found.correlation(j)
    upper = np.abs(np.triu(correlation, 1))
    first, second = np.unravel_index(int(np.argmax(upper)), upper.shape)
    ratios = {
        f"{KINDS[kind]}_over_kp": dict(
            zip(("estimate", "standard_error"), _ratio(found, j, kind), strict=True)
        )
        for kind in (_ARMATURE, _DAMPING, _FRICTION)
    }
    return {
        "estimate": dict(zip(KINDS, map(float, found.estimate[j]), strict=True)),
        "standard_error": {
            kind: float(e) if e > 0.0 else None for kind, e in zip(KINDS, error, strict=True)
        },
        "model": dict(zip(KINDS, map(float, found.nominal[j]), strict=True)),
        **ratios,
        "condition_number": float(found.condition[j]),
        "most_correlated": [KINDS[first], KINDS[second], float(correlation[first, second])],
        "residual_rms_before_rad": float(found.rms_before[j]),
        "residual_rms_after_rad": float(found.rms_after[j]),
        "saturated_share": float(found.saturated[j]),
        "residual_correlation_samples": float(found.correlation_time[j]),
    }


def _ratio(found: Identified, j: int, kind: int) -> tuple[float, float]:
    """A parameter over kp, and its standard error, to first order. Damping: with the drive's."""
    kp, slope = found.estimate[j, _KP], np.zeros(len(KINDS))
    whole = found.estimate[j, kind] + (found.estimate[j, _KD] if kind == _DAMPING else 0.0)
    slope[kind], slope[_KP] = 1.0 / kp, -whole / kp**2
    if kind == _DAMPING:
        slope[_KD] = 1.0 / kp
    return float(whole / kp), float(np.sqrt(slope @ found.covariance[j] @ slope))


def not_told_apart(found: Identified) -> list[str]:
    """Sentences on what these motions do not tell, joints of the same lack together."""
    error, estimate = found.error, found.estimate
    little = {
        "kp: of armature, damping and friction_loss only their ratios to kp are known (a torque "
        "log, or a known weight on the limb, would tell)": error[:, _KP]
        > _LEARNED * found.prior[:, _KP],
        "bias: its weight hardly depends on its angle": error[:, _BIAS]
        > _LEARNED * found.prior[:, _BIAS],
        "armature: as uncertain as it is large": error[:, _ARMATURE]
        > _LOST * estimate[:, _ARMATURE],
        "friction_loss: as uncertain as it is large": error[:, _FRICTION]
        > _LOST * estimate[:, _FRICTION],
        "gains: drives reach their torque limit, so errors are too small (move less)": (
            found.saturated > 0.0
        ),
    }
    sentences = [
        f"{words}: {', '.join(np.array(found.joints)[where])}"
        for words, where in little.items()
        if where.any()
    ]
    if not error[:, _KD].any() and not found.torques:
        sentences.append(
            "damping of the joint and kd of its drive: angles show their sum only; kd stays the "
            "model's, the rest is damping"
        )
    sentences.append("delay of the command and delay of the encoder: their sum is given")
    return sentences


def preset(
    found: Identified, base: Mapping[str, Any], name: str, config: PresetConfig | None = None
) -> dict[str, Any]:
    """A randomization preset: the estimate as what is nominal, spreads as uncertain as it is, all
    else of `base`."""
    config = config or PresetConfig()
    estimate, error = found.estimate, found.error
    physics: dict[str, Any] = {**base.get("physics", {})}
    for key, kinds in _SPREADS.items():
        physics[key] = {
            "whole": 0.0,
            "each": _share(estimate[:, kinds].sum(1), error[:, kinds], config),
        }
    physics["joint_offset"] = _rounded(
        config.errors * float(np.sqrt(np.square(error[:, _BIAS]).mean()))
    )
    keys = {
        "armature": _ARMATURE,
        "damping": _DAMPING,
        "friction_loss": _FRICTION,
        "kp": _KP,
        "kd": _KD,
        "offset": _BIAS,
    }
    physics["nominal"] = {
        joint: {
            key: _rounded(max(estimate[j, kind], 0.0) if key != "offset" else estimate[j, kind])
            for key, kind in keys.items()
        }
        for j, joint in enumerate(found.joints)
    }
    low, high = _delays(estimate[:, _DELAY], error[:, _DELAY], config)
    sensors = {**base.get("sensors", {}), "delay_s": [low, high]}
    return {
        "name": name,
        "physics": physics,
        "pushes": {**base.get("pushes", {})},
        "sensors": sensors,
    }


def _share(values: Floats, errors: Floats, config: PresetConfig) -> float:
    """Half-width of the joints' scales: root mean square of their standard errors (n, k) over their
    values (n,).

    A scale does nothing to a value of zero: such joints do not count.
    """
    some = values > 0.0
    relative = (
        float(np.sqrt(np.mean(np.square(errors[some]).sum(1) / values[some] ** 2)))
        if some.any()
        else 0.0
    )
    return _rounded(min(max(config.errors * relative, config.least), config.most))


def _delays(values: Floats, errors: Floats, config: PresetConfig) -> tuple[float, float]:
    """One range for all joints [s], as sensors have it: from the quickest to the slowest."""
    return (
        _rounded(max(0.0, float((values - config.errors * errors).min()))),
        _rounded(max(0.0, float((values + config.errors * errors).max()))),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
