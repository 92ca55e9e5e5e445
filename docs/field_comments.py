"""For the reference: the comments above a class's fields become a table in its docstring."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Fields that a comment explains, or the docstring by lines of `name: what it is`."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is None:
            return
        fields = {name: field for name, field in cls.attributes.items() if not name.startswith("_")}
        names = "|".join(fields)
        if fields:  # lines would run into one paragraph: they become a list
            listed = re.sub(
                rf"(?m)^((?:{names})(?:, (?:{names}))*): ", r"- `\1`: ", cls.docstring.value
            )
            cls.docstring.value = re.sub(r"(?m)^(?!- |\s)(.+)\n- `", r"\1\n\n- `", listed, count=1)
        comments = {name: comment_of(field) for name, field in fields.items()}
        rows = [f"    {name}: {comment}" for name, comment in comments.items() if comment]
        if rows:
            cls.docstring.value += "\n\nAttributes:\n" + "\n".join(rows)


def comment_of(field: griffe.Attribute) -> str:
    """The comment above a field or behind it; units in brackets are kept from being links."""
    before = field.lines_collection[field.filepath][: (field.lineno or 1) - 1]
    above = takewhile(lambda line: line.lstrip().startswith("#"), reversed(before))
    lines = [line.strip().lstrip("# ") for line in above][::-1]
    _, _, behind = "\n".join(field.lines).partition("  # ")
    return (" ".join(lines) or behind).replace("[", "\\[")
