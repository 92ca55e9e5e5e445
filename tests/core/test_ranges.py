"""Ranges of settings: the bounds themselves, entries of tuples, and numbers that are none."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from npmp.core import ranges
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("check", "valid", "wrong"),
    [
        (ranges.above_zero, [1e-9, (1, 2.0), None], [0.0, -1.0, math.inf, math.nan, (1.0, 0.0)]),
        (ranges.not_negative, [0, (0.0, 1.0), None], [-1e-9, math.inf, math.nan, (0.0, -1.0)]),
        (ranges.at_least_one, [1, (1, 2), None], [0, 1.0, -3]),
        (ranges.share, [0, 1.0, (0.0, 1.0), None], [-1e-9, 1.1, math.nan]),
    ],
)
def test_bounds(check: Callable[..., None], valid: list[Any], wrong: list[Any]) -> None:
    for value in valid:
        check(SimpleNamespace(size=value), "size")
    for value in wrong:
        refusal("^size", check, SimpleNamespace(size=value), "size")


def test_words_and_upper_bounds() -> None:
    ranges.one_of(SimpleNamespace(mode="a"), "mode", "ab")
    wrong = SimpleNamespace(mode="c")
    refusal("mode must be one of a, b; got 'c'", ranges.one_of, wrong, "mode", "ab")
    ranges.at_most(SimpleNamespace(size=3), 3, "size")
    refusal("size must be at most 3, got 4", ranges.at_most, SimpleNamespace(size=4), 3, "size")
