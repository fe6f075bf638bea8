"""Runs a Mosaic TPU kernel: one function over a grid, on one core or several."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..arrays import numpy_dtype
from ..backends.schedule_tpu import entry_function
from ..errors import Unsupported
from ..jax_compat import ir
from ..kernel import Kernel
from ..targets import TARGETS
from .element_types import signless
from .machine import Device, Machine
from .memory import Buffer, View
from .program import Program
from .tpu_core import Core
from .values import word

_DYNAMIC = ir.ShapedType.get_dynamic_size()
# Dimensions of the grid that are the cores themselves.
_CORES = ("core_parallel", "subcore_parallel")
_PARALLEL = "parallel"
_TENSOR_CORE = "tc"


class TpuProgram:
    """A Mosaic TPU kernel, ready to run any number of times.

    Raises:
      Unsupported: an operation or a window of it has no meaning here.
    """

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.program = Program(kernel.module())
        functions = self.program.functions
        entry = entry_function(functions)
        if entry is None:
            raise Unsupported(f"kernel '{kernel.name}' has no function with a body")
        if sum("tpu.core_type" in f.attributes for f in functions.values()) > 1:
            raise Unsupported(f"kernel '{kernel.name}' has a function for each of several cores")
        attributes = entry.attributes
        name = attributes["sym_name"].value
        self.program.check(name)
        self.body = self.program.function(name)
        self.waits = self.program.waits(name)
        self.bounds = list(attributes.get("iteration_bounds", ()))
        self.prefetch = _integer(attributes, "scalar_prefetch")
        self.scratch = _integer(attributes, "scratch_operands")
        self.semantics = [word(a) for a in attributes.get("dimension_semantics", ())]
        core_type = attributes.get("tpu.core_type", None)
        self.core_type = _TENSOR_CORE if core_type is None else word(core_type)
        self.block = entry.regions[0].blocks[0]
        self.dynamic = sum(bound == _DYNAMIC for bound in self.bounds)
        count = len(kernel.operands) + len(kernel.results) - self.prefetch - self.dynamic
        self.windows = list(attributes.get("window_params", ())) or [None] * count

    def machine(self, **options: Any) -> Machine:
        alone = options.get("devices", 1) == 1 and not self._may_split()
        return Machine(solo=alone, **options)

    def run(self, machine: Machine, inputs: Sequence[Sequence[np.ndarray]]) -> list[list[View]]:
        """Runs the kernel on every device; returns each device's results.

        Args:
          inputs: for each device, the custom call's operands.
        """
        results = []
        for device, arrays in zip(machine.devices, inputs):
            grid = self._grid(arrays)
            memory = [_operand(device, n, a) for n, a in enumerate(arrays[self.dynamic :])]
            made = self._results(machine, device, memory)
            cores = list(self._cores(grid))
            for place, part in cores:
                core = Core(self, machine, device, place, grid, part, memory, made)
                core.thread.place["subcores"] = sum(other[:1] == place[:1] for other, _ in cores)
                machine.add(core.thread, core.steps())
            results.append([_typed(v, t.dtype) for v, t in zip(made, self.kernel.results)])
        machine.run()
        return results

    def _grid(self, inputs: Sequence[np.ndarray]) -> tuple[int, ...]:
        dynamic = iter(inputs)
        return tuple(int(next(dynamic)) if b == _DYNAMIC else b for b in self.bounds)

    def _results(self, machine: Machine, device: Device, memory: Sequence[View]) -> list[View]:
        aliases = {result: operand for operand, result in self.kernel.aliases}
        return [
            memory[aliases[number] - self.dynamic]
            if number in aliases
            else _result(machine, device, number, type_)
            for number, type_ in enumerate(self.kernel.results)
        ]

    # --- cores -----------------------------------------------------------------------------

    def _may_split(self) -> bool:
        split = self._split_dimension()
        return any(s in _CORES for s in self.semantics) or split is not None

    def _split_dimension(self) -> int | None:
        """The dimension whose steps two TensorCores of one device share."""
        shared = self.core_type == _TENSOR_CORE and TARGETS[self.kernel.target].num_cores > 1
        if (
            not shared
            or _PARALLEL not in self.semantics
            or any(s in _CORES for s in self.semantics)
        ):
            return None
        return self.semantics.index(_PARALLEL)

    def _cores(self, grid: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], list[range]]]:
        """Each core's coordinates and its part of the grid."""
        whole = [range(n) for n in grid]
        dimensions = [d for d, s in enumerate(self.semantics) if s in _CORES and d < len(grid)]
        if dimensions:
            parts = [self._shares(grid[d]) for d in dimensions]
            for place in itertools.product(*(range(len(part)) for part in parts)):
                mine = list(whole)
                for dimension, part, number in zip(dimensions, parts, place):
                    mine[dimension] = part[number]
                yield place, mine
            return
        split = self._split_dimension()
        if split is None:
            yield (), whole
            return
        for number, share in enumerate(_halves(grid[split], TARGETS[self.kernel.target].num_cores)):
            yield (number,), [*whole[:split], share, *whole[split + 1 :]]

    def _shares(self, extent: int) -> list[range]:
        """How the steps of a dimension of cores are shared: one each, where there are as many."""
        cores = TARGETS[self.kernel.target].num_cores
        if self.core_type != _TENSOR_CORE or extent <= max(cores, 2):
            return [range(n, n + 1) for n in range(extent)]
        return _halves(extent, cores)


def _halves(extent: int, count: int) -> list[range]:
    size = math.ceil(extent / count)
    return [range(min(n * size, extent), min((n + 1) * size, extent)) for n in range(count)]


def _operand(device: Device, number: int, array: np.ndarray) -> View:
    buffer = Buffer.holding(f"operand {number}", "hbm", array, ((), ("operand", number)))
    device.buffers[buffer.key] = buffer
    return View.whole(buffer, array.shape, signless(array.dtype))


def _result(machine: Machine, device: Device, number: int, type_) -> View:
    dtype = signless(numpy_dtype(type_.dtype))
    key = ((), ("result", number))
    name = f"result {number}"
    buffer = Buffer.poisoned(name, "hbm", type_.shape, dtype, machine.poison, key)
    device.buffers[key] = buffer
    return View.whole(buffer, type_.shape, dtype)


def _typed(view: View, dtype: str) -> View:
    """A result as JAX's type of it, which says whether integers are signed."""
    return View.whole(view.buffer, view.shape, numpy_dtype(dtype))


def _integer(attributes, name: str) -> int:
    return attributes[name].value if name in attributes else 0
