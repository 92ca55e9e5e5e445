"""What is refused: an `InputError` whose message is one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mocap_data.errors import InputError


def refusal(message: str, call: Callable[..., object], /, *args: object, **options: object) -> str:
    """The line that `call(*args, **options)` is refused with; `message` is a pattern in it."""
    with pytest.raises(InputError, match=message or None) as error:
        call(*args, **options)
    line = str(error.value)
    assert len(line.splitlines()) == 1
    return line
