"""Commands that excite a robot's joints, and simulated logs of robots with random parameters."""

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

# noise of simulated encoders [rad]
_ENCODER_NOISE = 5e-4
# factor on amplitudes per trial, and number of trials
_SHRINK = 0.85
_TRIES = 40
# shares of the speed and torque limits that the nominal robot may use: stiffer ones need more
# torque, and saturated drives hide their gains
_SPEED = 0.7
_TORQUE = 0.5


@dataclass(frozen=True)
class ExcitationConfig:
    """Sums of sines, of all joints at once. Raises ValueError for values out of range."""

    # length of the motion [s]
    seconds: float = 20.0
    # lowest frequency [Hz]
    lowest_hz: float = 0.2
    # highest frequency [Hz]
    highest_hz: float = 8.0
    # [rad] about the middle, at most; less near limits or other parts of the robot
    amplitude: float = 0.5
    # [s] at the start and the end, in the middle pose
    rest_s: float = 1.0

    def __post_init__(self) -> None:
        ranges.above_zero(self, "seconds", "lowest_hz", "highest_hz", "amplitude")
        ranges.not_negative(self, "rest_s")
        ranges.at_most(self, 3600.0, "seconds")
        if not self.lowest_hz < self.highest_hz:
            raise ValueError(
                f"lowest_hz={self.lowest_hz:g}: must be below highest_hz {self.highest_hz:g}"
            )
        if self.seconds < 2.0 * self.rest_s + 2.0 / self.lowest_hz:
            raise ValueError(
                f"seconds={self.seconds:g}: must last two rests and two periods of"
                f" {self.lowest_hz:g} Hz"
            )


def excitation(
    robot: Robot, stand: Stand, config: ExcitationConfig, rng: np.random.Generator
) -> Floats:
    """Commands (T, n) [rad] at the stand's rate that keep the simulated nominal robot within its
    limits of angle, speed and torque, with a margin, and its parts apart.

    Raises:
      InputError: for a rate too low for the frequencies, or a robot that no amplitude keeps within
        its limits.
    """
    if config.highest_hz > 0.45 * stand.rate_hz:
        raise InputError(
            f"highest_hz={config.highest_hz:g}: must be at most 0.45 of {stand.rate_hz:g} Hz"
        )
    wave = _waves(config, stand, rng)
    lower = robot.joint_lower
    upper = robot.joint_upper
    room = 0.05 * (upper - lower)
    amplitude = np.minimum(0.4 * (upper - lower), config.amplitude)
    middle = np.clip(robot.home_joints, lower + 1.2 * amplitude, upper - 1.2 * amplitude)
    contacts = _Contacts(robot)
    stride = max(1, round(stand.rate_hz / 25.0))
    for _ in range(_TRIES):
        command = middle + amplitude * wave
        motion = stand.run(stand.nominal[None], command, command[0], torque=True)
        position = motion.position[0]
        assert motion.torque is not None  # for the type checker
        speed = np.abs(np.diff(position, axis=0)).max(0) * stand.rate_hz
        wrong = np.abs(motion.torque[0]).max(0) > _TORQUE * robot.torque_limit
        wrong |= speed > _SPEED * robot.velocity_limit
        wrong |= (position.min(0) < lower + room) | (position.max(0) > upper - room)
        if not wrong.any():
            wrong = contacts.joints(position[::stride])
        if not wrong.any():
            return command
        amplitude = np.where(wrong, _SHRINK, 1.0) * amplitude
    names = ", ".join(name for name, bad in zip(stand.joints, wrong, strict=True) if bad)
    raise InputError(
        f"amplitude={config.amplitude:g}: {names} leave their limits or touch other parts; lower it"
    )


def _waves(config: ExcitationConfig, stand: Stand, rng: np.random.Generator) -> Floats:
    """(T, n) in [-1, 1]: sums of harmonics with equal power per octave; joints of one limb have
    different frequencies, so that their effects can be separated."""
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


class _Contacts:
    """Contacts of a robot's parts that do not touch at home."""

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

    def joints(self, position: Floats) -> NDArray[np.bool_]:
        """(n,): whether a joint moves a part that touches another at any of (S, n) [rad]."""
        involved = np.zeros(position.shape[1], dtype=bool)
        for joints in position:
            self._data.qpos[7:] = joints
            for pair in touching(self._model, self._data) - self._home:
                involved |= self._moves[list(pair)].any(0)
        return involved


def random_parameters(stand: Stand, rng: np.random.Generator) -> Floats:
    """Random parameters (n, 7): gains +-20 % of the model's, biases +-0.05 rad, delays of 0 to 3
    samples; armature, damping and friction 0.5 to 1.5 times the model's, or typical of its size."""
    n = len(stand.joints)

    def around(kind: int, low: float, high: float) -> Floats:
        """0.5 to 1.5 times the model's value; low to high where that is 0."""
        nominal = stand.nominal[:, kind]
        scaled = nominal * rng.uniform(0.5, 1.5, n)
        return np.where(nominal > 0.0, scaled, rng.uniform(low, high, n))

    kp = stand.nominal[:, KP]
    kd = stand.nominal[:, KD]
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
    """Write a CSV of time_s and the angles [rad] of each joint; a command holds until the next."""
    time = np.arange(len(command)) / stand.rate_hz
    table = np.column_stack((time, command))
    header = ",".join(("time_s", *stand.joints))
    with atomic_path(path) as temporary:
        np.savetxt(temporary, table, "%.6f", delimiter=",", header=header, comments="")


def simulate_log(
    stand: Stand,
    parameters: Floats,
    command: Floats,
    rng: np.random.Generator,
    *,
    torque: bool = False,
) -> StandLog:
    """The log of a robot with parameters (n, 7), at rest at first, with encoder noise."""
    bias = parameters[:, BIAS]
    # at rest before the log starts
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
