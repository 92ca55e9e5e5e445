"""YAML files of users: bounded in size and nesting; aliases are not allowed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from mocap_data.errors import InputError
from mocap_data.input_files import read_text

# a robot.yaml has 5 KB
MAX_YAML_BYTES = 1 << 20
# levels of lists and mappings; thousands crash the C loader
MAX_NESTING = 64
# characters of a number; longer ones take long to parse
MAX_NUMBER = 400
_NUMBER = re.compile(r"[-+0-9_:.eExXa-fA-F]+")
# the C loader is ten times as fast
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: str | Path) -> Any:
    """The content of a YAML file. Raises InputError as `read_text` and `parse_yaml`."""
    return parse_yaml(read_text(path, at_most=MAX_YAML_BYTES), str(path))


def parse_yaml(text: str, name: str) -> Any:
    """The content of a YAML text; `name` is its file, for errors.

    Raises:
      InputError: no YAML, and as `check_yaml`.
    """
    check_yaml(text, name)
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    # errors of values: impossible dates, numbers of 5,000 digits, invalid keys and tags
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise _not_yaml(name, error) from error
    finally:
        loader.dispose()


def check_yaml(text: str, name: str) -> None:
    """Check the structure of a YAML text.

    Raises:
      InputError: no YAML, nesting beyond MAX_NESTING, an alias, or a number beyond MAX_NUMBER.
    """
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_Loader):
            scalar = event.value if isinstance(event, yaml.ScalarEvent) else ""
            if len(scalar) > MAX_NUMBER and _NUMBER.fullmatch(scalar):
                digits = f"{len(scalar):,} digits, at most {MAX_NUMBER}"
                raise InputError(f"{name}: a number of {digits}")
            if isinstance(event, yaml.AliasEvent):
                raise InputError(
                    f"{name}: alias *{event.anchor}: aliases are not allowed; write out the value"
                )
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > MAX_NESTING:
                raise InputError(f"{name}: nested more than {MAX_NESTING} levels deep")
    except yaml.YAMLError as error:
        raise _not_yaml(name, error) from error


def _not_yaml(name: str, error: Exception) -> InputError:
    message = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"{name}: not a YAML file: {message:.200}")
