"""A `RobotInterface` to Unitree's Go2 and G1 by Unitree's messages over DDS (docs/unitree.md).
Tested in Unitree's simulator, never on hardware."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from mocap_data.errors import InputError, importing
from npmp.deploy.contract import BundleContract
from npmp.deploy.robot import FloatArray, RobotInterface, RobotStopped, State
from npmp.deploy.safety import Limits, SafetyConfig, Watchdog, safe_drive
from npmp.deploy.unitree_messages import MessageLayout, dds_type, with_values

_LEG = ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll")
_ARM = (
    *("shoulder_pitch", "shoulder_roll", "shoulder_yaw", "elbow"),
    *("wrist_roll", "wrist_pitch", "wrist_yaw"),
)
# package of a robot's messages, and its joints in the order of the motors
MOTORS = {
    "unitree_go2": (
        "unitree_go",
        [
            f"{leg}_{part}_joint"
            for leg in ("FR", "FL", "RR", "RL")
            for part in ("hip", "thigh", "calf")
        ],
    ),
    "unitree_g1": (
        "unitree_hg",
        [f"{side}_{part}_joint" for side in ("left", "right") for part in _LEG]
        + [f"waist_{axis}_joint" for axis in ("yaw", "roll", "pitch")]
        + [f"{side}_{part}_joint" for side in ("left", "right") for part in _ARM],
    ),
}
# interface of Unitree's simulators, which send no checksums and offer no services; robots are in
# DDS domain 0
LOOPBACK = "lo"
SIMULATED_DOMAIN = 1
# values of `mode_machine` of a G1 with 29 moving joints [R: unitree_ros, g1_description]; others
# have 23, or a locked waist
FULL_G1 = (2, 5, 11, 13, 15)
# bits in bytes 2 and 3 of the remote; either button damps the robot
SELECT = 0x08
B = 0x02
# offsets of the remote's sticks in bytes, floats from -1 to 1: forward, right, clockwise
STICKS = {"forward": 20, "right": 4, "clockwise": 8}
# commands set by the sticks: forward, lateral, yaw rate
STICK_COMMANDS = 3
# below this a stick is at rest [D]
STICK_DEADBAND = 0.05
# duration of `observe`, and its polling period [s] [D]
OBSERVE_S = 2.0
POLL_S = 0.005
# longest extrapolation of a setpoint between two writes [s] [D]
MAX_WRITE_S = 0.02
# largest drift of the robot's clock against this one [D]
DRIFT = 1e-4
# largest jump of the robot's clock between two states [s] [D]
JUMP_S = 0.1
# DDS queue length [messages], and longest blocking of a write [ns] [D]
QUEUE = 64
MAX_BLOCKING_NS = 1_000_000
SWITCHER = "motion_switcher"
CHECK_MODE = 1001
RELEASE_MODE = 1003
# time-out of a service call; attempts to release the onboard controller and the pause after each;
# DDS discovery [s] [D]
RESPONSE_S = 2.0
RELEASES = 5
RELEASE_S = 1.0
DISCOVERY_S = 0.2
# mode of a driven motor
ENABLED = 1
# error bits of a G1's motor that receives no commands, as before it is driven [R: Unitree's table
# of error codes]
NO_COMMANDS = 0xC0000000
# time until every motor must be driven [s] [D]
TAKE_OVER_S = 1.0
# messages that a motor may lose within LOST_S [s] [D]
MAX_LOST = 20
LOST_S = 1.0
# age after which a command is not sent [s] [D: half of `SILENCE_S`]
STALE_S = 0.05
# time until the robot must subscribe to commands [s] [D]
LISTEN_S = 5.0


class UnitreeConnection(Protocol):
    """Carries messages, each a flat list of its numbers in the order of `FIELDS`."""

    # a simulator on this machine: messages have no checksums
    local: bool

    def receive(self) -> list[tuple[Any, ...] | None]:
        """The LowStates since the last call, oldest first; None for a malformed one."""

    def send(self, values: list[Any]) -> None:
        """Send a LowCmd."""

    def foreign_commands(self) -> int:
        """The number of other programs' LowCmds since the last call."""

    def publishers(self) -> int:
        """The number of programs that publish LowStates."""


class DdsConnection:
    """A `UnitreeConnection` through CycloneDDS.

    Raises:
      InputError: without the extra `unitree`, or if DDS cannot use the network interface.
    """

    def __init__(self, package: str, interface: str):
        with importing("Unitree's messages need CycloneDDS: pip install 'npmp[unitree]'"):
            from cyclonedds import core, domain
        available = [name for _, name in socket.if_nameindex()]
        if interface not in available:
            raise InputError(
                f"interface={interface}: expected a network interface of this computer: "
                f"{', '.join(available)}"
            )
        self.local = interface == LOOPBACK
        element = f'<NetworkInterface name="{interface}" multicast="default"/>'
        general = f"<General><Interfaces>{element}</Interfaces></General>"
        settings = f'<CycloneDDS><Domain id="any">{general}</Domain></CycloneDDS>'
        try:
            number = SIMULATED_DOMAIN if self.local else 0
            self.domain = domain.Domain(number, settings)
            self.participant = domain.DomainParticipant(number)
        except core.DDSException as error:
            raise InputError(
                f"interface={interface}: DDS cannot use it ({error}); is it up (ip link)?"
            ) from error
        self.command_type = dds_type(f"{package}.LowCmd")
        self.states = self._reader("lowstate", dds_type(f"{package}.LowState"))
        self.commands = self._writer("lowcmd", self.command_type)
        self.foreign = self._reader("lowcmd", self.command_type)  # other programs' commands

    def _reader(self, name: str, kind: type[Any]) -> Any:
        from cyclonedds import core, sub, topic

        qos = core.Qos(core.Policy.History.KeepLast(QUEUE), core.Policy.IgnoreLocal.Participant)
        named = topic.Topic(self.participant, f"rt/{name}", kind)
        return sub.DataReader(self.participant, named, qos)

    def _writer(self, name: str, kind: type[Any]) -> Any:
        from cyclonedds import core, pub, topic

        qos = core.Qos(core.Policy.Reliability.Reliable(MAX_BLOCKING_NS))
        named = topic.Topic(self.participant, f"rt/{name}", kind)
        return pub.DataWriter(self.participant, named, qos)

    def receive(self) -> list[tuple[Any, ...] | None]:
        return [message.values for message in self.states.take(QUEUE) if hasattr(message, "values")]

    def send(self, values: list[Any]) -> None:
        self.commands.write(with_values(self.command_type, values))

    def foreign_commands(self) -> int:
        return sum(hasattr(message, "values") for message in self.foreign.take(QUEUE))

    def publishers(self) -> int:
        return len(self.states.get_matched_publications())

    def call(self, api_id: int) -> str | None:
        """Call the robot's motion switcher; returns the response's data, None without response.

        Raises:
          InputError: for a response with an error code.
        """
        requests = self._writer(f"api/{SWITCHER}/request", dds_type("unitree_api.Request"))
        responses = self._reader(f"api/{SWITCHER}/response", dds_type("unitree_api.Response"))
        number = time.monotonic_ns()
        until = time.monotonic() + RESPONSE_S
        sent = False
        fields = {"Identity": (number, api_id), "Lease": (0,), "Policy": (0, False)}
        parts = [dds_type(f"unitree_api.Request{part}")(*args) for part, args in fields.items()]
        header = dds_type("unitree_api.RequestHeader")(*parts)
        while time.monotonic() < until:
            matched = requests.get_matched_subscriptions() and responses.get_matched_publications()
            if matched and not sent:
                time.sleep(DISCOVERY_S)
                requests.write(dds_type("unitree_api.Request")(header, "{}", []))
                sent = True
            for response in responses.take(QUEUE):
                head = getattr(response, "header", None)
                if head is None or (head.identity.id, head.identity.api_id) != (number, api_id):
                    continue
                if head.status.code != 0:
                    raise InputError(f"{SWITCHER}: call {api_id} failed with {head.status.code}")
                return str(response.data)
            time.sleep(0.01)
        return None

    def onboard(self, *, release: bool) -> str:
        """The name of the onboard controller that drives the robot, "" for none; release: end it.

        Raises:
          InputError: if the robot does not respond, or its controller is not released.
        """
        for attempt in range(RELEASES + 1):
            response = self.call(CHECK_MODE)
            if response is None and self.local:
                return ""
            try:
                mode = json.loads(response or "")["name"]
            except (ValueError, TypeError, KeyError):
                mode = None
            if not isinstance(mode, str):
                raise InputError(
                    f"{SWITCHER}: no valid response from the robot; is it on and on this network?"
                )
            if not mode or not release:
                return mode
            if attempt < RELEASES:
                self.call(RELEASE_MODE)
                time.sleep(RELEASE_S)
        raise InputError(
            f"the onboard controller {mode!r} was not released and may still move the robot: keep "
            "away, and end it by the app"
        )


class UnitreeRobot:
    """A `RobotInterface`. The motors do not interpolate, so a write sends the setpoint of the
    middle of the interval until the next one. `rejected` counts invalid states by reason.

    Raises:
      InputError: for a bundle of another robot.
    """

    def __init__(
        self,
        contract: BundleContract,
        connection: UnitreeConnection,
        safety: SafetyConfig | None = None,
    ):
        """safety: limits of the interpolated setpoints."""
        if contract.robot not in MOTORS or contract.accelerometer != "imu":
            raise InputError(
                f"the bundle is for '{contract.robot}' with its accelerometer at the "
                f"{contract.accelerometer}: expected {' or '.join(MOTORS)}, at the imu"
            )
        package, motors = MOTORS[contract.robot]
        if sorted(contract.joint_names) != sorted(motors):
            raise InputError(
                f"the bundle's joints: expected those of a {contract.robot}, {', '.join(motors)}"
            )
        self.connection = connection
        self.order = [motors.index(name) for name in contract.joint_names]
        self.state = MessageLayout(f"{package}.LowState")
        self.command = MessageLayout(f"{package}.LowCmd")
        self.period = 1.0 / contract.control_rate_hz
        self.kd = contract.per_joint("kd")
        self.names = contract.joint_names
        self.limits = Limits(contract, safety or SafetyConfig())
        self.last_state: State | None = None
        # whether any other program's command is an error
        self.exclusive = False
        self.driven_since = np.inf  # [s]
        # whether the motors have reported ENABLED
        self.enabled = False
        # [s], and messages that the motors had lost by then (nu,)
        self.lost: tuple[float, FloatArray] | None = None
        # onboard controller that drives the robot
        self.onboard = ""
        self.rejected: Counter[str] = Counter()
        self.tick: int | None = None
        # this clock minus the robot's, including the least delay [s]
        self.offset = np.inf
        # times of arrival and of measurement of the newest state [s]
        self.arrived = -np.inf
        self.measured = -np.inf
        # robot time [s] and IMU readings (6,) over the last control period
        self.imu_window = list[tuple[float, FloatArray]]()
        self.remote = bytes(40)
        self.stop_pressed = False
        self.stopped = False
        self.motors = len(range(*self.command.at["motor_cmd.q"].indices(self.command.width)))
        self.values = self._empty_command()
        # time of the last write [s], setpoint then, target, and duration until it [s]
        self.plan: tuple[float, FloatArray, FloatArray, float] | None = None

    def _empty_command(self) -> list[Any]:
        values: list[Any] = [0] * self.command.width
        if "head" in self.command.at:
            values[self.command.at["head"]] = [0xFE, 0xEF]
            values[self.command.at["level_flag"]] = [0xFF]
        modes = np.zeros(self.motors, int)
        modes[self.order] = 1
        values[self.command.at["motor_cmd.mode"]] = modes.tolist()
        return values

    # --- from the robot

    def read(self) -> State | None:
        newest = None
        now = time.monotonic()
        for values in self.connection.receive():
            if values is None:
                self.rejected["wrong length"] += 1
            elif self._accept(values, now):
                newest = values
        if self.stop_pressed:
            raise RobotStopped("B or select was pressed on the remote")
        foreign = self.connection.foreign_commands()
        if foreign and self.exclusive:
            raise RobotStopped(f"another program commands the robot (rt/lowcmd), {foreign} times")
        if (publishers := self.connection.publishers()) > 1:
            raise RobotStopped(
                f"{publishers} programs publish rt/lowstate; is another robot on this network?"
            )
        if newest is None:
            return None
        at = self.state.at
        self._check_motors(newest, now)
        w, x, y, z = np.array(newest[at["imu_state.quaternion"]])
        up = np.array([2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z])
        imu = np.mean([reading for _, reading in self.imu_window], axis=0)
        sensors = range(1 + ("mode_machine" in at))  # a G1's motor has two
        temperatures = [self._motor_values(newest, "temperature", k) for k in sensors]
        state = State(
            time_s=self.measured,
            joint_pos=self._motor_values(newest, "q"),
            joint_vel=self._motor_values(newest, "dq"),
            joint_torque=self._motor_values(newest, "tau_est"),
            gyro=imu[:3],
            accelerometer=imu[3:],
            up=up,
            temperature=np.max(temperatures, axis=0),
        )
        self.last_state = state
        return state

    def _motor_values(self, values: tuple[Any, ...], name: str, index: int = 0) -> FloatArray:
        """(nu,) a field of the motors' states; index: of an array field."""
        place = self.state.at[f"motor_state.{name}"]
        every = values[place.start + index : place.stop : place.step]
        return np.array(every, np.float64)[self.order]

    def _check_motors(self, values: tuple[Any, ...], now: float) -> None:
        """Raises RobotStopped for motors that report an error, are disabled, or lose messages."""
        at = self.state.at
        driven = now - self.driven_since > TAKE_OVER_S
        if "motor_state.motorstate" in at:
            codes = self._motor_values(values, "motorstate").astype(np.int64)
            faults = codes if driven else codes & ~NO_COMMANDS
            if faults.any():
                worst = int((faults != 0).argmax())
                raise RobotStopped(f"motor of {self.names[worst]}: error code 0x{faults[worst]:x}")

        modes = self._motor_values(values, "mode")
        self.enabled |= driven and bool((modes == ENABLED).any())
        if self.enabled and (off := modes != ENABLED).any():
            worst = int(off.argmax())
            raise RobotStopped(
                f"motor of {self.names[worst]}: mode {modes[worst]:.0f}, expected {ENABLED}"
            )

        if "motor_state.lost" in at:
            lost = self._motor_values(values, "lost")
            if self.lost is None or now - self.lost[0] > LOST_S or (lost < self.lost[1]).any():
                self.lost = now, lost
            more = lost - self.lost[1]
            if more.max() > MAX_LOST:
                raise RobotStopped(
                    f"motor of {self.names[int(more.argmax())]}: lost {more.max():.0f} messages "
                    f"within {LOST_S:g} s"
                )

    def _accept(self, values: tuple[Any, ...], now: float) -> bool:
        """Take over time, IMU readings and remote of a state; False for an invalid one."""
        at = self.state.at
        checksum = values[at["crc"]][0]
        if checksum != self.state.crc(values) and not (self.connection.local and checksum == 0):
            self.rejected["checksum"] += 1
            return False
        self.remote = bytes(values[at["wireless_remote"]])
        self.stop_pressed |= bool(self.remote[2] & SELECT or self.remote[3] & B)
        quaternion = np.array(values[at["imu_state.quaternion"]])
        if not abs(quaternion @ quaternion - 1.0) < 0.05:
            self.rejected["quaternion"] += 1
            return False
        kinds = (
            values[at["mode_machine"]] if "mode_machine" in at and not self.connection.local else ()
        )
        for kind in set(kinds) - set(FULL_G1):
            self.rejected[f"mode_machine {kind}: not a G1 with 29 moving joints"] += 1
            return False
        clock = now
        if not self.connection.local:  # a simulator's clock is absent, or not in real time
            tick = values[at["tick"]][0]
            clock = 1e-3 * tick
            passed = 0.0 if self.tick is None else 1e-3 * (tick - self.tick)
            if tick == 0 or (self.tick is not None and not 0 < tick - self.tick < 2**31):
                self.rejected["out of order"] += 1
                return False
            if self.tick is not None and passed > now - self.arrived + JUMP_S:
                raise RobotStopped(f"the robot's clock jumped by {passed:.2f} s")
            self.tick = tick
            self.offset = min(self.offset + DRIFT * passed, now - clock)
        if "mode_machine" in at:  # a G1 accepts only commands with its own value
            self.values[self.command.at["mode_machine"]] = values[at["mode_machine"]]
        self.arrived = now
        self.measured = now if self.connection.local else clock + self.offset
        imu = [values[at[f"imu_state.{name}"]] for name in ("gyroscope", "accelerometer")]
        self.imu_window.append((clock, np.concatenate(imu)))
        self.imu_window = [entry for entry in self.imu_window if entry[0] > clock - self.period]
        return True

    def sticks(self) -> FloatArray:
        """(3,) the remote's sticks, forward, left and counter-clockwise, from -1 to 1."""
        forward, right, clockwise = (
            struct.unpack_from("<f", self.remote, offset)[0] for offset in STICKS.values()
        )
        values = np.array([forward, -right, -clockwise])
        moved = np.isfinite(values) & (np.abs(values) >= STICK_DEADBAND)
        return np.clip(np.where(moved, values, 0.0), -1.0, 1.0)

    # --- to the robot

    def write(self, target: FloatArray, kp: FloatArray, kd: FloatArray, duration_s: float) -> None:
        if self.stopped:
            return
        now = time.monotonic()
        if self.plan is None:
            self.exclusive = True
            self.driven_since = now
        start = target if self.plan is None else self._setpoint(now)
        ahead = 0.0 if self.plan is None else min(now - self.plan[0], MAX_WRITE_S) / 2.0
        self.plan = now, start, target, duration_s
        setpoint = self._setpoint(now + ahead)
        if self.last_state is not None:  # in between the torque may exceed that at either end
            setpoint, kd = safe_drive(setpoint, kp, kd, self.last_state, self.limits)
        self._send(setpoint, kp, kd, until=now + STALE_S)

    def _setpoint(self, now: float) -> FloatArray:
        assert self.plan is not None
        start_s, start, target, duration_s = self.plan
        share = min(1.0, (now - start_s) / duration_s) if duration_s > 0.0 else 1.0
        return start + share * (target - start)

    def stop(self) -> None:
        self.stopped = True
        if "mode_machine" in self.command.at and self.tick is None and not self.connection.local:
            return  # a G1 whose mode_machine is unknown was never driven
        self._send(np.zeros(len(self.order)), np.zeros(len(self.order)), self.kd)

    def _send(
        self, target: FloatArray, kp: FloatArray, kd: FloatArray, until: float = np.inf
    ) -> None:
        """until: time after which it is not sent [s], as another process may have damped the
        robot."""
        values = self.values
        at = self.command.at
        for name, numbers in (("q", target), ("kp", kp), ("kd", kd)):
            every = np.zeros(self.motors)
            every[self.order] = numbers
            values[at[f"motor_cmd.{name}"]] = every.tolist()
        values[at["crc"]] = [self.command.crc(values)]
        if time.monotonic() <= until:
            self.connection.send(values)


def unitree_robot(
    contract: BundleContract, safety: SafetyConfig, *, interface: str, dry: bool
) -> UnitreeRobot:
    """A robot on a network interface. Unless dry, its onboard controller is ended once its state is
    valid, so it must lie or hang.

    Raises:
      InputError: as `DdsConnection`, `DdsConnection.onboard` and `UnitreeRobot`; if another program
        commands the robot, or the watchdog would damp it.
    """
    connection = DdsConnection(MOTORS[contract.robot][0], interface)
    robot = UnitreeRobot(contract, connection, safety)
    if not dry and (reason := observe(robot, Watchdog(contract, safety))[1]):
        raise InputError(f"the robot was not taken over: {reason}")
    robot.onboard = connection.onboard(release=not dry)
    connection.foreign_commands()  # discards those from before the release
    time.sleep(DISCOVERY_S)
    if not dry and connection.foreign_commands():
        raise InputError("the robot was not taken over: another program commands it (rt/lowcmd)")
    robot.exclusive = not dry
    return robot


def unitree_damper(contract: BundleContract, interface: str) -> Callable[[], None]:
    """A function that damps the robot from another process; returns once the robot listens.

    Raises:
      InputError: as `DdsConnection` and `UnitreeRobot`, or if no robot listens.
    """
    connection = DdsConnection(MOTORS[contract.robot][0], interface)
    robot = UnitreeRobot(contract, connection)
    until = time.monotonic() + LISTEN_S
    while not (connection.publishers() and connection.commands.get_matched_subscriptions()):
        if time.monotonic() > until:
            raise InputError(
                f"interface={interface}: no robot subscribed to rt/lowcmd within {LISTEN_S:g} s"
            )
        time.sleep(POLL_S)
    time.sleep(DISCOVERY_S)

    def stop() -> None:
        # reads a G1's mode_machine; if this fails, the robot is damped all the same
        with suppress(Exception):
            robot.read()
        robot.stop()

    return stop


def stick_command(robot: Any, limits: FloatArray, _: float = 0.0) -> FloatArray:
    """(3,) the command of a `UnitreeRobot`'s sticks. limits: (2, 3) lowest and highest."""
    sticks = robot.sticks()
    return np.where(sticks < 0.0, -sticks * limits[0], sticks * limits[1])


def observe(robot: RobotInterface, watchdog: Watchdog) -> tuple[list[str], str]:
    """Read for OBSERVE_S without sending. Returns the readings, one line each, and the reason the
    robot would be damped for, "" for none."""
    state = None
    count = 0
    reason = ""
    start = time.monotonic()
    while (passed := time.monotonic() - start) < OBSERVE_S and not reason:
        time.sleep(POLL_S)
        try:
            newer = robot.read()
        except RobotStopped as error:
            return [], str(error)
        if newer is not None:
            state = newer
            count += 1
        reason = watchdog.trip(time.monotonic(), state, 0) if state else ""
    rejected = getattr(robot, "rejected", {})
    reason = reason or ", ".join(f"{n} states rejected: {why}" for why, n in rejected.items())
    if state is None:
        return [], reason or f"no state within {OBSERVE_S:g} s"
    lines = [
        f"{count / passed:.0f} new states per second",
        f"up {np.round(state.up, 2)}, accelerometer {np.round(state.accelerometer, 2)} m/s2",
    ]
    if mode := getattr(robot, "onboard", ""):
        lines.append(f"onboard controller {mode!r} drives the robot; dry=false ends it")
    limits = watchdog.limits
    for name, angle, lower, upper in zip(
        watchdog.names, state.joint_pos, limits.lower, limits.upper
    ):
        lines.append(f"{name} {angle:.3f} rad, range {lower:.2f} to {upper:.2f}")
    return lines, reason
