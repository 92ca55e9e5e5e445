"""What the large settings take, estimated before the first allocation: one line instead of an hour
of swapping.

Each function refuses what does not fit into the memory that is free by InputError, naming the key
that makes it less. The formulas count the arrays that grow with the key, 4 bytes a float32 and 8 a
float64, and were fitted to measurements with anymal_b (12 joints, 8 physics steps per control
step), given beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

import mujoco

from mocap_data.input_files import require_memory

_MIB = 2**20


def require_robots(model: mujoco.MjModel, num_envs: int, *, substeps: int) -> None:
    """Simulations of a model and the tensors that an environment keeps of them.

    A simulation is its state row, its sensors and the controls of its physics steps: 8 (state +
    sensors + substeps nu). Measured with 8000 of anymal_b: 2.5 KB each. The environment's tensors
    take some 100 floats per velocity while it steps: measured with 20,000 robots and no
    randomization 9.6 KB each in all, and by this formula.
    """
    state = mujoco.mj_stateSize(model, int(mujoco.mjtState.mjSTATE_INTEGRATION))
    each = 8 * (state + model.nsensordata + substeps * model.nu) + 4 * 100 * model.nv
    require_memory(num_envs * each, f"num_envs={num_envs}: that many robots")


def require_replay(capacity: int, num_envs: int, width: int) -> None:
    """A `ReplayBuffer`'s slots: `width` floats and two flags each; exact. Of anymal_b 1.5 KB."""
    require_memory(
        capacity * num_envs * (4 * width + 2),
        f"num_envs={num_envs}: a replay of {capacity} steps of that many robots",
    )


def require_batch(
    batch: int, steps: int, hidden: Sequence[int], width: int, *, key: str = "algo.model_batch"
) -> None:
    """What backpropagation keeps of a network that is unrolled: twice each layer's units and six
    times the width of what goes in and out, per step and row. Measured: 60.5 KB a row of 8 steps
    with layers of 3 x 256 and 57 numbers of anymal_b's state; by this formula 60.1."""
    each = 4 * steps * (2 * sum(hidden) + 6 * width)
    require_memory(batch * each, f"{key}={batch}: a batch of that many")


def require_demonstration(steps: int, num_envs: int, width: int) -> None:
    """What robots show over control steps, `width` floats of each: kept step by step, stacked."""
    require_memory(
        2 * 4 * width * steps * num_envs,
        f"algo.clone_steps={steps}: that many steps of {num_envs:,} robots",
    )


def require_images(num_envs: int, images: int, size: tuple[int, int]) -> None:
    """The depth images that robots' cameras keep, and two more while one is taken."""
    columns, rows = size
    require_memory(
        4 * columns * rows * (images + 2) * num_envs,
        f"task.camera.size=[{columns},{rows}]: {images} images of {num_envs:,} robots",
    )


def require_context(frames: int, width: int, hidden: int) -> None:
    """The encoder's features of every frame of the reference, which the scales are taken from, and
    its first layer with gradient and two moments.

    Args:
      frames: of the reference. width: of the encoder's features. hidden: units of its first layer.
    """
    require_memory(
        4 * width * (3 * frames + 4 * hidden) + 64 * _MIB,
        f"task.future_frames: {width:,} features of the coming frames",
    )
