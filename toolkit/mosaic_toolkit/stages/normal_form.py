"""A stage's text without what does not matter: locations, names of values, comments."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import NamedTuple


class Form(enum.Enum):
    """How a stage's text is written; two stages compare only in the same form."""

    MLIR = "mlir"
    LLO = "llo"
    LLO_BLOCKS = "llo blocks"
    BUNDLES = "bundles"
    BLOCK_BUNDLES = "block bundles"
    OTHER = "other"


_BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|\d+)\s+[A-Z]*\s*:[ >]*\{")
_LLO_VALUE = re.compile(r"%[a-z]*\d+ = ")


def llo_form(text: str) -> Form:
    """The form of a file of the TPU's low-level optimizer, by its first lines."""
    head = text.lstrip()[:4096]
    if head.startswith(("$region", "//")) and "$region" in head:
        return Form.LLO
    if head.startswith("= control target key"):
        return Form.BUNDLES
    if _BUNDLE.match(head):
        return Form.BLOCK_BUNDLES
    if _LLO_VALUE.match(head):
        return Form.LLO_BLOCKS
    return Form.OTHER


class NormalForm(NamedTuple):
    """A text cut at its names.

    Attributes:
      text: what stands between names.
      names: each name as its place in the order of first use.
    """

    text: tuple[str, ...]
    names: tuple[int, ...]


def normal_form(text: str, form: Form) -> NormalForm | None:
    """Equal for two texts that differ only in locations, comments and numbering.

    None for a form that is no program.
    """
    if form is Form.OTHER:
        return None
    return _mlir(text) if form is Form.MLIR else _llo(text)


_QUOTED = r'"(?:[^"\\]|\\.)*"'
_NESTED = rf"(?:{_QUOTED}|[^()\"]|\((?:{_QUOTED}|[^()\"]|\((?:{_QUOTED}|[^()\"])*\))*\))*"
_ALIASED_LOCATION = re.compile(r"\bloc\(#loc\d*\)")
_LOCATION = re.compile(rf"\bloc\({_NESTED}\)")
# The short form for people, in which Triton's log prints locations.
_PRETTY_LOCATION = re.compile(rf"(?:{_QUOTED}\(#loc\d*\)|#loc\d*|\[unknown\])$", re.MULTILINE)
_MLIR_NAME = re.compile(r"(%[\w$.-]+|\^bb\d+)")

_LLO_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
# "parent=3" and "region = 3" name the region that "$region3" opens.
_LLO_REGION = re.compile(r"\b(?:parent=|region = )(?=\d)")
_LLO_NAME = re.compile(r"(%[a-z]*|\$region|#allocation)(\d+)")


def _mlir(text: str) -> NormalForm:
    lines = (line for line in text.splitlines() if not line.startswith(("#loc", " at #loc")))
    text = _ALIASED_LOCATION.sub("", "\n".join(lines))
    if "loc(" in text:
        text = _LOCATION.sub("", text)
    text = _PRETTY_LOCATION.sub("", text)
    parts = _MLIR_NAME.split(_one_blank(text))
    return NormalForm(tuple(parts[::2]), _numbered(parts[1::2]))


def _llo(text: str) -> NormalForm:
    text = _LLO_REGION.sub("to $region", _LLO_COMMENT.sub("", text))
    parts = _LLO_NAME.split(_one_blank(text))
    kinds = parts[1::3]
    names = map("".join, zip(kinds, parts[2::3]))
    return NormalForm((*parts[::3], *kinds), _numbered(names))


def _one_blank(text: str) -> str:
    return " ".join(text.split())


def _numbered(names: Iterable[str]) -> tuple[int, ...]:
    numbers: dict[str, int] = {}
    return tuple([numbers.setdefault(name, len(numbers)) for name in names])
