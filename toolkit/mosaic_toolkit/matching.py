"""Matches the operations of two modules by structure.

Names of SSA values, locations, symbols of functions and the order of unrelated
operations do not count; constants are part of their users.  Time grows linearly
with the modules, but for sorting.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from .ssa import producer

if TYPE_CHECKING:
    from .jax_compat import ir

_CONSTANTS = frozenset({"arith.constant", "llvm.mlir.constant", "ub.poison", "llvm.mlir.undef"})
_ROUNDS = 4


@dataclasses.dataclass(eq=False)
class Node:
    """One operation that is no constant.

    Attributes:
      op: the operation.
      label: number of its name, attributes and types; equal numbers, equal text.
      operands: the defining node and result number, or the block and argument
        number, or the text of a constant, of each operand.
      block: the block that it is in.
      position: its place in that block, constants not counted.
      blocks: the blocks of its regions.
      digest: of the label, and of the digests of operands and regions.
    """

    op: ir.Operation
    label: int
    operands: tuple[tuple[Node | Block | None, int | str], ...]
    block: Block
    position: int
    blocks: list[Block] = dataclasses.field(default_factory=list)
    digest: int = 0

    @property
    def name(self) -> str:
        return self.op.name


@dataclasses.dataclass(eq=False)
class Block:
    """One block; `place` is its region's and its own number in `parent`."""

    parent: Node | None
    place: tuple[int, int]
    depth: int
    nodes: list[Node] = dataclasses.field(default_factory=list)


class Labels:
    """Numbers for texts, shared by the modules that are compared."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._texts: dict[object, str] = {}

    def number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def text(self, attribute: ir.Attribute | ir.Type) -> str:
        """The text of an attribute or type, remembered: many operations share one."""
        if attribute not in self._texts:
            self._texts[attribute] = str(attribute)
        return self._texts[attribute]


class Tree:
    """The operations of one module as nodes."""

    def __init__(self, module: ir.Module, labels: Labels):
        self._labels = labels
        self._node_of: dict[ir.Operation, Node] = {}
        self._block_of: dict[ir.Block, Block] = {}
        self.nodes: list[Node] = []
        self.root = self._block(module.body, None, (0, 0), 0)

    def _block(
        self, block: ir.Block, parent: Node | None, place: tuple[int, int], depth: int
    ) -> Block:
        made = Block(parent, place, depth)
        self._block_of[block] = made
        for view in block.operations:
            op = view.operation
            if op.name not in _CONSTANTS:
                self._node(op, made)
        return made

    def _node(self, op: ir.Operation, block: Block) -> None:
        operands = tuple(map(self._operand, op.operands))
        node = Node(op, self._label(op), operands, block, len(block.nodes))
        block.nodes.append(node)
        self.nodes.append(node)
        self._node_of[op] = node
        for number, region in enumerate(op.regions):
            for index, child in enumerate(region.blocks):
                node.blocks.append(self._block(child, node, (number, index), block.depth + 1))
        digests = tuple(_operand_digest(*operand) for operand in operands)
        inner = tuple((b.place, tuple(n.digest for n in b.nodes)) for b in node.blocks)
        node.digest = hash((node.label, digests, inner))

    def _operand(self, value: ir.Value) -> tuple[Node | Block | None, int | str]:
        owner = producer(value)
        if owner is None:
            return self._block_of.get(value.owner), value.arg_number
        if owner.name in _CONSTANTS:
            attributes = [self._labels.text(owner.attributes[name]) for name in owner.attributes]
            return None, " ".join(attributes) or owner.name
        return self._node_of.get(owner), value.result_number

    def _label(self, op: ir.Operation) -> int:
        attributes = tuple(
            (name, self._labels.text(op.attributes[name]))
            for name in op.attributes
            if name != "sym_name"
        )
        types = tuple(self._labels.text(value.type) for value in op.results)
        successors = tuple(list(s.region.blocks).index(s) for s in op.successors)
        return self._labels.number((op.name, attributes, types, successors))


def _operand_digest(owner: Node | Block | None, number: int | str) -> object:
    if isinstance(owner, Node):
        return owner.digest, number
    if isinstance(owner, Block):
        return owner.depth, owner.place, number
    return number


@dataclasses.dataclass(frozen=True)
class Difference:
    """One operation, or pair of operations, that differs.

    Attributes:
      kind: ``removed``, ``added``, ``changed`` (attributes, types or operands)
        or ``moved`` (equal, at another place).
      before, after: the operations, None on the side that has none.
    """

    kind: str
    before: Node | None
    after: Node | None


class Matching:
    """Pairs the nodes of two trees."""

    def __init__(self, before: Tree, after: Tree):
        self.before = before
        self.after = after
        self.to_after: dict[Node, Node] = {}
        self.to_before: dict[Node, Node] = {}
        self._blocks: dict[Block, Block] = {}
        self._pair_blocks(before.root, after.root)
        self._across_blocks()

    # --- pairing ----------------------------------------------------------------

    def _pair(self, a: Node, b: Node) -> None:
        self.to_after[a] = b
        self.to_before[b] = a

    def _pair_blocks(self, a: Block, b: Block) -> None:
        self._blocks[a] = b
        self._pair_equal(a.nodes, b.nodes)
        for _ in range(_ROUNDS):
            before = len(self.to_after)
            self._forward(a.nodes, b.nodes)
            self._backward(a.nodes)
            self._in_gaps(a.nodes, b.nodes, _effect)
            self._backward(a.nodes)
            self._in_gaps(a.nodes, b.nodes, lambda n: n.label)
            if len(self.to_after) == before:
                break
        self._in_gaps(a.nodes, b.nodes, _anchor)
        for node in a.nodes:
            other = self.to_after.get(node)
            if other is not None:
                self._descend(node, other)

    def _descend(self, a: Node, b: Node) -> None:
        blocks = {block.place: block for block in b.blocks}
        for block in a.blocks:
            if block.place in blocks and block not in self._blocks:
                self._pair_blocks(block, blocks[block.place])

    def _pair_equal(self, a: list[Node], b: list[Node]) -> None:
        """Nodes of one digest; where one side has more of them, neighbours decide first."""
        self._nth_with_nth(a, b, same_number=True)
        self._in_gaps(a, b, lambda n: n.digest)
        self._nth_with_nth(a, b, same_number=False)

    def _nth_with_nth(self, a: list[Node], b: list[Node], same_number: bool) -> None:
        sides = []
        for nodes, paired in ((a, self.to_after), (b, self.to_before)):
            by_digest: dict[int, list[Node]] = defaultdict(list)
            for node in self._free(nodes, paired):
                by_digest[node.digest].append(node)
            sides.append(by_digest)
        left, right = sides
        for digest, nodes in left.items():
            others = right.get(digest, [])
            if not same_number or len(nodes) == len(others):
                for node, other in zip(nodes, others):
                    self._pair(node, other)

    def _forward(self, a: Iterable[Node], b: Iterable[Node]) -> None:
        """Nodes whose operands are paired: first of one label, then of one name."""
        b = list(self._free(b, self.to_before))
        for kind in (lambda n: n.label, _named):
            self._forward_by(kind, a, b)

    def _forward_by(self, kind: Callable[[Node], object], a: Iterable[Node], b: list[Node]) -> None:
        candidates: dict[object, list[Node]] = defaultdict(list)
        for node in reversed(b):
            if node not in self.to_before:
                candidates[kind(node), node.operands].append(node)
        for node in self._free(a, self.to_after):
            operands = tuple(self._translate(*operand) for operand in node.operands)
            queue = candidates.get((kind(node), operands))
            if queue and (node.operands or _symbol(node)):
                self._pair(node, queue.pop())

    def _translate(self, owner: Node | Block | None, number: int | str) -> object:
        if isinstance(owner, Node):
            return self.to_after.get(owner), number
        if isinstance(owner, Block):
            return self._blocks.get(owner), number
        return None, number

    def _backward(self, a: Iterable[Node]) -> None:
        """Operands of paired nodes, where they are of one name."""
        for user in reversed(list(a)):
            other = self.to_after.get(user)
            if other is None:
                continue
            for (x, _), (y, _) in zip(user.operands, other.operands):
                if not isinstance(x, Node) or not isinstance(y, Node) or x.name != y.name:
                    continue
                if x not in self.to_after and y not in self.to_before:
                    self._pair(x, y)

    def _in_gaps(self, a: list[Node], b: list[Node], kind: Callable[[Node], object | None]) -> None:
        """Between the same paired neighbours, the nth of one kind with the nth."""
        gaps: dict[object, list[Node]] = defaultdict(list)
        for gap, node in self._gaps(b, self.to_before, lambda n: n):
            gaps[gap, kind(node)].append(node)
        for queue in gaps.values():
            queue.reverse()
        for gap, node in self._gaps(a, self.to_after, self.to_after.get):
            queue = gaps.get((gap, kind(node)))
            if queue and kind(node) is not None:
                self._pair(node, queue.pop())

    @staticmethod
    def _gaps(
        nodes: list[Node], paired: dict[Node, Node], name: Callable[[Node], Node | None]
    ) -> Iterator[tuple[Node | None, Node]]:
        """Free nodes, each with the paired node that stands last before it."""
        gap = None
        for node in nodes:
            if node in paired:
                gap = name(node)
            else:
                yield gap, node

    def _across_blocks(self) -> None:
        """What is left may have moved to another block."""
        self._pair_equal(self.before.nodes, self.after.nodes)
        for _ in range(_ROUNDS):
            paired = len(self.to_after)
            self._forward(self.before.nodes, self.after.nodes)
            self._backward(self.before.nodes)
            for node in self.before.nodes:
                if node.blocks and node in self.to_after:
                    self._descend(node, self.to_after[node])
            if len(self.to_after) == paired:
                return

    @staticmethod
    def _free(nodes: Iterable[Node], paired: dict[Node, Node]) -> Iterator[Node]:
        return (node for node in nodes if node not in paired)

    # --- differences --------------------------------------------------------------

    def differences(self) -> Iterator[Difference]:
        """In the order of the second module, after what the second has no more."""
        moved = self._moved()
        for node in self.before.nodes:
            if node not in self.to_after:
                yield Difference("removed", node, None)
        for node in self.after.nodes:
            other = self.to_before.get(node)
            if other is None:
                yield Difference("added", None, node)
            elif not self._same(other, node):
                yield Difference("changed", other, node)
            elif node in moved:
                yield Difference("moved", other, node)

    def _same(self, a: Node, b: Node) -> bool:
        if a.label != b.label or len(a.operands) != len(b.operands):
            return False
        return all(self._same_operand(x, y) for x, y in zip(a.operands, b.operands))

    def _same_operand(self, x, y) -> bool:
        if self._translate(*x) == y:
            return True
        # Of equal operations without effects it does not matter which one is used.
        return (
            isinstance(x[0], Node)
            and isinstance(y[0], Node)
            and x[1] == y[1]
            and x[0].digest == y[0].digest
            and _touches_no_memory(x[0])
        )

    def _moved(self) -> set[Node]:
        """Nodes of the second module that changed blocks, or their order in the block."""
        moved: set[Node] = set()
        for a, b in self._blocks.items():
            here = [n for n in (self.to_after.get(n) for n in a.nodes) if n and n.block is b]
            positions = [node.position for node in here]
            kept = _longest_increasing(positions)
            moved.update(node for node, keep in zip(here, kept) if not keep)
        for a, b in self.to_after.items():
            if self._blocks.get(a.block) is not b.block:
                moved.add(b)
        return moved


def _symbol(node: Node) -> str | None:
    return str(node.op.attributes["sym_name"]) if "sym_name" in node.op.attributes else None


def _named(node: Node) -> object:
    return node.name, _symbol(node)


def _effect(node: Node) -> object | None:
    """Operations that stand for themselves, such as stores."""
    return node.label if not len(node.op.results) else None


def _anchor(node: Node) -> object | None:
    """Operations that one can recognise by name alone: those with regions, and sources."""
    return node.name if node.blocks or not node.operands else None


def _touches_no_memory(node: Node) -> bool:
    types = [str(value.type) for value in (*node.op.operands, *node.op.results)]
    return not any(word in type for type in types for word in ("memref<", "!llvm.ptr", "!tt.ptr"))


def _longest_increasing(numbers: list[int]) -> list[bool]:
    """Which members make up one longest increasing subsequence."""
    ends: list[int] = []  # index of the smallest end of a run of each length
    previous: list[int] = []
    keys: list[int] = []
    for index, number in enumerate(numbers):
        length = bisect.bisect_left(keys, number)
        previous.append(ends[length - 1] if length else -1)
        if length == len(keys):
            keys.append(number)
            ends.append(index)
        else:
            keys[length] = number
            ends[length] = index
    kept = [False] * len(numbers)
    index = ends[-1] if ends else -1
    while index >= 0:
        kept[index] = True
        index = previous[index]
    return kept
