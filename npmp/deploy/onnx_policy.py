"""A bundle's policy as what acts: its graph by onnxruntime on one thread, memory included, and
whether it answers as torch did."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mocap_data.errors import InputError, importing
from mocap_data.input_files import reading
from npmp.deploy.contract import GRAVITY, MEMORY, BundleContract
from npmp.deploy.graph import check_graph
from npmp.deploy.robot import FloatArray

# of `Parity.times_rounding`; of the policies that ship another order of sums makes 1.8 at most, the
# largest weight of a matrix, off by 1e-4, 4.8 at least
TOLERANCE = 3.0
# of `Parity.in_rollout`; some states magnify rounding, those of anymal_b_dribble to 8e-7
ROLLOUT_TOLERANCE = 1e-5
# what `Golden.rounding` counts at least, half a unit in the last place of 1, and at most [D]
LEAST_ROUNDING = 6e-8
MOST_ROUNDING = 6e-7
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"  # onnxruntime's


Memory = dict[str, NDArray[np.float32]]  # (1, width) by the names of `MEMORY`


class Readings(NamedTuple):
    """What the robot senses at a control step, as the contract's `conventions` say."""

    joint_pos: ArrayLike  # (nu,) [rad]
    gyro: ArrayLike  # (3,) [rad/s]
    accelerometer: ArrayLike  # (3,) [m/s2]
    up: ArrayLike  # (3,)


class OnnxPolicy:
    """Both levels on one thread. One robot's: its memory goes from step to step."""

    def __init__(self, contract: BundleContract, graph: bytes, *, name: str = "policy.onnx"):
        """graph: the content of policy.onnx. name: what messages call it.

        Raises:
          InputError: where onnxruntime is absent, or the graph is not what the contract says.
        """
        self.contract = contract
        self._home = contract.home_pose
        joints = len(self._home)
        observed = sum(width for _, width, _, _ in contract.observation)
        commanded = contract.command_width
        self._widths = {"joint_pos": joints, "setpoint": joints}
        self._widths |= {"gyro": 3, "accelerometer": 3, "up": 3, "command": commanded}
        self._session = _session(graph, name)
        inputs = {"obs": observed, "command": commanded}
        _check_graph(self._session, inputs, contract.memory, joints, name)
        self.reset()

    def reset(self) -> None:
        """An episode begins: memory empty, the last target the home pose."""
        widths = self.contract.memory.items()
        self._memory = {name: np.zeros((1, width), np.float32) for name, width in widths}
        self._steps, self._target = 0, self._home

    def act(self, readings: Readings, command: ArrayLike) -> FloatArray:
        """One control step. The target before it, which it observes, is what it answered last.

        Args:
          command: (c,) in the task's units; nothing is clipped here. With the extra inputs
            (c + e,); without them the clock is that of the steps since `reset`, and the ground is
            level.

        Returns: joint targets (nu,) [rad], home pose plus action, not clipped either.

        Raises:
          ValueError: for another width, or a value that is not finite; the memory is then that of
            before.
        """
        if self.contract.extra_inputs and np.shape(command) == (len(self.contract.commands),):
            command = np.concatenate((np.asarray(command, np.float64), self._extra_inputs()))
        self._target, self._memory = self.answer(readings, command, self._target, self._memory)
        self._steps += 1
        return self._target.copy()

    def answer(
        self, readings: Readings, command: ArrayLike, setpoint: ArrayLike, memory: Memory
    ) -> tuple[FloatArray, Memory]:
        """One control step from any memory, which stays as it is.

        Args:
          command: (c + e,) with the extra inputs. setpoint: (nu,) the target before [rad].

        Returns: joint targets (nu,) [rad] as of `act`, and the memory after the step.

        Raises:
          ValueError: for another width, or a value that is not finite.
        """
        values = (readings.joint_pos, setpoint, *readings[1:], command)
        arrays = [np.asarray(value, np.float64) for value in values]
        for (name, width), array in zip(self._widths.items(), arrays, strict=True):
            if array.shape != (width,):  # numpy would spread a single number over all joints
                raise ValueError(f"{name} must be {width} numbers, got shape {array.shape}")
        pos, before, gyro, accelerometer, up, commanded = arrays
        parts = (pos - self._home, before - self._home, gyro, accelerometer / GRAVITY, up)
        obs = np.concatenate(parts)
        feed = {"obs": obs.astype(np.float32)[None], "command": commanded.astype(np.float32)[None]}
        if not all(np.isfinite(values).all() for values in feed.values()):
            raise ValueError(
                "what the robot senses or is commanded holds a value that is not finite"
            )
        answers = ["action", *(f"{name}_next" for name in memory)]
        action, *after = self._session.run(answers, feed | memory)
        if not all(np.isfinite(answer).all() for answer in (action, *after)):
            raise ValueError("the policy's answer is not finite")
        return self._home + action[0], dict(zip(memory, after, strict=True))

    def _extra_inputs(self) -> FloatArray:
        """What they are by default: the clock of the steps, and level ground."""
        contract = self.contract
        depths = contract.level_depths_m
        heights = np.full(len(contract.extra_inputs) - len(depths), contract.level_m)
        values = np.concatenate((heights, depths))
        if contract.clock_s is not None:
            angle = 2.0 * math.pi * self._steps / (contract.control_rate_hz * contract.clock_s)
            values[:2] = math.sin(angle), math.cos(angle)
        return values


def _session(graph: bytes, name: str) -> Any:
    """Raises InputError where onnxruntime is absent, or as `check_graph`."""
    check_graph(graph, name)
    with importing("a bundle needs onnxruntime: pip install 'npmp[deploy]'"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    # its own pool would take the loop's core
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3  # errors only, and these are raised
    # of its formats the one that `check_graph` reads; no place for weights elsewhere
    options.add_session_config_entry("session.load_model_format", "ONNX")
    options.add_session_config_entry(WEIGHTS_FOLDER, os.devnull)
    with reading(name):
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def _check_graph(
    session: Any, shown: Mapping[str, int], memory: Mapping[str, int], joints: int, name: str
) -> None:
    """Raises InputError for a graph of other inputs or outputs, as widths of their names."""
    outputs = {"action": joints, **{f"{key}_next": width for key, width in memory.items()}}
    sides = (session.get_inputs(), {**shown, **memory}), (session.get_outputs(), outputs)
    for entries, widths in sides:
        actual = {entry.name: (entry.type, entry.shape) for entry in entries}
        expected = {key: ("tensor(float)", [1, width]) for key, width in widths.items()}
        if actual != expected:
            raise InputError(
                f"'{name}' does not fit its bundle.json: it has {actual!s:.200}, expected {widths}"
            )


# --- parity with torch ---


class Golden(NamedTuple):
    """What the original policy answered: T control steps of episode after episode. Most are of a
    rollout in simulation; others have random readings, and begin with random memory."""

    joint_pos: FloatArray  # (T, nu), as `Readings`
    gyro: FloatArray  # (T, 3)
    accelerometer: FloatArray  # (T, 3)
    up: FloatArray  # (T, 3)
    command: FloatArray  # (T, c + e) with the extra inputs
    reset: NDArray[np.bool_]  # (T,) an episode's first step
    target: FloatArray  # (T, nu) what the policy answered [rad]
    memory: NDArray[np.float32]  # (T, m) before each step, its parts in the order of `MEMORY`
    # (nu + m,) how far the graph was off when it was exported, as of `Parity.off`
    rounding: FloatArray


class Parity(NamedTuple):
    """How a policy answers its golden steps."""

    # (nu + m,) of each target [rad] and number of the memory, in steps from random memory, or in
    # all where there are none: the root mean square, over that of the golden values where these
    # exceed 1
    off: FloatArray
    times_rounding: float  # the most of it, over what it was when the policy was exported
    in_rollout: float  # the largest in steps of a rollout in simulation
    seconds: FloatArray  # (T,) that each step took

    @property
    def difference(self) -> float:
        """The largest of `off`."""
        return float(self.off.max())


def check_parity(policy: OnnxPolicy, golden: Golden) -> Parity:
    """Compare each golden step, from the golden memory and setpoint, so that no step magnifies the
    rounding of those before.

    Raises:
      ValueError: as `OnnxPolicy.answer`.
    """
    steps, joints = golden.target.shape
    setpoint = np.where(
        golden.reset[:, None], policy.contract.home_pose, np.roll(golden.target, 1, 0)
    )
    widths = [policy.contract.memory[name] for name in MEMORY]
    parts = np.split(golden.memory[:, None], np.cumsum(widths)[:-1], -1)

    expected = np.concatenate((golden.target, np.roll(golden.memory, -1, 0)), -1)
    answers = np.empty_like(expected)
    seconds = np.empty(steps)
    for t, row in enumerate(zip(*golden[:4], strict=True)):
        before = {name: part[t] for name, part in zip(MEMORY, parts, strict=True)}
        begun = time.perf_counter()
        target, after = policy.answer(Readings(*row), golden.command[t], setpoint[t], before)
        seconds[t] = time.perf_counter() - begun
        answers[t] = np.concatenate((target, *(after[name][0] for name in MEMORY)))

    # the memory after an episode's last step is not in the file
    last = np.roll(golden.reset, -1)
    last[-1] = True
    answers[last, joints:] = expected[last, joints:]

    # random memory makes weights count that a rollout leaves idle, and would be averaged away in it
    starts: NDArray[np.bool_] = np.asarray(golden.memory[golden.reset].any(-1))
    begins_anywhere = starts[np.cumsum(golden.reset) - 1]
    judged = begins_anywhere if begins_anywhere.any() else np.ones(steps, bool)
    off = _relative_rms(answers[judged], expected[judged])
    rounding = np.clip(golden.rounding, LEAST_ROUNDING, MOST_ROUNDING)
    times_rounding = float((off / rounding).max())
    in_rollout = float(_relative_rms(answers[~begins_anywhere], expected[~begins_anywhere]).max())
    return Parity(off, times_rounding, in_rollout, seconds)


def _relative_rms(answers: FloatArray, expected: FloatArray) -> FloatArray:
    """Per column of (T, m) arrays the root mean square over steps of what answers are off, over
    that of the expected values where these exceed 1; 0 of no steps."""
    if not len(answers):
        return np.zeros(expected.shape[1])
    size = np.sqrt(np.mean(expected**2, 0))
    off: FloatArray = np.sqrt(np.mean((answers - expected) ** 2, 0))
    return off / np.maximum(1.0, size)
