"""Memory needs of large settings, checked before the first allocation.

Each function raises InputError for more than the free memory, naming the key to lower. The formulas
count the arrays that grow with the key, 4 bytes a float32 and 8 a float64, and were fitted to
measurements of anymal_b (12 joints, 8 physics steps per control step).
"""

from __future__ import annotations

from collections.abc import Sequence

import mujoco

from mocap_data.input_files import require_memory

_MIB = 2**20


def require_robots(model: mujoco.MjModel, num_envs: int, *, substeps: int) -> None:
    """Simulations of a model and the environment's tensors.

    A simulation has its state, its sensors and the controls of its physics steps: 8 (state +
    sensors + substeps nu); measured with 8000 of anymal_b: 2.5 KB each. The environment has some
    100 floats per velocity during a step; measured with 20,000 robots without randomization: 9.6 KB
    each in all, as by this formula.
    """
    state = mujoco.mj_stateSize(model, int(mujoco.mjtState.mjSTATE_INTEGRATION))
    each = 8 * (state + model.nsensordata + substeps * model.nu) + 4 * 100 * model.nv
    require_memory(num_envs * each, f"num_envs={num_envs}: the robots")


def require_replay(capacity: int, num_envs: int, width: int) -> None:
    """A `ReplayBuffer`'s slots: `width` floats and two flags each, exactly; 1.5 KB of anymal_b."""
    require_memory(
        capacity * num_envs * (4 * width + 2),
        f"num_envs={num_envs}: a replay of {capacity} steps of all robots",
    )


def require_batch(
    batch: int, steps: int, hidden: Sequence[int], width: int, *, key: str = "algo.model_batch"
) -> None:
    """Backpropagation through an unrolled network: twice each layer's units and six times the width
    of its input and output, per step and row. Measured: 60.5 KB a row of 8 steps with layers of 3 x
    256 and the 57 numbers of anymal_b's state; by this formula 60.1."""
    each = 4 * steps * (2 * sum(hidden) + 6 * width)
    require_memory(batch * each, f"{key}={batch}: a batch of this size")


def require_demonstration(steps: int, num_envs: int, width: int) -> None:
    """Demonstrations over control steps, `width` floats each, twice while they are stacked."""
    require_memory(
        2 * 4 * width * steps * num_envs,
        f"algo.clone_steps={steps}: the steps of {num_envs:,} robots",
    )


def require_images(num_envs: int, images: int, size: tuple[int, int]) -> None:
    """The depth images of the robots' cameras, and two more while one is rendered."""
    columns, rows = size
    require_memory(
        4 * columns * rows * (images + 2) * num_envs,
        f"task.camera.size=[{columns},{rows}]: {images} images of {num_envs:,} robots",
    )


def require_context(frames: int, width: int, hidden: int) -> None:
    """The encoder's features of every frame of the reference, for their scales, and its first layer
    with gradient and two moments.

    Args:
      frames: of the reference. width: of the encoder's features. hidden: units of its first layer.
    """
    require_memory(
        4 * width * (3 * frames + 4 * hidden) + 64 * _MIB,
        f"task.future_frames: {width:,} features of the coming frames",
    )
