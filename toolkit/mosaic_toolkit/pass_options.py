"""The options of a pass class: the fields of its dataclass, seen from the textual form."""

from __future__ import annotations

import dataclasses
import re
import typing
from typing import Any

from .errors import PassPipelineError
from .pass_syntax import format_item

_INT = re.compile(r"[+-]?[0-9]+")
_KINDS: dict[Any, str] = {int: "int", str: "str", bool: "bool", tuple[str, ...]: "list of str"}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a pass.

    Attributes:
      name: as written in a pipeline: the field's name with ``-`` for ``_``.
      field: the dataclass field's name.
      kind: ``int``, ``str``, ``bool`` or ``list of str``.
      required: whether it has no default.
      default: its value where the pipeline does not give one; None if required.
      help: what it means, from the field's metadata key ``help``.
    """

    name: str
    field: str
    kind: str
    required: bool
    default: Any
    help: str

    def parse(self, items: tuple[str, ...] | None) -> Any:
        """The option's value from its items, None for an option without ``=``.

        Raises:
          ValueError: they are no value of its kind; says what was expected.
        """
        if items is None:
            if self.kind == "bool":
                return True
            raise ValueError(f"'{self.name}' needs a value: {self.name}={self.placeholder}")
        if self.kind == "list of str":
            return items
        if len(items) != 1:
            given = f"{len(items)} values" if items else "no value"
            raise ValueError(f"'{self.name}' takes one {self.kind}, not {given}")
        (item,) = items
        if self.kind == "bool":
            if item not in ("true", "false"):
                raise ValueError(f"'{self.name}' is true or false, not '{item}'")
            return item == "true"
        if self.kind == "int":
            if _INT.fullmatch(item) is None:
                raise ValueError(f"'{self.name}' is a whole number, not '{item}'")
            return int(item)
        return item

    def format(self, value: Any) -> str:
        """``name=value`` as `parse` reads it back."""
        if self.kind == "bool":
            return f"{self.name}={'true' if value else 'false'}"
        items = value if self.kind == "list of str" else [str(value)]
        return f"{self.name}={','.join(map(format_item, items))}"

    @property
    def placeholder(self) -> str:
        """How the value looks in a usage line."""
        return {"int": "N", "str": "TEXT", "bool": "true|false", "list of str": "A,B,..."}[
            self.kind
        ]

    @property
    def usage(self) -> str:
        """``name=N``, in brackets if it can be left out."""
        text = f"{self.name}={self.placeholder}"
        return text if self.required else f"[{text}]"


def options_of(cls: type) -> tuple[Option, ...]:
    """The options of a pass class, in the order of its fields.

    Raises:
      PassPipelineError: a field's type cannot be written in a pipeline.
    """
    hints = typing.get_type_hints(cls)
    return tuple(_option(cls, field, hints[field.name]) for field in dataclasses.fields(cls))


def _option(cls: type, field: dataclasses.Field, kind: Any) -> Option:
    if kind not in _KINDS:
        raise PassPipelineError(
            f"option '{field.name}' of {cls.__qualname__} is a {kind}",
            hint="an option is an int, a str, a bool or a tuple[str, ...]",
        )
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    required = default is dataclasses.MISSING
    return Option(
        name=field.name.replace("_", "-"),
        field=field.name,
        kind=_KINDS[kind],
        required=required,
        default=None if required else default,
        help=field.metadata.get("help", ""),
    )
