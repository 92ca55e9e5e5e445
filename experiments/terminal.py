"""Output and exit codes of commands: lines, tables, errors in one line.

Text of foreign files goes to the terminal through `say`, `table` and `InputError`, which escape
control characters.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Self, TextIO

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from mocap_data.errors import InputError, one_line, printable
from npmp.core.signals import Stopped, silence
from npmp.learning.live import PLAIN_S, LiveLine

OK = 0
INTERNAL_ERROR = 1
USER_ERROR = 2
NOT_PASSED = 3
BROKEN_PIPE = 141
INTERRUPTED = 130
USER_ERRORS = (InputError, OSError)


def console(*, stderr: bool = False) -> Console:
    """The console of tables; 140 columns without a terminal and COLUMNS."""
    stream = sys.stderr if stderr else sys.stdout
    print_anything(stream)
    columns = os.environ.get("COLUMNS", "")
    has_width = stream.isatty() or (columns.isdecimal() and int(columns) > 0)
    return Console(stderr=stderr, width=None if has_width else 140)


def say(*lines: str, wrap: bool = False) -> None:
    """Lines on the terminal, brackets as they are. wrap: between words, at its width."""
    for line in lines:
        console().print(printable(line), highlight=False, markup=False, soft_wrap=not wrap)


def warn(message: str) -> None:
    """A line on stderr."""
    print_anything(sys.stderr)
    print(f"npmp: {printable(message)}", file=sys.stderr, flush=True)


def table(
    columns: Iterable[str],
    rows: Iterable[Sequence[RenderableType]] = (),
    *,
    right: Collection[str] = (),
    **look: Any,
) -> Table:
    """A table for the terminal; text in cells is taken as it is. right: columns of numbers; look:
    as `rich.table.Table` takes it."""
    result = Table(**look)
    for column in columns:
        result.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        result.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in row))
    return result


def show_table(
    columns: Iterable[str], rows: Iterable[Sequence[RenderableType]], **look: Any
) -> None:
    """Print a table that `table` makes."""
    console().print(table(columns, rows, **look))


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A progress bar on stderr, in a terminal removed at the end; otherwise occasional lines.
    columns: between the bar and the times."""
    times = TimeElapsedColumn(), TimeRemainingColumn()
    all_columns = (TextColumn("{task.description}"), BarColumn(), *columns, *times)
    kind = Progress if sys.stderr.isatty() else _Lines
    return kind(*all_columns, console=console(stderr=True), transient=True, disable=kind is _Lines)


class _Lines(Progress):
    """A bar as `LiveLine` writes it where stderr is not a terminal."""

    def __enter__(self) -> Self:
        self._line = LiveLine(after_s=PLAIN_S)
        self._line.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._line.__exit__(*error)

    def get_renderable(self) -> RenderableType:
        return ""

    def add_task(self, description: str, *arguments: Any, **options: Any) -> TaskID:
        task = super().add_task(description, *arguments, **options)
        self._report(task)
        return task

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._report(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._report(task_id)

    def _report(self, task_id: TaskID) -> None:
        task = self._tasks[task_id]
        self._line.phase(task.description, int(task.completed), int(task.total or 0))


def print_anything(*streams: TextIO) -> None:
    """Let a stream escape what it cannot print: characters of another encoding, file names that are
    no UTF-8."""
    for stream in streams or (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="backslashreplace")


# --- errors


def report_error(error: BaseException) -> int:
    """Print a user's error on one line; NPMP_DEBUG=1 adds the traceback. Returns its exit code."""
    warn(f"error: {one_line(error)}")
    if os.environ.get("NPMP_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error)
    return USER_ERROR


class guarded:
    """A context whose exceptions become a message on stderr and an exit code, `code`. It adds no
    frame to tracebacks."""

    code = OK

    def __enter__(self) -> guarded:
        print_anything()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> bool:
        if not isinstance(error, Exception | KeyboardInterrupt):
            return False
        self.code = _reported(error)
        return True


def _reported(error: Exception | KeyboardInterrupt) -> int:
    """Print what happened. Returns the exit code."""
    if isinstance(error, Stopped):
        warn(str(error))
        return error.code
    if isinstance(error, KeyboardInterrupt):
        warn("interrupted")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # The reader has closed the pipe (npmp ... | head). Prevent Python from flushing into it at
        # exit.
        with contextlib.suppress(OSError, ValueError):
            silence([sys.stdout.fileno()])
        return BROKEN_PIPE
    if isinstance(error, USER_ERRORS):
        return report_error(error)
    # torch raises a plain RuntimeError for memory on the CPU
    of_torch = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and of_torch):
        advice = "use fewer robots (num_envs=), smaller networks or a shorter replay"
        report_error(MemoryError(f"out of memory; {advice}"))
        return INTERNAL_ERROR
    traceback.print_exception(error)
    warn("error: an internal error (above); please report it with the command that caused it")
    return INTERNAL_ERROR
