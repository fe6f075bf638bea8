"""Barriers of a GPU: mbarriers in shared memory, and the named and cluster barriers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .findings import MISUSE, Site
from .machine import Machine, Steps, Transfer, Wait
from .races import Actor, Clock, join

if TYPE_CHECKING:
    from .gpu_thread import GpuThread


class MBarrier:
    """An mbarrier: phases that complete when enough threads arrived and all bytes came.

    A phase is complete when `count` arrivals were made and as many bytes transferred as
    were expected.  What a wait is ordered after does not depend on luck: it learns of the
    first completion that satisfies it and that its thread did not know of, however many
    more there were by then.

    Attributes:
      completed: how many phases are complete.
      pending: arrivals that the current phase still needs.
      bytes: bytes expected minus bytes transferred in the current phase.
      maker, made: the agent that initialised it, and when.
      site: of its initialisation.
    """

    __slots__ = (
        "_arrived",
        "_history",
        "agent",
        "bytes",
        "completed",
        "count",
        "machine",
        "made",
        "maker",
        "name",
        "pending",
        "signallers",
        "site",
    )

    def __init__(self, machine: Machine, name: str, count: int, maker: GpuThread, site: Site):
        self.machine = machine
        self.maker, self.made, self.site = maker.agent, maker.time, site
        self.name = name
        self.count = count
        self.pending = count
        self.bytes = 0
        self.completed = 0
        self.signallers: dict[Site, None] = {}
        # A completion is an event of the barrier's own: clocks say how many of them
        # their owner knows of.
        self.agent = machine.new_agent()
        self._arrived: tuple[Clock, Clock] = ({}, {})
        self._history: list[tuple[Clock, Clock]] = [({}, {})]
        maker.release()

    def arrive_from(self, thread: GpuThread, count: int, site: Site, expect: int = 0) -> None:
        """Arrivals of a thread, which may expect bytes in the same moment."""
        self.bytes += expect
        self.arrived(count, *thread.handed(), site)
        thread.release()

    def arrived(self, count: int, clock: Clock, proxy: Clock, site: Site) -> None:
        """Arrivals of whoever knows `clock`, and to asynchronous engines shows `proxy`."""
        self.signallers[site] = None
        join(self._arrived[0], clock)
        join(self._arrived[1], proxy)
        self.pending -= count
        if self.pending < 0:
            self.machine.report(
                MISUSE,
                f"{site} arrives at {self.name} more than {self.count} times in a phase",
                site,
            )
            self.pending = 0
        self._complete()

    def transferred(self, count: int, clock: Clock, proxy: Clock, site: Site) -> None:
        """Bytes that arrived, by whoever knows `clock`."""
        self.signallers[site] = None
        join(self._arrived[0], clock)
        join(self._arrived[1], proxy)
        self.bytes -= count
        self._complete()

    def _complete(self) -> None:
        if self.pending or self.bytes:
            return
        self.completed += 1
        self.pending = self.count
        for clock in self._arrived:
            clock[self.agent] = self.completed
        self._history.append((dict(self._arrived[0]), dict(self._arrived[1])))

    def promise(self, amount: int, actor: Actor, transfer: Transfer | None = None) -> None:
        """A transfer that will signal is on its way; what it does to the barrier is its action."""

    def arrive(self, amount: int) -> None:
        """Nothing: see `promise`."""

    def wait(self, thread: GpuThread, parity: int, site: Site) -> Steps:
        """Waits for the completion of the phase of that parity."""
        while self.completed & 1 == parity:
            yield Wait(
                self, lambda: self.completed & 1 != parity, lambda: self._state(parity), site
            )
        known = thread.clock.get(self.agent, 0)
        ordered = known if known & 1 != parity else known + 1
        if ordered:
            thread.learn(*self._history[ordered])

    def _state(self, parity: int) -> str:
        needs = []
        if self.pending:
            needs.append(f"{self.pending} of {self.count} arrivals")
        if self.bytes:
            needs.append(f"{self.bytes} bytes")
        return (
            f"phase {self.completed} of {self.name} (parity {parity}) to complete, "
            f"which lacks {' and '.join(needs)}"
        )


class ThreadBarrier:
    """A barrier where a fixed number of threads meet: ``bar.sync``, or that of a cluster."""

    __slots__ = ("_arrived", "_history", "arrived", "count", "generation", "machine", "name")

    def __init__(self, machine: Machine, name: str):
        self.machine = machine
        self.name = name
        self.count = 0
        self.arrived = 0
        self.generation = 0
        self._arrived: tuple[Clock, Clock] = ({}, {})
        self._history: dict[int, tuple[Clock, Clock]] = {}

    def arrive(self, thread: GpuThread, count: int, site: Site) -> int:
        """All of the thread's lanes arrive, where `count` lanes meet; returns what to wait for."""
        if self.arrived and count != self.count:
            self.machine.report(
                MISUSE, f"{site} expects {count} threads at {self.name}, others {self.count}", site
            )
        self.count = count
        self.arrived += thread.width
        clock, proxy = thread.handed()
        thread.release()
        join(self._arrived[0], clock)
        join(self._arrived[1], proxy)
        generation = self.generation
        if self.arrived > count:
            self.machine.report(
                MISUSE, f"{self.arrived} threads arrive at {self.name} for {count}, {site}", site
            )
        if self.arrived >= count:
            self._history[generation] = self._arrived
            self._history.pop(generation - 8, None)
            self._arrived = ({}, {})
            self.arrived = 0
            self.generation += 1
        return generation

    def wait(self, thread: GpuThread, generation: int, site: Site) -> Steps:
        """Waits for the rest of those who arrive with it."""
        while self.generation <= generation:
            yield Wait(self, lambda: self.generation > generation, self._state, site)
        thread.learn(*self._history[generation])

    def sync(self, thread: GpuThread, count: int, site: Site) -> Steps:
        yield from self.wait(thread, self.arrive(thread, count, site), site)

    def _state(self) -> str:
        return f"{self.name} to have {self.count} threads, it has {self.arrived}"
