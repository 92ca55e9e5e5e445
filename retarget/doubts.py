"""What speaks against a motion: a recording that was misread (units, axes, rate), or poses that no
robot takes."""

from __future__ import annotations

from mocap_data.clip import Clip
from mocap_data.motion import ReferenceMotion
from mocap_data.sanity import warnings_of as implausible

# [m] a walking dog stays near 2 cm; one that sits or lies, which no robot can, reaches 10 cm
DOUBTFUL_RMS = 0.05
WRONG = "looks wrong"  # how a doubt begins that a recording was misread
# [m] beyond any pose that was read rightly; a dog read with the wrong axis up gives 15 cm
MISREAD_RMS = 0.12


def misread(clip: Clip) -> bool:
    """Whether a clip looks as if its units or axes were read wrongly."""
    return any(
        hint in doubt
        for doubt in implausible(clip)
        for hint in ("units?", "upside down", "up or down")
    )


def doubts(motion: ReferenceMotion, clip: Clip | None, *, cleaned: bool = False) -> str:
    """What makes a motion look misread, "looks wrong: RMS 864 cm (units? ...)", or hard for the
    robot; or nothing.

    cleaned: what is merely hard for the robot is dropped, and listed there.
    """
    error = motion.quality.get("rms_marker_m", 0.0)
    violations = motion.quality.get("limit_violations", 0.0) + motion.quality.get(
        "velocity_violations", 0.0
    )
    found = [] if clip is None else implausible(clip)
    if error <= MISREAD_RMS:  # then one that lies is one that lies, and no axis was mixed up
        found = [doubt for doubt in found if not doubt.startswith("lies")]
    wrong = any(hint in doubt for doubt in found for hint in ("units?", "axis?", "rate?"))
    if error > MISREAD_RMS or (error > DOUBTFUL_RMS and not cleaned):
        wrong |= error > MISREAD_RMS
        hint = (
            "units? scale=; axis? up="
            if error > MISREAD_RMS
            else "sitting or lying? else units, scale=, or axis, up="
        )
        found.insert(0, f"RMS {100 * error:.3g} cm ({hint})")
    if violations > 0 and not cleaned:
        many = f"{violations:.0f} limit violation{'' if violations == 1 else 's'}"
        found.append(f"{many} (too fast for the robot? else rate, source_rate_hz=)")
    return f"{WRONG if wrong else 'needs a look'}: {'; '.join(found)}" if found else ""
