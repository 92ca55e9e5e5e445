"""A Go2 or a G1 by Unitree's own messages over DDS, as a `RobotInterface`; docs/unitree.md has the
order of steps. Never tried on hardware."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mocap_data.errors import InputError, importing
from npmp.deploy.contract import BundleContract
from npmp.deploy.robot import FloatArray, RobotInterface, RobotStopped, State
from npmp.deploy.safety import Limits, SafetyConfig, Watchdog, safe_drive
from npmp.deploy.unitree_messages import MessageLayout, dds_type, holding
from npmp.deploy.unitree_recording import SUFFIX, RecordedLine, Recorder

_LEG = ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll")
_ARM = (
    *("shoulder_pitch", "shoulder_roll", "shoulder_yaw", "elbow"),
    *("wrist_roll", "wrist_pitch", "wrist_yaw"),
)
# the package of a robot's messages and its joints in the order of their motors
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
# where Unitree's simulators are, which fill in no checksums and answer no service; robots are in
# domain 0
LOOPBACK = "lo"
SIMULATED_DOMAIN = 1
# a G1's `mode_machine` where all 29 joints move [R: unitree_ros, g1_description]; others have 23,
# or a waist that is locked
WHOLE_G1 = (2, 5, 11, 13, 15)
# of the remote's bytes 2 and 3: either of these two damps the robot
SELECT = 0x08
B = 0x02
# of the remote: floats from -1 to 1 at these bytes; pushed ahead, to the right, turned right
STICKS = {"ahead": 20, "right": 4, "turned": 8}
STICKS_OF = 3  # commands that they steer: forward, lateral, yaw rate
# a look without commands [D]
LOOK_S = 2.0
LOOK_EVERY_S = 0.005
LONGEST_WRITE_S = 0.02  # between two writes, for setpoints half-way to the next [D]
DRIFT = 1e-4  # of the robot's clock against this one, at most [D]
MANY = 64  # messages that wait to be taken [D]
MOST_BLOCKED_NS = 1_000_000  # by a write, where nothing gets through [D]
SWITCHER = "motion_switcher"
CHECK_MODE = 1001
RELEASE_MODE = 1003
# so long a service may take; so often it is asked, and so long waited; until both sides match [D]
ANSWER_S = 2.0
RELEASES = 5
RELEASE_S = 1.0
MATCHED_S = 0.2
JUMP_S = 0.1  # the robot's clock may be ahead of this one's since the last state [D]
STICK_AT_REST = 0.05  # less is no command [D]
# a motor's mode where it is driven
ENABLED = 1
# of the error codes of a G1's motors: it hears no commands, as before it is driven [R: Unitree's
# table of error codes]
NOT_HEARD = 0xC0000000
TAKE_OVER_S = 1.0  # until every motor must be driven [D]
MOST_LOST = 20  # messages that a motor may lose within LOST_S [D]
LOST_S = 1.0
STALE_S = 0.05  # after which a command is not sent any more [D: half of `SILENCE_S`]
LISTEN_S = 5.0  # until the robot must listen to commands [D]


class UnitreeLine(Protocol):
    """What carries messages; each is all of its numbers, in the order of `FIELDS`."""

    # no real network: without checksums
    local: bool

    def take(self) -> list[tuple[Any, ...] | None]:
        """The LowStates that have come since the last call, the oldest first."""

    def put(self, values: list[Any]) -> None:
        """Send a LowCmd."""

    def others(self) -> int:
        """LowCmds of other programs that have come since the last call."""

    def robots(self) -> int:
        """Programs that publish LowStates now."""


class DdsLine:
    """A `UnitreeLine` through CycloneDDS.

    Raises:
      InputError: without the extra `unitree`, or where DDS cannot use the network interface.
    """

    def __init__(self, package: str, interface: str):
        with importing("Unitree's messages need CycloneDDS: pip install 'npmp[unitree]'"):
            from cyclonedds import core, domain
        available = [name for _, name in socket.if_nameindex()]
        if interface not in available:
            raise InputError(
                f"interface={interface}: must be a network interface of this computer: "
                f"{', '.join(available)}"
            )
        self.local = interface == LOOPBACK
        where = f'<NetworkInterface name="{interface}" multicast="default"/>'
        general = f"<General><Interfaces>{where}</Interfaces></General>"
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
        self.foreign = self._reader("lowcmd", self.command_type)

    def _reader(self, name: str, kind: type[Any]) -> Any:
        from cyclonedds import core, sub, topic

        deep = core.Qos(core.Policy.History.KeepLast(MANY), core.Policy.IgnoreLocal.Participant)
        called = topic.Topic(self.participant, f"rt/{name}", kind)
        return sub.DataReader(self.participant, called, deep)

    def _writer(self, name: str, kind: type[Any]) -> Any:
        from cyclonedds import core, pub, topic

        reliable = core.Qos(core.Policy.Reliability.Reliable(MOST_BLOCKED_NS))
        called = topic.Topic(self.participant, f"rt/{name}", kind)
        return pub.DataWriter(self.participant, called, reliable)

    def take(self) -> list[tuple[Any, ...] | None]:
        return [one.values for one in self.states.take(MANY) if hasattr(one, "values")]

    def put(self, values: list[Any]) -> None:
        self.commands.write(holding(self.command_type, values))

    def others(self) -> int:
        return sum(hasattr(one, "values") for one in self.foreign.take(MANY))

    def robots(self) -> int:
        return len(self.states.get_matched_publications())

    def ask(self, call: int) -> str | None:
        """What the robot's motion switcher answers to a call; None for nothing."""
        requests = self._writer(f"api/{SWITCHER}/request", dds_type("unitree_api.Request"))
        answers = self._reader(f"api/{SWITCHER}/response", dds_type("unitree_api.Response"))
        number = time.monotonic_ns()
        until = time.monotonic() + ANSWER_S
        sent = False
        filled = {"Identity": (number, call), "Lease": (0,), "Policy": (0, False)}
        parts = [dds_type(f"unitree_api.Request{part}")(*of) for part, of in filled.items()]
        header = dds_type("unitree_api.RequestHeader")(*parts)
        while time.monotonic() < until:
            heard = requests.get_matched_subscriptions() and answers.get_matched_publications()
            if heard and not sent:
                time.sleep(MATCHED_S)
                requests.write(dds_type("unitree_api.Request")(header, "{}", []))
                sent = True
            for answer in answers.take(MANY):
                head = getattr(answer, "header", None)
                if head is not None and (head.identity.id, head.identity.api_id) == (number, call):
                    if head.status.code != 0:
                        raise InputError(f"{SWITCHER} answers {call} by {head.status.code}")
                    return str(answer.data)
            time.sleep(0.01)
        return None

    def onboard(self, *, release: bool) -> str:
        """Which of the robot's own controllers drives it, "" for none; release: end it.

        Raises:
          InputError: where the robot does not answer, or does not let go.
        """
        for attempt in range(RELEASES + 1):
            answer = self.ask(CHECK_MODE)
            if answer is None and self.local:
                return ""
            try:
                mode = json.loads(answer or "")["name"]
            except (ValueError, TypeError, KeyError):
                mode = None
            if not isinstance(mode, str):
                raise InputError(
                    f"{SWITCHER} does not say what drives the robot: is it on, is this its network?"
                )
            if not mode or not release:
                return mode
            if attempt < RELEASES:
                self.ask(RELEASE_MODE)
                time.sleep(RELEASE_S)
        raise InputError(
            f"the robot's own controller {mode!r} does not let go; it still may, so keep away, and "
            "end it by the app"
        )


class UnitreeRobot:
    """A `RobotInterface`. Motors take what is written at once, so a setpoint is sent half-way to
    the next write. `refused` counts states that were not believed, by reason.

    Raises:
      InputError: for a bundle of another robot.
    """

    def __init__(
        self, contract: BundleContract, line: UnitreeLine, safety: SafetyConfig | None = None
    ):
        """safety: by which what is sent half-way is limited."""
        if contract.robot not in MOTORS or contract.accelerometer != "imu":
            raise InputError(
                f"the bundle is of '{contract.robot}', its accelerometer at the "
                f"{contract.accelerometer}; {' and '.join(MOTORS)} measure at the imu"
            )
        package, motors = MOTORS[contract.robot]
        if sorted(contract.joint_names) != sorted(motors):
            raise InputError(f"a {contract.robot} has the joints {', '.join(motors)}")
        self.line = line
        self.order = [motors.index(name) for name in contract.joint_names]
        self.state = MessageLayout(f"{package}.LowState")
        self.command = MessageLayout(f"{package}.LowCmd")
        self.period = 1.0 / contract.control_rate_hz
        self.kd = contract.per_joint("kd")
        self.names = contract.joint_names
        self.limits = Limits(contract, safety or SafetyConfig())
        self.newest: State | None = None
        self.alone = False  # whether this program alone commands it
        self.driven_since = np.inf  # [s]
        self.enabled = False  # whether motors say so
        # when and (nu,) how many messages its motors had lost
        self.lost: tuple[float, FloatArray] | None = None
        self.onboard = ""  # of the robot's own controllers, which drives it
        self.refused: Counter[str] = Counter()
        self.tick: int | None = None
        self.offset = np.inf  # of this clock against the robot's, the least delay included [s]
        self.arrived = self.measured = -np.inf
        self.past = list[tuple[float, FloatArray]]()
        self.remote = bytes(40)
        self.pressed = False
        self.stopped = False
        self.motors = len(range(*self.command.at["motor_cmd.q"].indices(self.command.width)))
        self.values = self._nothing()
        self.plan: tuple[float, FloatArray, FloatArray, float] | None = None

    def _nothing(self) -> list[Any]:
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
        for values in self.line.take():
            if values is not None and self._believed(values, now):
                newest = values
            elif values is None:
                self.refused["another length"] += 1
        if self.pressed:
            raise RobotStopped("the remote's B or select was pressed")
        others = self.line.others()
        if others and self.alone:
            raise RobotStopped(f"another program commands the robot (rt/lowcmd), {others} times")
        if (robots := self.line.robots()) > 1:
            raise RobotStopped(
                f"{robots} programs publish rt/lowstate: is another robot on this network?"
            )
        if newest is None:
            return None
        at = self.state.at
        self._check_motors(newest, now)
        w, x, y, z = np.array(newest[at["imu_state.quaternion"]])
        up = np.array([2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z])
        inertial = np.mean([reading for _, reading in self.past], axis=0)
        pos, vel, torque = (self._of_motors(newest, name) for name in ("q", "dq", "tau_est"))
        sensors = range(1 + ("mode_machine" in at))  # a G1's motor has two
        warm = np.max([self._of_motors(newest, "temperature", k) for k in sensors], axis=0)
        state = State(self.measured, pos, vel, torque, inertial[:3], inertial[3:], up, warm)
        self.newest = state
        return state

    def _of_motors(self, values: tuple[Any, ...], name: str, further: int = 0) -> FloatArray:
        place = self.state.at[f"motor_state.{name}"]
        every = values[place.start + further : place.stop : place.step]
        return np.array(every, np.float64)[self.order]

    def _check_motors(self, values: tuple[Any, ...], now: float) -> None:
        """Raises RobotStopped for motors that report an error, are off, or are out of reach."""
        at = self.state.at
        driven = now - self.driven_since > TAKE_OVER_S
        if "motor_state.motorstate" in at:
            codes = self._of_motors(values, "motorstate").astype(np.int64)
            faults = codes if driven else codes & ~NOT_HEARD
            if faults.any():
                worst = int((faults != 0).argmax())
                raise RobotStopped(
                    f"the motor of {self.names[worst]} reports error 0x{faults[worst]:x}"
                )

        modes = self._of_motors(values, "mode")
        self.enabled |= driven and bool((modes == ENABLED).any())
        if self.enabled and (off := modes != ENABLED).any():
            worst = int(off.argmax())
            raise RobotStopped(
                f"the motor of {self.names[worst]} is in mode {modes[worst]:.0f}, not {ENABLED}"
            )

        if "motor_state.lost" in at:
            lost = self._of_motors(values, "lost")
            if self.lost is None or now - self.lost[0] > LOST_S or (lost < self.lost[1]).any():
                self.lost = now, lost
            more = lost - self.lost[1]
            if more.max() > MOST_LOST:
                raise RobotStopped(
                    f"the motor of {self.names[int(more.argmax())]} has lost {more.max():.0f} "
                    f"messages within {LOST_S:g} s"
                )

    def _believed(self, values: tuple[Any, ...], now: float) -> bool:
        """Note when a state was measured and what its IMU says; False where it cannot be."""
        at = self.state.at
        checksum = values[at["crc"]][0]
        if checksum != self.state.crc(values) and not (self.line.local and checksum == 0):
            self.refused["checksum"] += 1
            return False
        self.remote = bytes(values[at["wireless_remote"]])
        self.pressed |= bool(self.remote[2] & SELECT or self.remote[3] & B)
        quaternion = np.array(values[at["imu_state.quaternion"]])
        if not abs(quaternion @ quaternion - 1.0) < 0.05:
            self.refused["quaternion"] += 1
            return False
        kinds = values[at["mode_machine"]] if "mode_machine" in at and not self.line.local else ()
        for kind in set(kinds) - set(WHOLE_G1):
            self.refused[f"a G1 of kind {kind}, whose 29 joints do not all move"] += 1
            return False
        clock = now
        if not self.line.local:  # simulators have no clock, or one of their own speed
            tick = values[at["tick"]][0]
            clock = 1e-3 * tick
            passed = 0.0 if self.tick is None else 1e-3 * (tick - self.tick)
            if tick == 0 or (self.tick is not None and not 0 < tick - self.tick < 2**31):
                self.refused["out of order"] += 1
                return False
            if self.tick is not None and passed > now - self.arrived + JUMP_S:
                raise RobotStopped(f"its clock jumped by {passed:.2f} s")
            self.tick, self.offset = tick, min(self.offset + DRIFT * passed, now - clock)
        if "mode_machine" in at:  # it must send its own kind
            self.values[self.command.at["mode_machine"]] = values[at["mode_machine"]]
        self.arrived = now
        self.measured = now if self.line.local else clock + self.offset
        inertial = [values[at[f"imu_state.{name}"]] for name in ("gyroscope", "accelerometer")]
        self.past.append((clock, np.concatenate(inertial)))
        self.past = [entry for entry in self.past if entry[0] > clock - self.period]
        return True

    def sticks(self) -> FloatArray:
        """(3,) ahead, to the left, turned to the left: the remote's, from -1 to 1."""
        ahead, right, turned = (
            struct.unpack_from("<f", self.remote, first)[0] for first in STICKS.values()
        )
        sent = np.array([ahead, -right, -turned])
        moved = np.isfinite(sent) & (np.abs(sent) >= STICK_AT_REST)
        return np.clip(np.where(moved, sent, 0.0), -1.0, 1.0)

    # --- to the robot

    def write(self, target: FloatArray, kp: FloatArray, kd: FloatArray, duration_s: float) -> None:
        if self.stopped:
            return
        now = time.monotonic()
        if self.plan is None:
            self.alone = True
            self.driven_since = now
        begun = target if self.plan is None else self._setpoint(now)
        ahead = 0.0 if self.plan is None else min(now - self.plan[0], LONGEST_WRITE_S) / 2.0
        self.plan = now, begun, target, duration_s
        setpoint = self._setpoint(now + ahead)
        if self.newest is not None:  # half-way there may be more torque than at either end
            setpoint, kd = safe_drive(setpoint, kp, kd, self.newest, self.limits)
        self._send(setpoint, kp, kd, until=now + STALE_S)

    def _setpoint(self, now: float) -> FloatArray:
        assert self.plan is not None
        began, begun, target, duration_s = self.plan
        share = min(1.0, (now - began) / duration_s) if duration_s > 0.0 else 1.0
        return begun + share * (target - begun)

    def stop(self) -> None:
        self.stopped = True
        if "mode_machine" in self.command.at and self.tick is None and not self.line.local:
            return  # a G1 of unknown kind was never driven
        self._send(np.zeros(len(self.order)), np.zeros(len(self.order)), self.kd)

    def _send(
        self, target: FloatArray, kp: FloatArray, kd: FloatArray, until: float = np.inf
    ) -> None:
        """until: later it is not sent, as another process may have damped the robot [s]."""
        values = self.values
        at = self.command.at
        for name, numbers in (("q", target), ("kp", kp), ("kd", kd)):
            every = np.zeros(self.motors)
            every[self.order] = numbers
            values[at[f"motor_cmd.{name}"]] = every.tolist()
        values[at["crc"]] = [self.command.crc(values)]
        if time.monotonic() <= until:
            self.line.put(values)


def unitree_robot(
    contract: BundleContract, safety: SafetyConfig, *, interface: str, dry: bool
) -> UnitreeRobot:
    """A robot on a network interface, or if dry also a file of its states (`RecordedLine`). Unless
    dry, its own controller is ended once its state is as it should be, so it must lie or hang.

    Raises:
      InputError: as `DdsLine`, `DdsLine.onboard`, `RecordedLine` and `UnitreeRobot`; where another
        program commands the robot, or the watchdog refuses its state.
    """
    package = MOTORS[contract.robot][0]
    if interface.endswith(SUFFIX):
        return UnitreeRobot(contract, RecordedLine(Path(interface), package))
    line = DdsLine(package, interface)
    robot = UnitreeRobot(contract, Recorder(line, package) if dry else line, safety)
    if not dry and (wrong := look(robot, Watchdog(contract, safety))[1]):
        raise InputError(f"left as it is: {wrong}")
    robot.onboard = line.onboard(release=not dry)
    line.others()  # of before
    time.sleep(MATCHED_S)
    if not dry and line.others():
        raise InputError("left as it is: another program commands the robot (rt/lowcmd)")
    robot.alone = not dry
    return robot


def unitree_damper(contract: BundleContract, interface: str) -> Callable[[], None]:
    """What damps the robot from another process, once the robot listens.

    Raises:
      InputError: as `DdsLine` and `UnitreeRobot`, or where no robot listens.
    """
    line = DdsLine(MOTORS[contract.robot][0], interface)
    robot = UnitreeRobot(contract, line)
    until = time.monotonic() + LISTEN_S
    while not (line.robots() and line.commands.get_matched_subscriptions()):
        if time.monotonic() > until:
            raise InputError(
                f"interface={interface}: no robot listens to rt/lowcmd within {LISTEN_S:g} s"
            )
        time.sleep(LOOK_EVERY_S)
    time.sleep(MATCHED_S)

    def stop() -> None:
        # a G1 must send its own kind; whatever fails here, it is damped
        with suppress(Exception):
            robot.read()
        robot.stop()

    return stop


def steered(robot: Any, within: FloatArray, _: float = 0.0) -> FloatArray:
    """(3,) what the sticks of a `UnitreeRobot` ask for. within: (2, 3) the least and the most."""
    sticks = robot.sticks()
    return np.where(sticks < 0.0, -sticks * within[0], sticks * within[1])


def look(robot: RobotInterface, watchdog: Watchdog) -> tuple[list[str], str]:
    """Read for LOOK_S and send nothing. Returns: what the robot says, a line each, and why it would
    be damped, "" for no reason."""
    state = None
    came = 0
    wrong = ""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < LOOK_S and not wrong:
        time.sleep(LOOK_EVERY_S)
        try:
            newer = robot.read()
        except RobotStopped as error:
            return [], str(error)
        if newer is not None:
            state = newer
            came = came + 1
        wrong = watchdog.trip(time.monotonic(), state, 0) if state else ""
    refused = getattr(robot, "refused", {})
    wrong = wrong or ", ".join(f"{n} states were refused: {why}" for why, n in refused.items())
    if state is None:
        return [], wrong or f"no state within {LOOK_S:g} s"
    lines = [
        f"{came / passed:.0f} looks per second found a new state",
        f"up {np.round(state.up, 2)}, accelerometer {np.round(state.accelerometer, 2)} m/s2",
    ]
    if mode := getattr(robot, "onboard", ""):
        lines.append(f"its own controller {mode!r} drives it; without dry=true that is ended")
    limits = watchdog.limits
    for name, angle, *ends in zip(watchdog.names, state.joint_pos, limits.lower, limits.upper):
        lines.append(f"{name} {angle:.3f} rad, within {ends[0]:.2f} to {ends[1]:.2f}")
    return lines, wrong
