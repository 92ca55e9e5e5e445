"""Warnings of misread recordings (units, axes, rate), and of poses that no robot takes."""

from __future__ import annotations

from mocap_data.clip import Clip
from mocap_data.errors import counted
from mocap_data.motion import ReferenceMotion
from mocap_data.sanity import warnings_of

# [m] a walking dog stays near 2 cm; one that sits or lies, which no robot can, reaches 10 cm
HIGH_RMS = 0.05
# [m] beyond any pose that was read rightly; a dog read with the wrong axis up gives 15 cm
MISREAD_RMS = 0.12
# how the warning of a misread recording begins
WRONG = "looks wrong"


def misread(clip: Clip) -> bool:
    """Whether a clip looks as if its units or axes were read wrongly."""
    hints = ("units?", "upside down", "up or down")
    return any(hint in warning for warning in warnings_of(clip) for hint in hints)


def warning_of(motion: ReferenceMotion, clip: Clip | None, *, cleaned: bool = False) -> str:
    """Why a motion looks misread, "looks wrong: RMS 864 cm (units? ...)", or is hard; else "".

    cleaned: what is merely hard for the robot is dropped, and listed there.
    """
    error, violations = motion.quality.get("rms_marker_m", 0.0), violations_of(motion)
    found = [] if clip is None else warnings_of(clip)
    far = error > MISREAD_RMS
    # a body that lies may be one: no axis was mixed up where the markers fit
    if not far:
        found = [warning for warning in found if not warning.startswith("lies")]
    wrong = far or any(hint in w for w in found for hint in ("units?", "axis?", "rate?"))
    if far or (error > HIGH_RMS and not cleaned):
        hint = "sitting or lying? else units, scale=, or axis, up="
        hint = "units? scale=; axis? up=" if far else hint
        found.insert(0, f"RMS {100 * error:.3g} cm ({hint})")
    if violations > 0 and not cleaned:
        many = counted(round(violations), "limit violation")
        found.append(f"{many} (too fast for the robot? else rate, source_rate_hz=)")
    return f"{WRONG if wrong else 'needs a look'}: {'; '.join(found)}" if found else ""


def violations_of(motion: ReferenceMotion) -> float:
    """Frames and joints beyond position or velocity limits."""
    quality = motion.quality
    return quality.get("limit_violations", 0.0) + quality.get("velocity_violations", 0.0)
