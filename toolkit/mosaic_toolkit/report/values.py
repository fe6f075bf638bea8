"""Frozen dataclasses as JSON, and back."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any


def to_json(value: Any) -> Any:
    """A dataclass, tuple or plain value as what `json.dumps` takes."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value


def from_json[T](cls: type[T], data: Any) -> T:
    """The inverse of `to_json`; keys that are no fields of the dataclass are ignored.

    Raises:
      KeyError, TypeError, ValueError: `data` is not what `to_json` made of a `cls`.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"a {cls.__name__} is an object, not {type(data).__name__}")
    hints = _hints(cls)
    return cls(**{name: _value(hint, data[name], name) for name, hint in hints.items()})


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _value(hint: Any, data: Any, name: str) -> Any:
    if isinstance(hint, typing.TypeAliasType):
        hint = hint.__value__
    if typing.get_origin(hint) is tuple:
        return _tuple(typing.get_args(hint), data, name)
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if isinstance(option, type) and issubclass(option, enum.Enum):
            return option(data)
        if dataclasses.is_dataclass(option) and isinstance(data, Mapping):
            return from_json(typing.cast(type, option), data)
    # A bool is an int to isinstance, and a count that is a bool is an error.
    if not any(type(data) is option for option in options):
        raise TypeError(f"'{name}' should be {_spelled(options)}, is {type(data).__name__}")
    return data


def _tuple(members: tuple[Any, ...], data: Any, name: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise TypeError(f"'{name}' should be a list, is {type(data).__name__}")
    if len(members) == 2 and members[1] is Ellipsis:
        return tuple(_value(members[0], item, name) for item in data)
    if len(members) != len(data):
        raise ValueError(f"'{name}' should have {len(members)} members, has {len(data)}")
    return tuple(_value(member, item, name) for member, item in zip(members, data))


def _spelled(options: tuple[Any, ...]) -> str:
    return " or ".join("null" if o is types.NoneType else o.__name__ for o in options)
