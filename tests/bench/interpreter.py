"""This toolkit's interpreter against JAX's interpret modes, per program, in one run.

    python tests/bench/interpreter.py [--repeats 3] [--only GLOB]

Every program runs whole, once to compile and then `--repeats` times: with its kernels
executed from their Mosaic IR by this toolkit (race detection is always on), under
JAX's interpret mode for the backend, and on TPU under that mode with race detection.
Prints the best of each, and how many times faster ours is.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import time

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from mosaic_toolkit.capture import capturing
from tests.corpus.cases import all_cases

LIBRARY = (
    ("jax/tpu/flash_attention/causal_f32_fwd", "v5e"),
    ("jax/tpu/flash_attention/causal_bwd", "v5e"),
    ("jax/tpu/splash_attention/causal_fwd", "v5e"),
    ("jax/tpu/paged_attention/f32", "v5e"),
    ("jax/tpu/matmul/float32_to_float32", "v5e"),
)
DIM, BLOCK = 1024, 128


def matmul_body(x_ref, y_ref, o_ref, acc_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...]


def matmul(x, y):
    steps = DIM // BLOCK
    return pl.pallas_call(
        matmul_body,
        grid=(steps, steps, steps),
        in_specs=[
            pl.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (i, k)),
            pl.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((DIM, DIM), jnp.float32),
        scratch_shapes=[pltpu.VMEM((BLOCK, BLOCK), jnp.float32)],
    )(x, y)


def concrete(tree):
    """Arrays in place of abstract ones: normal floats, zeros for integers, which are indices."""
    generator = np.random.default_rng(0)

    def array(leaf):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.asarray(generator.standard_normal(leaf.shape), leaf.dtype)
        return jnp.zeros(leaf.shape, leaf.dtype)

    return jax.tree.map(array, tree)


def best(function, args, repeats: int) -> float:
    """Seconds of the fastest of several runs after one that compiles."""
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*args))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        times.append(time.perf_counter() - start)
    return min(times)


def measure(function, args, target: str, repeats: int) -> list[float]:
    modes = (
        capturing(target, execute=True),
        pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()),
        pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(detect_races=True)),
    )
    seconds = []
    for mode in modes:
        jax.clear_caches()
        with contextlib.ExitStack() as stack:
            stack.enter_context(mode)
            # A function of its own: JAX keeps what it traced by the function's identity.
            seconds.append(best(lambda *a: function(*a), args, repeats))
    return seconds


def programs(only: str):
    if fnmatch.fnmatch("matmul, 512 steps", only):
        yield (
            "matmul, 512 steps",
            matmul,
            [jax.ShapeDtypeStruct((DIM, DIM), jnp.float32)] * 2,
            "v5e",
        )
    cases = {case.name: case for case in all_cases()}
    for name, target in LIBRARY:
        if fnmatch.fnmatch(name, only):
            yield name, *cases[name].make(), target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="*")
    options = parser.parse_args()
    print(f"{'program':40} {'ours':>9} {'interpret':>18} {'detecting races':>18}")
    for name, function, args, target in programs(options.only):
        ours, plain, races = measure(function, concrete(list(args)), target, options.repeats)
        print(
            f"{name:40} {ours:7.3f} s {plain:7.3f} s ({plain / ours:4.1f}x)"
            f" {races:7.3f} s ({races / ours:4.1f}x)",
            flush=True,
        )


if __name__ == "__main__":
    main()
