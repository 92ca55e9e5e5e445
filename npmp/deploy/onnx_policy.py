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
from mocap_data.outside import reading
from npmp.deploy.contract import GRAVITY, BundleContract
from npmp.deploy.robot import FloatArray

# [rad] of what a graph may answer otherwise than its golden rollout, shown the same
TOLERANCE, MAGNIFIED = 1e-5, 1e-2
# a key of ONNX's external data: protobuf's first field, of eight letters, as all write it
_OUTSIDE = b"\x0a\x08location"
# nodes that may never end: the field of a node's operator, its length, its name
_ENDLESS = (b"\x22\x04Loop", b"\x22\x04Scan")
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"  # onnxruntime's


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
        self.contract, self._home = contract, contract.home_pose
        joints = len(self._home)
        observed = sum(width for _, width, _, _ in contract.observation)
        commanded = contract.command_width
        self._widths = {"joint_pos": joints, "setpoint": joints}
        self._widths |= {"gyro": 3, "accelerometer": 3, "up": 3, "command": commanded}
        self._session = _session(graph, name)
        shown = {"obs": observed, "command": commanded}
        _check_graph(self._session, shown, contract.memory, joints, name)
        self.reset()

    def reset(self) -> None:
        """An episode begins: memory empty, the last target the home pose."""
        widths = self.contract.memory.items()
        self._memory = {name: np.zeros((1, width), np.float32) for name, width in widths}
        self._steps, self._target = 0, self._home

    def act(
        self, readings: Readings, command: ArrayLike, *, setpoint: ArrayLike | None = None
    ) -> FloatArray:
        """One control step.

        Args:
          command: (c,) in the task's units; nothing is clipped here. With the extra inputs
            (c + e,); without them the clock is that of the steps since `reset`, and the ground is
            level.
          setpoint: (nu,) the target before this one [rad]; None: what this policy answered last, as
            in training.

        Returns: joint targets (nu,) [rad], home pose plus action, not clipped either.

        Raises:
          ValueError: for another width, or a value that is not finite; the memory is then that of
            before.
        """
        if self.contract.extra_inputs and np.shape(command) == (len(self.contract.commands),):
            command = np.concatenate((np.asarray(command, np.float64), self._extra_inputs()))
        last = self._target if setpoint is None else setpoint
        values = (readings.joint_pos, last, *readings[1:], command)
        arrays = [np.asarray(value, np.float64) for value in values]
        for (name, width), array in zip(self._widths.items(), arrays, strict=True):
            if array.shape != (width,):  # numpy would spread a single number over all joints
                raise ValueError(f"{name} must be {width} numbers, got shape {array.shape}")
        pos, before, gyro, accelerometer, up, told = arrays
        parts = (pos - self._home, before - self._home, gyro, accelerometer / GRAVITY, up)
        obs = np.concatenate(parts)
        shown = {"obs": obs.astype(np.float32)[None], "command": told.astype(np.float32)[None]}
        if not all(np.isfinite(values).all() for values in shown.values()):
            raise ValueError(
                "what the robot senses or is commanded holds a value that is not finite"
            )
        answers = ["action", *(f"{name}_next" for name in self._memory)]
        action, *memory = self._session.run(answers, shown | self._memory)
        if not all(np.isfinite(answer).all() for answer in (action, *memory)):
            raise ValueError("the policy's answer is not finite")
        self._memory = dict(zip(self._memory, memory, strict=True))
        self._steps += 1
        self._target = self._home + action[0]
        return self._target.copy()

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
    """Raises InputError where onnxruntime is absent, the graph is none, has a loop, or keeps its
    weights elsewhere."""
    # else weights are looked for beside the process, which no checksum covers
    if _OUTSIDE in graph:
        raise InputError(
            f"'{name}' has weights in another file; a bundle's graph holds them itself"
        )
    if any(node in graph for node in _ENDLESS):
        raise InputError(
            f"'{name}' holds a Loop or Scan, which may never end; npmp deploy export makes none"
        )
    with importing("a bundle needs onnxruntime: pip install 'npmp[deploy]'"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    # its own pool would take the loop's core
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3  # errors only, and these are raised
    # no place for what _OUTSIDE does not find
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
        found = {entry.name: (entry.type, entry.shape) for entry in entries}
        expected = {key: ("tensor(float)", [1, width]) for key, width in widths.items()}
        if found != expected:
            raise InputError(
                f"'{name}' does not fit its bundle.json: it has {found!s:.200}, expected {widths}"
            )


# --- parity with torch ---


class Golden(NamedTuple):
    """A rollout in simulation under the original policy: T control steps of robot after robot."""

    joint_pos: FloatArray  # (T, nu), as `Readings`
    gyro: FloatArray  # (T, 3)
    accelerometer: FloatArray  # (T, 3)
    up: FloatArray  # (T, 3)
    command: FloatArray  # (T, c + e) with the extra inputs
    reset: NDArray[np.bool_]  # (T,) an episode's first step
    target: FloatArray  # (T, nu) what the policy answered [rad]


class Parity(NamedTuple):
    """How a policy answers a golden rollout."""

    difference: float  # the largest from what it must answer [rad]
    magnified: float  # the same, fed the other setpoints [rad]
    seconds: FloatArray  # (T,) that each step took


def check_parity(policy: OnnxPolicy, golden: Golden) -> Parity:
    """Show a policy its golden rollout twice: with the setpoints of the rollout, and with its own.

    Its memory is its own both times. Which of the two magnifies rounding depends on the policy, so
    the smaller is the difference: 1e-7 rad in what is fed back can become 1e-4 of the other.

    Raises:
      ValueError: as `OnnxPolicy.act`.
    """
    found, seconds = np.empty((2, *golden.target.shape)), np.empty(len(golden.reset))
    readings = [Readings(*row) for row in zip(*golden[:4], strict=True)]
    for own in (False, True):
        for t, reset in enumerate(golden.reset):
            if reset:
                policy.reset()
            setpoint = None if own or reset else golden.target[t - 1]
            begun = time.perf_counter()
            found[int(own), t] = policy.act(readings[t], golden.command[t], setpoint=setpoint)
            seconds[t] = time.perf_counter() - begun
    least, most = np.sort(np.abs(found - golden.target).max((1, 2)))
    return Parity(float(least), float(most), seconds)
