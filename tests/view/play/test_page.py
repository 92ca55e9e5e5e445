"""The page in a browser, as people use it: one server, one browser, one long visit."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.view.chromium import CHROMIUM, FLAGS

playwright = pytest.importorskip("playwright.sync_api")

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 60.0  # a machine may be busy with other things

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here"), pytest.mark.browser]


@pytest.fixture
def address() -> Iterator[str]:
    """Where `npmp play` says that it serves; ended as a user would."""
    command = [sys.executable, "-m", "npmp.experiments.cli", "play", "debug=tiny"]
    place: Any = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "text": True}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **place)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
        process.send_signal(signal.SIGTERM)
        out, message = process.communicate(timeout=30)
        assert process.returncode == 143 and out == "", message
        assert "Traceback" not in message
    finally:
        process.kill()


class Visit:
    """One page, with what it knows and what it complains of."""

    def __init__(self, context: Any, address: str, errors: list[str]):
        self.page = context.new_page()
        self.page.set_default_timeout(1000 * PATIENCE_S)
        self.page.on(
            "console",
            lambda entry: (
                errors.append(f"{entry.text} ({entry.location})") if entry.type == "error" else None
            ),
        )
        self.page.on("pageerror", lambda error: errors.append(str(error)))
        self.page.goto(address)
        self.page.frame_locator("#view").locator("canvas").first.wait_for()
        self.until("state !== null && samples.length > 10")

    def until(self, holds: str) -> None:
        """Wait until an expression of the page holds. By looking again and again: the page's own
        rules forbid it to be told a function."""
        end = time.monotonic() + PATIENCE_S
        while not self.get(holds):
            assert time.monotonic() < end, f"never: {holds}; {self.get('JSON.stringify(state)')}"
            time.sleep(0.03)

    def get(self, what: str) -> Any:
        return self.page.evaluate(what)

    def picture(self) -> np.ndarray[Any, Any]:
        """What the view shows, (h, w, 3)."""
        return np.asarray(
            Image.open(io.BytesIO(self.page.locator("#view").screenshot())).convert("RGB")
        ).astype(int)

    def shows_a_robot(self) -> bool:
        """Whether something dark stands in the middle of light ground."""
        for _ in range(60):
            seen = self.picture()
            h, w, _ = seen.shape
            middle = seen[int(0.35 * h) : int(0.6 * h), int(0.35 * w) : int(0.65 * w)]
            if (middle.max(-1) < 110).mean() > 0.05 and np.median(seen) > 200:
                return True
            time.sleep(0.5)
        return False

    def at(self, across: float, down: float) -> tuple[float, float]:
        """A place of the view [pixels]."""
        box = self.page.locator("#view").bounding_box()
        return box["x"] + across * box["width"], box["y"] + down * box["height"]

    def rests(self) -> None:
        """Wait until it is asked for nothing and stands."""
        still = "s[4] === 0 && s.slice(1, 4).every(v => Math.abs(v) < 0.15)"
        self.until(f"samples.slice(-10).every(s => {still})")


def test_a_visit(address: str) -> None:
    assert address.startswith("http://127.0.0.1:")
    errors: list[str] = []
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        wide = browser.new_context(viewport={"width": 800, "height": 480})
        begun = time.monotonic()
        first = Visit(wide, address, errors)
        assert first.shows_a_robot()
        print(f"robot on the screen after {time.monotonic() - begun:.1f} s")
        keys(first)
        pad(first)
        push(first)
        paused(first)
        settings(first)
        second = Visit(wide, address, errors)
        viewers(first, second)
        modes(second)
        ball(second)
        tall = browser.new_context(
            viewport={"width": 360, "height": 560}, has_touch=True, is_mobile=True
        )
        leaving(second, tall, address, errors)
        browser.close()
    assert not errors


def keys(visit: Visit) -> None:
    """A held key changes the command and, within a second of its time, the velocity; letting go
    stops it. Also where the view has the focus; there viser's camera stays where it is."""
    for key, column in (("w", 4), ("ArrowLeft", 6)):
        visit.page.mouse.click(*visit.at(0.1, 0.9))
        visit.page.keyboard.down(key)
        visit.until(f"samples.some(s => s[{column}] > 0.9)")
        since = visit.get(f"samples.find(s => s[{column}] > 0.9)[0]")
        visit.until(f"samples.some(s => s[0] > {since} + 0.1 && s[{column} - 3] > 0.6)")
        moved = visit.get(f"samples.find(s => s[0] > {since} + 0.1 && s[{column} - 3] > 0.6)[0]")
        assert moved - since < 1.0
        visit.page.keyboard.up(key)
        visit.rests()
    assert visit.shows_a_robot()


def pad(visit: Visit) -> None:
    """A gamepad, whose small drift is nothing; unplugged it asks for nothing."""
    visit.get(
        "navigator.getGamepads = () => [null, { connected: true, axes: [0.08, -0.55, -0.09, 0] }]"
    )
    visit.until("samples.some(s => Math.abs(s[4] - 0.75) < 0.01 && s[5] === 0 && s[6] === 0)")
    visit.get("navigator.getGamepads = () => [null]")
    visit.rests()


def push(visit: Visit) -> None:
    """The mouse drags the robot: it is pushed, a red arrow shows it, and it moves."""
    visit.page.mouse.move(*visit.at(0.5, 0.44))
    before = visit.get("state.root")
    visit.page.mouse.down()
    for step in range(1, 6):
        visit.page.mouse.move(*visit.at(0.5 + 0.03 * step, 0.44))
    visit.until("state.pushed")
    red = [False]
    for _ in range(20):
        seen = visit.picture()
        red.append(bool((seen[..., 0] - seen[..., 1:].max(-1) > 80).sum() > 80))
        if red[-1]:
            break
    assert red[-1]
    visit.until(f"Math.hypot(state.root[0] - {before[0]}, state.root[1] - {before[1]}) > 0.03")
    visit.page.mouse.up()
    visit.until("!state.pushed")


def paused(visit: Visit) -> None:
    """Pause, a step, and slow motion."""
    visit.page.keyboard.press("p")
    visit.until("state.paused")
    visit.page.wait_for_timeout(200)  # the step in hand is still done
    at = visit.get("state.time_s")
    visit.page.keyboard.press("n")
    visit.until(f"Math.abs(state.time_s - {at} - 0.02) < 0.005")
    visit.page.keyboard.press("p")
    visit.until(f"!state.paused && state.time_s > {at} + 0.1")
    visit.page.select_option("#speed", "0.5")
    visit.until("state.speed === 0.5")
    visit.page.select_option("#speed", "1")
    visit.page.keyboard.press("r")


def settings(visit: Visit) -> None:
    """The world, changed while it runs."""
    visit.page.select_option("#terrain", "perlin")
    visit.until("controls.world.terrain === 'perlin'")
    visit.until("!state.busy && samples.length > 20")
    assert visit.shows_a_robot()
    visit.page.select_option("#terrain", "flat")
    visit.until("controls.world.terrain === 'flat'")


def viewers(first: Visit, second: Visit) -> None:
    """The second sees the same robot, may not steer, and takes over."""
    assert second.shows_a_robot()
    assert second.get("state.steering !== me") and first.get("state.steering === me")
    assert second.page.locator("#pause").is_disabled()
    first.page.bring_to_front()
    first.page.keyboard.down("w")
    first.page.wait_for_timeout(300)
    second.until("samples.some(s => s[4] === 1.5)")
    at = second.get("samples.find(s => s[4] === 1.5)")
    assert first.get(f"samples.find(s => s[0] === {at[0]})") == at  # to the digit
    first.page.keyboard.up("w")
    second.page.bring_to_front()
    second.page.click("#take")
    first.until("state.steering !== me && state.viewers === 2")
    first.page.close()
    second.until("state.steering === me && state.viewers === 1")


def modes(visit: Visit) -> None:
    """Each opens and moves; a ghost stands beside the robot that imitates."""
    names = visit.get("hello.modes")
    assert names == ["steer", "navigate", "dribble", "imitate", "wander"]
    for name in (*names[1:2], *names[3:], "dribble"):
        visit.page.click(f"#modes button[value={name}]")
        visit.until(f"state.mode === '{name}' && controls.mode === '{name}' && samples.length > 20")
        assert visit.page.locator("#eye figcaption").is_visible() == (name == "navigate")
        assert ("click floor" in visit.page.locator("#keys").inner_text()) == (
            name in ("navigate", "dribble")
        )
        if name == "imitate":
            visit.page.select_option("#clip", "trot")
            visit.until("controls.clip === 'trot'")
            seen = visit.picture()
            assert ((seen[..., 2] - seen[..., 0]) > 40).mean() > 0.001  # blue
    assert visit.page.locator("#sticks").is_hidden()


def ball(visit: Visit) -> None:
    """The target is put somewhere, and the robot brings the ball along."""
    target = visit.get("state.target")
    visit.page.mouse.click(*visit.at(0.3, 0.7))
    visit.until(f"Math.hypot(state.target[0] - {target[0]}, state.target[1] - {target[1]}) > 0.3")
    before = visit.get("state.ball")
    visit.until(f"Math.hypot(state.ball[0] - {before[0]}, state.ball[1] - {before[1]}) > 0.1")


def leaving(visit: Visit, tall: Any, address: str, errors: list[str]) -> None:
    """A viewer who leaves with a key held holds nothing; one who stays, on a phone, steers by the
    stick."""
    visit.page.click("#modes button[value=steer]")
    visit.until("state.mode === 'steer' && samples.length > 10")
    phone = Visit(tall, address, errors)
    visit.page.bring_to_front()
    visit.page.keyboard.down("w")
    phone.until("samples.some(s => s[4] === 1.5)")
    visit.page.close()
    phone.until("state.steering === me")
    phone.rests()
    box = phone.page.locator("#left").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    phone.page.mouse.move(x, y)
    phone.page.mouse.down()
    phone.page.mouse.move(x, y - 60)
    phone.until("samples.slice(-5).every(s => s[4] === 1.5)")
    phone.page.mouse.up()
    phone.rests()
    phone.page.click("#more")
    assert phone.page.locator("#reset").is_visible()
