"""What a failed command says and which code it exits with."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from typing import TextIO

from mocap_data.errors import InputError
from npmp.training.signals import Stopped, silence

OK, INTERNAL_ERROR, USER_ERROR, NOT_PASSED, BROKEN_PIPE, INTERRUPTED = 0, 1, 2, 3, 141, 130


LONGEST = 400  # characters of a message; lists of what exists can be long

USER_ERRORS = (InputError, OSError)


def one_line(error: BaseException) -> str:
    """The message of an error on one line, an overlong one cut; an OSError as "PATH: reason"."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{os.fspath(error.filename)!s}: {error.strerror}"
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


def print_anything(*streams: TextIO) -> None:
    """Let a stream escape what it cannot print: characters of another encoding, file names that are
    no UTF-8."""
    for stream in streams or (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="backslashreplace")


def say(message: str) -> None:
    print_anything(sys.stderr)
    print(f"npmp: error: {message}", file=sys.stderr)


def show_traceback_if_asked(error: BaseException) -> None:
    """NPMP_DEBUG=1 shows where a user's error was found, too."""
    if os.environ.get("NPMP_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error)


class guarded:
    """A context whose exceptions become a message on stderr and an exit code, `code`. No function:
    it adds no frame to what runs inside."""

    code = OK

    def __enter__(self) -> guarded:
        print_anything()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> bool:
        if not isinstance(error, Exception | KeyboardInterrupt):
            return False
        self.code = _told(error)
        return True


def _told(error: Exception | KeyboardInterrupt) -> int:
    """Say what happened. Returns the exit code."""
    if isinstance(error, Stopped):
        print(f"npmp: {error}", file=sys.stderr)
        return error.code
    if isinstance(error, KeyboardInterrupt):
        print("npmp: interrupted", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # The reader went away (npmp ... | head): nothing to say. Keep Python from flushing into the
        # broken pipe at exit.
        with contextlib.suppress(OSError, ValueError):
            silence([sys.stdout.fileno()])
        return BROKEN_PIPE
    if isinstance(error, USER_ERRORS):
        return told_user(error)
    if _out_of_memory(error):
        say(
            "out of memory; fewer robots (algo.num_envs=), smaller networks or a shorter replay need less"
        )
        show_traceback_if_asked(error)
        return INTERNAL_ERROR
    traceback.print_exception(error)
    say("an internal error (above); please report it with the command that caused it")
    return INTERNAL_ERROR


def _out_of_memory(error: Exception) -> bool:
    """Python's own, or torch's: on the CPU that is a RuntimeError of no kind of its own."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and (type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error))
    )


def told_user(error: BaseException, message: str | None = None) -> int:
    """Say a user's error, in one line. Returns its exit code."""
    say(one_line(error) if message is None else message)
    show_traceback_if_asked(error)
    return USER_ERROR
