"""What readers share: axes, and the keypoints of the dog recordings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError, unknown

# The dog skeleton of Zhang et al. 2018 in file order; "Hand_end" are the fore paws, "Foot_end" the hind paws.
DOG_NAMES = (
    "Hips",
    "Spine",
    "Spine1",
    "Neck",
    "Head",
    "Head_end",
    "LeftShoulder",
    "LeftArm",
    "LeftForeArm",
    "LeftHand",
    "LeftHand_end",
    "RightShoulder",
    "RightArm",
    "RightForeArm",
    "RightHand",
    "RightHand_end",
    "LeftUpLeg",
    "LeftLeg",
    "LeftFoot",
    "LeftFoot_end",
    "RightUpLeg",
    "RightLeg",
    "RightFoot",
    "RightFoot_end",
    "Tail",
    "Tail1",
    "Tail1_end",
)
# Of each of them the keypoint it hangs from.
DOG_PARENTS = (
    *(-1, 0, 1, 2, 3, 4),
    *(2, 6, 7, 8, 9),
    *(2, 11, 12, 13, 14),
    *(0, 16, 17, 18),
    *(0, 20, 21, 22),
    *(0, 24, 25),
)
DOG_RATE_HZ = 60.0


class MissingOptions(InputError):
    """A recording that does not say all that is needed: what it lacks can be given as options of the reader.

    options: their names, e.g. ("names", "rate_hz").
    """

    def __init__(self, message: str, options: tuple[str, ...]) -> None:
        super().__init__(message)
        self.options = options


# For each upward axis of a file, the file's axes that become X, Y and Z. Cyclic, so still right-handed.
# With Y up, a character at rest faces +Z by custom: that becomes +X, forward.
_AXES = {"y": (2, 0, 1), "z": (0, 1, 2)}


def to_world(positions: Array, *, up: str, scale: float, path: Any) -> Array:
    """Positions (..., 3) in a file's units and axes as metres, Z up.

    up: "y": (x, y, z) becomes (z, x, y); "z": unchanged. The heading of a recording is not touched.
    scale: metres per unit.

    Raises InputError for another axis or a scale that is not positive.
    """
    if str(up).lower() not in _AXES:
        raise unknown("upward axis", up, _AXES)
    if not (math.isfinite(scale) and scale > 0.0):
        raise InputError(f"{path}: scale {scale} is not positive (metres per unit of the file)")
    return np.ascontiguousarray(positions[..., _AXES[str(up).lower()]] * scale)


def shown(text: bytes | str) -> str:
    """A piece of a file as it can stand in a one-line error."""
    decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    stripped = decoded.strip()
    return repr(stripped if len(stripped) <= 40 else stripped[:40] + "...")


def parse_rows(path: Any, line_numbers: list[int], rows: list[list[bytes]]) -> Array:
    """Rows of equally many words as finite floats, (T, words in a row).

    line_numbers: of each row in the file, for errors.

    Raises InputError naming the line of a word that is no number, or no finite one.
    """
    try:
        values = np.array(rows, dtype=np.float64)
    except ValueError:
        for number, row in zip(line_numbers, rows, strict=True):
            for word in row:
                try:
                    float(word)
                except ValueError:
                    raise InputError(f"{path}, line {number}: {shown(word)} is not a number") from None
        raise
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        frame = int(np.argmin(finite))
        raise InputError(f"{path}, line {line_numbers[frame]}: a value is not finite (frame {frame})")
    return values
