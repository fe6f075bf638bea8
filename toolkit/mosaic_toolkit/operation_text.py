"""Writes matched operations so that one value has one number on both sides."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .jax_compat import ir
from .matching import Block, Matching, Node

_LONGEST = 120  # characters of one attribute
_INTEGER_TYPE = re.compile(r" : (index|i\d+)$")
_DEFAULTS = frozenset({"#arith.overflow<none>", "#arith.fastmath<none>"})
_HIDDEN = frozenset({"sym_name", "operandSegmentSizes", "resultSegmentSizes"})


class OperationWriter:
    """Numbers the values of two matched modules together."""

    def __init__(self, matching: Matching):
        self._numbers: dict[Node, int] = {}
        for number, node in enumerate(matching.before.nodes):
            self._numbers[node] = number
        fresh = len(self._numbers)
        for node in matching.after.nodes:
            other = matching.to_before.get(node)
            if other is None:
                self._numbers[node] = fresh
                fresh += 1
            else:
                self._numbers[node] = self._numbers[other]

    def where(self, node: Node) -> str:
        """The operations around a node, outermost first."""
        return " > ".join(reversed(list(self._around(node))))

    def _around(self, node: Node) -> Iterator[str]:
        parent = node.block.parent
        while parent is not None:
            symbol = _symbol(parent.op)
            if symbol:
                yield f"@{symbol}"
            elif len(parent.blocks) > 1:
                yield f"{parent.name}#{node.block.place[0]}"
            else:
                yield parent.name
            node, parent = parent, parent.block.parent

    def text(self, node: Node, other: Node | None) -> str:
        """One line; of the attributes, those that `other` has alike are left out."""
        op = node.op
        results = f"%{self._numbers[node]} = " if len(op.results) else ""
        symbol = _symbol(op)
        operands = ", ".join(self._operand(*operand) for operand in node.operands)
        types = ", ".join(str(value.type) for value in op.results)
        parts = [
            f"{results}{op.name}",
            f"@{symbol}" if symbol else "",
            operands,
            _attributes(op, None if other is None else other.op),
            f": {types}" if types else "",
        ]
        return " ".join(part for part in parts if part)

    def _operand(self, owner: Node | Block | None, number: int | str) -> str:
        if isinstance(owner, Node):
            return f"%{self._numbers[owner]}" + (f"#{number}" if number else "")
        if isinstance(owner, Block):
            return f"%arg{number}" + ("" if owner.depth == 1 else f"@{owner.depth}")
        return _shortened(_INTEGER_TYPE.sub("", str(number)))


def _symbol(op: ir.Operation) -> str | None:
    return op.attributes["sym_name"].value if "sym_name" in op.attributes else None


def _attributes(op: ir.Operation, other: ir.Operation | None) -> str:
    differing = [
        name
        for name in op.attributes
        if name not in _HIDDEN
        and str(op.attributes[name]) not in _DEFAULTS
        and not (other is not None and name in other.attributes and _alike(op, other, name))
    ]
    if not differing:
        return ""
    pairs = (f"{name} = {_difference(op, other, name)}" for name in differing)
    return "{" + ", ".join(pairs) + "}"


def _alike(op: ir.Operation, other: ir.Operation, name: str) -> bool:
    return str(op.attributes[name]) == str(other.attributes[name])


def _difference(op: ir.Operation, other: ir.Operation | None, name: str) -> str:
    """An attribute's text; of two long arrays, the members that differ."""
    attribute = op.attributes[name]
    text = str(attribute)
    theirs = other.attributes[name] if other is not None and name in other.attributes else None
    mine, others = _members(attribute), _members(theirs)
    if len(text) <= _LONGEST or not mine or len(mine) != len(others):
        return _shortened(text)
    pairs = enumerate(zip(mine, others))
    return " ".join(f"[{i}]: {_shortened(a)}" for i, (a, b) in pairs if a != b)


def _members(attribute: ir.Attribute | None) -> list[str]:
    if attribute is None or not isinstance(attribute, ir.ArrayAttr):
        return []
    return [str(member) for member in attribute]


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
