"""Serve the page and its websockets on one port, so that one ssh tunnel suffices.

viser serves its page and websocket on its own port and accepts no other websocket. This server is
its proxy: it serves the page, the viewers' requests (`/steer`) and `/health`, and relays between
viser and its page (`/view/...`). It drops drags and clicks of viewers that do not steer.
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
# rate of the state messages [Hz]
RATE_HZ = 20.0
# time without a message of the steering viewer after which the command becomes zero [s]
SILENCE_S = 1.0
MAX_VIEWERS = 16
# size limits of messages: requests, of viser's page, and unsent to a viewer [bytes]
REQUEST_BYTES = 2048
VIEW_BYTES = 1 << 16
BACKLOG_BYTES = 1 << 14
# parts of the names of viser's mouse messages
POINTER_MESSAGES = (b"Drag", b"Pointer", b"Click")
# hides viser's controls, and makes React Three Fiber's listeners of pointerdown not passive, as
# they call preventDefault
VIEW_HEAD = b"""<style>
.mantine-Paper-root,.mantine-Notifications-root{display:none!important}</style>
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
# websockets would log a traceback for each malformed request
SILENT = logging.Logger("npmp.view.play", logging.CRITICAL + 1)


def allowed(bound: str, host: str, origin: str | None) -> bool:
    """Whether to answer a request, so that no other website can steer: neither by a websocket from
    its pages (Origin), nor by DNS rebinding (Host). Host must be an address, this machine's name,
    or `bound`."""
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
    """An open page."""

    number: int
    connection: ServerConnection
    # identifies its view
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    # time of its last command [s]
    last_command: float = 0.0
    # the controls it was last sent
    controls: str = ""


class Server:
    """Serves a player to browsers in its own thread; the first viewer steers."""

    def __init__(self, player: Player, scene: Scene, host: str, port: int):
        """Bind the port. Raises InputError if it is in use, or for an unknown host."""
        self.player = player
        self.scene = scene
        self._host = host
        self._port = port
        self.viewers: dict[int, Viewer] = {}  # oldest first
        self.steering: int | None = None
        self._count = 0
        self._samples: deque[list[float | None]] = deque(maxlen=100)
        self._snapshot: Snapshot | None = None
        self._drawn: Mode | None = None  # whose ground is drawn
        self._files = {
            path.name: path.read_bytes() for path in ASSETS.iterdir() if path.suffix in TYPES
        }
        view = (Path(viser.__file__).parent / "client/build/index.html").read_bytes()
        self._view = gzip.compress(view.replace(b"<head>", b"<head>" + VIEW_HEAD, 1))
        self._errors: list[OSError | UnicodeError] = []  # error of binding the port
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        serving = self._loop.run_until_complete
        self._thread = threading.Thread(target=lambda: serving(self._serve()), daemon=True)
        self._thread.start()
        self._ready.wait()
        for error in self._errors:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"cannot serve at {host}:{port} ({reason}); choose another port= or host="
            ) from error

    @property
    def address(self) -> str:
        """The address for the browser."""
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
                # viser's client sends its version as one
                select_subprotocol=lambda _, offered: next(
                    (name for name in offered if name.startswith("viser-v")), None
                ),
                max_queue=64,
                logger=SILENT,
            )
        except (OSError, UnicodeError) as error:
            self._errors.append(error)
            self._ready.set()
            return
        async with server:
            self._port = server.sockets[0].getsockname()[1] if not self._port else self._port
            self._ready.set()
            broadcast = asyncio.create_task(self._broadcast())
            await self._stop.wait()
            broadcast.cancel()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=5.0)

    # --- http

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """A response, or None to open a websocket."""
        status = http.HTTPStatus
        try:
            path = urlsplit(request.path).path
            host = request.headers.get("Host", "")
            origin = request.headers.get("Origin")
            upgrade = request.headers.get("Upgrade", "")
        except (ValueError, MultipleValuesError):
            message = "malformed request: expected one Host and a path\n"
            return _response(status.BAD_REQUEST, "text/plain", message.encode())
        if not allowed(self._host, host, origin):
            message = "Host not allowed: use this machine's address or name, or set host=\n"
            return _response(status.FORBIDDEN, "text/plain", message.encode())
        if upgrade.lower() == "websocket":
            exists = path == "/steer" or self._viewer_of(path) is not None
            absent = _response(status.NOT_FOUND, "text/plain", b"no such websocket\n")
            return None if exists else absent
        if path == "/health":
            snapshot = self._snapshot
            moves = self.player.moves
            body = {"moves": moves} | ({} if snapshot is None else self._state(snapshot))
            healthy = moves or (snapshot is not None and self.player.paused)
            code = status.OK if healthy else status.SERVICE_UNAVAILABLE
            return _response(code, "application/json", json_text(body).encode() + b"\n")
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
        assert connection.request is not None  # for the type checker
        path = urlsplit(connection.request.path).path
        try:
            if path == "/steer":
                await self._serve_viewer(connection)
            elif (viewer := self._viewer_of(path)) is not None:
                await self._relay(connection, viewer)
        except (ConnectionClosed, OSError):
            pass

    async def _serve_viewer(self, connection: ServerConnection) -> None:
        """Handle a viewer's requests until it leaves."""
        if len(self.viewers) >= MAX_VIEWERS:
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
                    self._handle(viewer, _parsed(message))
                except InputError as error:
                    await connection.send(json_text({"type": "refused", "why": str(error)}))
        finally:
            del self.viewers[viewer.number]
            if self.steering == viewer.number:
                self._stop_steering()
                self.steering = next(iter(self.viewers), None)

    def _stop_steering(self) -> None:
        """Zero the command and stop pushing."""
        self.player.ask("steer", lambda session: session.steer(0.0, 0.0, 0.0))
        self.player.ask("push", lambda session: session.release())

    async def _relay(self, connection: ServerConnection, viewer: Viewer) -> None:
        """Relay messages between a viewer's view and viser."""
        protocols: Any = None if connection.subprotocol is None else [connection.subprotocol]
        address = f"ws://127.0.0.1:{self.scene.port}"
        async with connect(
            address, subprotocols=protocols, compression=None, max_size=None, proxy=None
        ) as inner:

            async def to_viewer() -> None:
                async for message in inner:
                    await connection.send(message)

            async def to_viser() -> None:
                async for message in connection:
                    if not isinstance(message, bytes):
                        continue
                    if viewer.number == self.steering or not any(
                        w in message for w in POINTER_MESSAGES
                    ):
                        await inner.send(message)

            tasks = [asyncio.create_task(relay()) for relay in (to_viewer, to_viser)]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    # --- requests

    def _handle(self, viewer: Viewer, request: dict[str, Any]) -> None:
        """Apply a request. Raises InputError for an invalid one, or of a viewer that does not
        steer."""
        player = self.player
        action = request.get("do")
        value = request.get("value")
        if action == "take":
            self._stop_steering()
            self.steering = viewer.number
            return
        if viewer.number != self.steering:
            raise InputError("another viewer steers; take over first")
        match action:
            case "steer":
                axes = _axes(request.get("axes"))
                viewer.last_command = time.monotonic()
                player.ask("steer", lambda session: session.steer(*axes))
            case "mode":
                name = str(request.get("name"))
                player.ask("mode", lambda session: player.open(name))
            case "world":
                changes = {key: entry for key, entry in request.items() if key != "do"}
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
                raise InputError(f"do={action!r:.40}: unknown")

    def on_pointer(self, event: str, args: Any) -> None:
        """As `npmp.view.play.scene.OnPointer`; only events of the steering viewer arrive."""
        if event == "push":
            self.player.ask("push", lambda session: session.push(*args))
        elif event == "release":
            self.player.ask("push", lambda session: session.release())
        elif np.isfinite(args).all():
            self.player.ask("point", lambda session: session.mode.point(*args))

    # --- state messages

    def show(self, snapshot: Snapshot) -> None:
        """Draw a step, and keep it for the viewers; the `show` of `Player`."""
        if self._snapshot is None or self._snapshot.time_s != snapshot.time_s:
            command = (None,) * 3 if snapshot.command is None else snapshot.command
            sample = [round(value, 4) for value in (snapshot.time_s, *snapshot.achieved)]
            self._samples.append([*sample, *command])
        self._snapshot = snapshot
        if self._drawn is not self.player.session.mode:
            self._drawn = self.player.session.mode
            self.scene.ground(self.player.session)
        self.scene.draw(snapshot)

    def _state(self, snapshot: Snapshot) -> dict[str, Any]:
        player = self.player
        return {
            "mode": snapshot.mode,
            "time_s": round(snapshot.time_s, 3),
            "real_time_factor": round(player.factor, 3),
            "speed": player.speed,
            "paused": player.paused,
            "down": snapshot.down,
            "falls": snapshot.falls,
            "viewers": len(self.viewers),
            "steering": self.steering,
            "busy": player.busy,
            "pushed": snapshot.push is not None,
            "ball": None if snapshot.ball is None else [round(v, 3) for v in snapshot.ball[0][:3]],
            "root": [round(float(v), 3) for v in snapshot.bodies[0, :3]],
            "target": snapshot.target,
            "eye": None if snapshot.camera_image is None else snapshot.camera_image.tolist(),
        }

    async def _broadcast(self) -> None:
        """Send the state to all viewers at `RATE_HZ`."""
        while True:
            await asyncio.sleep(1.0 / RATE_HZ)
            now = time.monotonic()
            session = self.player.session
            holder = None if self.steering is None else self.viewers[self.steering]
            if holder is not None and any(session.axes) and now - holder.last_command > SILENCE_S:
                self.player.ask("steer", lambda session: session.steer(0.0, 0.0, 0.0))
            if self._snapshot is None:
                continue
            extras = {"samples": list(self._samples), "note": self.player.note}
            self._samples.clear()
            self.player.note = ""
            state = json_text({"type": "state", **extras, **self._state(self._snapshot)})
            controls = json_text(_controls(session))
            for viewer in list(self.viewers.values()):
                if viewer.connection.transport.get_write_buffer_size() > BACKLOG_BYTES:
                    continue  # the viewer is too slow
                try:
                    if controls != viewer.controls:
                        viewer.controls = controls
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
    """The command of a request. Raises InputError for other values."""
    three = isinstance(value, list) and len(value) == 3
    if not (three and all(type(v) in (int, float) and abs(v) <= 1.0 for v in value)):
        raise InputError(f"axes={value!r:.80}: expected three numbers from -1 to 1")
    return list(value)


def _parsed(message: str | bytes) -> dict[str, Any]:
    """A viewer's message. Raises InputError unless it is a small JSON object without NaN."""
    if len(message) > REQUEST_BYTES:
        raise InputError(f"message of {len(message)} bytes: must be at most {REQUEST_BYTES}")

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        content = json.loads(message, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InputError("message: expected JSON") from error
    if not isinstance(content, dict):
        raise InputError("message: expected a JSON object")
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
