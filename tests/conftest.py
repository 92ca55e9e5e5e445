"""What all tests share."""

from __future__ import annotations

import gc
import os
from pathlib import Path

# Before torch, mujoco and BLAS are imported: tests run side by side, one thread each; nothing here
# needs a display.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("MUJOCO_GL", "disable")
# 15 otherwise: beside other tests its workers would hardly run
os.environ.setdefault("RAY_worker_niceness", "0")

import pytest
from hypothesis import settings

from mocap_data.store import MotionSet
from mocap_data.synthetic import dog_gait
from npmp import robots
from npmp.robots import Robot
from retarget import retarget_many

# While tests are collected, all is imported that ever will be, and nothing goes: the garbage
# collector would look through all of torch two dozen times, 4 s in each process, and then again and
# again while tests run.
gc.disable()

# The same examples every time: a failure seen once is seen again. No time limit per example,
# machines differ.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=30)
settings.load_profile("repeatable")


# of a slow test; pyproject.toml has that of a quick one
SLOW_TIMEOUT_S = 1800


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Mark tests that open a browser, and give slow tests more time."""
    for item in items:
        if "browser" in item.fixturenames:
            item.add_marker(pytest.mark.browser)
        if any(item.get_closest_marker(name) for name in ("slow", "browser", "commands")):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))


def pytest_collection_finish() -> None:
    """From here on the garbage collector looks at what tests make, and at nothing else."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recordings and robot models beside the repository; NPMP_SHARED names another.
    Skips where absent."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("NPMP_SHARED", beside))
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}")
    return folder


@pytest.fixture(scope="session")
def robot() -> Robot:
    return robots.load("anymal_b")


@pytest.fixture(scope="session")
def motions(robot: Robot) -> MotionSet:
    """Two seconds of generated trot and three of walk, retargeted: 100 and 150 frames at 50 Hz."""
    clips = [
        dog_gait("trot", speed_mps=1.0, duration_s=2.0),
        dog_gait("walk", speed_mps=0.6, duration_s=3.0),
    ]
    return retarget_many(clips, robot)
