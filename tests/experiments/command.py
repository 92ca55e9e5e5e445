"""`npmp` called in this process, and what it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest import CaptureFixture

from npmp.experiments import cli

# arguments of a command, and `by=` what takes them, to what it says
Says = Callable[..., str]
Inspects = Callable[..., tuple[dict[str, Any], str]]


def printing(capsys: CaptureFixture[str]) -> Says:
    """Calls a command that succeeds; what is on stdout by then."""

    def call(*arguments: object, by: Callable[[Sequence[str]], int] = cli.main) -> str:
        assert by([str(argument) for argument in arguments]) == 0
        return capsys.readouterr().out

    return call


def refusing(capsys: CaptureFixture[str]) -> Says:
    """Calls a command that fails by the user's fault; its message."""

    def call(*arguments: object, by: Callable[[Sequence[str]], int] = cli.main) -> str:
        assert by([str(argument) for argument in arguments]) == 2
        return error_line(capsys)

    return call


def inspecting(capsys: CaptureFixture[str], out: Path) -> Inspects:
    """Calls `npmp inspect`, which ends with `code`; the findings, and what was printed."""

    def call(path: Path, *more: str, code: int = 0) -> tuple[dict[str, Any], str]:
        result = cli.main(["inspect", str(path), f"out={out}", *more])
        printed = capsys.readouterr()
        assert (result, printed.err) == (code, "")
        return json.loads(out.read_text()), printed.out

    return call


def error_line(capture: CaptureFixture[str]) -> str:
    """The message on stderr: all that stands there is this line."""
    text = capture.readouterr().err
    assert "Traceback" not in text
    line = text.strip().removeprefix("npmp: error: ")
    assert text == f"npmp: error: {line}\n" and len(line.splitlines()) == 1, text
    return line
