"""YAML from outside, bounded before anything of it is built.

A few hundred bytes of aliases can stand for billions of nodes, and thousands of nested levels end
the interpreter: the parser's events are counted first, aliases as often as they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from mocap_data.errors import InputError
from mocap_data.outside import MAX_NESTING, read_text

# a robot.yaml has 5 KB
MAX_YAML_BYTES = 1 << 20
MAX_NODES = 100_000
# characters of a number; longer ones take long to parse
MAX_NUMBER = 400
# the C loader is ten times as fast
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: str | Path) -> Any:
    """The content of a YAML file. Raises InputError as `outside.read_text` and `parse_yaml`."""
    return parse_yaml(read_text(path, at_most=MAX_YAML_BYTES), str(path))


def parse_yaml(text: str, name: str) -> Any:
    """YAML from a text from outside; `name` says from where.

    Raises:
      InputError: for what is not YAML, and as `check_yaml`.
    """
    check_yaml(text, name)
    # ValueError: dates that do not exist, numbers of 5000 digits; the others: odd keys and tags
    with _parsing(name, ValueError, TypeError, AttributeError, OverflowError, LookupError):
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()


@contextmanager
def _parsing(name: str, *others: type[Exception]) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (yaml.YAMLError, *others) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name}: not a YAML file: {message:.200}") from error


def check_yaml(text: str, name: str) -> None:
    """Count a text's nodes and levels, aliases replaced by what they stand for.

    Raises:
      InputError: for what is not YAML, nested too deep, too large, or refers to itself.
    """
    with _parsing(name):
        _count(text, name)


def _count(text: str, name: str) -> None:
    too_deep = InputError(f"{name}: nested more than {MAX_NESTING} levels deep")
    # nodes and levels of each anchor
    anchors: dict[str, tuple[int, int]] = {}
    # anchor, nodes so far, levels below
    open_nodes: list[tuple[str | None, int, int]] = [(None, 0, 0)]
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.ScalarEvent):
            value = event.value
            if len(value) > MAX_NUMBER and re.fullmatch(r"[-+0-9_:.eExXa-fA-F]+", value):
                raise InputError(f"{name}: a number of {len(value):,} digits")
            anchor = event.anchor
            nodes = 1
            levels = 0
        elif isinstance(event, yaml.AliasEvent):
            # an anchor that is still open would hold itself
            if event.anchor not in anchors:
                raise InputError(f"{name}: the alias *{event.anchor} stands for nothing before it")
            anchor = None
            nodes, levels = anchors[event.anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, 1, 0))
            if len(open_nodes) > MAX_NESTING:
                raise too_deep
            continue
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, nodes, levels = open_nodes.pop()
            levels += 1
        else:
            continue
        if anchor is not None:
            anchors[anchor] = nodes, levels
        outer, total, deepest = open_nodes.pop()
        open_nodes.append((outer, total + nodes, max(deepest, levels)))
        if total + nodes > MAX_NODES:
            raise InputError(f"{name}: more than {MAX_NODES:,} values, aliases replaced")
        if len(open_nodes) + open_nodes[-1][2] > MAX_NESTING + 1:
            raise too_deep
