"""Arrays for the cases' arguments: what integer arguments mean, case by case.

Floats are normal numbers.  An integer argument is a length, an index or a table of
pages, and kernels do nonsense with any other: `MEANINGS` says which one is which.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .case import Case

type Make = Callable[[np.random.Generator, tuple[int, ...], Sequence[Any]], np.ndarray]

# Bytes that are a moderate number in every float format whose bytes they may be.
_LOW_BYTE, _HIGH_BYTE = 0x38, 0x40


def below(limit: int) -> Make:
    return lambda rng, shape, _: rng.integers(0, limit, shape)


def between(low: int, high: int) -> Make:
    return lambda rng, shape, _: rng.integers(low, high, shape)


def distinct(limit: int) -> Make:
    return lambda rng, shape, _: rng.permutation(limit)[: np.prod(shape)].reshape(shape)


def fixed(*values: int) -> Make:
    return lambda rng, shape, _: np.array(values).reshape(shape)


def segments(count: int) -> Make:
    """Ids of runs, rising along the last dimension."""
    return lambda rng, shape, _: np.sort(rng.integers(0, count, shape), -1)


def shares(argument: int, axis: int = 0) -> Make:
    """Sizes of groups, some of them empty, that add up to an extent of another argument."""

    def make(rng, shape, arguments):
        total = arguments[argument].shape[axis]
        cuts = np.sort(rng.integers(0, total + 1, shape[0] - 1))
        return np.diff([0, *cuts, total])

    return make


def starts(each: int) -> Make:
    """Where runs of equal length start, and where the last one ends."""
    return lambda rng, shape, _: np.arange(shape[0]) * each


def packed_floats(rng, shape, _) -> np.ndarray:
    """32-bit words or bytes that hold small floats of some format."""
    return rng.integers(_LOW_BYTE, _HIGH_BYTE, shape)


def packed_words(rng, shape, _) -> np.ndarray:
    words = rng.integers(_LOW_BYTE, _HIGH_BYTE, (*shape, 4)).astype(np.uint8)
    return words.view(np.int32)[..., 0]


# Case -> leaf of the arguments -> what makes it.
MEANINGS: dict[str, dict[int, Make]] = {
    "jax/tpu/flash_attention/*segments*": {-1: segments(4)},
    "jax/tpu/flash_attention/one_pass*": {3: segments(4)},
    "jax/tpu/splash_attention/*": {3: segments(4)},
    "jax/tpu/paged_attention/*": {3: between(1, 512), 4: below(256)},
    "jax/tpu/ragged_paged_attention/*": {
        2: between(32, 512),
        3: distinct(1024),
        4: starts(32),
        5: fixed(16),
    },
    "jax/tpu/megablox/gmm*": {2: shares(0), 3: fixed(0)},
    "jax/tpu/megablox/tgmm*": {2: shares(0, 1)},
    "tokamax/tpu/kda/*packed*": {7: segments(4)},
    "tokamax/tpu/csa_gather/*": {0: below(1000 * 64), 1: packed_words, 2: packed_words},
    "tokamax/tpu/sparse_mla/*decode*": {1: packed_words, 2: packed_words, 10: below(9216)},
    "tokamax/tpu/sparse_mla/*prefill*": {1: packed_words, 2: packed_words, 10: below(512)},
    "tokamax/tpu/masked_dense_mla/*decode*": {0: packed_floats, 1: packed_floats, 7: below(9216)},
    "tokamax/tpu/masked_dense_mla/*prefill*": {0: packed_floats, 1: packed_floats, 7: below(512)},
    "tokamax/tpu/masked_dense_mla/scatter_rows": {2: distinct(16384)},
    "tokamax/tpu/mla_swa/chunked_prefill": {
        1: packed_floats,
        2: starts(64),
        3: fixed(0, 0, 8),
        4: between(64, 1280),
        6: distinct(160),
    },
    "tokamax/tpu/mla_swa/non_causal": {
        1: packed_floats,
        2: starts(8),
        3: fixed(0, 0, 8),
        4: between(64, 1280),
        6: distinct(160),
    },
    "tokamax/tpu/mla_swa/*": {
        1: packed_floats,
        2: starts(32),
        3: fixed(0, 0, 8),
        4: between(64, 1280),
        6: distinct(160),
    },
    "tokamax/tpu/mla_v2/[msd]*": {
        5: between(16, 128),
        6: distinct(64),
        7: starts(8),
        8: fixed(0, 0, 8),
    },
    "tokamax/tpu/lightning_indexer/pack_nonnegative": {0: between(-100, 1000)},
    "tokamax/tpu/lightning_indexer/*": {0: packed_floats},
    "tokamax/tpu/ragged_gather/*8192x*": {0: fixed(0), 1: below(8192), 2: fixed(81920)},
    "tokamax/tpu/ragged_gather/*512x*": {0: fixed(0), 1: below(512), 2: fixed(1024)},
    "tokamax/tpu/ragged_gather_reduce/*8192x*": {0: distinct(8192)},
    "tokamax/tpu/ragged_gather_reduce/*16384x*": {0: distinct(16384)},
    "tokamax/tpu/deepseek_rope/*": {1: below(4096)},
    "tokamax/tpu/grouped_lowrank_proj/*": {1: below(4096)},
    "tokamax/tpu/dsv4_compressor/*": {1: packed_words, 6: packed_words},
    "tokamax/tpu/proj_and_save_state/*decode*": {1: packed_words, 3: below(128)},
    "tokamax/tpu/proj_and_save_state/*prefill*": {1: packed_floats, 3: distinct(4096)},
}


def arguments(case: Case, abstract: Any, seed: int = 0) -> Any:
    """The case's arguments with an array in place of each abstract one."""
    import jax

    rng = np.random.default_rng(seed)
    leaves, tree = jax.tree.flatten(abstract)
    meaning: dict[int, Make] = {}
    for pattern, makes in MEANINGS.items():
        if fnmatch.fnmatchcase(case.name, pattern):
            meaning = {n % len(leaves): make for n, make in makes.items() if n < len(leaves)}
            break
    made = [
        _made(leaf, meaning.get(n), rng, leaves)
        if isinstance(leaf, jax.ShapeDtypeStruct) or n in meaning
        else leaf
        for n, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(tree, made)


def _made(leaf: Any, make: Make | None, rng: np.random.Generator, leaves: Sequence[Any]):
    import jax.numpy as jnp

    if not hasattr(leaf, "dtype"):
        return leaf
    dtype = np.dtype(leaf.dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(rng.standard_normal(leaf.shape, np.float32) * 0.5).astype(dtype)
    if dtype == np.bool_:
        return jnp.asarray(rng.random(leaf.shape) < 0.7)
    if make is None:
        bits = dtype.itemsize * 8
        low, high = (0, 2**bits) if dtype.kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        if np.dtype(leaf.dtype).itemsize == 4 and dtype.kind == "i":
            low, high = 0, 8
        return jnp.asarray(rng.integers(low, high, leaf.shape).astype(dtype))
    return jnp.asarray(np.asarray(make(rng, tuple(leaf.shape), leaves)).astype(dtype))
