"""Reads SASS, the GPU's machine code as nvdisasm prints it, with its loops."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable

import networkx as nx

from ..errors import CompileError
from .measure import Count, Measure, known, not_reported

_INSTRUCTION = re.compile(
    r"/\*(?P<address>[0-9a-f]{4,})\*/\s+(?P<guard>@!?U?P\w+\s+)?(?P<opcode>[A-Z][A-Z0-9_]*)"
    r"(?P<rest>[^/\n]*)"
)
_LABEL = re.compile(r"^\s*(\.L_\w+):", re.MULTILINE)
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_ARCHITECTURE = re.compile(r"^\s*\.target\s+(\w+)", re.MULTILINE)

# What an opcode does, by the part before its first dot; the first match counts.
_CLASSES = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("HGMMA (wgmma)", r"[A-Z]GMMA"),
        ("UTCMMA (tcgen05)", r"UTC\w?MMA"),
        ("MMA (per warp)", r"[A-Z]MMA(?:SP)?"),
        ("TMEM load/store/copy", r"LDTM|STTM|LDT|STT|UTCCP|UTCSHIFT"),
        ("TMA copy", r"UTMALDG|UTMASTG|UTMAREDG|UTMAPF|UBLKCP|UBLKRED|UBLKPF"),
        ("TMA control", r"UTMA\w+"),
        ("cp.async", r"LDGSTS"),
        ("LDS", r"LDSM?|LDSLK"),
        ("STS", r"STSM?|STAS|ATOMS"),
        ("global load", r"LDG|LD"),
        ("global store", r"STG|ST|RED|REDG|ATOM|ATOMG"),
        ("local (spill) load/store", r"LDL|STL"),
        ("barrier", r"BAR|B2R|SYNCS|UCGABAR\w*|UTCBAR|UTCATOMSWS|WARPGROUP|WARPSYNC\w*|BMOV"),
        ("fence/dependency", r"MEMBAR|FENCE|ERRBAR|DEPBAR|LDGDEPBAR|ARRIVES|CCTL|NANOSLEEP"),
        ("shuffle/vote", r"SHFL|VOTEU?|MATCH|REDUX|ELECT|CREDUX"),
        ("conversion", r"[FIU]2[FIU]P?|F2FP|I2IP?|FRND"),
        ("special function", r"MUFU"),
        ("float arithmetic", r"[FHD](?:ADD|MUL|FMA|SETP?|MNMX|SEL)\d*\w*|FCHK|FSWZADD"),
        ("branch", r"BRA|BRX|JMP|JMX|CALL|RET|EXIT|BSSY|BSYNC|BREAK|KILL|YIELD|BPT|ACQBULK"),
        ("no operation", r"NOP"),
    )
)
_REST = "integer, move, predicate"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
      address: in bytes from the kernel's start.
      opcode: up to its first dot.
      always: whether no predicate guards it.
      targets: labels among its operands.
    """

    address: int
    opcode: str
    always: bool
    targets: tuple[str, ...]

    @property
    def falls_through(self) -> bool:
        return not (self.always and self.opcode in _ENDS)


# After these, where no predicate guards them, the next instruction does not run.
_ENDS = ("BRA", "BRX", "JMP", "JMX", "EXIT", "RET", "KILL")
_JUMPS = ("BRA", "JMP")


@dataclasses.dataclass(frozen=True)
class SassLoop:
    """A natural loop: what runs between a branch back and the header that dominates it.

    Attributes:
      header: address in bytes of the first instruction.
      branch: address of the last branch back.
      instructions: in the body, inner loops included, each counted once.
      classes: by what they do.
    """

    header: int
    branch: int
    instructions: int
    classes: tuple[Count, ...]


@dataclasses.dataclass(frozen=True)
class Sass:
    """The machine code of one kernel.

    Attributes:
      architecture: for example ``sm_90a``.
      instructions: all, the padding after the end included.
      classes: instructions by what they do, most first.
      opcodes: instructions by opcode, most first.
      loops: in order of their first instruction.
      code_bytes: from the first instruction to the end of the last.
    """

    architecture: str
    instructions: int
    classes: tuple[Count, ...]
    opcodes: tuple[Count, ...]
    loops: tuple[SassLoop, ...]
    code_bytes: Measure


def parse_sass(text: str) -> Sass:
    """Reads nvdisasm's output, with or without its control codes.

    Raises:
      CompileError: it holds no instruction.
    """
    labels: dict[str, int] = {}
    instructions: list[Instruction] = []
    waiting: list[str] = []
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label:
            waiting.append(label[1])
            continue
        match = _INSTRUCTION.search(line)
        if match is None:
            continue
        address = int(match["address"], 16)
        labels |= dict.fromkeys(waiting, address)
        waiting.clear()
        instructions.append(_instruction(match))
    if not instructions:
        raise CompileError("the SASS holds no instruction")
    architecture = _ARCHITECTURE.search(text)
    return Sass(
        architecture[1] if architecture else "",
        len(instructions),
        _classes(instructions),
        _counts(i.opcode for i in instructions),
        tuple(_loops(instructions, labels)),
        _code_bytes(instructions),
    )


def opcode_class(opcode: str) -> str:
    """What instructions of that opcode do."""
    return next((name for name, pattern in _CLASSES if pattern.fullmatch(opcode)), _REST)


def _classes(instructions: Iterable[Instruction]) -> tuple[Count, ...]:
    return _counts(opcode_class(i.opcode) for i in instructions)


def _counts(names: Iterable[str]) -> tuple[Count, ...]:
    return tuple(Count(name, count) for name, count in Counter(names).most_common())


def _instruction(match: re.Match[str]) -> Instruction:
    # A branch on a uniform predicate names it as an operand: ``BRA.U !UP0, `(.L_x_5)``.
    always = match["guard"] is None and not re.search(r"!?\bU?P\d\b", match["rest"])
    targets = tuple(_TARGET.findall(match["rest"]))
    return Instruction(int(match["address"], 16), match["opcode"], always, targets)


def _loops(instructions: list[Instruction], labels: dict[str, int]) -> list[SassLoop]:
    """By header; a branch to itself, the trap after the end, cannot be reached and is none."""
    flow = _flow(instructions, labels)
    if not flow.has_node(0):
        return []
    dominator = nx.immediate_dominators(flow, 0)
    bodies: dict[int, set[int]] = {}
    branches: dict[int, int] = {}
    for source, header in flow.edges:
        if source in dominator and _dominates(dominator, header, source):
            body = bodies.setdefault(header, {header})
            branches[header] = max(branches.get(header, 0), source)
            _add_body(flow, body, source)
    loops = []
    for header in sorted(bodies):
        body = [instructions[i] for i in sorted(bodies[header])]
        first, last = instructions[header].address, instructions[branches[header]].address
        loops.append(SassLoop(first, last, len(body), _classes(body)))
    return loops


def _flow(instructions: list[Instruction], labels: dict[str, int]) -> nx.DiGraph:
    """Control flow between places in `instructions`."""
    place = {instruction.address: i for i, instruction in enumerate(instructions)}
    flow = nx.DiGraph()
    for i, instruction in enumerate(instructions):
        if instruction.falls_through and i + 1 < len(instructions):
            flow.add_edge(i, i + 1)
        if instruction.opcode in _JUMPS:
            addresses = [labels[label] for label in instruction.targets if label in labels]
            flow.add_edges_from((i, place[address]) for address in addresses)
    return flow


def _dominates(dominator: dict[int, int], above: int, node: int) -> bool:
    while node != above:
        parent = dominator.get(node, node)
        # Newer networkx maps the root to None or leaves it out.
        if parent is None or parent == node:
            return False
        node = parent
    return True


def _add_body(flow: nx.DiGraph, body: set[int], source: int) -> None:
    """Adds what reaches the branch without passing the header."""
    waiting = [source]
    while waiting:
        node = waiting.pop()
        if node not in body:
            body.add(node)
            waiting += flow.predecessors(node)


def _code_bytes(instructions: list[Instruction]) -> Measure:
    if len(instructions) < 2:
        return not_reported("one instruction does not show how long each is")
    last = instructions[-1].address
    return known(last + last - instructions[-2].address)
