"""Reads the TPU's final bundles: one VLIW instruction word per bundle, with its loops."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator

from ..errors import CompileError
from .measure import Measure, known, not_reported

_HEAD = re.compile(r"^ *(0x[0-9a-f]+|\d+) +(?:([A-Z]{2}) *)?:([ >]*)\{", re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_LOCATION = re.compile(r'\bloc\("([^"]+)":(\d+)')
_OPERAND = re.compile(r"^%\w+ = inlined_call_operand\b")
_START_REGION = re.compile(r"Start region (\d+)")
_BRANCH = re.compile(r"\bsbr\b[^;}]*?\btarget\b[^;}]*?(?:\$region|\bregion = )(\d+)")
_SPILL_SLOT = re.compile(r"#allocation\d+_spill")
_STORE = re.compile(r"= (v|s)st\b[^[;}]*\[[^;}]*#allocation\d+_spill")
_LOAD = re.compile(r"= (v|s)ld\b[^[;}]*\[[^;}]*#allocation\d+_spill")
_REGISTER = re.compile(r"%[a-z]*\d+_([a-z]+)(\d+)\b")
_COPY = re.compile(
    r"\bdma\.(\w+_to_\w+)\b(?:(?!\bdma\.).)*?/\*size_in_granules=\*/(\d+|%\w+)", re.DOTALL
)
_WINDOW = re.compile(r"window_bounds: \(([\d, ]+)\).*?element_size_in_bytes: (\d+)\s", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Bundle:
    """One bundle.

    Attributes:
      address: from the kernel's first bundle.
      label: the compiler's two letters for a control target, for example ``LB``
        for a loop's body; empty for none.
      depth: how many loops it is in, as marked; None for an empty bundle, which
        has no mark.
      text: its instructions, comments included.
    """

    address: int
    label: str
    depth: int | None
    text: str

    @functools.cached_property
    def code(self) -> str:
        """Its instructions without comments; empty for an empty bundle.

        Operands of the kernel are named in the first bundle, which issues nothing for them.
        """
        instructions = _COMMENT.sub("", self.text).strip().rstrip("}").split(";;")
        return ";;".join(
            one for i in instructions if (one := i.strip()) and not _OPERAND.search(one)
        )


@dataclasses.dataclass(frozen=True)
class Copy:
    """One asynchronous copy instruction.

    Attributes:
      direction: for example ``hbm_to_vmem``.
      granules: its size in the DMA engine's unit.
      bytes: its size, where the compiler says how long a granule or window is.
      address: of its bundle.
    """

    direction: str
    granules: Measure
    bytes: Measure
    address: int


def parse_bundles(text: str) -> list[Bundle]:
    """All bundles of a ``final_bundles`` file in order.

    Raises:
      CompileError: there is none, or their addresses have a gap.
    """
    heads = list(_HEAD.finditer(text))
    if not heads:
        raise CompileError("the final bundles hold no bundle")
    bundles = []
    for head, following in zip(heads, [*heads[1:], None]):
        body = text[head.end() : None if following is None else following.start()]
        bundle = Bundle(int(head[1], 0), head[2] or "", head[3].count(">"), body)
        if not bundle.code:
            bundle = dataclasses.replace(bundle, depth=None)
        if bundle.address != len(bundles):
            raise CompileError(f"bundle {len(bundles):#x} is missing before {bundle.address:#x}")
        bundles.append(bundle)
    return bundles


def find_loops(bundles: list[Bundle]) -> Iterator[tuple[int, int, int]]:
    """(depth, first, last) address of each loop's body, outermost depth 1.

    A body ends with the delay slots of the branch back to it.
    """
    for first in bundles:
        if first.label != "LB" or not first.depth:
            continue
        regions = _START_REGION.findall(first.text)[:1]
        back = [
            bundle.address
            for bundle in bundles[first.address :]
            if (branch := _BRANCH.search(bundle.code)) and branch[1] in regions
        ]
        inside = first.depth
        last = back[-1] if back else first.address
        for bundle in bundles[last + 1 :]:
            if bundle.label or (bundle.depth is not None and bundle.depth < inside):
                break
            last = bundle.address
        yield inside, first.address, last


def spills(bundles: list[Bundle]) -> dict[str, int]:
    """Instructions that store to and load from spill slots: ``vst``, ``vld``, ``sst``, ``sld``."""
    counts: dict[str, int] = {"vst": 0, "vld": 0, "sst": 0, "sld": 0}
    for bundle in bundles:
        code = bundle.code
        if _SPILL_SLOT.search(code):
            for kind, pattern in (("st", _STORE), ("ld", _LOAD)):
                for match in pattern.finditer(code):
                    counts[match[1] + kind] += 1
    return counts


def registers(bundles: list[Bundle]) -> dict[str, int]:
    """How many physical registers of each file the kernel names: ``v``, ``s``, ``p``, ``vm``."""
    used: dict[str, set[str]] = {}
    for bundle in bundles:
        for file, number in _REGISTER.findall(bundle.code):
            used.setdefault(file, set()).add(number)
    return {file: len(numbers) for file, numbers in sorted(used.items())}


def source_lines(bundles: list[Bundle]) -> tuple[dict[str, int], int]:
    """Instructions by the ``file:line`` that they come from, and how many name none.

    An instruction that stands for several lines counts for the first that it names.
    """
    lines: Counter[str] = Counter()
    unnamed = 0
    for bundle in bundles:
        if bundle.code:
            for instruction in bundle.text.split(";;"):
                place = _LOCATION.search(instruction)
                if place:
                    lines[f"{place[1]}:{place[2]}"] += 1
                else:
                    unnamed += 1
    return dict(lines.most_common()), unnamed


def copies(bundles: list[Bundle], sizes: Collection[int] = ()) -> list[Copy]:
    """Every copy instruction, in order.

    How many bytes a granule has is not written.  It follows from copies of the
    compiler's own pipelines, beside which it writes the window, or else from
    `sizes`, where one length alone makes every copy as long as one of those.

    Args:
      sizes: bytes of the copies that the module before compilation asks for.
    """
    found = []
    for bundle in bundles:
        for copy in _COPY.finditer(bundle.text):
            rest = bundle.text[copy.end() :].partition(";;")[0]
            found.append((bundle.address, copy[1], copy[2], _window_bytes(_WINDOW.search(rest))))
    granules = {int(count) for _, _, count, _ in found if count.isdigit()}
    windows = {
        size // int(count)
        for _, _, count, size in found
        if size is not None and count.isdigit() and size % int(count) == 0
    }
    lengths = windows or _lengths(granules, sizes)
    granule = lengths.pop() if len(lengths) == 1 else None
    return [_copy(granule, *one) for one in found]


def _lengths(granules: Collection[int], sizes: Collection[int]) -> set[int]:
    return {
        size // count
        for count in granules
        for size in sizes
        if count and size % count == 0 and all(n * (size // count) in sizes for n in granules)
    }


def _window_bytes(window: re.Match[str] | None) -> int | None:
    if window is None:
        return None
    return math.prod(map(int, window[1].split(","))) * int(window[2])


def _copy(
    granule: int | None, address: int, direction: str, granules: str, size: int | None
) -> Copy:
    if not granules.isdigit():
        why = not_reported("known only at run time")
        return Copy(direction, why, why, address)
    count = int(granules)
    if granule is not None:
        size = count * granule
    length = known(size) if size is not None else not_reported("no file says how long a granule is")
    return Copy(direction, known(count), length, address)
