"""Random bits: a stand-in, since which bits a seed gives depends on the chip.

A counter-based generator (NumPy's Philox, keyed by the seeds, one stream for each
time that bits are asked for): equal seeds give equal bits, on every machine.
"""

from __future__ import annotations

import numpy as np

from ..machine import Thread
from ..meaning import effect
from ..values import vector_type

STAND_IN = "random bits: the chip's generator gives others for the same seed"
_UNSEEDED = (0x6D6F7361, 0x69636B74)


@effect("tpu.prng_set_seed_32")
def set_seed(op, scope):
    def run(thread: Thread, *seeds: int) -> None:
        thread.machine.stand_ins[STAND_IN] = None
        thread.place["random"] = [tuple(seed & 0xFFFFFFFF for seed in seeds), 0]

    return run


@effect("tpu.prng_random_bits")
def random_bits(op, scope):
    shape, dtype = vector_type(op.results[0].type)

    def run(thread: Thread):
        thread.machine.stand_ins[STAND_IN] = None
        state = thread.place.setdefault("random", [_UNSEEDED, 0])
        seeds, count = state
        state[1] = count + 1
        stream = np.random.Generator(np.random.Philox(np.random.SeedSequence([*seeds, count])))
        words = stream.integers(0, 2**32, shape, np.uint32)
        return words.astype(f"u{dtype.itemsize}").view(dtype)

    return run
