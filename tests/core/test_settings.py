"""Values into typed settings; and where the settings stand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from mocap_data.errors import InputError
from npmp.core.settings import (
    PART,
    changed,
    changes,
    from_mapping,
    plain_fields,
    plain_key,
    to_plain,
)
from tests.refusals import refusal

# --- from_mapping


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    sizes: tuple[int, ...] = (8,)


@dataclasses.dataclass(frozen=True)
class Outer:
    needed: int
    on: bool = True
    word: str = "a"
    span: tuple[float, float] = (0.0, 1.0)
    ranges: tuple[tuple[float, float], tuple[float, float]] = ((0.0, 1.0), (0.0, 1.0))
    limit: float | None = None
    auto: float | str = "auto"
    pair: tuple[float, float] | None = None
    weights: Mapping[str, float] | None = None
    mode: Literal["a", "b"] = "a"
    place: Path | None = None
    inner: Inner = dataclasses.field(default_factory=lambda: Inner(rate=0.25))

    def __post_init__(self) -> None:
        if self.needed < 0:
            raise ValueError(f"needed must be at least 0, got {self.needed}")


def test_values_become_what_the_annotations_say() -> None:
    made = from_mapping(
        Outer,
        {
            "needed": 3,
            "span": [0, 2],
            "ranges": [[0, 1], [2, 3]],
            "limit": 1,
            "auto": 2,
            "pair": [1, 2],
            "weights": {"foot": 1},
            "inner": {"sizes": [4, 5]},
            "name": "x",
        },
        ignore=("name",),
    )
    assert made == Outer(
        3,
        span=(0.0, 2.0),
        ranges=((0.0, 1.0), (2.0, 3.0)),
        limit=1.0,
        auto=2.0,
        pair=(1.0, 2.0),
        # rate: what the field defaults to, not the class
        weights={"foot": 1.0},
        inner=Inner(rate=0.25, sizes=(4, 5)),
    )
    assert isinstance(made.span[0], float) and made.ranges[1] == (2.0, 3.0)
    assert from_mapping(Outer, {"needed": 1e6, "place": "~/x"}).place == Path.home() / "x"
    assert from_mapping(
        Outer, {"needed": 1, "limit": None, "auto": "x", "inner": Inner(0.1)}
    ).inner == Inner(0.1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"on": 1}, "run.on must be true or false, got 1"),
        ({"needed": 1.5}, "run.needed must be a whole number, got 1.5"),
        ({"limit": "1"}, "run.limit must be a finite number or null, got '1'"),
        ({"word": 3}, "run.word must be text, got 3"),
        ({"span": [1.0]}, "run.span must be a list of 2, each a finite number, got [1.0]"),
        ({"ranges": [[0, 1], [0, "x"]]}, "run.ranges[1][1] must be a finite number, got 'x'"),
        ({"weights": {"foot": None}}, "run.weights.foot must be a finite number, got null"),
        ({"mode": "c"}, "run.mode must be a or b, got 'c'"),
        ({"inner": {"size": 1}}, "run.inner has no setting 'size'; the nearest are: sizes, rate"),
        ({"other": 1}, "run has no setting 'other'; the nearest are: "),
        ({"needed": -1}, "run: needed must be at least 0, got -1"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(wrong: dict[str, Any], message: str) -> None:
    assert refusal("", from_mapping, Outer, {"needed": 1, **wrong}, at="run").startswith(message)


def test_a_setting_without_a_default_is_missed() -> None:
    refusal("Outer lacks needed; its settings are: needed, on", from_mapping, Outer, {})
    with pytest.raises(InputError, match="run must be"):
        from_mapping(Outer, 3, at="run")  # type: ignore[arg-type]


# --- changes


def test_changes_leave_out_what_belongs_to_the_process() -> None:
    stored = {"threads": 1, "out": "a", "algo": {"rate": [1.0, 2.0], "old": 3}, "steps": 5}
    values = {"threads": 2, "out": "b", "algo": {"rate": (1.0, 4.0)}, "steps": 6, "auto": None}
    expected = {"algo.rate": ([1.0, 2.0], [1.0, 4.0]), "algo.old": (3, None)}
    assert changes(stored, values, ignore=["steps"]) == expected
    assert changes(stored, values) == {**expected, "steps": (5, 6)}


# --- parts


@dataclasses.dataclass(frozen=True)
class Ground:
    terrain: str = "flat"
    level: float = 1.0

    def __post_init__(self) -> None:
        if self.level > 1.0:
            raise ValueError(f"level must be at most 1, got {self.level}")


@dataclasses.dataclass(frozen=True)
class Walk:
    ground: Ground = dataclasses.field(default_factory=Ground, metadata=PART)
    phi: float = 0.5


@dataclasses.dataclass(frozen=True)
class Route:
    walk: Walk = dataclasses.field(
        default_factory=lambda: Walk(Ground(terrain="rooms")), metadata=PART
    )
    shape: str = "square"


def test_a_part_s_keys_may_stand_without_its_name() -> None:
    expected = Route(Walk(Ground("stairs", 0.5), 0.2))
    values = {"terrain": "stairs", "level": 0.5, "phi": 0.2}
    nested = {"walk": {"ground": {"terrain": "stairs", "level": 0.5}, "phi": 0.2}}
    assert from_mapping(Route, values) == from_mapping(Route, nested) == expected
    assert from_mapping(Route, {"walk": {"ground": {"level": 0.5}}, **values}) == expected
    assert changed(Route(), **values) == expected
    assert changed(expected, level=1) == Route(Walk(Ground("stairs", 1.0), 0.2))
    # other values stay those of the part's default
    assert from_mapping(Route, {"level": 0.5}).walk.ground == Ground("rooms", 0.5)


def test_a_plain_key_has_no_names_of_parts() -> None:
    for key in ("walk.ground.level", "walk.level", "ground.level", "level"):
        assert plain_key(Route, key) == "level"
    # another part's key, and one that does not exist
    assert plain_key(Walk, "ground.phi") == "ground.phi"
    assert plain_key(Walk, "ground.levle") == "levle"


def test_plain_settings_have_no_parts() -> None:
    plain = {"terrain": "rooms", "level": 1.0, "phi": 0.5, "shape": "square"}
    assert to_plain(Route()) == plain
    assert list(plain_fields(Route)) == list(plain)


def test_errors_of_parts_name_the_plain_key() -> None:
    refusal("no setting 'terain'.*: terrain", from_mapping, Route, {"terain": 1}, at="task")
    refusal("task.terrain must be text", from_mapping, Route, {"terrain": 1}, at="task")
    refusal("task: level must be at most 1", from_mapping, Route, {"level": 2.0}, at="task")


def test_two_parts_cannot_have_one_key() -> None:
    twice = dataclasses.make_dataclass(
        "Twice",
        [
            (name, Ground, dataclasses.field(default_factory=Ground, metadata=PART))
            for name in ("floor", "ceiling")
        ],
    )
    with pytest.raises(TypeError, match="Twice has the key 'level' twice"):
        plain_fields(twice)
