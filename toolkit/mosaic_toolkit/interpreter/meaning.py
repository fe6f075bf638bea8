"""What an operation means: the table that the dialects' files fill.

A meaning prepares an operation once, from its attributes and types, and returns
what runs each time: a callable over the values of the operands.  Values are NumPy
arrays for vectors, ``int`` for ``index`` and integers (signed; i1 is a bool), NumPy
scalars for floats, and `View`s for memory references.  A meaning never changes an
operand in place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

from .findings import Site

if TYPE_CHECKING:
    from ..jax_compat import ir

type Kind = Literal["value", "load", "effect", "blocking"]


class Scope(Protocol):
    """What a meaning may ask of the program that it is prepared for."""

    def site(self, op: ir.Operation) -> Site: ...

    def region(self, region: ir.Region) -> Callable[..., Any]:
        """A region as a function of the thread and the values of its arguments."""
        ...

    def blocks(self, region: ir.Region) -> bool:
        """Whether running the region may have to wait, so that `region` gives a generator."""
        ...


@dataclasses.dataclass(frozen=True)
class Constant:
    """What `prepare` returns for an operation whose result is known beforehand."""

    value: Any


type Prepare = Callable[[Any, Any], Callable[..., Any] | Constant]


@dataclasses.dataclass(frozen=True)
class Meaning:
    """How to run an operation.

    Attributes:
      kind: ``value`` is called with the operands; ``load`` and ``effect`` with the
        thread before them, and a ``load`` whose result nothing uses is left out, as
        a ``value`` is; ``blocking`` is a generator of waits.
    """

    kind: Kind
    prepare: Prepare


MEANINGS: dict[str, Meaning] = {}


def _register(kind: Kind):
    def named(*names: str):
        def decorate(prepare: Prepare) -> Prepare:
            for name in names:
                assert name not in MEANINGS, name
                MEANINGS[name] = Meaning(kind, prepare)
            return prepare

        return decorate

    return named


value = _register("value")
load = _register("load")
effect = _register("effect")
blocking = _register("blocking")
