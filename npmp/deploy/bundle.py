"""A policy and its skill module as a folder that a robot can run: `bundle.json` (what it is),
`policy.onnx` (one graph of both levels with its memory as inputs and outputs) and `golden.npz`
(what it must answer).

Nothing here needs torch or MuJoCo, and nothing in a bundle can run code.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from mocap_data.outside import parse_json, reading, regular_file
from npmp.deploy.runtime import ONNXRUNTIME, open_runtime
from npmp.settings import from_mapping

SCHEMA = "npmp.bundle"
VERSION = 1
CONTRACT, GRAPH, GOLDEN = "bundle.json", "policy.onnx", "golden.npz"
MAX_BYTES = 1 << 30  # of a file; ours have 2 MB
GRAVITY = 9.81  # [m/s2] per g, as `npmp.envs.state` has it
# inputs of the graph that it gives back as NAME_next
MEMORY = ("z", "h_high", "c_high", "h_low", "c_low")
CLOCK = ["clock_sin", "clock_cos"]  # as `npmp.tasks.walk` has them
DIGEST = 64  # characters
PER_JOINT = ("home_pose", "kp", "kd", "torque_limit", "joint_range", "velocity_limit")
# of control at least, of physics at most: what is slower or faster is a slip [D]
RATES_HZ = (1.0, 1e5)
FEWEST_STEPS, FEWEST_RESETS = 100, 2  # of a golden recording that says anything [D]
# [rad] of what a graph may answer otherwise than its golden recording, shown the same
TOLERANCE = 1e-5

FloatArray = NDArray[np.float64]


def observation_layout(joints: int) -> list[tuple[str, int, str, str]]:
    """Name, width, unit and frame of what the graph is shown, in order
    (`npmp.envs.features.proprioception`)."""
    return [
        ("joint_pos_minus_home", joints, "rad", "joint"),
        ("setpoint_minus_home", joints, "rad", "joint"),
        ("gyro", 3, "rad/s", "root"),
        ("accelerometer_g", 3, "g", "root"),
        ("up", 3, "1", "root"),
    ]


class Readings(NamedTuple):
    """What the robot senses at a control step: gyro and accelerometer as means over the step
    before, the rest now."""

    joint_pos: ArrayLike  # (nu,) [rad]
    gyro: ArrayLike  # (3,) angular velocity in the root frame [rad/s]
    # (3,) specific force in the root frame [m/s2]: +9.81 along z at rest and upright
    accelerometer: ArrayLike
    up: ArrayLike  # (3,) the world's vertical in the root frame


@dataclass(frozen=True)
class BundleContract:
    """What a robot must know to run a policy; all of bundle.json but its schema, version and own
    checksum.

    Lists per joint are in the order of `joint_names`. Raises: ValueError for lists that do not fit
    each other.
    """

    robot: str
    model_sha256: str
    joint_names: list[str]
    home_pose: list[float]  # [rad]; target = home_pose + action
    kp: list[float]  # of the drives, as trained [Nm/rad]
    kd: list[float]  # [Nm s/rad]
    torque_limit: list[float]  # [Nm]
    joint_range: list[list[float]]  # [low, high] [rad]
    velocity_limit: list[float]  # [rad/s]
    control_rate_hz: float
    physics_rate_hz: float
    # of targets between control steps: "zero_order", or "first_order": linear from the last to the
    # new one
    hold: str
    # "imu": the mean over the last control step at the IMU; "root": of the root's origin
    accelerometer: str
    imu_position: list[float]  # (3,) in the root frame [m]
    observation: list[tuple[str, int, str, str]]  # [name, width, unit, frame] in order
    command: list[str]
    command_unit: list[str]
    command_range: list[list[float]]  # [low, high] of each, as trained
    memory: dict[str, int]  # widths of what goes from step to step, zero at first
    task: str
    module_sha256: str
    policy_sha256: str
    licence: list[str]  # of the recordings that the module was trained on
    data: str  # which these are
    opset: int
    golden: dict[str, Any]  # how golden.npz was recorded
    versions: dict[str, str]
    # what it is told after the command: sine and cosine of a clock of this period, which begins
    # with the episode, and heights of the ground, ground_FOOT_X_Y_m forwards and to the left of a
    # foot in the root's heading frame, above where the floor is under a robot in its home pose [m]
    besides: list[str] = field(default_factory=list)
    clock_s: float | None = None
    # what these heights are on level ground, of a robot that walks as in training [m]
    level_m: float = 0.0
    files: dict[str, str] = field(default_factory=dict)  # sha256 of those beside bundle.json

    def __post_init__(self) -> None:
        joints, commands = len(self.joint_names), len(self.command)
        lengths = dict.fromkeys(PER_JOINT, joints) | {
            "command_unit": commands,
            "command_range": commands,
        }
        wrong = [name for name, length in lengths.items() if len(getattr(self, name)) != length]
        if not joints or wrong:
            raise ValueError(
                f"it has {joints} joints and {commands} commands, and other lengths of {', '.join(wrong)}"
            )
        for name in ("joint_range", "command_range"):
            if not all(len(pair) == 2 and pair[0] <= pair[1] for pair in getattr(self, name)):
                raise ValueError(f"{name} needs pairs [low, high]")
        clock = [] if self.clock_s is None else CLOCK
        heights = all(name.startswith("ground_") for name in self.besides[len(clock) :])
        timed = self.clock_s is None or 0.0 < self.clock_s < math.inf
        if not (
            timed
            and heights
            and self.besides[: len(clock)] == clock
            and math.isfinite(self.level_m)
        ):
            raise ValueError("what it is told besides the command is not what this npmp can give")
        if self.hold not in ("zero_order", "first_order") or self.accelerometer not in (
            "imu",
            "root",
        ):
            raise ValueError(
                f"no hold {self.hold!r:.40} or accelerometer {self.accelerometer!r:.40} is known here"
            )
        slowest, fastest = RATES_HZ
        if not slowest <= self.control_rate_hz <= self.physics_rate_hz <= fastest:
            raise ValueError(
                f"{slowest:g} <= control_rate_hz <= physics_rate_hz <= {fastest:g} must hold"
            )
        self._check_joints()
        if self.observation != observation_layout(joints) or set(self.memory) != set(MEMORY):
            raise ValueError("its observation or memory is not what this npmp can give")

    def _check_joints(self) -> None:
        if len(set(self.joint_names)) < len(self.joint_names):
            raise ValueError("joint_names names a joint twice")
        for name in ("kp", "torque_limit", "velocity_limit"):
            if not all(0.0 < value < math.inf for value in getattr(self, name)):
                raise ValueError(f"{name} must be above 0")
        if not all(0.0 <= value < math.inf for value in self.kd):
            raise ValueError("kd must be at least 0")
        if len(self.imu_position) != 3:
            raise ValueError("imu_position needs three numbers")
        if not all(
            low <= home <= high for home, (low, high) in zip(self.home_pose, self.joint_range)
        ):
            raise ValueError("home_pose lies outside joint_range")

    def in_graph(self) -> str:
        """What the graph says of itself, too, as JSON: all but the files' checksums, and what is
        told besides the command where there is any."""
        left_out = {"files"} if self.besides else {"files", "besides", "clock_s", "level_m"}
        return json.dumps(
            {key: value for key, value in asdict(self).items() if key not in left_out}
        )


class Bundle:
    """A bundle that has been read and found whole."""

    def __init__(self, folder: Path, contract: BundleContract, content: Mapping[str, bytes]):
        """content: of the files beside bundle.json, by their names."""
        self.folder, self.contract, self._content = folder, contract, content

    @staticmethod
    def read(folder: str | Path) -> Bundle:
        """Read a folder and check what is in it. Nothing in it is executed.

        Raises:
          InputError: for one that is missing, damaged, changed after it was written, or newer than
            this npmp.
        """
        folder = Path(folder)
        if not (folder / CONTRACT).is_file():
            raise InputError(
                f"no bundle in '{folder}': '{CONTRACT}' is missing (npmp export policy=... writes one)"
            )
        contract = _unsealed(_bytes(folder / CONTRACT), folder / CONTRACT)
        if set(contract.files) != {GRAPH, GOLDEN}:
            raise InputError(f"'{folder / CONTRACT}': a bundle has the files {GRAPH} and {GOLDEN}")
        content = {name: _bytes(folder / name) for name in contract.files}
        for name, digest in contract.files.items():
            if hashlib.sha256(content[name]).hexdigest() != digest:
                raise InputError(
                    f"'{folder / name}' is not the file that was exported: its checksum differs"
                )
        return Bundle(folder, contract, content)

    @staticmethod
    def write(
        folder: str | Path,
        contract: BundleContract,
        graph: bytes,
        golden: Mapping[str, NDArray[Any]],
    ) -> None:
        """Write a folder, each file whole or not at all. bundle.json comes last: a kill in between
        leaves files that `read` refuses.

        Raises:
          OSError: when it cannot be written.
        """
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **golden)
        content = {GRAPH: graph, GOLDEN: buffer.getvalue()}
        files = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
        content[CONTRACT] = _sealed(
            {"schema": SCHEMA, "version": VERSION, **asdict(contract), "files": files}
        )
        for name, data in content.items():
            with atomic_path(Path(folder) / name) as path:
                path.write_bytes(data)

    def policy(self, runtime: str = ONNXRUNTIME) -> Policy:
        """What acts, with empty memory. Raises InputError as `Policy`."""
        return Policy(
            self.contract, self._content[GRAPH], name=str(self.folder / GRAPH), runtime=runtime
        )

    def golden(self) -> Golden:
        """What was recorded when it was exported.

        Raises:
          InputError: for arrays of other names, shapes or types, values that are not finite, or too
            few steps.
        """
        joints, path = len(self.contract.joint_names), self.folder / GOLDEN
        commands = len(self.contract.command) + len(self.contract.besides)
        with reading(path), np.load(io.BytesIO(self._content[GOLDEN]), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        if set(arrays) != set(Golden._fields):
            raise InputError(
                f"'{path}' has the arrays {', '.join(arrays)!s:.200}; expected {', '.join(Golden._fields)}"
            )
        # as robots tell them: a command is of single precision in the file
        found = Golden(
            **{
                key: x.astype(np.float64) if x.dtype == np.float32 else x
                for key, x in arrays.items()
            }
        )
        widths = {
            "joint_pos": joints,
            "gyro": 3,
            "accelerometer": 3,
            "up": 3,
            "command": commands,
            "target": joints,
        }
        if any(arrays[name].shape != (found.reset.size, width) for name, width in widths.items()):
            raise InputError(f"'{path}' does not fit its {CONTRACT}: arrays of other shapes")
        for name in widths:
            if (
                not np.issubdtype(arrays[name].dtype, np.floating)
                or not np.isfinite(arrays[name]).all()
            ):
                raise InputError(f"'{path}': {name} must be finite numbers")
        if found.reset.dtype != bool or found.reset.ndim != 1 or not found.reset[:1].all():
            raise InputError(
                f"'{path}': reset must be true or false for each step, true at the first"
            )
        if (steps := found.reset.size) < FEWEST_STEPS or found.reset.sum() < FEWEST_RESETS:
            raise InputError(
                f"'{path}' has {steps} steps; {FEWEST_STEPS} with {FEWEST_RESETS} resets are needed"
            )
        return found


def _bytes(path: Path) -> bytes:
    with reading(path):
        return regular_file(path, at_most=MAX_BYTES).read_bytes()


def _sealed(content: dict[str, Any]) -> bytes:
    """bundle.json with the SHA-256 of its own bytes in it, computed with zeros in that place."""
    blank = "0" * DIGEST
    data = (json.dumps({**content, "sha256": blank}, indent=2) + "\n").encode()
    # the last: a checksum within may be all zeros, too
    before, _, after = data.rpartition(blank.encode())
    return before + hashlib.sha256(data).hexdigest().encode() + after


def _unsealed(data: bytes, path: Path) -> BundleContract:
    with reading(path):
        content = parse_json(data.decode(), str(path))
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise InputError(f"'{path}' does not describe a bundle (schema '{SCHEMA}')")
    if content.get("version") != VERSION:
        raise InputError(
            f"'{path}' has version {content.get('version')!r:.20}; this npmp reads version {VERSION}"
        )
    digest = str(content.get("sha256"))
    before, _, after = data.rpartition(digest.encode() or b"\n")
    if hashlib.sha256(before + b"0" * DIGEST + after).hexdigest() != digest:
        raise InputError(f"'{path}' was changed after it was written: its checksum differs")
    return from_mapping(
        BundleContract, content, at=f"'{path}'", ignore=("schema", "version", "sha256")
    )


# --- acting
# -----------------------------------------------------------------------------------------------------------


class Policy:
    """Both levels on one thread. One robot's: its memory goes from step to step."""

    def __init__(
        self,
        contract: BundleContract,
        graph: bytes,
        *,
        name: str = GRAPH,
        runtime: str = ONNXRUNTIME,
    ):
        """graph: the content of policy.onnx. name: what messages call it. runtime:
        `npmp.deploy.runtime.RUNTIMES`.

        Raises:
          InputError: where the runtime is absent, or the graph is not what the contract says.
        """
        self.contract = contract
        joints = len(contract.joint_names)
        self._names = ("joint_pos", "setpoint", "gyro", "accelerometer", "up", "command")
        told = len(contract.command) + len(contract.besides)
        self._widths = (*(width for _, width, _, _ in contract.observation), told)
        scales = np.stack((np.zeros(sum(self._widths)), np.ones(sum(self._widths))))
        scales[0, : 2 * joints], scales[1, 2 * joints + 3 : 2 * joints + 6] = (
            np.tile(contract.home_pose, 2),
            GRAVITY,
        )
        self._runtime = open_runtime(
            runtime,
            graph,
            name,
            told=self._widths,
            memory=contract.memory,
            joints=joints,
            scales=scales,
        )
        if self._runtime.described != contract.in_graph():
            raise InputError(
                f"'{name}' was made for something else than {CONTRACT} says: their contracts differ"
            )
        self._target = np.array(contract.home_pose, np.float64)  # the last one
        self._steps = 0

    def reset(self) -> None:
        """An episode begins: memory empty, the last target the home pose."""
        self._runtime.reset()
        self._target[:] = self.contract.home_pose
        self._steps = 0

    def act(
        self, readings: Readings, command: ArrayLike, *, setpoint: ArrayLike | None = None
    ) -> FloatArray:
        """One control step.

        Args:
          command: (c,) in the task's units, within `command_range` as trained; nothing is clipped
            here. With what is told besides, (c + b,); without it the clock is that of the steps
            since `reset`, and the ground is level.
          setpoint: (nu,) the target before this one [rad]; None: what this policy answered last, as
            in training.

        Returns: joint targets (nu,) [rad], home pose plus action, not clipped either.

        Raises:
          ValueError: for another width, or a value that is not finite; the memory is then that of
            before.
        """
        if setpoint is None:
            setpoint = self._target
        if self.contract.besides and np.shape(command) == (len(self.contract.command),):
            command = np.concatenate((np.asarray(command, np.float64), self._besides()))
        told = (
            readings.joint_pos,
            setpoint,
            readings.gyro,
            readings.accelerometer,
            readings.up,
            command,
        )
        try:  # few calls, as the weights have put their code and data out of the fastest caches
            self._runtime.step(told, self._target)  # type: ignore[arg-type]
        except TypeError:
            self._runtime.step(self._vectors(told), self._target)
        self._steps += 1
        return self._target.copy()

    def _besides(self) -> FloatArray:
        """What is told after the command where nobody tells it: the time, and level ground."""
        told, period = (
            np.full(len(self.contract.besides), self.contract.level_m),
            self.contract.clock_s,
        )
        if period is not None:
            angle = 2.0 * math.pi * self._steps / (self.contract.control_rate_hz * period)
            told[:2] = math.sin(angle), math.cos(angle)
        return told

    def _vectors(self, told: Sequence[ArrayLike]) -> tuple[FloatArray, ...]:
        """What is told as a runtime takes it. Raises ValueError for another width than is expected."""
        arrays = tuple(np.asarray(values, np.float64).copy() for values in told)
        for name, width, array in zip(self._names, self._widths, arrays, strict=True):
            if array.shape != (width,):  # numpy would spread a single number over all joints
                raise ValueError(f"{name} must be {width} numbers, got shape {array.shape}")
        return arrays


# --- checking
# ---------------------------------------------------------------------------------------------------------


class Golden(NamedTuple):
    """A robot in simulation under the original policy, T control steps one after another."""

    joint_pos: FloatArray  # (T, nu), as `Readings`
    gyro: FloatArray  # (T, 3)
    accelerometer: FloatArray  # (T, 3)
    up: FloatArray  # (T, 3)
    command: FloatArray  # (T, c + b) with what is told besides
    reset: NDArray[np.bool_]  # (T,) an episode's first step
    target: FloatArray  # (T, nu) what the policy answered [rad]


class Replay(NamedTuple):
    """What came of a golden recording."""

    difference: float  # the largest from what it must answer, shown the recording's setpoints [rad]
    on_its_own: float  # the same where it is shown its own, which magnifies rounding [rad]
    seconds: FloatArray  # (T,) that each step took


def replay(policy: Policy, golden: Golden) -> Replay:
    """Show a policy what was recorded, twice: with the setpoints of the recording, and with its
    own.

    Its memory is its own both times. Setpoints of its own feed back what rounding makes of an
    answer while the recorded robot cannot follow: two precisions of torch differ by more than 1e-5
    rad then, too.

    Raises:
      ValueError: as `Policy.act`.
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
    shown, own_way = np.abs(found - golden.target).max((1, 2))
    return Replay(float(shown), float(own_way), seconds)


def seconds_to_read(num_bytes: int) -> FloatArray:
    """(2000,) the times that one core takes to read so many bytes once, as the largest of their
    numbers: the least that any step with so many weights can take."""
    weights, times = np.ones(num_bytes // 4, np.float32), np.empty(2000)
    for i in range(len(times)):
        begun = time.perf_counter()
        weights.max()
        times[i] = time.perf_counter() - begun
    return times
