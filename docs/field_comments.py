"""For the reference: what a field means stands in a comment on its line; its class's docstring gets
them as a table."""

from __future__ import annotations

import io
import re
import tokenize
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Fields of a class that are explained in comments, or in the docstring by lines of `name: what
    it is`."""

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
        rows = [
            f"    {name}: {comment}"
            for name, field in fields.items()
            if (comment := comment_of(field))
        ]
        if rows:
            cls.docstring.value += "\n\nAttributes:\n" + "\n".join(rows)


def comment_of(field: griffe.Attribute) -> str:
    """The comment behind a field, "" where there is none; units in brackets are kept from being
    links."""
    try:
        tokens = list(
            tokenize.generate_tokens(io.StringIO("\n".join(field.lines).strip()).readline)
        )
    except tokenize.TokenError:
        return ""
    found = [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    return found[-1].replace("[", "\\[") if found else ""
