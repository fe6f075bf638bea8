"""The machine: threads of control, asynchronous engines, semaphores, a seeded scheduler.

Everything that happens is a function of the seed.  A thread is a generator that
yields a `Wait` where it cannot go on; an asynchronous operation is a `Transfer`
whose stages land between the moment it is started and the moment that somebody
cannot go on without it.
"""

from __future__ import annotations

import dataclasses
import enum
import random
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from .findings import DEADLOCK, UNBALANCED, UNINITIALISED, Fault, Finding, Site
from .memory import Buffer, View
from .races import Actor, Clock, Races, join

type Steps = Generator[Wait | None, None, Any]
type Signal = tuple[Signalled, int]


class Signalled(Protocol):
    """What an asynchronous operation tells of its end."""

    def promise(self, amount: int, actor: Actor, transfer: Transfer | None = None) -> None: ...

    def arrive(self, amount: int) -> None: ...


class Timing(enum.StrEnum):
    """When an asynchronous operation lands."""

    LATE = "late"  # when somebody waits who cannot go on otherwise
    EARLY = "early"  # as soon as it is started
    RANDOM = "random"  # in between


@dataclasses.dataclass(slots=True)
class Wait:
    """Why a thread cannot go on.

    Attributes:
      on: what it waits for, a semaphore or barrier.
      ready: whether it can go on now.
      what: for the report of a deadlock.
      site: of the operation that waits.
    """

    on: Any
    ready: Callable[[], bool]
    what: Callable[[], str]
    site: Site


@dataclasses.dataclass(slots=True)
class Stage:
    """A part of an asynchronous operation that completes at once."""

    action: Callable[[], None]
    signals: Sequence[Signal]


class Transfer:
    """An asynchronous operation in flight."""

    __slots__ = ("places", "site", "stages")

    def __init__(self, site: Site, stages: list[Stage], places: list):
        self.site = site
        self.stages = stages
        self.places = places


class Semaphore:
    """A counter that is signalled and waited for.

    Which signals a wait is ordered after does not depend on luck: a signal is known
    to have arrived when the waits so far could not all have been served without it.
    """

    __slots__ = ("_issued", "_must", "_pending", "_waited", "count", "name", "signallers")

    def __init__(self, name: str):
        self.name = name
        self.count = 0
        self.signallers: dict[Site, None] = {}
        self._pending: list[tuple[int, Clock, Clock | None, Transfer | None]] = []
        self._issued = 0
        self._waited = 0
        self._must: tuple[Clock, Clock] = ({}, {})

    def promise(self, amount: int, actor: Actor, transfer: Transfer | None = None) -> None:
        """A signal of `amount` is on its way; `arrive` delivers it."""
        self.signallers[actor.site] = None
        self._issued += amount
        clock = {**actor.clock, actor.agent: actor.time}
        proxy = {**actor.proxy, actor.agent: actor.time} if actor.proxy is not None else None
        self._pending.append((amount, clock, proxy, transfer))

    def arrive(self, amount: int) -> None:
        self.count += amount

    def take(self, amount: int, thread: Thread) -> None:
        """Serves a wait: the thread is ordered after every signal that must have arrived."""
        self.count -= amount
        self._waited += amount
        clock, proxy = self._must
        still = []
        for entry in self._pending:
            if self._issued - entry[0] >= self._waited:
                still.append(entry)
                continue
            join(clock, entry[1])
            join(proxy, entry[2] if entry[2] is not None else entry[1])
            if entry[3] is not None and thread.machine.races.solo:
                thread.machine.retire(entry[3])
        self._pending = still
        thread.learn(clock, proxy)
        if thread.machine.races.solo and not still:
            self._must = ({}, {})


class Thread:
    """A thread of control: a TPU core or subcore, a warpgroup or warp of a GPU.

    Attributes:
      place: what the operations that ask "who am I" answer with, by name.
      step: where in the grid it is, for reports.
    """

    def __init__(self, machine: Machine, name: str, device: Device, place: dict[str, Any]):
        self.machine = machine
        self.name = name
        self.device = device
        self.place = place
        self.step: tuple[int, ...] | None = None
        self.agent = machine.new_agent()
        self.time = 1
        self.clock: Clock = {}
        self.proxy: Clock | None = None
        self.waiting: Wait | None = None
        self.steps: Steps | None = None
        self.allocations = 0
        self._engines: list[tuple[int, int]] = []

    def actor(self, site: Site) -> Actor:
        return Actor(self.agent, self.time, self.clock, self.where(), site, self.proxy)

    def where(self) -> str:
        return self.name if self.step is None else f"{self.name} at grid step {self.step}"

    def learn(self, clock: Clock, proxy: Clock | None = None) -> None:
        """Orders what follows after all that `clock` names."""
        join(self.clock, clock)
        if self.proxy is not None:
            join(self.proxy, clock if proxy is None else proxy)

    def release(self) -> None:
        """Starts a new moment: what follows is not ordered before what was handed out so far."""
        self.time += 1

    def knows(self) -> Clock:
        """Everything that is ordered before its next operation, itself included."""
        return {**self.clock, self.agent: self.time}

    # --- memory -------------------------------------------------------------------

    def access(self, view: View, site: Site, write: bool) -> None:
        """Checks an access of this thread, and remembers it where another may conflict."""
        races = self.machine.races
        if races.solo:
            if view.buffer.records:
                races.check(self.actor(site), view, write)
            return
        actor = self.actor(site)
        if view.buffer.records:
            races.check(actor, view, write)
        races.record(dataclasses.replace(actor, clock={}, proxy=None), view, write)

    def load(self, view: View, site: Site) -> np.ndarray:
        """A copy of what the view holds."""
        self.access(view, site, False)
        if view.buffer.uninitialised is not None and view.unwritten():
            self.machine.note_unwritten(view, site, self)
        return view.read()

    def store(self, view: View, values: Any, site: Site, mask: np.ndarray | None = None) -> None:
        """Overwrites what the view holds, where `mask` is true."""
        self.access(view, site, True)
        if mask is None:
            view.write(values)
        else:
            view.at(np.nonzero(mask)).write(np.broadcast_to(values, view.shape)[mask])

    # --- asynchronous operations ----------------------------------------------------

    def start(
        self,
        site: Site,
        action: Callable[[], None],
        *,
        reads: Iterable[View] = (),
        writes: Iterable[View] = (),
        signals: Sequence[Signal] = (),
    ) -> Transfer:
        """Starts an operation that an engine does on its own; `action` when it lands."""
        actor = self.engine(site)
        places = self.touch(actor, reads, writes)
        transfer = Transfer(site, [Stage(action, signals)], places)
        for semaphore, amount in signals:
            semaphore.promise(amount, actor, transfer)
        self.machine.fly(transfer)
        return transfer

    def touch(self, actor: Actor, reads: Iterable[View], writes: Iterable[View]) -> list:
        """Checks and records what an engine's operation reads and writes."""
        races, places = self.machine.races, []
        for views, write in ((reads, False), (writes, True)):
            for view in views:
                if view.buffer.records:
                    races.check(actor, view, write)
                places.append(races.record(actor, view, write))
        return places

    def engine(self, site: Site) -> Actor:
        """An agent for an operation that this thread starts now."""
        clock = self.knows()
        for position, (agent, last) in enumerate(self._engines):
            if clock.get(agent, 0) >= last:
                self._engines[position] = (agent, last + 1)
                break
        else:
            agent, last = self.machine.new_agent(), 0
            self._engines.append((agent, 1))
        proxy = None if self.proxy is None else dict(self.proxy)
        self.release()
        name = f"the copy that {self.where()} started"
        return Actor(agent, last + 1, clock, name, site, proxy, engine=True)

    # --- semaphores -----------------------------------------------------------------

    def signal(self, semaphore: Semaphore, amount: int, site: Site) -> None:
        """Adds to a semaphore; what this thread did before is ordered before who waits for it."""
        semaphore.promise(amount, self.actor(site))
        self.release()
        semaphore.arrive(amount)

    def wait(self, semaphore: Semaphore, amount: int, site: Site) -> Steps:
        """Waits until the semaphore holds `amount`, and takes it."""
        while semaphore.count < amount:
            yield Wait(
                semaphore,
                lambda: semaphore.count >= amount,
                lambda: f"{semaphore.name} to hold {amount}, it holds {semaphore.count}",
                site,
            )
        semaphore.take(amount, self)


@dataclasses.dataclass
class Device:
    """One chip's memories, by a key that is the same on every chip."""

    number: int
    buffers: dict[Any, Buffer] = dataclasses.field(default_factory=dict)


class Machine:
    """Runs threads to their end; see the module.

    Attributes:
      findings: what went wrong so far, races included.
      suspects: reads of memory that was never written; whether they matter shows
        when values change with the poison.
      stand_ins: values of ours that stand in for what only the chip has, one line each.
      stalled: asked where nothing can go on, before that is a deadlock; true if it
        started something.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        timing: Timing = Timing.LATE,
        poison: int = 0,
        devices: int = 1,
        solo: bool = False,
    ):
        self.random = random.Random(seed)
        self.poison = poison
        self.timing = timing
        self.devices = [Device(number) for number in range(devices)]
        self.races = Races(solo=solo)
        self.threads: list[Thread] = []
        self.flying: list[Transfer] = []
        self.semaphores: list[Semaphore] = []
        self.suspects: dict[tuple[Site, str], Finding] = {}
        self.misuses: dict[tuple, Finding] = {}
        self.stand_ins: dict[str, None] = {}
        self.stalled: Callable[[], bool] | None = None
        self._agents = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        return (*self.races.findings.values(), *self.misuses.values())

    def new_agent(self) -> int:
        self._agents += 1
        return self._agents

    def report(self, kind: str, message: str, *sites: Site) -> None:
        """Notes that something is wrong, once, and goes on."""
        self.misuses.setdefault((kind, message), Finding(kind, message, sites))

    def note_unwritten(self, view: View, site: Site, thread: Thread) -> None:
        key = (site, view.buffer.name)
        if key not in self.suspects:
            message = f"{site} reads {view.buffer.name}, never written in part, by {thread.where()}"
            self.suspects[key] = Finding(UNINITIALISED, message, (site,))

    def semaphores_of(self, buffer: Buffer, count: int) -> None:
        """Gives a buffer a semaphore in each of its cells."""
        names = (f"{buffer.name}[{n}]" if count > 1 else buffer.name for n in range(count))
        buffer.semaphores = [Semaphore(name) for name in names]
        self.semaphores.extend(buffer.semaphores)
        View.whole(buffer, (count,), np.dtype(np.int64)).array[...] = np.arange(count)

    # --- engines ---------------------------------------------------------------------

    def fly(self, transfer: Transfer) -> None:
        """Lets a transfer land when the timing says so."""
        if self.timing is Timing.EARLY:
            while transfer.stages:
                self._land(transfer)
            return
        self.flying.append(transfer)
        if self.timing is Timing.RANDOM and self.random.random() < 0.5:
            self._land(self.random.choice(self.flying))

    def land(self, transfer: Transfer) -> None:
        """Lands what is left of a transfer now, because an operation waits for just that."""
        while transfer.stages:
            self._land(transfer)

    def _land(self, transfer: Transfer) -> None:
        stage = transfer.stages.pop(0)
        if not transfer.stages and transfer in self.flying:
            self.flying.remove(transfer)
        stage.action()
        for semaphore, amount in stage.signals:
            semaphore.arrive(amount)

    def _land_one(self) -> bool:
        """Lands a stage that a waiting thread needs, else any; False where nothing flies."""
        awaited = [thread.waiting.on for thread in self.threads if thread.waiting is not None]
        wanted = [t for t in self.flying if any(s in awaited for s, _ in t.stages[0].signals)]
        candidates = wanted or self.flying
        if candidates:
            self._land(self.random.choice(candidates))
        return bool(candidates)

    def retire(self, transfer: Transfer) -> None:
        """Forgets the accesses of a transfer that everything to come is ordered after."""
        self.races.forget(transfer.places)

    # --- scheduling --------------------------------------------------------------------

    def add(self, thread: Thread, steps: Steps) -> None:
        thread.steps = steps
        self.threads.append(thread)
        self.races.owners.append(thread.clock)

    def run(self) -> None:
        """Runs every thread to its end.

        Raises:
          Fault: a deadlock, or an access out of bounds.
        """
        while self.threads:
            if self.timing is Timing.RANDOM and self.flying and self.random.random() < 0.3:
                self._land(self.random.choice(self.flying))
            runnable = [t for t in self.threads if t.waiting is None or t.waiting.ready()]
            if runnable:
                self._advance(runnable[self.random.randrange(len(runnable))])
            elif not self._land_one() and not (self.stalled and self.stalled()):
                raise Fault(self._deadlock())
        self._check_balance()
        for transfer in list(self.flying):
            self.land(transfer)

    def _advance(self, thread: Thread) -> None:
        assert thread.steps is not None
        thread.waiting = None
        try:
            thread.waiting = next(thread.steps)
        except StopIteration:
            self.threads.remove(thread)
            self.races.owners = [t.clock for t in self.threads]

    def _deadlock(self) -> Finding:
        lines, sites = [], []
        for thread in self.threads:
            wait = thread.waiting
            if wait is None:
                continue
            sites.append(wait.site)
            signallers = getattr(wait.on, "signallers", {})
            so_far = ", ".join(map(str, signallers)) or "nothing"
            lines.append(
                f"{thread.where()}: {wait.site} waits for {wait.what()} (signalled so far by {so_far})"
            )
        return Finding(DEADLOCK, "no thread can go on; " + "; ".join(lines), tuple(sites))

    def _check_balance(self) -> None:
        for semaphore in self.semaphores:
            flying = [t for t in self.flying if any(s is semaphore for s, _ in t.stages[0].signals)]
            if semaphore.count or flying:
                by = ", ".join(map(str, semaphore.signallers))
                left = [f"{len(flying)} operations that signal it were never waited for"] * bool(
                    flying
                )
                left += [f"it holds {semaphore.count} at the end"] * (semaphore.count != 0)
                message = f"{semaphore.name}: {' and '.join(left)}; signalled by {by}"
                self.report(UNBALANCED, message, *semaphore.signallers)
