"""What Mosaic GPU kernels compute: our execution of the captured IR against plain JAX.

The case's function runs on arrays, its kernels by our interpreter; the same function
written without a kernel runs beside it.  JAX's own interpret mode for GPUs lacks most
of what these kernels use.  Errors are counted as in `values`.
"""

from __future__ import annotations

import fnmatch
import importlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

from .case import Case, gradient
from .inputs import MEANINGS, arguments, below, shares
from .jax_gpu import OPS
from .outcome import cause_of
from .tokamax_specs import OPS as TOKAMAX_OPS
from .tokamax_specs import Op
from .values import (
    AGREED,
    FOUND,
    NO_REFERENCE,
    TOO_LARGE,
    UNSUPPORTED,
    WRONG,
    Agreement,
    _errors,
    _unit,
)

# Products of more multiplications are not worth their time here.
_MOST_BYTES = 2**26

MEANINGS |= {
    "jax/gpu/ragged_dot/*": {2: shares(0)},
    "jax/gpu/transposed_ragged_dot/*": {2: shares(0)},
    "jax/gpu/blackwell_ragged_dot/*": {2: shares(0)},
    "tokamax/gpu/ragged_dot_*": {0: shares(1)},
    "tokamax/gpu/attention_*/local_*": {-1: below(1)},
}

_LAST_STORE = "nothing waits for the last stores to have read shared memory before the CTA ends"
_NO_WAIT = (
    "a slot is loaded again while the product before the newest may still read it: only a wait "
    "for all but one group tells that it was done"
)
# What is wrong with kernels as their authors wrote them: (cases, pattern of a finding, why).
KNOWN: tuple[tuple[str, str, str], ...] = (
    ("jax/gpu/blackwell_matmul/*", r"async_store .* the end of the CTA", _LAST_STORE),
    ("tokamax/gpu/gated_linear_unit_sm100/*", r"async_store .* the end of the CTA", _LAST_STORE),
    ("jax/gpu/ragged_dot/*", r"wgmma .* reads SMEM .*async_load writes", _NO_WAIT),
    (
        "jax/gpu/transposed_ragged_dot/*",
        r"wgmma .* reads SMEM .*(async_load|vector_store .*) writes",
        _NO_WAIT,
    ),
    (
        "jax/gpu/blackwell_matmul/collective",
        r"(try|query)_cluster_cancel .*try_cluster_cancel|try_cluster_cancel .*",
        "both CTAs of a cluster ask for more work, where its scheduling loop wants the cluster's "
        "axes named and gets none",
    ),
    (
        "tokamax/gpu/attention_sm90/*",
        r"wgmma .* reads SMEM .*vector_store .* writes",
        "residuals are stored over keys that the other warpgroup may still multiply",
    ),
)


def known(case: str, finding: str) -> str | None:
    """Why a finding is right about the kernel as its authors wrote it."""
    for cases_, pattern, why in KNOWN:
        if fnmatch.fnmatchcase(case, cases_) and re.search(pattern, finding):
            return why
    return None


def compare(case: Case, target: str) -> list[Agreement]:
    """Runs a case; one `Agreement` for each of its kernels, all with the same values."""
    import jax

    from mosaic_toolkit.capture import recording

    function, abstract = case.make()
    leaves = [leaf for leaf in jax.tree.leaves(abstract) if hasattr(leaf, "dtype")]
    size = sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
    if size > _MOST_BYTES:
        return [Agreement(case.name, TOO_LARGE, f"arguments of {size / 2**20:.0f} MiB")]
    values = arguments(case, abstract)
    jax.clear_caches()
    start = time.monotonic()
    with recording(target, execute=True) as captured:
        try:
            ours = jax.block_until_ready(jax.jit(function)(*values))
        except Exception as error:
            if not captured.findings:
                return [Agreement(case.name, NO_REFERENCE, cause_of(error))]
            ours = None
    seconds = round(time.monotonic() - start, 2)
    kernels = captured.kernels
    if captured.notes or captured.failures:
        cause = "; ".join([*captured.notes, *(f.error for f in captured.failures)])
        return [Agreement(kernel.name, UNSUPPORTED, cause) for kernel in kernels]
    new = [finding for finding in captured.findings if known(case.name, finding) is None]
    if new or (captured.findings and ours is None):
        cause = "; ".join(new or captured.findings)
        return [Agreement(kernel.name, FOUND, cause, seconds=seconds) for kernel in kernels]
    upstream = {known(case.name, finding) for finding in captured.findings}
    remark = "".join(f"upstream: {why}" for why in sorted(filter(None, upstream)))
    try:
        theirs = jax.jit(reference(case))(*_wide(values))
    except Exception as error:
        return [Agreement(k.name, NO_REFERENCE, cause_of(error)) for k in kernels]
    return [_judged(kernel, ours, theirs, seconds, remark) for kernel in kernels]


def _wide(values: Any) -> Any:
    """float16 as float32, whose products this CPU has."""
    import jax

    half = np.dtype(np.float16)
    return jax.tree.map(
        lambda x: x.astype(np.float32) if getattr(x, "dtype", None) == half else x, values
    )


def _judged(kernel: Any, ours: Any, theirs: Any, seconds: float, remark: str) -> Agreement:
    import jax

    unit, limit = _unit(kernel.asm)
    worst = 0.0
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if mine.dtype == jax.dtypes.float0:  # the cotangent of what has no gradient
            continue
        errors = _errors(np.asarray(mine), np.asarray(other), unit)
        worst = max(worst, float(errors.max(initial=0.0)))
    status = AGREED if worst <= limit else WRONG
    cause = f"{worst:.0f} ulps where {limit} are allowed" if status == WRONG else remark
    return Agreement(kernel.name, status, cause, worst, seconds)


# --- references ---------------------------------------------------------------------------------


def reference(case: Case) -> Callable[..., Any]:
    """The case's function without a kernel."""
    if case.name.startswith("tokamax"):
        return _tokamax(case)
    return _REFERENCES[case.name.split("/")[2]](case.name)


def _tokamax(case: Case) -> Callable[..., Any]:
    """The op's implementation for every platform, on the same arguments."""
    with mock.patch.object(Op, "build", lambda op, *_, **__: _portable(op)):
        function, _ = case.make()
    return function


def _portable(op: Op) -> Any:
    base = importlib.import_module(f"{TOKAMAX_OPS}{op.path}.base")
    names = {
        "attention": "DotProductAttention",
        "gated_linear_unit": "GatedLinearUnit",
        "ragged_dot": "RaggedDot",
    }
    return getattr(base, names[op.path])()


def _matmul(name: str):
    import jax.numpy as jnp

    def fn(a, b, c=None):
        product = jnp.matmul(a.astype(jnp.float32), b.astype(jnp.float32))
        return (product if c is None else product + c).astype(b.dtype)

    return fn


def _ragged(name: str):
    import jax
    import jax.numpy as jnp

    transposed = "transposed_rhs" in name

    def fn(lhs, rhs, sizes):
        right = rhs.swapaxes(1, 2) if transposed else rhs
        wide = (x.astype(jnp.float32) for x in (lhs, right))
        return jax.lax.ragged_dot(*wide, sizes).astype(lhs.dtype)

    return fn


def _transposed_ragged(name: str):
    import jax.numpy as jnp

    def fn(lhs, rhs, sizes):
        ends = jnp.cumsum(sizes)
        rows = jnp.arange(lhs.shape[0])
        inside = (rows >= (ends - sizes)[:, None]) & (rows < ends[:, None])
        left = jnp.where(inside[:, :, None], lhs.astype(jnp.float32), 0)
        return jnp.einsum("gmk,mn->gkn", left, rhs.astype(jnp.float32)).astype(lhs.dtype)

    return fn


def _attention(name: str):
    lib = importlib.import_module(OPS + "attention_mgpu")
    causal, residuals = "causal" in name, "residuals" in name

    def fn(q, k, v):
        return lib.attention_reference(q, k, v, causal=causal, save_residuals=residuals)

    return gradient(fn, (0, 1, 2)) if name.endswith("bwd") else fn


_REFERENCES: dict[str, Callable[[str], Callable[..., Any]]] = {
    "hopper_matmul": _matmul,
    "hopper_mixed_type_matmul": _matmul,
    "blackwell_matmul": _matmul,
    "ragged_dot": _ragged,
    "blackwell_ragged_dot": _ragged,
    "transposed_ragged_dot": _transposed_ragged,
    "attention_mgpu": _attention,
}


def cases() -> Iterator[tuple[Case, str]]:
    """Every case with a Mosaic GPU kernel, on each of its chips."""
    from .cases import all_cases

    for case in all_cases():
        if "/gpu/" in case.name:
            for target in case.targets:
                yield case, target
