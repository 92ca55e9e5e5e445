"""Commands that excite a robot's joints, and logs of simulated robots with drawn parameters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp.actuators.actuator_log import JointRecording, StandLog
from npmp.actuators.identification.stand import (
    ARMATURE,
    BIAS,
    DAMPING,
    FRICTION,
    KD,
    KP,
    Floats,
    Stand,
)
from npmp.core import ranges
from npmp.robots import Robot
from npmp.robots.model import hinges_to, touching

# of simulated encoders [rad]
_ENCODER_NOISE = 5e-4
# amplitudes shrink by this factor, so many times at most
_SHRINK = 0.85
_TRIES = 40
# shares of the limits of speed and torque, at most, on the nominal robot: stiffer ones need more
# torque, and saturated drives hide their gains
_SPEED = 0.7
_TORQUE = 0.5


@dataclass(frozen=True)
class ExcitationConfig:
    """Sums of sines, of all joints at once. Raises ValueError for numbers out of range."""

    # length of the motion [s]
    seconds: float = 20.0
    # lowest frequency [Hz]
    lowest_hz: float = 0.2
    # highest frequency [Hz]
    highest_hz: float = 8.0
    # [rad] about the middle, at most; less where limits or other parts of the robot are near
    amplitude: float = 0.5
    # [s] at the start and the end, in the middle pose
    rest_s: float = 1.0

    def __post_init__(self) -> None:
        ranges.above_zero(self, "seconds", "lowest_hz", "highest_hz", "amplitude")
        ranges.not_negative(self, "rest_s")
        ranges.at_most(self, 3600.0, "seconds")
        if not self.lowest_hz < self.highest_hz:
            raise ValueError(
                f"lowest_hz {self.lowest_hz:g} must be below highest_hz {self.highest_hz:g}"
            )
        if self.seconds < 2.0 * self.rest_s + 2.0 / self.lowest_hz:
            raise ValueError(
                f"seconds={self.seconds:g} is too short for two periods of {self.lowest_hz:g} Hz"
            )


def excitation(
    robot: Robot, stand: Stand, config: ExcitationConfig, rng: np.random.Generator
) -> Floats:
    """Commands (T, n) [rad] at the stand's rate. In simulation of the nominal robot they keep the
    limits of angle, speed and torque, with a margin for other robots, and parts apart.

    Raises:
      InputError: where the rate is too low for the frequencies, or nothing but rest keeps the
        limits.
    """
    if config.highest_hz > 0.45 * stand.rate_hz:
        raise InputError(
            f"highest_hz={config.highest_hz:g} is too fast for commands at {stand.rate_hz:g} Hz"
        )
    wave = _waves(config, stand, rng)
    lower, upper = robot.joint_lower, robot.joint_upper
    room = 0.05 * (upper - lower)
    amplitude = np.minimum(0.4 * (upper - lower), config.amplitude)
    middle = np.clip(robot.home_joints, lower + 1.2 * amplitude, upper - 1.2 * amplitude)
    apart = _Apart(robot)
    stride = max(1, round(stand.rate_hz / 25.0))
    for _ in range(_TRIES):
        command = middle + amplitude * wave
        motion = stand.run(stand.nominal[None], command, command[0], torque=True)
        position = motion.position[0]
        assert motion.torque is not None  # for the type checker: it was asked for
        speed = np.abs(np.diff(position, axis=0)).max(0) * stand.rate_hz
        wrong = np.abs(motion.torque[0]).max(0) > _TORQUE * robot.torque_limit
        wrong |= speed > _SPEED * robot.velocity_limit
        wrong |= (position.min(0) < lower + room) | (position.max(0) > upper - room)
        if not wrong.any():
            wrong = apart.touching(position[::stride])
        if not wrong.any():
            return command
        amplitude = np.where(wrong, _SHRINK, 1.0) * amplitude
    names = ", ".join(name for name, bad in zip(stand.joints, wrong, strict=True) if bad)
    raise InputError(
        f"no motion of {names} keeps limits and avoids contact; try a smaller amplitude="
    )


def _waves(config: ExcitationConfig, stand: Stand, rng: np.random.Generator) -> Floats:
    """(T, n) in [-1, 1]: sums of harmonics of the whole length, with equal power per octave. Joints
    of one limb share none, so that their effects on each other can be separated.
    """
    time = np.arange(round(config.seconds * stand.rate_hz)) / stand.rate_hz
    lowest = config.lowest_hz * config.seconds
    highest = config.highest_hz * config.seconds
    harmonics = np.arange(np.ceil(lowest), highest + 1e-9)
    longest = max(map(len, stand.trees))
    blocks = harmonics[: len(harmonics) // longest * longest].reshape(-1, longest) / config.seconds
    wave = np.empty((len(time), len(stand.joints)))
    for tree in stand.trees:
        # (blocks, joints) [Hz]
        hz = rng.permuted(blocks, axis=1)[:, : len(tree)]
        phase = rng.uniform(0.0, 2.0 * np.pi, hz.shape)
        sines = np.sin(2.0 * np.pi * time[:, None, None] * hz + phase)
        wave[:, tree] = (sines / np.sqrt(hz)).sum(1)
    wave /= np.abs(wave).max(0)
    since = np.minimum(time - config.rest_s, time[-1] - config.rest_s - time)
    ramp = np.clip(since, 0.0, 1.0)[:, None]
    return np.asarray(wave * ramp * ramp * (3.0 - 2.0 * ramp))


class _Apart:
    """Which parts of a robot touch others that they do not touch at home."""

    def __init__(self, robot: Robot):
        self._model = model = robot.model(visuals=False)
        solid = (model.geom_contype | model.geom_conaffinity) > 0
        model.geom_contype[:] = solid
        model.geom_conaffinity[:] = solid
        self._data = mujoco.MjData(model)
        self._data.qpos[:] = robot.home_qpos
        # (nbody, n): the joints that move a body
        self._moves = np.zeros((model.nbody, model.njnt - 1), dtype=bool)
        for body in range(model.nbody):
            self._moves[body, hinges_to(model, body)] = True
        self._home = touching(model, self._data)

    def touching(self, position: Floats) -> NDArray[np.bool_]:
        """(n,): joints that move parts which touch others somewhere along (S, n)."""
        bad = np.zeros(position.shape[1], dtype=bool)
        for joints in position:
            self._data.qpos[7:] = joints
            for pair in touching(self._model, self._data) - self._home:
                bad |= self._moves[list(pair)].any(0)
        return bad


def drawn(stand: Stand, rng: np.random.Generator) -> Floats:
    """Random parameters (n, 7): gains +-20 % of the model's, biases +-0.05 rad, delays of 0 to 3
    samples; armature, damping and friction 0.5 to 1.5 times the model's, or typical of its size."""
    n = len(stand.joints)

    def around(kind: int, low: float, high: float) -> Floats:
        """0.5 to 1.5 of the model's; low to high [its unit] where that is 0."""
        own = stand.nominal[:, kind]
        return np.where(own > 0.0, own * rng.uniform(0.5, 1.5, n), rng.uniform(low, high, n))

    kp, kd = stand.nominal[:, KP], stand.nominal[:, KD]
    inertia = float(stand.inertia.mean())
    friction = 0.02 * np.where(np.isfinite(stand.torque_limit), stand.torque_limit, 0.2 * kp)
    values = (
        around(ARMATURE, 0.2 * inertia, inertia),
        around(DAMPING, 0.0, 0.5 * float(kd.mean()) + 1e-12),
        around(FRICTION, 0.2 * float(friction.mean()), float(friction.mean())),
        rng.uniform(0.0, 3.0, n) / stand.rate_hz,
        rng.uniform(-0.05, 0.05, n),
        kp * rng.uniform(0.8, 1.2, n),
        kd * rng.uniform(0.8, 1.2, n),
    )
    return np.stack(values, -1)


def write_commands(path: Path, stand: Stand, command: Floats) -> None:
    """A CSV of time_s and a column of angles [rad] per joint; a command holds until the next."""
    time = np.arange(len(command)) / stand.rate_hz
    table = np.column_stack((time, command))
    header = ",".join(("time_s", *stand.joints))
    with atomic_path(path) as temporary:
        np.savetxt(temporary, table, "%.6f", delimiter=",", header=header, comments="")


def simulated(
    stand: Stand,
    parameters: Floats,
    command: Floats,
    rng: np.random.Generator,
    *,
    torque: bool = False,
) -> StandLog:
    """The log of a robot of these parameters (n, 7), at rest at first, with encoder noise."""
    bias = parameters[:, BIAS]
    # it stands where its drives hold it before the log begins
    still = np.repeat(command[:1], round(2.0 * stand.rate_hz), 0)
    held = stand.run(parameters[None], still, command[0]).position[0, -1] + bias
    motion = stand.run(parameters[None], command, held, torque=torque)
    position = motion.position[0] + bias + rng.normal(0.0, _ENCODER_NOISE, command.shape)
    torques = None
    if motion.torque is not None:
        scale = 0.01 * np.minimum(stand.torque_limit, stand.nominal[:, KP])
        torques = motion.torque[0] + scale * rng.normal(size=command.shape)
    recording = JointRecording("excitation", command, position, None, torques)
    return StandLog(stand.rate_hz, stand.joints, (recording,))
