from __future__ import annotations

from mocap_data.errors import MAX_MESSAGE, InputError, unknown


def test_a_message_is_one_line_of_readable_length() -> None:
    assert str(InputError("plain")) == "plain"
    assert str(InputError("two\nlines\r\nor three")) == "two lines or three"
    long = str(InputError("begins " + "x" * 10_000 + " ends"))
    assert MAX_MESSAGE <= len(long) < MAX_MESSAGE + 20
    assert long.startswith("begins xx") and long.endswith("xx ends") and " ... " in long


def test_an_unknown_name_lists_the_available_ones() -> None:
    assert str(unknown("robot", "x", ["a", "b"])) == "no robot 'x'; available: a, b"
    assert str(unknown("robot", "x", [])) == "no robot 'x'; available: none"
    many = [*map(str, range(18)), "trunk", "knee", "foot"]
    expected = "no joint 'knees'; nearest of 21: knee, "
    assert str(unknown("joint", "knees", many)).startswith(expected)


def test_unprintable_characters_are_escaped() -> None:
    assert str(InputError("no \x1b[2J\udcff\nfile é")) == "no \\x1b[2J\\udcff file é"
