"""What is refused: an `InputError` whose message is one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mocap_data.errors import InputError


def refusal(message: str, call: Callable[..., object], /, *given: object, **options: object) -> str:
    """The line that `call(*given, **options)` is refused with; `message` is a pattern in it."""
    with pytest.raises(InputError, match=message or None) as error:
        call(*given, **options)
    said = str(error.value)
    assert len(said.splitlines()) == 1
    return said
