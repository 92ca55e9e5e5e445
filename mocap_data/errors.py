"""The exception for invalid input, and checks of names."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

# characters; damaged files may have long names
MAX_MESSAGE = 1200
# characters of a message on the terminal
LONGEST_LINE = 400
# names in a message; for more names only the nearest
MOST_NAMES = 20


class InputError(ValueError):
    """Invalid input: a file, a name, an option. The command line prints it and exits with 2.

    The message is one line with the thing, its value, the expected one and the next step, e.g.
    "no robot 'anymal_x'; available: anymal_b". Line breaks become spaces, long messages are
    shortened, and unprintable characters are escaped.
    """

    def __init__(self, message: object = "") -> None:
        line = printable(" ".join(str(message).splitlines())).replace("\t", "\\t")
        if len(line) > MAX_MESSAGE:
            line = f"{line[: MAX_MESSAGE * 3 // 4]} ... {line[-(MAX_MESSAGE // 4) :]}"
        super().__init__(line)


def printable(text: str) -> str:
    """Text with escapes for characters that move a terminal's cursor or change its colours."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def one_line(error: BaseException) -> str:
    """The message of an error on one line of at most LONGEST_LINE; an OSError as "PATH: reason"."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return printable(f"{os.fspath(error.filename)!s}: {error.strerror}")
    text = printable(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= LONGEST_LINE else text[:LONGEST_LINE] + " ..."


def counted(number: int, noun: str) -> str:
    """ "1 motion", "2 motions"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def unknown(kind: str, name: object, available: Iterable[object]) -> InputError:
    """The error for an unknown name: "no KIND 'NAME'; available: A, B"."""
    names = [str(entry) for entry in available]
    if len(names) > MOST_NAMES:
        close = ", ".join(nearest(str(name), names))
        return InputError(f"no {kind} {str(name)!r}; nearest of {len(names)}: {close}")
    return InputError(f"no {kind} {str(name)!r}; available: {', '.join(names) or 'none'}")


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The three names most like `name`, the nearest first."""
    return difflib.get_close_matches(name[:80], list(names), n=3, cutoff=0.0)


def check_available(kind: str, names: Iterable[object], available: Collection[object]) -> None:
    """Raise InputError for the first name that is not available, see `unknown`."""
    for name in names:
        if name not in available:
            raise unknown(kind, name, available)


@contextmanager
def importing(advice: str) -> Iterator[None]:
    """Turn an ImportError of an optional package into an InputError with the advice."""
    try:
        yield
    except ImportError as error:
        raise InputError(f"{advice} ({error})") from error


def frame_range(label: str, start: int, stop: int | None, frames: int) -> slice:
    """Frames [start, stop) of `frames`, stop by default the end.

    Raises:
      InputError: unless 0 <= start < stop <= frames.
    """
    stop = frames if stop is None else stop
    if not 0 <= start < stop <= frames:
        raise InputError(
            f"{label}: no frames {start} to {stop}, expected 0 <= start < stop <= {frames}"
        )
    return slice(start, stop)


def matching(kind: str, patterns: Iterable[str], available: Collection[str]) -> frozenset[str]:
    """The names that match at least one pattern ("walk_*").

    Raises:
      InputError: a pattern without a match.
    """
    names: set[str] = set()
    for pattern in patterns:
        matched = [name for name in available if fnmatchcase(name, pattern)]
        if not matched:
            raise unknown(kind, pattern, available)
        names.update(matched)
    return frozenset(names)
