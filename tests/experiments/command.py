"""`npmp` called in this process, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest import CaptureFixture

from npmp.experiments import cli

# arguments of a command, and `by=` what takes them, to what it says
Says = Callable[..., str]


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


def error_line(capture: CaptureFixture[str]) -> str:
    """The message on stderr: all that stands there is this line."""
    text = capture.readouterr().err
    assert "Traceback" not in text
    line = text.strip().removeprefix("npmp: error: ")
    assert text == f"npmp: error: {line}\n" and len(line.splitlines()) == 1, text
    return line
