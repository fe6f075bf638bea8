"""Which warps of a block run which branch: the roles of a warp-specialised kernel."""

from __future__ import annotations

import dataclasses

from ..jax_compat import ir
from ..locations import source_line
from ..schedule import Role
from ..ssa import producer
from . import storage
from .expressions import Expressions
from .nest import Place

_WARP = 32
_WARPGROUP_WARPS = 4


class Warps:
    """Follows branches on the thread index.

    Args:
      threads: threads of a block in x, y and z, None where known only at run time.
    """

    def __init__(self, threads: tuple[int | None, ...]):
        self._threads = threads
        count = (storage.count(threads) or 0) // _WARP
        self._of_role: dict[str, tuple[int, ...]] = {"": tuple(range(count))}
        self._roles: dict[str, Role] = {}
        self._registers: dict[str, int] = {}

    def roles(self) -> tuple[Role, ...]:
        """The roles that `places` met, in order."""
        return tuple(
            Role(role.name, role.threads, self._registers.get(role.name), role.source)
            for role in self._roles.values()
        )

    def set_registers(self, role: str, count: int) -> None:
        """Notes that the role asks for that many registers per thread."""
        self._registers[role] = count

    def places(self, op: ir.Operation, place: Place) -> list[Place] | None:
        """Where each region of a branch on the warp index runs; None for another branch.

        A region that some warps may enter, depending on more than their index,
        is that of all these warps, under a condition.
        """
        if op.name not in ("scf.if", "scf.index_switch"):
            return None
        warps = self._of_role[place.role]
        chosen = {warp: self._region(op, warp) for warp in warps}
        if place.executions == 0 or all(region is None for region in chosen.values()):
            return None
        places = []
        for number, region in enumerate(op.regions):
            may_enter = tuple(w for w in warps if chosen[w] in (number, None))
            if not may_enter:
                places.append(place.never())
                continue
            inner = dataclasses.replace(place, role=self._enter(op, region, place, may_enter))
            certain = all(chosen[w] == number for w in may_enter)
            places.append(inner if certain else inner.under_condition())
        return places

    def _enter(
        self, op: ir.Operation, region: ir.Region, place: Place, warps: tuple[int, ...]
    ) -> str:
        if warps == self._of_role[place.role]:
            return place.role
        name = _name(warps)
        self._of_role[name] = warps
        works = any(len(list(block.operations)) > 1 for block in region.blocks)
        if works and name not in self._roles:
            self._roles[name] = Role(name, len(warps) * _WARP, source=source_line(op.location))
        return name

    def _region(self, op: ir.Operation, warp: int) -> int | None:
        """Number of the region that a warp enters, None where its index does not tell."""
        value = Expressions(lambda v: self._leaf(v, warp), placeholder="?").read(op.operands[0])
        if isinstance(value, str):
            return None
        if op.name == "scf.if":
            return 0 if value else 1
        cases = list(op.attributes["cases"])
        return 1 + cases.index(value) if value in cases else 0

    def _leaf(self, value: ir.Value, warp: int) -> str | int | None:
        op = producer(value)
        if op is None:
            return None
        if op.name in ("gpu.thread_id", "gpu.block_dim"):
            axis = "xyz".index(str(op.attributes["dimension"]).split()[-1].rstrip(">")[-1])
            return self._position(warp)[axis] if op.name == "gpu.thread_id" else self._threads[axis]
        if op.name == "nvvm.shfl.sync":
            # All lanes get the value of one lane; a warp index is the same in every lane.
            return Expressions(lambda v: self._leaf(v, warp), placeholder="?").read(op.operands[1])
        return None

    def _position(self, warp: int) -> tuple[int, int, int]:
        x, y, _ = (n or 1 for n in self._threads)
        thread = warp * _WARP
        return thread % x, thread // x % y, thread // (x * y)


def _name(warps: tuple[int, ...]) -> str:
    """``warps 0-7`` or, where they are whole warpgroups, ``warpgroups 0-1``."""
    size = _WARPGROUP_WARPS
    groups = sorted({warp // size for warp in warps})
    whole = [g * size + i for g in groups for i in range(size)]
    if list(warps) == whole:
        return _ranges("warpgroup", groups)
    return _ranges("warp", list(warps))


def _ranges(word: str, numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"{word}{'s' if len(numbers) > 1 else ''} {text}"
