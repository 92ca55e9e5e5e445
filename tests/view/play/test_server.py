"""What the server says and what it puts up with, without a browser."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from npmp.view.play import Cast, Session
from npmp.view.play import server as serving
from npmp.view.play.realtime import Player
from npmp.view.play.scene import Scene
from npmp.view.play.server import MAX_VIEWERS, Server, allowed
from tests.refusals import refusal


class Served:
    """A server whose player runs when it is told to."""

    def __init__(self, cast: Cast):
        self.session = Session(cast)
        self.player = Player(self.session, lambda seen: self.server.show(seen))
        self.scene = Scene(cast.robot, lambda event, args: self.server.on_pointer(event, args))
        self.server = Server(self.player, self.scene, "127.0.0.1", 0)
        self.port = int(self.server.address.rpartition(":")[2])
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self.player.run, args=(self._over.is_set,), daemon=True
        )
        self.go = self._thread.start

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        line.request(
            "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = line.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()

    def viewer(self, path: str = "/steer", **more: Any) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{self.port}{path}", proxy=None, **more)

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(10)
        self.server.close()
        self.scene.close()


@pytest.fixture
def served(cast: Cast) -> Iterator[Served]:
    made = Served(cast)
    yield made
    made.close()


def told(
    viewer: ClientConnection, kind: str, until: Callable[[dict[str, Any]], bool] = lambda _: True
) -> dict[str, Any]:
    """The next thing of a kind that a viewer is told, of which something holds."""
    for _ in range(400):
        message: dict[str, Any] = json.loads(viewer.recv(timeout=20))
        if message["type"] == kind and until(message):
            return message
    raise AssertionError(f"never told such a {kind}")


def wish(viewer: ClientConnection, **message: Any) -> None:
    viewer.send(json.dumps(message))


def test_it_is_healthy_once_the_robot_moves(served: Served) -> None:
    status, _, body = served.get("/health")
    assert status == 503 and json.loads(body) == {"moves": False}
    served.go()
    for _ in range(200):
        status, headers, body = served.get("/health")
        if status == 200:
            break
        time.sleep(0.05)
    assert status == 200 and headers["Content-Type"].startswith("application/json")
    assert json.loads(body)["moves"] and json.loads(body)["mode"] == "steer"
    served.player.paused = True
    health: dict[str, Any] = {"moves": True}
    while health["moves"]:
        status, _, body = served.get("/health")
        health = json.loads(body)
    assert status == 200 and health["paused"] and health["real_time_factor"] == 0.0


def test_pages_come_from_here_and_fetch_nothing_from_elsewhere(served: Served) -> None:
    status, headers, body = served.get("/")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    for name in ("page.js", "page.css", "icon.svg"):
        status, _, content = served.get(f"/{name}")
        assert status == 200
        assert b"://" not in content.replace(b'xmlns="http://www.w3.org', b"")
    assert b"://" not in body
    assert served.get("/view/x", Accept_Encoding="gzip")[1]["Content-Encoding"] == "gzip"
    for path in ("/../server.py", "/assets/page.js", "/%2e%2e/server.py", "/nothing"):
        assert served.get(path)[0] == 404


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://elsewhere.example"}, {"Host": "elsewhere.example:80"}, {"Origin": "null"}],
)
def test_other_websites_are_turned_away(served: Served, headers: dict[str, str]) -> None:
    assert served.get("/health", **headers)[0] == 403
    if "Origin" in headers:
        with pytest.raises(InvalidStatus, match="403"):
            served.viewer(origin=headers["Origin"])
        with pytest.raises(InvalidStatus, match="403"):  # nor past it, at viser's own port
            connect(f"ws://127.0.0.1:{served.scene.port}", proxy=None, origin=headers["Origin"])  # type: ignore[arg-type]


@pytest.mark.parametrize("bound", ["0.0.0.0", "127.0.0.2", "::", "127.0.0.1", "robot.lab"])
def test_a_name_that_points_here_is_not_enough(bound: str) -> None:
    """As of another website, by DNS rebinding."""
    machine = socket.gethostname()
    for host in ("127.0.0.1", "10.1.2.3", "[::1]", "localhost", machine, f"{machine}.local"):
        assert allowed(bound, f"{host}:8080", f"http://{host}:8080")
    for host in ("elsewhere.example:8080", f"{machine}.elsewhere.example", "", "[::1", "1.2.3"):
        assert not allowed(bound, host, None)
    assert not allowed(bound, "127.0.0.1:8080", "http://127.0.0.1:9090")
    assert allowed(bound, "robot.lab", None) == (bound == "robot.lab")


def test_malformed_requests_are_no_news(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    for port in (served.port, served.scene.port):
        for message in (b"\x16\x03\x01 hello\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"", b"\0" * 9000):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
                line.sendall(message)
                line.shutdown(socket.SHUT_WR)
                with suppress(ConnectionError):
                    while line.recv(4096):
                        pass
    assert served.get("/")[0] == 200
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "lines",
    [
        ["GET / HTTP/1.1", "Host: localhost", "Host: localhost"],
        ["GET / HTTP/1.1", "Host: localhost", "Origin: http://localhost", "Origin: null"],
        ["GET /steer HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Upgrade: websocket"],
    ],
)
def test_an_ambiguous_request_is_refused(served: Served, lines: list[str]) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as line:
        line.sendall("\r\n".join([*lines, "", ""]).encode())
        assert line.recv(64).startswith(b"HTTP/1.1 400 ")


def test_nobody_opens_a_tunnel_to_elsewhere(served: Served) -> None:
    assert served.scene.server.request_share_url() is None  # what viser calls when a viewer asks


def test_its_own_page_is_not(served: Served) -> None:
    for name in ("localhost", "127.0.0.1"):
        host = f"{name}:{served.port}"
        assert served.get("/", Host=host, Origin=f"http://{host}")[0] == 200
    with served.viewer(origin=f"http://127.0.0.1:{served.port}") as viewer:  # type: ignore[arg-type]
        assert told(viewer, "hello")["robot"] == "anymal_b"


def test_the_first_steers_the_next_takes_over_or_is_left_with_it(served: Served) -> None:
    served.go()
    with served.viewer() as first, served.viewer() as second:
        one, two = told(first, "hello")["you"], told(second, "hello")["you"]
        assert told(second, "state")["steering"] == one
        wish(second, do="steer", axes=[1, 0, 0])
        assert "another viewer steers" in told(second, "refused")["why"]
        wish(first, do="steer", axes=[1, 0, 0])
        told(second, "state", lambda message: any(row[4] == 1.5 for row in message["samples"]))
        wish(second, do="take")
        told(first, "state", lambda message: message["steering"] == two)
        # nothing is held over
        told(first, "state", lambda message: any(row[4] == 0.0 for row in message["samples"]))
        wish(second, do="steer", axes=[0, 0, 1])
        told(first, "state", lambda message: any(row[6] == 1.0 for row in message["samples"]))
        second.close()
        told(first, "state", lambda message: message["steering"] == one and message["viewers"] == 1)
        told(first, "state", lambda message: any(row[6] == 0.0 for row in message["samples"]))


def test_a_viewer_that_falls_silent_lets_go(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "SILENCE_S", 0.2)
    served.go()
    with served.viewer() as viewer:
        wish(viewer, do="steer", axes=[1, 0, 0])
        told(viewer, "state", lambda message: any(row[4] == 1.5 for row in message["samples"]))
        told(viewer, "state", lambda message: any(row[4] == 0.0 for row in message["samples"]))


AXES = ("[NaN, 0, 0]", "[1e999, 0, 0]", "[2, 0, 0]", "[true, 0, 0]", '{"0": 1}', "null")
WORLDS = ('"level": 1e999', '"_": 1', '"no": 1', '"terrain": ["flat"]', '"randomization": {}')
WORLDS += ('"session": 1', '"self": 1', '"mode": 1', '"kind": 1')
OTHERS = (
    '"speed", "value": 1e9',
    '"speed", "value": []',
    "[]",
    '"clip"',
    '"mode", "name": {"a": 1}',
)
OTHERS += ('"clip", "value": {}', '"mode"')
BAD = [
    *("", "{", "[]", "1", '"x"', b"\xff\xfe", "[" * 2000, "x" * 5000),
    *(f'{{"do": "steer", "axes": {axes}}}' for axes in AXES),
    *(f'{{"do": "world", {world}}}' for world in WORLDS),
    *(f'{{"do": {other}}}' for other in OTHERS),
]


def test_nothing_that_is_said_ends_it(served: Served) -> None:
    served.go()
    with served.viewer() as viewer:
        for message in BAD:
            viewer.send(message)
        served.server.on_pointer("floor", (float("nan"), 0.0))
        served.server.on_pointer("push", ("base", (0.0, 0.0, 0.5), (1.0, 0.0)))
        viewer.send(json.dumps({"do": "steer", "axes": [0.5, 0, 0]}))
        told(viewer, "state", lambda message: any(row[4] == 0.75 for row in message["samples"]))
        view = "/view/" + served.server.viewers[1].token
        with (
            served.viewer(view, subprotocols=["viser-v0.0"]) as other,
            pytest.raises(Exception, match=r"1002|1000|1011"),
        ):  # type: ignore[list-item]
            other.send(b"\xff" * 100)
            other.send("text")
            while True:
                other.recv(timeout=20)
        wish(viewer, do="steer", axes=[0.25, 0, 0])
        told(viewer, "state", lambda message: any(row[4] == 0.375 for row in message["samples"]))
    with served.viewer() as viewer, pytest.raises(Exception, match="1009"):
        viewer.send("x" * 100_000)
        while True:
            viewer.recv(timeout=20)
    with pytest.raises(InvalidStatus, match="404"):
        served.viewer("/view/guessed")
    assert served.get("/health")[0] == 200


def test_there_are_only_so_many_viewers(served: Served) -> None:
    viewers = [served.viewer() for _ in range(MAX_VIEWERS)]
    with served.viewer() as late, pytest.raises(Exception, match="1013"):
        late.recv(timeout=20)
    for viewer in viewers:
        viewer.close()


def test_settings_reach_the_session(served: Served) -> None:
    served.go()
    with served.viewer() as viewer:
        wish(viewer, do="world", level=0.25)
        wish(viewer, do="world", terrain="stairs")
        world = told(viewer, "controls", lambda message: message["world"]["terrain"] == "stairs")[
            "world"
        ]
        assert world["level"] == 0.25
        wish(viewer, do="world", terrain="flat")
        wish(viewer, do="mode", name="dribble")
        keys = dict(told(viewer, "controls", lambda message: message["mode"] == "dribble")["keys"])
        assert {"click floor", "P"} <= keys.keys() and "W S, ↑ ↓" not in keys
        wish(viewer, do="reset")
        wish(viewer, do="pause", value=True)
        at = told(viewer, "state", lambda message: message["paused"])["time_s"]
        wish(viewer, do="step")
        assert told(viewer, "state", lambda message: message["time_s"] > at)["time_s"] < at + 0.1
        wish(viewer, do="mode", name="fly")
        assert (
            "no mode 'fly'" in told(viewer, "state", lambda message: bool(message["note"]))["note"]
        )


def test_a_port_that_is_taken_is_said_so(served: Served) -> None:
    message = f"port={served.port}: cannot serve at 127.0.0.1"
    refusal(message, Server, served.player, served.scene, "127.0.0.1", served.port)
