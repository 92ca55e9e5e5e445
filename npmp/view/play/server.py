"""The page and everything it talks to, behind one port: over ssh one tunnel is enough.

viser serves its own page and websocket from a port of its own, and takes no other websocket there;
so this server, in front, has the page, the viewers' wishes (`/steer`) and `/health`, and passes on
what viser's page and viser say to each other (`/view/...`). Of that it drops drags and clicks of
viewers that do not steer.
"""

from __future__ import annotations

import asyncio
import gzip
import http
import ipaddress
import json
import logging
import secrets
import socket
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import viser
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers, MultipleValuesError
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from mocap_data.errors import InputError
from mocap_data.files import json_text
from npmp.view.play.modes import GROUNDS, KEYS, Mode
from npmp.view.play.realtime import SPEEDS, Player
from npmp.view.play.scene import Scene
from npmp.view.play.session import Session, Snapshot

ASSETS = Path(__file__).with_name("assets")
RATE_HZ = 20.0  # of what viewers are told
SILENCE_S = 1.0  # without a word from the viewer that steers, the command becomes zero
MOST_VIEWERS = 16
WISH_BYTES = 2048
VIEW_BYTES = 1 << 16
BACKLOG_BYTES = 1 << 14
POINTING = (b"Drag", b"Pointer", b"Click")  # in the names of viser's messages of the mouse
# of viser's page only the view is shown: what else it has is on ours. And it prevents what a press
# would do in a listener that cannot, as React Three Fiber makes it: an error in the console
BARE = b"""<style>.mantine-Paper-root,.mantine-Notifications-root{display:none!important}</style>
<script>{
const add = EventTarget.prototype.addEventListener;
EventTarget.prototype.addEventListener = function (kind, listener, how) {
  const able = kind === "pointerdown" && how && how.passive ? { ...how, passive: false } : how;
  return add.call(this, kind, listener, able);
};
}</script>"""
CSP = (
    "default-src 'self'; connect-src 'self' ws: wss:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
# malformed requests are no news: websockets would log a traceback for each
SILENT = logging.Logger("npmp.view.play", logging.CRITICAL + 1)


def allowed(bound: str, host: str, origin: str | None) -> bool:
    """Whether a request may be answered: no other website may steer.

    Neither by a websocket from its pages (Origin), nor by its own name made to point here (Host;
    DNS rebinding): a Host is an address, this machine's name, or what host= says.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        netloc = urlsplit(origin or "").netloc
    except ValueError:
        return False
    machine = socket.gethostname().lower()
    is_own = name in ("localhost", machine, f"{machine}.local", bound.lower()) or _is_address(name)
    return is_own and (origin is None or netloc == host)


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


@dataclass(eq=False)
class Viewer:
    """One page that is open."""

    number: int
    connection: ServerConnection
    # names its view
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    # when it last sent a command [s]
    heard: float = 0.0
    # the controls that it was last sent
    told: str = ""


class Server:
    """Serves a player to browsers, from a thread of its own; the first viewer steers."""

    def __init__(self, player: Player, scene: Scene, host: str, port: int):
        """Bind the port. Raises InputError where it is taken or there is no such host."""
        self.player = player
        self.scene = scene
        self._host = host
        self._port = port
        self.viewers: dict[int, Viewer] = {}  # oldest first
        self.steering: int | None = None
        self._count = 0
        self._samples: deque[list[float | None]] = deque(maxlen=100)
        self._seen: Snapshot | None = None
        self._drawn: Mode | None = None  # its ground is drawn
        self._files = {
            path.name: path.read_bytes() for path in ASSETS.iterdir() if path.suffix in TYPES
        }
        view = (Path(viser.__file__).parent / "client/build/index.html").read_bytes()
        self._view = gzip.compress(view.replace(b"<head>", b"<head>" + BARE, 1))
        self._refused: list[OSError | UnicodeError] = []  # by the system, to listen
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        serving = self._loop.run_until_complete
        self._thread = threading.Thread(target=lambda: serving(self._serve()), daemon=True)
        self._thread.start()
        self._ready.wait()
        for error in self._refused:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"cannot serve at {host}:{port} ({reason}); choose another port= or host="
            ) from error

    @property
    def address(self) -> str:
        """What to type into a browser."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self._port}"

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        try:
            server = await serve(
                self._connected,
                self._host,
                self._port,
                process_request=self._answer,
                max_size=VIEW_BYTES,
                compression=None,
                # viser's client says its version by one
                select_subprotocol=lambda _, offered: next(
                    (name for name in offered if name.startswith("viser-v")), None
                ),
                max_queue=64,
                logger=SILENT,
            )
        except (OSError, UnicodeError) as error:
            self._refused.append(error)
            self._ready.set()
            return
        async with server:
            self._port = server.sockets[0].getsockname()[1] if not self._port else self._port
            self._ready.set()
            telling = asyncio.create_task(self._tell())
            await self._stop.wait()
            telling.cancel()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=5.0)

    # --- http

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """A page, or None where a websocket is to be opened."""
        status = http.HTTPStatus
        try:
            path = urlsplit(request.path).path
            host = request.headers.get("Host", "")
            origin = request.headers.get("Origin")
            upgrade = request.headers.get("Upgrade", "")
        except (ValueError, MultipleValuesError):
            why = "malformed: send one Host and a path\n"
            return _response(status.BAD_REQUEST, "text/plain", why.encode())
        if not allowed(self._host, host, origin):
            why = "not from here: open the page by this machine's address or name, or give host=\n"
            return _response(status.FORBIDDEN, "text/plain", why.encode())
        if upgrade.lower() == "websocket":
            exists = path == "/steer" or self._viewer_of(path) is not None
            absent = _response(status.NOT_FOUND, "text/plain", b"no such websocket\n")
            return None if exists else absent
        if path == "/health":
            seen = self._seen
            moves = self.player.moves
            body = {"moves": moves} | ({} if seen is None else self._state(seen))
            well = moves or (seen is not None and self.player.paused)
            answer = json_text(body).encode() + b"\n"
            return _response(
                status.OK if well else status.SERVICE_UNAVAILABLE, "application/json", answer
            )
        if path.startswith("/view/"):
            return _response(status.OK, "text/html", self._view, {"Content-Encoding": "gzip"})
        name = path.removeprefix("/") or "page.html"
        if name not in self._files:
            return _response(status.NOT_FOUND, "text/plain", b"no such page\n")
        policy = {"Content-Security-Policy": CSP}
        return _response(status.OK, TYPES[Path(name).suffix], self._files[name], policy)

    def _viewer_of(self, path: str) -> Viewer | None:
        token = path.removeprefix("/view/")
        return next((viewer for viewer in self.viewers.values() if viewer.token == token), None)

    # --- websockets

    async def _connected(self, connection: ServerConnection) -> None:
        assert connection.request is not None  # of a connection that is open
        path = urlsplit(connection.request.path).path
        try:
            if path == "/steer":
                await self._attend(connection)
            elif (viewer := self._viewer_of(path)) is not None:
                await self._pass_on(connection, viewer)
        except (ConnectionClosed, OSError):
            pass

    async def _attend(self, connection: ServerConnection) -> None:
        """A viewer, until it leaves."""
        if len(self.viewers) >= MOST_VIEWERS:
            await connection.close(1013, "too many viewers")
            return
        self._count += 1
        viewer = self.viewers[self._count] = Viewer(self._count, connection)
        if self.steering is None:
            self.steering = viewer.number
        cast = self.player.session.cast
        hello = {
            "type": "hello",
            "you": viewer.number,
            "view": viewer.token,
            "robot": cast.robot.name,
            "modes": cast.modes,
            "grounds": GROUNDS,
            "randomizations": list(cast.presets),
            "speeds": SPEEDS,
        }
        try:
            await connection.send(json_text(hello))
            async for message in connection:
                try:
                    self._wish(viewer, _parsed(message))
                except InputError as error:
                    await connection.send(json_text({"type": "refused", "why": str(error)}))
        finally:
            del self.viewers[viewer.number]
            if self.steering == viewer.number:
                self._let_go()
                self.steering = next(iter(self.viewers), None)

    def _let_go(self) -> None:
        """Zero command, no push."""
        self.player.ask("steer", lambda session: session.steer(0.0, 0.0, 0.0))
        self.player.ask("push", lambda session: session.release())

    async def _pass_on(self, connection: ServerConnection, viewer: Viewer) -> None:
        """Between a viewer's view and viser, both ways."""
        protocols: Any = None if connection.subprotocol is None else [connection.subprotocol]
        place = f"ws://127.0.0.1:{self.scene.port}"
        async with connect(
            place, subprotocols=protocols, compression=None, max_size=None, proxy=None
        ) as inner:

            async def outwards() -> None:
                async for message in inner:
                    await connection.send(message)

            async def inwards() -> None:
                async for message in connection:
                    if not isinstance(message, bytes):
                        continue
                    if viewer.number == self.steering or not any(w in message for w in POINTING):
                        await inner.send(message)

            tasks = [asyncio.create_task(way()) for way in (outwards, inwards)]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    # --- what viewers wish

    def _wish(self, viewer: Viewer, said: dict[str, Any]) -> None:
        """Raises InputError for what is none, or of a viewer that does not steer."""
        player = self.player
        what = said.get("do")
        value = said.get("value")
        if what == "take":
            self._let_go()
            self.steering = viewer.number
            return
        if viewer.number != self.steering:
            raise InputError("another viewer steers; take over first")
        match what:
            case "steer":
                axes = _axes(said.get("axes"))
                viewer.heard = time.monotonic()
                player.ask("steer", lambda session: session.steer(*axes))
            case "mode":
                name = str(said.get("name"))
                player.ask("mode", lambda session: player.open(name))
            case "world":
                changes = {key: entry for key, entry in said.items() if key != "do"}
                player.ask("world", lambda _, /, **world: player.open(**world), **changes)
            case "clip":
                player.ask("clip", lambda session: session.choose(value))
            case "speed":
                if value not in SPEEDS:
                    raise InputError(f"speed must be one of {', '.join(map(str, SPEEDS))}")
                player.speed = float(value)
            case "pause":
                player.paused = value is True
            case "step":
                player.paused = True
                player.once()
            case "reset":
                player.ask("reset", lambda session: session.put_back())
            case _:
                raise InputError(f"nothing to do: {what!r:.40}")

    def pointed(self, what: str, where: Any) -> None:
        """As `npmp.view.play.scene.Pointed`; only those of the viewer that steers are passed on."""
        if what == "push":
            self.player.ask("push", lambda session: session.push(*where))
        elif what == "release":
            self.player.ask("push", lambda session: session.release())
        elif np.isfinite(where).all():
            self.player.ask("point", lambda session: session.mode.point(*where))

    # --- what viewers are told

    def show(self, seen: Snapshot) -> None:
        """As `Player` wants it: draw a step, and keep it for the viewers."""
        if self._seen is None or self._seen.time_s != seen.time_s:
            command = (None,) * 3 if seen.command is None else seen.command
            self._samples.append([*(round(v, 4) for v in (seen.time_s, *seen.achieved)), *command])
        self._seen = seen
        if self._drawn is not self.player.session.mode:
            self._drawn = self.player.session.mode
            self.scene.ground(self.player.session)
        self.scene.draw(seen)

    def _state(self, seen: Snapshot) -> dict[str, Any]:
        player = self.player
        return {
            "mode": seen.mode,
            "time_s": round(seen.time_s, 3),
            "real_time_factor": round(player.factor, 3),
            "speed": player.speed,
            "paused": player.paused,
            "down": seen.down,
            "falls": seen.falls,
            "viewers": len(self.viewers),
            "steering": self.steering,
            "busy": player.busy,
            "pushed": seen.push is not None,
            "ball": None if seen.ball is None else [round(v, 3) for v in seen.ball[0][:3]],
            "root": [round(float(v), 3) for v in seen.bodies[0, :3]],
            "target": seen.target,
            "eye": None if seen.eye is None else seen.eye.tolist(),
        }

    async def _tell(self) -> None:
        """All viewers, over and over."""
        while True:
            await asyncio.sleep(1.0 / RATE_HZ)
            now = time.monotonic()
            session = self.player.session
            holder = None if self.steering is None else self.viewers[self.steering]
            if holder is not None and any(session.axes) and now - holder.heard > SILENCE_S:
                self.player.ask("steer", lambda session: session.steer(0.0, 0.0, 0.0))
            if self._seen is None:
                continue
            also = {"samples": list(self._samples), "note": self.player.note}
            self._samples.clear()
            self.player.note = ""
            state = json_text({"type": "state", **also, **self._state(self._seen)})
            controls = json_text(_controls(session))
            for viewer in list(self.viewers.values()):
                if viewer.connection.transport.get_write_buffer_size() > BACKLOG_BYTES:
                    continue  # it does not listen
                try:
                    if controls != viewer.told:
                        viewer.told = controls
                        await viewer.connection.send(controls)
                    await viewer.connection.send(state)
                except ConnectionClosed:
                    pass


def _controls(session: Session) -> dict[str, Any]:
    mode = session.mode
    return {
        "type": "controls",
        "mode": mode.name,
        "rough": mode.rough,
        "steers": mode.steers,
        "keys": [*mode.keys, *KEYS],
        "caption": mode.caption,
        "world": asdict(session.world),
        "clips": list(mode.clips),
        "clip": mode.clips[mode.clip] if mode.clips else None,
    }


def _axes(value: Any) -> list[float]:
    """A command as a viewer sends it. Raises InputError for any other."""
    three = isinstance(value, list) and len(value) == 3
    if not (three and all(type(v) in (int, float) and abs(v) <= 1.0 for v in value)):
        raise InputError("axes must be three numbers from -1 to 1")
    return list(value)


def _parsed(message: str | bytes) -> dict[str, Any]:
    """A viewer's message. Raises InputError unless it is a small object of JSON without NaN."""
    if len(message) > WISH_BYTES:
        raise InputError(f"a message of more than {WISH_BYTES} bytes")

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        content = json.loads(message, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InputError("a message that is no JSON") from error
    if not isinstance(content, dict):
        raise InputError("a message that is no object")
    return content


def _response(
    status: http.HTTPStatus, kind: str, body: bytes, more: dict[str, str] | None = None
) -> Response:
    headers = {
        "Content-Type": f"{kind}; charset=utf-8",
        "Content-Length": str(len(body)),
        "Cache-Control": "no-cache",
        "X-Content-Type-Options": "nosniff",
        **(more or {}),
    }
    return Response(status.value, status.phrase, Headers(headers), body)
