"""Buffers of a TPU's cores: where a memref type lives, and its counterpart on another core.

A buffer's key is ``(core, what)``.  `core` is the coordinates of the core or subcore
that owns it and () for memory that all cores of a device share; `what` is the same
on every core, so that a remote copy or signal finds its target by the key.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import Unsupported
from .element_types import SEMAPHORES, dtype_of
from .findings import MISUSE, Fault, Finding, Site
from .machine import Device, Machine, Semaphore, Thread
from .memory import Buffer, View

OFF_CHIP = frozenset({"any", "hbm", "host"})
_ON_CHIP_DEFAULT = "vmem"
_SHARED_BY_SUBCORES = "vmem_shared"


def space_of(type_) -> str:
    """``vmem`` of ``#tpu.memory_space<vmem>``."""
    space = type_.memory_space
    if space is None:
        return _ON_CHIP_DEFAULT
    word = str(space).partition("<")[2].rstrip(">") or str(space)
    return word.partition(",")[0].strip()


def owner(thread: Thread, space: str) -> tuple[int, ...]:
    """The core that memory of a space belongs to."""
    core: tuple[int, ...] = thread.place["core"]
    if space in OFF_CHIP:
        return ()
    return core[:1] if space == _SHARED_BY_SUBCORES else core


def allocate(thread: Thread, type_, what: Any, name: str, site: Site | None = None) -> View:
    """The buffer of a memref type, as good as new: poisoned, or semaphores that hold 0.

    An allocation has one address: executed again it gives the same memory, which is
    then written by the thread as far as races are concerned.
    """
    shape = tuple(type_.shape)
    element = str(type_.element_type)
    space = space_of(type_)
    core = owner(thread, space)
    key = (core, what)
    buffers = thread.device.buffers
    dtype = np.dtype(np.int64) if element in SEMAPHORES else dtype_of(element)
    if key not in buffers:
        buffers[key] = _fresh(thread.machine, key, name, space, shape, dtype, element in SEMAPHORES)
        return View.whole(buffers[key], shape, dtype)
    view = View.whole(buffers[key], shape, dtype)
    if not buffers[key].semaphores and core == thread.place["core"]:
        if site is not None:
            thread.access(view, site, True)
        view.spoil()
    return view


def _fresh(machine: Machine, key, name, space, shape, dtype, semaphores: bool) -> Buffer:
    if semaphores:
        buffer = Buffer(name, space, 8 * math.prod(shape), key)
        machine.semaphores_of(buffer, math.prod(shape))
        return buffer
    return Buffer.poisoned(name, space, shape, dtype, machine.poison, key)


def semaphore(view: View) -> Semaphore:
    """The semaphore that a reference of one cell refers to."""
    return view.buffer.semaphores[int(view.array.reshape(()))]


def counterpart(
    thread: Thread, view: View, site: Site, device: int | None, *core: int | None
) -> View:
    """The same part of the same buffer on another device or core.

    Args:
      device: logical device number, None for this one.
      core: coordinates of the core, None where they are this one's.

    Raises:
      Fault: there is no such device.
      Unsupported: the kernel runs on one core only and names another.
    """
    machine = thread.machine
    own, what = view.buffer.key
    if device is not None and not 0 <= device < len(machine.devices):
        text = f"{site}: device {device} of {len(machine.devices)}, by {thread.where()}"
        raise Fault(Finding(MISUSE, text, (site,)))
    if not thread.place["core"] and any(core):
        raise Unsupported(f"{site} on another core than the one that the kernel runs on")
    target = thread.device if device is None else machine.devices[device]
    place = tuple(b if a is None else a for a, b in zip((*core, *own[len(core) :]), own))
    buffer = target.buffers.get((place, what))
    if buffer is None:
        buffer = _copy_of(machine, view.buffer, (place, what))
        target.buffers[place, what] = buffer
    return view.on(buffer)


def _copy_of(machine: Machine, buffer: Buffer, key) -> Buffer:
    """A buffer like another, for a core that has not come to allocate its own."""
    twin = Buffer(buffer.name, buffer.space, len(buffer.data), key)
    if buffer.semaphores:
        machine.semaphores_of(twin, len(buffer.semaphores))
        return twin
    twin.poison = machine.poison
    View.whole(twin, (len(twin.data),), np.dtype(np.uint8)).spoil()
    return twin


def shared(device: Device, key: Any, make) -> Any:
    """What all threads of a device know under a key; made by the first that asks."""
    if key not in device.buffers:
        device.buffers[key] = make()
    return device.buffers[key]
