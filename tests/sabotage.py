"""Breaks a kernel's synchronisation in the ways that real bugs do, one place at a time.

    python -m tests.sabotage [--only GLOB] [--limit N]

Every mutant runs beside the kernel that it was made from.  What `verify` does not
report is equivalent on these inputs: the race detector, which does not depend on
timing, found every access still ordered, and the values are the same; or the
operation that was changed never runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import Any

from mosaic_toolkit.errors import InvalidModule, ToolkitError, Unsupported
from mosaic_toolkit.jax_compat import ir
from mosaic_toolkit.kernel import Kernel
from mosaic_toolkit.locations import source_line
from mosaic_toolkit.ssa import producer
from mosaic_toolkit.verify import verify


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A kernel with one thing broken.

    Attributes:
      way: how, in the words of the table below.
      place: the operation that was changed, with its Python line.
      position: which operation of the module it is, in program order.
    """

    way: str
    place: str
    position: int
    kernel: Kernel


type Break = Callable[[ir.Operation], bool]


def drop(op: ir.Operation) -> bool:
    """The operation is not there."""
    if any(next(iter(result.uses), None) is not None for result in op.results):
        return False
    op.erase()
    return True


def late(op: ir.Operation) -> bool:
    """Everything in its block that should come after it comes before it."""
    *_, last = op.block.operations
    if not last.operation.has_trait(ir.IsTerminatorTrait) or len(op.results):
        return False
    op.move_before(last.operation)
    return True


def wrong_slot(op: ir.Operation) -> bool:
    """The semaphore or barrier of the next slot of the ring."""
    for position, operand in enumerate(op.operands):
        index = _slot_index(operand)
        if index is None:
            continue
        slice_, number, count = index
        with op.context, op.location, ir.InsertionPoint(op):
            step = _shifted(slice_.operands[number], count)
            copies = _copied_chain(operand, slice_)
            copies[slice_].operands[number] = step
            op.operands[position] = copies[producer(operand)].results[0]
        return True
    return False


def fewer_bytes(op: ir.Operation) -> bool:
    """The barrier expects half of what arrives."""
    value = op.operands[1]
    owner = producer(value)
    if owner is None or owner.name != "arith.constant":
        return False
    with op.context, op.location, ir.InsertionPoint(op):
        half = ir.IntegerAttr.get(value.type, int(owner.attributes["value"].value) // 2)
        constant = ir.Operation.create(
            "arith.constant", results=[value.type], attributes={"value": half}
        )
        op.operands[1] = constant.results[0]
    return True


def swap(op: ir.Operation) -> bool:
    """Another semaphore of the same type, where the function has one."""
    for position, operand in enumerate(op.operands):
        if "semaphore" not in str(operand.type):
            continue
        function = op
        while function.name != "func.func":
            function = function.parent
        mine = _root(operand)
        for argument in function.regions[0].blocks[0].arguments:
            if argument != mine and argument.type == mine.type:
                chain = _chain(operand)
                with op.context, op.location, ir.InsertionPoint(op):
                    source = argument
                    for link in reversed(chain):
                        copy = link.clone()
                        copy.operands[0] = source
                        source = copy.results[0]
                    op.operands[position] = source
                return True
    return False


_WAITS = r"tpu\.(wait_dma2?|wait_indirect_dma|sem_wait)|nvvm\.mbarrier\.try_wait\.parity|mosaic_gpu\.wait"
_STARTS = r"tpu\.enqueue_(indirect_)?dma|mosaic_gpu\.async_(load|store)"
_SIGNALS = r"tpu\.sem_signal|mosaic_gpu\.arrive|mosaic_gpu\.tcgen05_commit_arrive"
_GROUP_WAITS = r"nvvm\.cp\.async\.bulk\.wait_group"

# (how it is broken, names of operations, what inline assembly must say, the break)
WAYS: tuple[tuple[str, str, str, Break], ...] = (
    ("drop a wait", _WAITS, "", drop),
    ("drop a start", _STARTS, "", drop),
    ("miss an arrive", _SIGNALS, "", drop),
    ("read before the wait", _WAITS, "", late),
    ("wait on the wrong slot", _WAITS, "", wrong_slot),
    ("swap semaphores", r"tpu\.(wait_dma2?|enqueue_dma)", "", swap),
    ("expect too few bytes", r"mosaic_gpu\.arrive_expect_tx", "", fewer_bytes),
    ("forget a fence", r"nvvm\.fence\.proxy", "", drop),
    ("reuse before the store has drained", _GROUP_WAITS, "", drop),
    ("drop a wait for the tensor core", r"llvm\.inline_asm", r"wgmma\.wait_group", drop),
    ("drop a barrier", r"gpu\.barrier|llvm\.inline_asm", r"|bar\.sync", drop),
)


def mutants(kernel: Kernel) -> Iterator[Mutant]:
    """Every mutant of a kernel that still verifies as a module."""
    original = kernel.module()  # its operations live as long as it does
    names = [op.name for op in _operations(original)]
    for way, pattern, asm, change in WAYS:
        for position, name in enumerate(names):
            if re.fullmatch(pattern, name) is None:
                continue
            module = kernel.module()
            op = _operations(module)[position]
            text = op.attributes["asm_string"].value if "asm_string" in op.attributes else ""
            if asm and name == "llvm.inline_asm" and not _says(asm, text):
                continue
            place = f"{name} ({source_line(op.location)})"
            with module.context:
                changed = change(op)
            if not changed:
                continue
            try:
                yield Mutant(way, place, position, kernel.with_module(module))
            except InvalidModule:
                continue


def _says(pattern: str, text: str) -> bool:
    return any(part and re.search(part, text) for part in pattern.split("|"))


def _operations(module: ir.Module) -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def _chain(value: ir.Value) -> list[ir.Operation]:
    """The views that a reference goes through, the last one first."""
    found = []
    owner = producer(value)
    while owner is not None and len(owner.operands):
        found.append(owner)
        value = owner.operands[0]
        owner = producer(value)
    return found


def _root(value: ir.Value) -> ir.Value:
    chain = _chain(value)
    return chain[-1].operands[0] if chain else value


def _slot_index(value: ir.Value) -> tuple[ir.Operation, int, int] | None:
    """The operation that picks a semaphore or barrier of a ring, its index, and how many there are."""
    for owner in _chain(value):
        if owner.name == "tpu.memref_slice" and "semaphore" in str(value.type):
            count = owner.operands[0].type.shape[0]
            return (owner, 1, count) if count > 1 else None
        if owner.name == "llvm.getelementptr" and len(owner.operands) == 2:
            return owner, 1, 0
    return None


def _copied_chain(value: ir.Value, until: ir.Operation) -> dict[Any, ir.Operation]:
    """Copies of the views between a reference and `until`, by the operation that each copies."""
    chain = _chain(value)
    copies: dict[Any, ir.Operation] = {}
    source = None
    for link in reversed(chain[: chain.index(until) + 1]):
        copy = link.clone()
        if source is not None:
            copy.operands[0] = source
        source = copy.results[0]
        copies[link] = copy
    return copies


def _shifted(index: ir.Value, count: int) -> ir.Value:
    """The next index; around the ring where its size is known."""

    def make(name: str, *operands: ir.Value, **attributes: Any) -> ir.Value:
        return ir.Operation.create(
            name, results=[index.type], operands=list(operands), attributes=attributes
        ).results[0]

    def constant(number: int) -> ir.Value:
        return make("arith.constant", value=ir.IntegerAttr.get(index.type, number))

    following = make("arith.addi", index, constant(1))
    return make("arith.remsi", following, constant(count)) if count else following


# --- running ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What `verify` said of a mutant: ``reported`` and by what, else ``equivalent``."""

    mutant: Mutant
    reported: bool
    by: str


def judge(kernel: Kernel, mutant: Mutant, *, schedules: int = 3) -> Verdict:
    try:
        result = verify(kernel, mutant.kernel, runs=1, schedules=schedules)
    except Unsupported:
        raise
    except ToolkitError as error:
        return Verdict(mutant, True, type(error).__name__)
    if result.verified:
        return Verdict(mutant, False, "every access ordered, same values")
    if result.after_findings:
        return Verdict(mutant, True, result.after_findings[0].kind)
    return Verdict(mutant, True, "values")


def main(argv: list[str] | None = None) -> int:
    from mosaic_toolkit.capture import capture

    from .corpus.cases import all_cases

    parser = argparse.ArgumentParser(prog="python -m tests.sabotage", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="GLOB")
    parser.add_argument("--limit", type=int, default=0, help="mutants of one kernel and way")
    options = parser.parse_args(argv)
    totals: Counter[tuple[str, str]] = Counter()
    seen: set[str] = set()
    for case in all_cases():
        if options.only and not any(fnmatch(case.name, glob) for glob in options.only):
            continue
        for target in case.targets:
            function, args = case.make()
            for kernel in capture(function, *args, target=target):
                if kernel.digest not in seen:
                    seen.add(kernel.digest)
                    _run(f"{case.name}@{target}/{kernel.name}", kernel, options.limit, totals)
    print()
    for (way, verdict), count in sorted(totals.items()):
        print(f"{count:6}  {way}: {verdict}")
    return 0


def _run(title: str, kernel: Kernel, limit: int, totals: Counter[tuple[str, str]]) -> None:
    counts: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for mutant in mutants(kernel):
        taken[mutant.way] += 1
        if limit and taken[mutant.way] > limit:
            continue
        try:
            verdict = judge(kernel, mutant)
        except Unsupported as error:
            print(f"{title}: not run: {str(error).splitlines()[0]}")
            return
        word = f"reported ({verdict.by})" if verdict.reported else f"equivalent ({verdict.by})"
        counts["reported" if verdict.reported else "equivalent"] += 1
        totals[mutant.way, word] += 1
        if not verdict.reported:
            print(f"  {title}: {mutant.way} at {mutant.place}: {word}", flush=True)
    if counts:
        print(f"{title}: {dict(counts)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
