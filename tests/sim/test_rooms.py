"""Houses: closed, connected, as high as asked."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import label

from npmp.sim.rooms import BODY_M, WALL_M, passable, rooms
from npmp.sim.terrain import Grid

GRID = Grid(160, 0.05)


@pytest.mark.parametrize("seed", range(12))
def test_a_robot_gets_from_everywhere_to_everywhere(seed: int) -> None:
    heights = rooms(GRID, 0.5, None, np.random.default_rng(seed))
    assert set(np.unique(heights)) == {0.0, 0.5 * WALL_M}
    stands = heights > 0.0
    assert stands[0].all() and stands[-1].all() and stands[:, 0].all() and stands[:, -1].all()
    free = passable(stands, GRID.cell)
    sizes = np.bincount(label(free)[0].ravel())[1:]
    assert sizes.max() > 0.98 * free.sum() and 0.2 < free.mean() < 0.8


def test_where_a_robot_can_be_by_hand() -> None:
    """A wall in columns 0 and 1 of 0.1 m: free from `BODY_M` of it on."""
    stands = np.zeros((3, 12), dtype=bool)
    stands[:, :2] = True
    free = passable(stands, 0.1)
    distance = 0.1 * (np.arange(12) - 1)
    assert np.array_equal(free[1], distance > BODY_M + 1e-9)
