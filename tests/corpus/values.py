"""What kernels compute: our execution of the captured IR against JAX's of the jaxpr.

The case's function runs on arrays, its kernels in JAX's interpret mode; what each
kernel was given and what it gave is kept.  Then the kernel's IR is executed on the
same operands.  Integers must be equal.  Of floats, two orders of a sum and two
approximations of a function differ; the error is counted in units in the last place
of the narrowest float type that the kernel computes with, at the size of the number
or of the array's typical number, whichever is larger.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from .case import Case
from .inputs import arguments
from .outcome import CAPTURED, VALUES_DIFFER, Outcome, cause_of
from .references import reference_of

if TYPE_CHECKING:
    from mosaic_toolkit.interpreter.execute import Execution

AGREED = "agreed"
WRONG = "wrong"
FOUND = "findings"
UNSUPPORTED = "unsupported"
STAND_IN = "stands on stand-ins"
NO_REFERENCE = "reference unavailable"
TOO_LARGE = "too large"

GOOD = (AGREED, STAND_IN, NO_REFERENCE, TOO_LARGE)

# A chain of roundings to the narrow type, and the sums between them.
NARROW_ULPS = 24
# Sums of many terms in another order, and exponentials of them.
FLOAT32_ULPS = 4096
# Kernels whose result is a difference of nearly equal sums, of which less is left.
CANCELLING = {"_flash_attention_dq_kernel": 16384}
_TF32_EPS = 2.0**-10
# Larger operands are not worth their time here.
_MOST_BYTES = 2**30


@dataclasses.dataclass
class Agreement:
    """What became of one kernel's values.

    Attributes:
      kernel: its name.
      status: one of the module's constants.
      cause: one line.
      ulps: the largest error, in the unit that the module describes.
      seconds: our execution's wall-clock time.
    """

    kernel: str
    status: str
    cause: str = ""
    ulps: float = 0.0
    seconds: float = 0.0


@dataclasses.dataclass
class _Call:
    kernel: Any
    operands: list[np.ndarray] | None = None
    results: list[np.ndarray] | None = None
    missing: str = "the program did not come to call it"


class _Recorder:
    """Interprets the kernels of a program that runs here, and keeps what goes in and out."""

    def __init__(self, target: Any):
        self.target = target
        # JAX's interpret mode knows the kernels of these two.
        self.backend = "mosaic_tpu" if target.platform == "tpu" else "triton"
        self.calls: list[_Call] = []
        self.failures: list[Agreement] = []
        self._emitted: list[Any] = []

    def asked(self) -> None: ...

    def failed(self, call: Any, error: Exception) -> None: ...

    def emitted(self, kernel: Any) -> None:
        from mosaic_toolkit.capture import kernel_of

        self._emitted.append(kernel_of(kernel, self.target.name))

    def on_cpu(self, call: Any) -> Sequence[Any]:
        import jax
        from jax._src.pallas.mosaic.interpret.params import InterpretParams

        self._emitted = []
        call.emit_for(self.backend, self.target.platform)
        (kernel,) = self._emitted
        record = _Call(kernel)
        known = {c.kernel.identity for c in self.calls}

        def keep(operands: Any, results: Any) -> None:
            if record.operands is None:
                record.operands = [np.array(x) for x in operands]
                record.results = [np.array(x) for x in results]

        if "#tpu.core_type<sc_" in kernel.asm:
            return self._of_sparse_core(call, record)
        error: Exception | None = None
        modes = (True, InterpretParams()) if self.backend == "mosaic_tpu" else (True,)
        for mode in modes:

            def interpreted(*operands: Any, mode: Any = mode) -> Any:
                results = call._bind(*operands, interpret=mode)
                jax.debug.callback(keep, operands, results)
                return results

            try:
                values = _lowered(call, interpreted, mode)
            except Exception as failure:
                error = failure
                continue
            if kernel.identity not in known:
                self.calls.append(record)
            return values
        assert error is not None
        self.failures.append(Agreement(kernel.name, NO_REFERENCE, cause_of(error)))
        return call.zeros()

    def _of_sparse_core(self, call: Any, record: _Call) -> Sequence[Any]:
        """Values from NumPy where it knows the kernel, else zeros and no comparison."""
        import jax

        reference = reference_of(record.kernel.name)
        if reference is None:
            cause = "JAX's interpret mode does not run SparseCore kernels"
            self.failures.append(Agreement(record.kernel.name, NO_REFERENCE, cause))
            return call.zeros()
        known = {c.kernel.identity for c in self.calls}
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in call._ctx.avals_out]

        def compute(*operands: Any) -> list[np.ndarray]:
            arrays = [np.array(x) for x in operands]
            results = reference(arrays)
            if record.operands is None:
                record.operands, record.results = arrays, results
            return results

        if record.kernel.identity not in known:
            self.calls.append(record)
        return call._lower_as(lambda *operands: jax.pure_callback(compute, shapes, *operands))


def _any_precision() -> Any:
    """Lets JAX multiply on the CPU in precisions that it refuses there: the CPU's is as good."""
    from jax._src.lax import lax

    original = lax._handle_dot_precision

    def handle(ctx: Any, lhs: Any, rhs: Any, precision: Any, platform: Any) -> Any:
        named = isinstance(precision, lax.DotAlgorithmPreset)
        return original(ctx, lhs, rhs, precision, None if named else platform)

    return mock.patch.object(lax, "_handle_dot_precision", handle)


def _lowered(call: Any, function: Any, mode: Any) -> Sequence[Any]:
    from jax._src.effects import ordered_effects
    from jax._src.pallas import core as pallas_core

    effects = ordered_effects.filter_in(pallas_core.get_interpret_effects(mode))
    return call._lower_as(function, effects)


def run(case: Case, target: str) -> Outcome:
    """Compares the values of a case's kernels."""
    start = time.monotonic()
    agreements = compare(case, target)
    bad = [a for a in agreements if a.status not in GOOD]
    outcome = Outcome(
        f"{case.name}@{target}",
        VALUES_DIFFER if bad else CAPTURED,
        "; ".join(f"{a.kernel}: {a.status}: {a.cause}" for a in bad),
        values=[dataclasses.asdict(a) for a in agreements],
    )
    outcome.seconds = round(time.monotonic() - start, 2)
    return outcome


def compare(case: Case, target: str) -> list[Agreement]:
    """Runs a case and each of its kernels; one `Agreement` per kernel."""
    import jax

    from mosaic_toolkit.jax_compat import lowering
    from mosaic_toolkit.targets import get_target

    if case.devices > 1:
        return [Agreement(case.name, NO_REFERENCE, f"needs {case.devices} devices")]
    function, abstract = case.make()
    leaves = [leaf for leaf in jax.tree.leaves(abstract) if hasattr(leaf, "dtype")]
    size = sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
    if size > _MOST_BYTES:
        return [Agreement(case.name, TOO_LARGE, f"arguments of {size / 2**30:.1f} GiB")]
    recorder = _Recorder(get_target(target))
    jax.clear_caches()
    with lowering.listening(recorder), _any_precision():
        try:
            jax.block_until_ready(jax.jit(function)(*arguments(case, abstract)))
            jax.effects_barrier()
        except Exception as error:
            if not recorder.calls:
                return [*recorder.failures, Agreement(case.name, NO_REFERENCE, cause_of(error))]
            for call in recorder.calls:
                call.missing = cause_of(error)
    return [*recorder.failures, *map(_judge, recorder.calls)]


def _judge(call: _Call) -> Agreement:
    from mosaic_toolkit.errors import Mismatch, Unsupported
    from mosaic_toolkit.interpreter.execute import compile_program, run_on

    name = call.kernel.name
    if call.operands is None or call.results is None:
        return Agreement(name, NO_REFERENCE, call.missing)
    try:
        operands = _as_operands(call)
    except Mismatch as error:
        return Agreement(name, NO_REFERENCE, cause_of(error))
    try:
        start = time.monotonic()
        execution = run_on(compile_program(call.kernel), [operands])
        seconds = round(time.monotonic() - start, 2)
    except Unsupported as error:
        return Agreement(name, UNSUPPORTED, cause_of(error))
    if execution.findings:
        cause = "; ".join(map(str, execution.findings))[:400]
        return Agreement(name, FOUND, cause, seconds=seconds)
    if execution.stand_ins:
        return Agreement(name, STAND_IN, "; ".join(execution.stand_ins), seconds=seconds)
    ulps, limit, where = _largest_error(call, execution)
    status = AGREED if ulps <= limit else WRONG
    cause = f"{ulps:.0f} ulps where {limit} are allowed, {where}" if status == WRONG else ""
    if status == WRONG and execution.suspects:
        cause += "; " + "; ".join(map(str, execution.suspects))[:300]
    return Agreement(name, status, cause, ulps, seconds)


def _as_operands(call: _Call) -> list[np.ndarray]:
    """The values that the kernel call got, as the custom call takes them."""
    from mosaic_toolkit.arrays import numpy_dtype
    from mosaic_toolkit.errors import Mismatch

    assert call.operands is not None
    types = call.kernel.operands
    if len(types) != len(call.operands):
        raise Mismatch(f"{len(call.operands)} values for {len(types)} operands")
    return [
        value.astype(numpy_dtype(type_.dtype), copy=False).reshape(type_.shape)
        for value, type_ in zip(call.operands, types)
    ]


def _largest_error(call: _Call, execution: Execution) -> tuple[float, int, str]:
    """(error, what is allowed, where it is)."""
    unit, limit = _unit(call.kernel.asm)
    limit = max(limit, CANCELLING.get(call.kernel.name, 0))
    # Where the reference has no number nothing may have been written, and ours has zeros.
    gaps = execution.unwritten > 0
    worst, place = 0.0, ""
    assert call.results is not None
    for number, (mine, theirs) in enumerate(zip(execution.results[0], call.results, strict=True)):
        errors = _errors(mine, theirs, unit, gaps=gaps)
        if errors.size and (largest := float(errors.max())) > worst:
            index = np.unravel_index(int(errors.argmax()), errors.shape)
            worst = largest
            share = np.count_nonzero(errors > limit) / errors.size
            spot = tuple(map(int, index))
            place = (
                f"result {number}{list(spot)} of {list(errors.shape)} is {mine[spot]}, "
                f"not {theirs[spot]}; {share:.2%} of it"
            )
    return worst, limit, place


def _errors(mine: np.ndarray, theirs: np.ndarray, unit: float, *, gaps: bool = False) -> np.ndarray:
    if theirs.dtype.kind in "iub":
        return np.where(mine == theirs, 0.0, np.inf)
    a, b = mine.astype(np.float64), theirs.astype(np.float64)
    known = np.isfinite(b)
    size = np.sqrt(np.mean(np.square(b[known]))) if known.any() else 1.0
    scale = np.maximum(np.abs(b), size if size > 0 else 1.0)
    error = np.abs(a - b) / (scale * unit)
    error = np.where(np.isfinite(a), error, np.inf)
    same = (a == b) | (np.isnan(a) & np.isnan(b)) | (gaps & np.isnan(b) & (a == 0))
    return np.where(same, 0.0, np.where(known, error, np.inf))


def _unit(asm: str) -> tuple[float, int]:
    """Size of the last place of the narrowest float type in a module, and how many are allowed."""
    import ml_dtypes

    if names := set(re.findall(r"x(f8E\w+|f4E\w+)[,>]", asm)):
        return 2.0 ** (-2 if any("E5M2" in n or "f4" in n for n in names) else -3), 2
    if re.search(r"xbf16[,>]", asm):
        return float(ml_dtypes.finfo(ml_dtypes.bfloat16).eps), NARROW_ULPS
    if re.search(r"xf16[,>]", asm):
        return float(np.finfo(np.float16).eps), NARROW_ULPS
    if re.search(r"inputPrecision = tf32 : tensor<\w+xf32>", asm):
        return _TF32_EPS, NARROW_ULPS
    return float(np.finfo(np.float32).eps), FLOAT32_ULPS
