"""A bundle's policy in onnxruntime on one thread, and its comparison with torch."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mocap_data.errors import InputError, importing
from mocap_data.input_files import reading
from npmp.deploy.contract import CLOCK, GRAVITY, MEMORY, BundleContract
from npmp.deploy.graph import check_graph
from npmp.deploy.robot import FloatArray

# largest `Parity.times_rounding`. Of the shipped policies another order of sums gives at most 1.8;
# the largest weight of a matrix, changed by 1e-4, at least 4.8
TOLERANCE = 3.0
# largest `Parity.in_rollout`. Some states amplify rounding, those of anymal_b_dribble to 8e-7
ROLLOUT_TOLERANCE = 1e-5
# lower bound of `Golden.rounding`: half a unit in the last place of 1 [D]
MIN_ROUNDING = 6e-8
# upper bound of `Golden.rounding` [D]
MAX_ROUNDING = 6e-7
# an option of onnxruntime
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"

Memory = dict[str, NDArray[np.float32]]  # (1, width) by the names of `MEMORY`


class Readings(NamedTuple):
    """Sensor readings at a control step, as the contract's `conventions` define them."""

    joint_pos: ArrayLike  # (nu,) [rad]
    gyro: ArrayLike  # (3,) [rad/s]
    accelerometer: ArrayLike  # (3,) [m/s2]
    up: ArrayLike  # (3,)


class OnnxPolicy:
    """Both levels for one robot; the recurrent state is kept between steps."""

    def __init__(self, contract: BundleContract, graph: bytes, *, name: str = "policy.onnx"):
        """graph: the content of policy.onnx. name: for error messages.

        Raises:
          InputError: if onnxruntime is absent, or the graph does not fit the contract.
        """
        self.contract = contract
        self._home = contract.home_pose
        joints = len(self._home)
        observation = sum(width for _, width, _, _ in contract.observation)
        command = contract.command_width
        self._widths = {
            "joint_pos": joints,
            "setpoint": joints,
            "gyro": 3,
            "accelerometer": 3,
            "up": 3,
            "command": command,
        }
        self._session = open_session(graph, name)
        inputs = {"obs": observation, "command": command}
        _check_signature(self._session, inputs, contract.memory, joints, name)
        self.reset()

    def reset(self) -> None:
        """Begin an episode: zero state, the home pose as the last target."""
        widths = self.contract.memory.items()
        self._memory = {name: np.zeros((1, width), np.float32) for name, width in widths}
        self._steps = 0
        self._target = self._home

    def act(self, readings: Readings, command: ArrayLike) -> FloatArray:
        """One control step. The setpoint that the policy observes is its last target.

        Args:
          command: (c,) in the task's units; (c + t,) with the terrain's heights and depths; or
            (c + e,) with all extra inputs. Not clipped here. By default the clock follows the
            steps since `reset`, and the ground is level.

        Returns: joint targets (nu,) [rad], home pose plus action, not clipped.

        Raises:
          ValueError: for a wrong width or a value that is not finite; the state is then unchanged.
        """
        extra = self._extra_inputs()
        count = len(self.contract.commands)
        clock = 0 if self.contract.clock_s is None else len(CLOCK)
        if np.shape(command) == (count,):
            command = np.concatenate((np.asarray(command, np.float64), extra))
        elif clock and np.shape(command) == (count + len(extra) - clock,):
            values = np.asarray(command, np.float64)
            command = np.concatenate((values[:count], extra[:clock], values[count:]))
        self._target, self._memory = self.step(readings, command, self._target, self._memory)
        self._steps += 1
        return self._target.copy()

    def step(
        self, readings: Readings, command: ArrayLike, setpoint: ArrayLike, memory: Memory
    ) -> tuple[FloatArray, Memory]:
        """One control step from a recurrent state, which is not modified.

        Args:
          command: (c + e,) with the extra inputs. setpoint: (nu,) the last target [rad].

        Returns: joint targets (nu,) [rad] as of `act`, and the next state.

        Raises:
          ValueError: for a wrong width, or a value that is not finite.
        """
        values = (readings.joint_pos, setpoint, *readings[1:], command)
        arrays = [np.asarray(value, np.float64) for value in values]
        for (name, width), array in zip(self._widths.items(), arrays, strict=True):
            if array.shape != (width,):  # numpy would broadcast a scalar to all joints
                raise ValueError(f"{name} is {array.shape}, expected {(width,)}")
        pos, last, gyro, accelerometer, up, command_array = arrays
        parts = (pos - self._home, last - self._home, gyro, accelerometer / GRAVITY, up)
        feed = {
            "obs": np.concatenate(parts).astype(np.float32)[None],
            "command": command_array.astype(np.float32)[None],
        }
        for key, entry in feed.items():
            if not np.isfinite(entry).all():
                raise ValueError(f"{key}: has nan or inf, expected finite numbers")
        outputs = ["action", *(f"{name}_next" for name in memory)]
        action, *after = self._session.run(outputs, feed | memory)
        for key, output in zip(outputs, (action, *after), strict=True):
            if not np.isfinite(output).all():
                raise ValueError(f"{key}: has nan or inf, expected finite numbers")
        return self._home + action[0], dict(zip(memory, after, strict=True))

    def _extra_inputs(self) -> FloatArray:
        """The extra inputs (e,): the clock at this step, and level ground."""
        contract = self.contract
        depths = contract.level_depths_m
        heights = np.full(len(contract.extra_inputs) - len(depths), contract.level_m)
        values = np.concatenate((heights, depths))
        if contract.clock_s is not None:
            angle = 2.0 * math.pi * self._steps / (contract.control_rate_hz * contract.clock_s)
            values[:2] = math.sin(angle), math.cos(angle)
        return values


def open_session(graph: bytes, name: str, *, weights_folder: Path | None = None) -> Any:
    """A session of onnxruntime on one thread.

    weights_folder: of a policy of another project, which may have weights in files of this folder.

    Raises:
      InputError: if onnxruntime is absent, or as `check_graph`.
    """
    check_graph(graph, name, external=weights_folder is not None)
    with importing("a bundle needs onnxruntime: pip install 'npmp[deploy]'"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    # its thread pool would take the control loop's core
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3  # errors only, which are raised as well
    # only the format that `check_graph` reads, and no weights from other files
    options.add_session_config_entry("session.load_model_format", "ONNX")
    options.add_session_config_entry(WEIGHTS_FOLDER, str(weights_folder or os.devnull))
    with reading(name):
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def _check_signature(
    session: Any, inputs: Mapping[str, int], memory: Mapping[str, int], joints: int, name: str
) -> None:
    """Raises InputError for other inputs or outputs; widths by name."""
    outputs = {"action": joints, **{f"{key}_next": width for key, width in memory.items()}}
    sides = (session.get_inputs(), {**inputs, **memory}), (session.get_outputs(), outputs)
    for entries, widths in sides:
        actual = {entry.name: (entry.type, entry.shape) for entry in entries}
        expected = {key: ("tensor(float)", [1, width]) for key, width in widths.items()}
        if actual != expected:
            raise InputError(
                f"'{name}': inputs or outputs {actual!s:.200}, expected {widths} as in bundle.json"
            )


# --- comparison with torch ---


class Golden(NamedTuple):
    """Reference inputs and outputs of T control steps, episode by episode: most of a rollout in
    simulation, then episodes with random readings and random initial state."""

    joint_pos: FloatArray  # (T, nu), as `Readings`
    gyro: FloatArray  # (T, 3)
    accelerometer: FloatArray  # (T, 3)
    up: FloatArray  # (T, 3)
    command: FloatArray  # (T, c + e) with the extra inputs
    reset: NDArray[np.bool_]  # (T,) the first step of an episode
    target: FloatArray  # (T, nu) the policy's output [rad]
    memory: NDArray[np.float32]  # (T, m) before each step, in the order of `MEMORY`
    rounding: FloatArray  # (nu + m,) `Parity.error` of the graph at the export


class Parity(NamedTuple):
    """Differences of a policy's outputs from the golden ones."""

    # (nu + m,) RMS error of each target [rad] and state, relative to the golden RMS if above 1
    # Only over the episodes from random states, if there are any.
    error: FloatArray
    # largest ratio of the error to that at the export
    times_rounding: float
    # largest error in the rollout in simulation
    in_rollout: float
    seconds: FloatArray  # (T,) duration of each step

    @property
    def difference(self) -> float:
        """The largest error."""
        return float(self.error.max())


def check_parity(policy: OnnxPolicy, golden: Golden) -> Parity:
    """Compare each step from the golden state and setpoint, so that rounding does not accumulate.

    Raises:
      ValueError: as `OnnxPolicy.step`.
    """
    steps, joints = golden.target.shape
    setpoint = np.where(
        golden.reset[:, None], policy.contract.home_pose, np.roll(golden.target, 1, 0)
    )
    widths = [policy.contract.memory[name] for name in MEMORY]
    parts = np.split(golden.memory[:, None], np.cumsum(widths)[:-1], -1)

    expected = np.concatenate((golden.target, np.roll(golden.memory, -1, 0)), -1)
    actual = np.empty_like(expected)
    seconds = np.empty(steps)
    for t, row in enumerate(zip(*golden[:4], strict=True)):
        memory = {name: part[t] for name, part in zip(MEMORY, parts, strict=True)}
        start = time.perf_counter()
        target, after = policy.step(Readings(*row), golden.command[t], setpoint[t], memory)
        seconds[t] = time.perf_counter() - start
        actual[t] = np.concatenate((target, *(after[name][0] for name in MEMORY)))

    # the state after an episode's last step is not in the file
    last = np.roll(golden.reset, -1)
    last[-1] = True
    actual[last, joints:] = expected[last, joints:]

    # random states exercise weights that a rollout leaves idle, whose errors it would average away
    random: NDArray[np.bool_] = np.asarray(golden.memory[golden.reset].any(-1))
    from_random = random[np.cumsum(golden.reset) - 1]
    compared = from_random if from_random.any() else np.ones(steps, bool)
    error = _relative_rms(actual[compared], expected[compared])
    rounding = np.clip(golden.rounding, MIN_ROUNDING, MAX_ROUNDING)
    return Parity(
        error=error,
        times_rounding=float((error / rounding).max()),
        in_rollout=float(_relative_rms(actual[~from_random], expected[~from_random]).max()),
        seconds=seconds,
    )


def _relative_rms(actual: FloatArray, expected: FloatArray) -> FloatArray:
    """RMS errors (m,) of the columns of arrays (T, m), relative to the RMS of expected values above
    1; 0 without steps."""
    if not len(actual):
        return np.zeros(expected.shape[1])
    size = np.sqrt(np.mean(expected**2, 0))
    error: FloatArray = np.sqrt(np.mean((actual - expected) ** 2, 0))
    return error / np.maximum(1.0, size)
