"""Rooms as ground: walls with doors, and clutter, `WALL_M` high."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

WALL_M = 0.8
THICK_M = 0.15
# width of a door, least side of a room [m]
DOOR_M = 1.5
ROOM_M = 2.4
# number of boxes, range of their sides [m]
CLUTTER = 5
BOX_M = (0.25, 0.6)
# least distance of a box to walls and boxes [m]
BESIDE_M = 1.1
# half the width of an ANYmal, with a margin [m]
BODY_M = 0.58


def rooms(grid: Any, level: float, limits: Any, rng: np.random.Generator) -> NDArray[Any]:
    """Heights (points, points) [m] of a closed floor plan, sampled until its free space is
    connected."""
    from scipy.ndimage import label  # slow to import

    while True:
        stands = np.ones((grid.points, grid.points), dtype=bool)
        thick = grid.of(THICK_M)
        stands[thick:-thick, thick:-thick] = False
        _divide(stands[thick:-thick, thick:-thick], grid, rng)
        _clutter(stands, grid, rng)
        free = passable(stands, grid.cell)
        parts = np.bincount(label(free)[0].ravel())[1:]
        if parts.max() > 0.98 * free.sum():
            return WALL_M * level * stands


def passable(stands: NDArray[np.bool_], cell: float) -> NDArray[np.bool_]:
    """Cells that a robot's centre can occupy; stands: cells of walls and boxes."""
    from scipy.ndimage import distance_transform_edt  # slow to import

    return np.asarray(distance_transform_edt(~stands) * cell > BODY_M)


def _divide(room: NDArray[np.bool_], grid: Any, rng: np.random.Generator) -> None:
    """Divide a room (rows, columns) by a wall with a door, recursively; some large rooms stay."""
    if room.shape[1] > room.shape[0]:
        room = room.T
    least, thick, door = (grid.of(length) for length in (ROOM_M, THICK_M, DOOR_M))
    rows, columns = room.shape
    if rows < 2 * least + thick or columns < door or rng.random() < 0.15:
        return
    at = int(rng.integers(least, rows - least - thick + 1))
    gap = int(rng.integers(0, columns - door + 1))
    room[at : at + thick] = True
    room[at : at + thick, gap : gap + door] = False
    _divide(room[:at], grid, rng)
    _divide(room[at + thick :], grid, rng)


def _clutter(stands: NDArray[np.bool_], grid: Any, rng: np.random.Generator) -> None:
    apart = grid.of(BESIDE_M)
    placed = 0
    for _ in range(200):
        size = rng.integers(grid.of(BOX_M[0]), grid.of(BOX_M[1]) + 1, 2)
        low = rng.integers(apart, grid.points - apart - size)
        around = tuple(slice(a - apart, a + b + apart) for a, b in zip(low, size, strict=True))
        if not stands[around].any() and placed < CLUTTER:
            stands[around][apart:-apart, apart:-apart] = True
            placed += 1
