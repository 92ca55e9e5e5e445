"""The one exception for bad input, and names that must exist."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

MAX_MESSAGE = 1200  # characters; damaged files have names of any length, and lists of them
LONGEST_LINE = 400  # characters of a message on the terminal
MOST_NAMES = 20  # that a message lists; of more the nearest


class InputError(ValueError):
    """Bad input: a file, a name, an option. The command line prints its message and exits with 2.

    The message is one line that says what is wrong, what was expected and what exists, e.g.
    "no robot 'anymal_x'; there are: anymal_b". Line breaks become spaces, long messages lose their
    middle, and what no terminal prints (control characters, bytes that are no UTF-8) is escaped.
    """

    def __init__(self, message: object = "") -> None:
        line = printable(" ".join(str(message).splitlines())).replace("\t", "\\t")
        if len(line) > MAX_MESSAGE:
            line = f"{line[: MAX_MESSAGE * 3 // 4]} ... {line[-(MAX_MESSAGE // 4) :]}"
        super().__init__(line)


def printable(text: str) -> str:
    """Text without what moves a terminal's cursor or changes its colours: such characters are
    escaped."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def one_line(error: BaseException) -> str:
    """The message of an error on one line, an overlong one cut; an OSError as "PATH: reason"."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return printable(f"{os.fspath(error.filename)!s}: {error.strerror}")
    text = printable(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= LONGEST_LINE else text[:LONGEST_LINE] + " ..."


def counted(number: int, noun: str) -> str:
    """ "1 motion", "2 motions"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def unknown(kind: str, name: object, known: Iterable[object]) -> InputError:
    """The error for a name that does not exist: "no KIND 'NAME'; there are: A, B"."""
    names = [str(entry) for entry in known]
    if len(names) > MOST_NAMES:
        close = ", ".join(nearest(str(name), names))
        return InputError(f"no {kind} {str(name)!r}; the nearest of {len(names)} are: {close}")
    return InputError(f"no {kind} {str(name)!r}; there are: {', '.join(names) or 'none'}")


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The three names most like `name`, the nearest first."""
    return difflib.get_close_matches(name[:80], list(names), n=3, cutoff=0.0)


def check_known(kind: str, names: Iterable[object], known: Collection[object]) -> None:
    """Refuse names that do not exist. Raises InputError for the first, see `unknown`."""
    for name in names:
        if name not in known:
            raise unknown(kind, name, known)


@contextmanager
def importing(advice: str) -> Iterator[None]:
    """Around the import of a package that may be absent. Raises InputError with the advice."""
    try:
        yield
    except ImportError as error:
        raise InputError(f"{advice} ({error})") from error


def frame_range(what: str, start: int, stop: int | None, frames: int) -> slice:
    """Frames [start, stop) of `frames`, stop by default the end.

    Raises:
      InputError: unless 0 <= start < stop <= frames.
    """
    stop = frames if stop is None else stop
    if not 0 <= start < stop <= frames:
        raise InputError(
            f"{what}: cannot take frames {start} to {stop}; it has {frames} (0 <= start < stop)"
        )
    return slice(start, stop)


def matching(kind: str, patterns: Iterable[str], known: Collection[str]) -> frozenset[str]:
    """The names that match at least one pattern ("walk_*").

    Raises:
      InputError: for a pattern that matches none.
    """
    names: set[str] = set()
    for pattern in patterns:
        matched = [name for name in known if fnmatchcase(name, pattern)]
        if not matched:
            raise unknown(kind, pattern, known)
        names.update(matched)
    return frozenset(names)
