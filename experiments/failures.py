"""What a failed command says and which code it exits with."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import TextIO

from mocap_data.errors import InputError

OK, INTERNAL_ERROR, USER_ERROR, BROKEN_PIPE, INTERRUPTED = 0, 1, 2, 141, 130


class Stopped(KeyboardInterrupt):
    """A signal ended a run in good order; the message says how it goes on, `code` is the exit code."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


LONGEST = 400  # characters of a message; lists of what exists can be long

USER_ERRORS = (InputError, OSError)


def one_line(error: BaseException) -> str:
    """The message of an error on one line, an overlong one cut; an OSError as "PATH: reason"."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{os.fspath(error.filename)!s}: {error.strerror}"
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


def print_anything(*streams: TextIO) -> None:
    """Let a stream escape what it cannot print: characters of another encoding, file names that are no UTF-8."""
    for stream in streams or (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="backslashreplace")


def say(message: str) -> None:
    print_anything(sys.stderr)
    print(f"npmp: error: {message}", file=sys.stderr)


def show_traceback_if_asked() -> None:
    """NPMP_DEBUG=1 shows where a user's error was found, too."""
    if os.environ.get("NPMP_DEBUG", "") not in ("", "0"):
        traceback.print_exc()


def guarded(body: Callable[[], int | None]) -> int:
    """Run `body`; returns its exit code (None counts as 0), or the code of what it raised, with a message on stderr."""
    print_anything()
    try:
        return body() or OK
    except Stopped as stop:
        print(f"npmp: {stop}", file=sys.stderr)
        return stop.code
    except KeyboardInterrupt:
        print("npmp: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away (npmp ... | head): nothing to say. Keep Python from flushing into the broken pipe at
        # exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except USER_ERRORS as error:
        say(one_line(error))
        show_traceback_if_asked()
        return USER_ERROR
    except MemoryError:
        say("out of memory; fewer environments (algo.num_envs=) or a smaller replay need less")
        show_traceback_if_asked()
        return INTERNAL_ERROR
    except Exception:
        traceback.print_exc()
        say("an internal error (above); please report it with the command that caused it")
        return INTERNAL_ERROR
