"""Threads of control of a GPU: warpgroups and warps, and the engines that they drive."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .barrier import MBarrier, ThreadBarrier
from .findings import MISUSE, RACE, Fault, Finding, Site
from .machine import Machine, Signal, Stage, Steps, Thread, Transfer
from .memory import Buffer, View
from .races import Actor, Clock, join

if TYPE_CHECKING:
    from .gpu import Launch

WARP = 32
WARPGROUP = 128
MBARRIER_BYTES = 8
CLUSTER = -1
TMEM_ROWS, TMEM_COLUMNS, TMEM_CELL = 128, 512, 4


@dataclasses.dataclass(frozen=True, slots=True)
class Pointer:
    """A place in a buffer; as the integer that it is on the chip, it can be added to."""

    buffer: Any
    offset: int

    def __add__(self, distance: int) -> Pointer:
        return Pointer(self.buffer, self.offset + distance)


def never_written(buffer: Buffer, poison: int) -> None:
    """Fills memory of no one type: for poison 0 every float in it is a NaN, every integer -1."""
    buffer.poison = poison
    whole = View.whole(buffer, (len(buffer.data),), np.dtype(np.int8))
    whole.spoil()
    if poison == 0:
        buffer.data[...] = 0xFF


class SharedMemory(Buffer):
    """The dynamic shared memory of a CTA.

    Attributes:
      cta: whose it is.
      barriers: the mbarriers in it, by byte offset.
    """

    __slots__ = ("barriers", "cta")

    def __init__(self, cta: Cta, size: int, poison: int):
        super().__init__("SMEM", "smem", size, ("smem", cta.number))
        never_written(self, poison)
        self.cta = cta
        self.barriers: dict[int, MBarrier] = {}


class Cta:
    """One CTA: its shared memory and tensor memory, and its place in its cluster."""

    def __init__(self, launch: Launch, number: tuple[int, int, int], cluster: list[Cta], rank):
        machine = launch.machine
        self.launch = launch
        self.number = number
        self.cluster = cluster
        self.rank: tuple[int, int, int] = rank
        self.name = f"CTA {number}"
        self.smem = SharedMemory(self, launch.smem_bytes, machine.poison)
        self.named: dict[int, ThreadBarrier] = {}
        self.tmem: dict[Any, Buffer] = {}
        self.threads: list[GpuThread] = []
        self.left: list[GpuThread] = []

    def barrier(self, number: int) -> ThreadBarrier:
        """A named barrier, ``bar.sync``'s, or that of the cluster."""
        if number not in self.named:
            which = "the cluster's barrier" if number == CLUSTER else f"barrier {number}"
            name = f"{which} of {self.name}"
            self.named[number] = ThreadBarrier(self.launch.machine, name)
        return self.named[number]

    @property
    def flat_rank(self) -> int:
        """Its number in its cluster, x first."""
        x, y, z = self.rank
        width, height, _ = self.launch.cluster
        return x + width * (y + height * z)

    def peers(self, dimensions: Sequence[int]) -> list[Cta]:
        """The CTAs of its cluster that differ from it along these dimensions only, in order."""
        return [
            cta
            for cta in self.cluster
            if all(cta.rank[d] == self.rank[d] for d in range(3) if d not in dimensions)
        ]

    def tensor_memory(self, key: Any) -> Buffer:
        """The allocation of that name in its tensor memory: 32-bit cells, rows by columns."""
        if key not in self.tmem:
            size = TMEM_ROWS * TMEM_COLUMNS * TMEM_CELL
            buffer = self.tmem[key] = Buffer("TMEM", "tmem", size)
            never_written(buffer, self.launch.machine.poison)
        return self.tmem[key]

    def sync_threads(self, thread: GpuThread, site: Site) -> Steps:
        """All threads of the CTA meet."""
        width, height, depth = self.launch.block
        return self.barrier(0).sync(thread, width * height * depth, site)

    def counterpart(self, peer: Cta, view: View) -> View:
        """The same place in the memory of another CTA of the cluster."""
        if view.buffer is self.smem:
            return view.on(peer.smem)
        key = next(key for key, buffer in self.tmem.items() if buffer is view.buffer)
        return view.on(peer.tensor_memory(key))

    @property
    def cluster_barrier(self) -> ThreadBarrier:
        return self.cluster[0].barrier(CLUSTER)

    def peer(self, flat_rank: int) -> Cta:
        return next(cta for cta in self.cluster if cta.flat_rank == flat_rank)


def mbarrier(thread: GpuThread, pointer: Pointer, site: Site) -> MBarrier:
    """The mbarrier at a pointer.

    Raises:
      Fault: nobody initialised one there.
    """
    found = pointer.buffer.barriers.get(pointer.offset)
    if found is None:
        message = f"{site} uses byte {pointer.offset} of SMEM, where no barrier was initialised, by {thread.where()}"
        raise Fault(Finding(MISUSE, message, (site,)))
    if any(
        hand.agent != found.maker and hand.clock.get(found.maker, 0) < found.made
        for hand in thread.hands
    ):
        thread.machine.report(
            RACE,
            f"{site} uses {found.name} by {thread.where()}: nothing orders it after {found.site}",
            found.site,
            site,
        )
    return found


class GpuThread(Thread):
    """A warpgroup, or a warp of one, that runs as one thread of control: its first lane.

    What the first lane does alone (copies, arrivals of one thread) and what all lanes do
    together (vector loads and stores) are told apart: they are ordered by a barrier of
    the warpgroup only.

    Attributes:
      width: how many lanes it has.
      lanes: the agent of what all lanes do.
      wgmma: products in flight in the tensor core, in order.
      tensor: operations in flight in the tensor memory, in order.
      bulk: asynchronous stores by group.
      copies: copies of the lanes (``cp.async``) by group.
      unshared: what each lane knows of its own part, and all do after a barrier.
      warps: its warps, where they ran on their own before.
      private: the warps' copies of private memory, and what the original held then.
    """

    def __init__(self, machine: Machine, name: str, cta: Cta, place: dict[str, Any], width: int):
        super().__init__(machine, name, cta.launch.device, place)
        self.cta = cta
        self.width = width
        self.proxy: Clock = {}
        self.lanes: Thread = self
        if width > WARP:
            self.lanes = Thread(machine, f"the lanes of {name}", self.device, place)
            self.lanes.proxy = {}
        self.hands = (self,) if self.lanes is self else (self, self.lanes)
        self.wgmma = Pipe(machine, "the product that {} started")
        self.tensor = Pipe(machine, "the operation in tensor memory that {} started")
        self.bulk = Groups()
        self.copies = Groups()
        self.unshared: Clock = {}
        self.tensor_loads: dict[Any, Clock] = {}
        self.tensor_stores: list[tuple[Transfer, Clock]] = []
        self.cluster_generation = 0
        self.warps: list[GpuThread] = []
        self.private: dict[tuple[int, Buffer], tuple[Buffer, bytes]] = {}

    # --- order ----------------------------------------------------------------------

    def handed(self) -> tuple[Clock, Clock]:
        """What whoever waits for an arrival of all lanes is ordered after, and its engines."""
        clock: Clock = {}
        proxy: Clock = {}
        for hand in self.hands:
            join(clock, hand.clock)
            clock[hand.agent] = hand.time
            join(proxy, hand.proxy or {})
        join(clock, self.unshared)
        join(proxy, self.unshared)
        return clock, proxy

    def learn(self, clock: Clock, proxy: Clock | None = None) -> None:
        for hand in self.hands:
            Thread.learn(hand, clock, proxy)

    def release(self) -> None:
        for hand in self.hands:
            hand.time += 1

    def converge(self) -> None:
        """A barrier of the lanes."""
        if self.lanes is not self:
            self.learn(*self.handed())
            self.release()

    def fence(self) -> None:
        """Shows to asynchronous engines what the lanes know to be written."""
        for hand in self.hands:
            assert hand.proxy is not None
            join(hand.proxy, hand.knows())
        self.release()

    def learn_alone(self, clock: Clock) -> None:
        """What the first lane learns, which waits for what it started itself."""
        Thread.learn(self, clock, clock)

    def learn_apart(self, clock: Clock) -> None:
        """What each lane learns of its own part, and the others after a barrier."""
        join(self.unshared, clock)

    def commit_bulk(self) -> None:
        """Each lane makes a group of the stores that it started."""
        for thread in (self, *self.warps[1:]):
            thread.bulk.commit()

    def wait_bulk(self, pending: int, read_only: bool) -> None:
        """Each lane waits for its own stores."""
        self.bulk.wait(self.machine, pending, self.learn_alone, read_only)
        for warp in self.warps[1:]:
            warp.bulk.wait(self.machine, pending, self.learn_apart, read_only)

    def tensor_actor(self, site: Site) -> Actor:
        """The agent of a move of all lanes, each between its registers and its row."""
        actor = Thread.engine(self.lanes, site)
        return dataclasses.replace(actor, clock={**actor.clock, **self.unshared})

    def wait_tensor_loads(self, loads: Iterable[Any] | None = None) -> None:
        """The lanes have what they loaded: by all loads, or by these operations."""
        for load in list(self.tensor_loads) if loads is None else loads:
            self.learn_apart(self.tensor_loads.pop(load, {}))

    def wait_tensor_stores(self) -> None:
        for transfer, clock in self.tensor_stores:
            self.machine.land(transfer)
            self.learn_apart(clock)
        self.tensor_stores = []

    def access(self, view: View, site: Site, write: bool) -> None:
        if view.buffer.private:
            return
        if self.lanes is self:
            super().access(view, site, write)
        else:
            self.lanes.access(view, site, write)


def completion(actor: Actor) -> tuple[Clock, Clock]:
    """What the end of an engine's operation tells: itself, and what it started after."""
    assert actor.proxy is not None
    moment = {actor.agent: actor.time}
    return {**actor.clock, **moment}, {**actor.proxy, **moment}


def observed(thread: Thread, view: View, site: Site) -> np.ndarray:
    """What an engine reads, noted where it was never written."""
    if view.buffer.uninitialised is not None and view.unwritten():
        thread.machine.note_unwritten(view, site, thread)
    return view.read()


class Pipe:
    """An engine that does a thread's operations one after the other, in groups."""

    def __init__(self, machine: Machine, name: str):
        self.machine = machine
        self.name = name
        self.agent = machine.new_agent()
        self.time = 0
        self.last: Transfer | None = None
        self.groups: list[tuple[Transfer, Clock]] = []

    def next(self, thread: GpuThread, site: Site) -> Actor:
        """An operation that the thread starts now."""
        self.time += 1
        name, proxy = self.name.format(thread.where()), dict(thread.proxy)
        actor = Actor(self.agent, self.time, thread.knows(), name, site, proxy, engine=True)
        Thread.release(thread)
        return actor

    def start(
        self,
        thread: GpuThread,
        actor: Actor,
        action: Callable[[], None],
        reads: Iterable[View],
        writes: Iterable[View] = (),
        signals: Sequence[Signal] = (),
    ) -> None:
        """Starts an operation; it lands after those before it."""
        machine, previous = self.machine, self.last
        places = thread.touch(actor, reads, writes)

        def land() -> None:
            if previous is not None:
                machine.land(previous)
            action()

        self.last = Transfer(actor.site, [Stage(land, signals)], places)
        machine.fly(self.last)

    def commit(self) -> None:
        """Makes a group of what was started so far."""
        if self.last is not None:
            self.groups.append((self.last, {self.agent: self.time}))

    def wait(self, thread: GpuThread, pending: int) -> None:
        """Waits for all groups but the newest `pending`."""
        done = self.groups[: len(self.groups) - pending] if pending else self.groups
        if done:
            transfer, clock = done[-1]
            self.machine.land(transfer)
            thread.learn(clock, clock)
            self.groups = self.groups[len(done) :]


@dataclasses.dataclass(slots=True)
class _Copy:
    """A copy in flight: it first reads, then writes."""

    read: Transfer
    reader: Clock
    write: Transfer
    writer: Clock


class Groups:
    """Asynchronous copies of a thread in groups."""

    def __init__(self) -> None:
        self.open: list[_Copy] = []
        self.groups: list[list[_Copy]] = []

    def start(
        self,
        thread: GpuThread,
        site: Site,
        source: View,
        target: View,
        combine: Callable[[View, Any], None],
    ) -> None:
        """Starts a copy; `combine` puts what was read into the target."""
        held: list[np.ndarray] = []
        reader, writer = thread.engine(site), thread.engine(site)

        def read() -> None:
            held.append(observed(thread, source, site))

        def write() -> None:
            thread.machine.land(first)
            combine(target, held.pop())

        first = Transfer(site, [Stage(read, ())], thread.touch(reader, [source], ()))
        second = Transfer(site, [Stage(write, ())], thread.touch(writer, (), [target]))
        thread.machine.fly(first)
        thread.machine.fly(second)
        times = {reader.agent: reader.time}, {writer.agent: writer.time}
        self.open.append(_Copy(first, times[0], second, times[1]))

    def commit(self) -> None:
        self.groups.append(self.open)
        self.open = []

    def land(self, machine: Machine) -> None:
        """Lands what is left, which nobody waited for."""
        for group in (*self.groups, self.open):
            for copy in group:
                machine.land(copy.write)
        self.groups, self.open = [], []

    def wait(
        self,
        machine: Machine,
        pending: int,
        learn: Callable[[Clock], None],
        read_only: bool = False,
    ) -> None:
        """Waits for all groups but the newest `pending`; with `read_only`, for their sources."""
        cut = len(self.groups) - pending
        if cut <= 0:
            return
        for group in self.groups[:cut]:
            for copy in group:
                machine.land(copy.read)
                learn(copy.reader)
                if not read_only:
                    machine.land(copy.write)
                    learn(copy.writer)
        if not read_only:
            del self.groups[:cut]
