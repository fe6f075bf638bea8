"""The effects of one operation, and what MLIR itself declares of them."""

from __future__ import annotations

from typing import NamedTuple

from ..jax_compat import ir
from .buffers import Buffers
from .memory import READ, READ_WRITE, WRITE, Access, Box, Resource


class Channel(NamedTuple):
    """What pairs the two halves of an asynchronous operation.

    Attributes:
      kind: ``dma``, ``semaphore``, ``barrier``, or the name of a group.
      resource, box: the semaphore or barrier; the group's own resource.
    """

    kind: str
    resource: Resource
    box: Box | None


class Effects(NamedTuple):
    """What an operation does, its regions aside.

    Attributes:
      accesses: memory and state that it touches.
      signals: channels through which its completion is announced.
      waits: channels that it waits on.
    """

    accesses: tuple[Access, ...] = ()
    signals: tuple[Channel, ...] = ()
    waits: tuple[Channel, ...] = ()


NOTHING = Effects()

# Pairs, not a dictionary: equal effects of the bindings have unequal hashes.
_MODES = (
    (ir.MemoryEffect.Read, READ),
    (ir.MemoryEffect.Write, WRITE),
    (ir.MemoryEffect.Allocate, 0),
    (ir.MemoryEffect.Free, READ_WRITE),
)


def anything(buffers: Buffers) -> Effects:
    """An operation of which nothing is known."""
    return Effects((Access(buffers.everything, None, READ_WRITE),))


def synchronises(buffers: Buffers) -> tuple[Access, ...]:
    """Every access to shared memory stays on its side."""
    return (Access(buffers.shared, None, READ_WRITE),)


def state(buffers: Buffers, name: str) -> tuple[Access, ...]:
    """Reads and changes a piece of machine state."""
    return (Access(buffers.state(name), None, READ_WRITE),)


def channels(buffers: Buffers, kind: str, value: ir.Value) -> tuple[Channel, ...]:
    """The channels that the semaphore or barrier `value` may be."""
    return tuple(Channel(kind, a.resource, a.box) for a in buffers.accesses(value, READ_WRITE))


def group(buffers: Buffers, name: str) -> tuple[Channel, ...]:
    """The channel of operations that complete together, such as a commit group."""
    return (Channel(name, buffers.state(f"{name} group"), None),)


def segments(op: ir.Operation) -> list[list[ir.Value]]:
    """The operands by the operation's own segments."""
    operands = list(op.operands)
    result, start = [], 0
    for size in op.attributes["operandSegmentSizes"]:
        result.append(operands[start : start + size])
        start += size
    return result


def declared(buffers: Buffers, op: ir.Operation) -> Effects | None:
    """What MLIR declares of the operation; None if it declares nothing.

    Where MLIR does not say which operand is accessed, all that refer to memory
    are.
    """
    try:
        instances = ir.MemoryEffectsOpInterface(op, op.context).get_effects()
    except ValueError:
        return None
    accesses: list[Access] = []
    anonymous = 0
    for instance in instances:
        effect = instance.effect
        mode = next((mode for known, mode in _MODES if effect == known), READ_WRITE)
        if not mode:
            continue
        if instance.value is None:
            anonymous |= mode
        else:
            accesses.extend(buffers.accesses(instance.value, mode))
    if anonymous:
        operands = [v for v in op.operands if buffers.memory_type(v) is not None]
        if not operands:
            return anything(buffers)
        for value in operands:
            accesses.extend(buffers.accesses(value, anonymous))
    return Effects(tuple(accesses))
