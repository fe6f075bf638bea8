"""The textual form of a pass pipeline: ``a{k=v list=x,y},b,func.func(c)``.

This is MLIR's syntax.  Options are separated by whitespace and the items of a
list by commas.  A comma before ``name=`` separates options too, so
``{stages=1, buffers=x,y}`` says the same.  An item that would read as anything
else is written as a JSON string.
"""

from __future__ import annotations

import dataclasses
import json
import re

from .errors import PassPipelineError

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_ASSIGNED_NAME = re.compile(r"\s*[A-Za-z_][A-Za-z0-9_.-]*=")
_BARE = re.compile(r"""[^\s,{}()"'=][^\s,{}()"=]*""")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_CLOSER = {"(": ")", "{": "}"}

# MLIR parses nested pipelines by recursion; deeper text is no pipeline.
_MAX_NESTING = 64


def error_at(text: str, position: int, message: str, hint: str | None = None) -> PassPipelineError:
    """The error `message` with `text`'s line under it and a caret at `position`."""
    start = text.rfind("\n", 0, position) + 1
    line = text[start:].partition("\n")[0].replace("\t", " ")
    column = position - start
    where = f"pass pipeline, column {column + 1}"
    return PassPipelineError(f"{where}: {message}\n  {line}\n  {' ' * column}^", hint=hint)


@dataclasses.dataclass(frozen=True)
class Element:
    """One pass of a pipeline's text, from `start` to `end`.

    Attributes:
      options: start and end of the text between its braces, None without braces.
      nested: whether it is ``op.name(pipeline)``.
    """

    name: str
    start: int
    end: int
    options: tuple[int, int] | None = None
    nested: bool = False


@dataclasses.dataclass(frozen=True)
class Assignment:
    """One ``name=item,item``; `items` is None where there is no ``=``."""

    name: str
    start: int
    items: tuple[str, ...] | None
    items_start: int


def parse_elements(text: str) -> list[Element]:
    """The passes of a pipeline's text, in order; those of ``builtin.module(...)`` alike.

    Raises:
      PassPipelineError: `text` is malformed.
    """
    end = len(text.rstrip())
    position = _skip_space(text, 0)
    wrapper = re.compile(r"builtin\.module\s*\(").match(text, position)
    if wrapper is not None:
        closed = _skip_balanced(text, wrapper.end() - 1)
        if closed == end:
            position, end = _skip_space(text, wrapper.end()), closed - 1
    elements: list[Element] = []
    while elements or position < end:
        element = _parse_element(text, position, end)
        elements.append(element)
        position = _skip_space(text, element.end)
        if position >= end:
            break
        if text[position] != ",":
            raise error_at(text, position, f"expected ',' or the end, found '{text[position]}'")
        position = _skip_space(text, position + 1)
    return elements


def _parse_element(text: str, position: int, end: int) -> Element:
    name = _NAME.match(text, position, end)
    if name is None:
        raise error_at(
            text, position, f"expected the name of a pass, found {_found(text, position, end)}"
        )
    opener = text[name.end() : name.end() + 1]
    if opener not in _CLOSER:
        return Element(name[0], name.start(), name.end())
    closed = _skip_balanced(text, name.end())
    if opener == "(":
        return Element(name[0], name.start(), closed, nested=True)
    return Element(name[0], name.start(), closed, options=(name.end() + 1, closed - 1))


def parse_options(text: str, start: int, end: int) -> list[Assignment]:
    """The options in ``text[start:end]``, the text between a pass's braces.

    Raises:
      PassPipelineError: they are malformed.
    """
    assignments: list[Assignment] = []
    position = _skip_space(text, start)
    while position < end:
        name = _NAME.match(text, position, end)
        if name is None:
            found = _found(text, position, end)
            raise error_at(text, position, f"expected the name of an option, found {found}")
        items, items_start, position = None, name.end(), name.end()
        if text[position] == "=":
            items_start = position + 1
            items, position = _parse_items(text, items_start, end)
        assignments.append(Assignment(name[0], name.start(), items, items_start))
        position = _skip_separator(text, position, end)
    return assignments


def _parse_items(text: str, position: int, end: int) -> tuple[tuple[str, ...], int]:
    if position >= end or text[position].isspace():
        return (), position
    items: list[str] = []
    while True:
        item, position = _parse_item(text, position, end)
        items.append(item)
        comma = _skip_space(text, position)
        if comma >= end or text[comma] != "," or _ASSIGNED_NAME.match(text, comma + 1, end):
            return tuple(items), position
        position = _skip_space(text, comma + 1)


def _parse_item(text: str, position: int, end: int) -> tuple[str, int]:
    if position < end and text[position] == '"':
        try:
            return json.JSONDecoder().raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise error_at(text, error.pos, f"malformed string: {error.msg.lower()}") from None
    bare = _BARE.match(text, position, end)
    if bare is None:
        found = _found(text, position, end)
        raise error_at(
            text, position, f"expected a value, found {found}", 'write an odd value as "..."'
        )
    return bare[0], bare.end()


def _skip_separator(text: str, position: int, end: int) -> int:
    after = _skip_space(text, position)
    if after < end and text[after] == "," and _ASSIGNED_NAME.match(text, after + 1, end):
        return _skip_space(text, after + 1)
    if after == position and position < end:
        raise error_at(
            text,
            position,
            f"expected a space, ',' or '}}', found '{text[position]}'",
            'options are separated by spaces, list items by commas; write an odd value as "..."',
        )
    return after


def is_name(text: str) -> bool:
    """Whether `text` can name a pass or an option."""
    return _NAME.fullmatch(text) is not None


def format_item(item: str) -> str:
    """`item` as `parse_options` reads it back."""
    bare = _BARE.fullmatch(item) is not None and item.isprintable()
    return item if bare else json.dumps(item)


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()


def _skip_balanced(text: str, position: int) -> int:
    """The position after the bracket that closes the one at `position`."""
    expected: list[str] = []
    start = position
    while position < len(text):
        char = text[position]
        if char == '"':
            string = _STRING.match(text, position)
            if string is None:
                raise error_at(text, position, "this string has no end")
            position = string.end()
            continue
        if char in _CLOSER:
            expected.append(_CLOSER[char])
            if len(expected) > _MAX_NESTING:
                raise error_at(text, position, f"nested deeper than {_MAX_NESTING} levels")
        elif char in ")}":
            if char != expected[-1]:
                raise error_at(text, position, f"expected '{expected[-1]}', found '{char}'")
            expected.pop()
            if not expected:
                return position + 1
        elif not (char.isprintable() or char.isspace()):
            raise error_at(text, position, f"unexpected character {char!r}")
        position += 1
    raise error_at(text, start, f"this '{text[start]}' is not closed; expected '{expected[-1]}'")


def _found(text: str, position: int, end: int) -> str:
    return f"'{text[position]}'" if position < end else "the end"
