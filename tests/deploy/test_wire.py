"""Datagrams: round trips, and everything that is refused."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable

import numpy as np
import pytest

from npmp.deploy.robot import RobotStopped
from npmp.deploy.wire import (
    CHECKSUM,
    HEADER,
    MAGIC,
    MAX_WAITING,
    SILENT_S,
    Inbox,
    Kind,
    Outbox,
    RemoteRobot,
    Udp,
    identity,
    open_socket,
    send,
)
from tests.deploy.standins import state_of

ROBOT, OTHER = identity("dog", "aa"), identity("dog", "bb")
STATE = state_of(
    5.0,
    joint_pos=np.array([0.1, -0.2]),
    joint_vel=np.array([1.0, 2.0]),
    joint_torque=np.array([3.0, 4.0]),
    gyro=np.arange(3.0),
    temperature=np.array([30.0, 40.0]),
)


class Direct:
    """A line that keeps what is sent, and gives what it is given."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.coming: list[bytes] = []

    def send(self, datagram: bytes) -> None:
        self.sent.append(datagram)

    def receive(self) -> list[bytes]:
        coming, self.coming = self.coming, []
        return coming


def inbox(*kinds: Kind) -> Inbox:
    return Inbox(ROBOT, 2, kinds or (Kind.COMMAND, Kind.STOP))


def command(
    outbox: Outbox | None = None, body: np.ndarray | None = None, time_s: float = 5.0
) -> bytes:
    return (outbox or Outbox(ROBOT, 2)).pack(
        Kind.COMMAND, np.arange(7.0) if body is None else body, time_s
    )


def test_the_size_is_that_of_the_documented_layout() -> None:
    assert HEADER.size == 4 + 2 + 2 + 2 + 2 + 8 + 8 + 8
    assert len(command()) == 36 + 8 * 7 + 4


def test_a_state_arrives_as_it_was_sent() -> None:
    line = Direct()
    robot = RemoteRobot(ROBOT, 2, line, lambda: 5.01)
    assert robot.read() is None
    outbox = Outbox(ROBOT, 2)
    for state in (STATE, STATE._replace(temperature=None)):
        line.coming = [outbox.state(STATE._replace(time_s=4.9)), outbox.state(state)]
        found = robot.read()
        assert found is not None
        for sent, came in zip(state, found):
            np.testing.assert_array_equal(sent, came)  # the newest
    line.coming = [outbox.state(STATE, stopped=True)]
    with pytest.raises(RobotStopped):
        robot.read()


def test_a_command_arrives_as_it_was_sent() -> None:
    line = Direct()
    robot = RemoteRobot(ROBOT, 2, line, lambda: 5.0)
    robot.write(np.array([0.1, 0.2]), np.array([1.0, 2.0]), np.array([3.0, 4.0]), 0.02)
    robot.stop()
    taken = inbox()
    first, second = (taken.take(datagram, 5.0) for datagram in line.sent)
    assert first is not None and second is not None
    assert first.kind is Kind.COMMAND and first.body.tolist() == [
        0.1,
        0.2,
        1.0,
        2.0,
        3.0,
        4.0,
        0.02,
    ]
    assert second.kind is Kind.STOP and not second.body.size
    assert not taken.refused


def resealed(datagram: bytes, offset: int, patch: bytes) -> bytes:
    """With other bytes at a place, and a checksum that fits."""
    content = datagram[:offset] + patch + datagram[offset + len(patch) : -CHECKSUM.size]
    return content + struct.pack("<I", zlib.crc32(content))


REFUSED: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("too short", lambda d: b""),
    ("too short", lambda d: d[:39]),
    ("another format", lambda d: resealed(d, 0, b"HTTP")),
    ("another format", lambda d: resealed(d, 4, b"\x02\x00")),
    ("damaged", lambda d: d[:50] + bytes([d[50] ^ 1]) + d[51:]),
    ("damaged", lambda d: d + b"\0"),
    ("another robot", lambda d: resealed(d, 8, b"\x03\x00")),
    ("another robot", lambda d: resealed(d, 12, OTHER)),
    ("another kind", lambda d: resealed(d, 6, b"\x01\x00")),
    ("another kind", lambda d: resealed(d, 6, b"\xff\xff")),
    ("another width", lambda d: resealed(d[:-12] + d[-4:], 0, b"N")),
    ("not finite", lambda d: resealed(d, 36, struct.pack("<d", float("nan")))),
    ("not finite", lambda d: resealed(d, 84, struct.pack("<d", float("inf")))),
    ("not finite", lambda d: resealed(d, 28, struct.pack("<d", float("nan")))),
    ("stale", lambda d: resealed(d, 28, struct.pack("<d", 4.7))),
    ("stale", lambda d: resealed(d, 28, struct.pack("<d", 5.2))),
    ("stale", lambda d: resealed(resealed(d, 20, 8 * b"\xff"), 28, struct.pack("<d", 4.7))),
]


@pytest.mark.parametrize(("reason", "spoil"), REFUSED)
def test_what_is_wrong_is_counted_and_ignored(reason: str, spoil: Callable[[bytes], bytes]) -> None:
    taken = inbox()
    assert taken.take(spoil(command()), 5.0) is None
    assert taken.refused == {reason: 1}
    assert taken.take(command(), 5.0) is not None  # and does no harm to the next


def test_repeated_and_overtaken_datagrams_are_ignored() -> None:
    taken, outbox = inbox(), Outbox(ROBOT, 2)
    first, second, third = (command(outbox) for _ in range(3))
    came = [taken.take(d, 5.0) is not None for d in (first, third, second, third)]
    assert came == [True, True, False, False] and taken.refused == {"out of order": 2}


@pytest.mark.parametrize("uptime_s", [1.0, 1e7])
def test_a_sender_that_was_started_again_is_heard_and_an_old_one_is_not(
    uptime_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was booted since: sequences begin at the wall clock, times count from the boot."""

    def started(wall_s: float) -> Outbox:
        monkeypatch.setattr("npmp.deploy.wire.time.time_ns", lambda: int(1e9 * wall_s))
        return Outbox(ROBOT, 2)

    taken, old, new, earlier = inbox(), *map(started, (1.6e9, 1.6e9 + 60.0, 100.0))

    def heard(outbox: Outbox, after_s: float) -> bool:
        now = uptime_s + after_s
        return taken.take(command(outbox, time_s=now), now) is not None

    assert heard(old, 0.0) and heard(new, 0.1)
    assert not heard(old, 0.2) and not heard(earlier, 0.3)
    # a clock that was set back: once the other is silent
    assert not heard(earlier, 0.09 + SILENT_S) and heard(earlier, 0.11 + SILENT_S)
    assert heard(earlier, 0.12 + SILENT_S) and heard(new, 0.2 + SILENT_S)


def test_udp_listens_to_one_robot() -> None:
    line, robot, stranger = Udp(ROBOT, 2), open_socket(), open_socket()
    try:
        line.send(b"no robot is there yet")
        state = Outbox(ROBOT, 2).pack(Kind.STATE, np.zeros(17), time.monotonic())
        others = Outbox(identity("another", "0"), 2).pack(
            Kind.STATE, np.zeros(17), time.monotonic()
        )
        for stray in (b"astray", MAGIC, state[:-1] + b"!", others, command()):
            send(stranger, stray, line.address)
        assert list(line.receive()) == []
        send(robot, state, line.address)
        assert list(line.receive()) == [state]
        send(stranger, b"other", line.address)
        send(robot, b"second", line.address)
        assert list(line.receive()) == [b"second"]
        for _ in range(MAX_WAITING + 1):  # a flood does not hold up the loop
            send(robot, b"more", line.address)
        assert len(list(line.receive())) == MAX_WAITING and len(list(line.receive())) == 1
        line.send(b"back")
        assert robot.recv(100) == b"back"
        robot.close()
        for _ in range(3):  # a robot that is gone is no error
            line.send(b"back")
            assert list(line.receive()) == []
    finally:
        for end in (line, robot, stranger):
            getattr(end, "socket", end).close()
