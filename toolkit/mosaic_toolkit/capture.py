"""Capturing kernels: from a function, or from everything lowered in a block."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .backends import Backend, all_backends, get_backend
from .errors import CaptureError, Unsupported
from .kernel import Kernel
from .targets import DEFAULT_TARGETS, Target, get_target
from .versions import installed

if TYPE_CHECKING:
    from .jax_compat import ir
    from .jax_compat.kernel_call import KernelCall
    from .jax_compat.scopes import Emitted, Executed, Listener


@dataclasses.dataclass(frozen=True)
class Failure:
    """A kernel that could not be lowered.

    Attributes:
      name: of the kernel function.
      backend: it was lowered for; several where none of them accepted it.
      target: name of the chip.
      error: what JAX said, its first paragraph.
      source: ``file:line`` of the kernel function, where known.
    """

    name: str
    backend: str
    target: str
    error: str
    source: str | None = None


@dataclasses.dataclass
class Captured:
    """What a capture has seen so far; grows while the capture is active.

    Attributes:
      kernels: each distinct kernel once, in the order in which it was lowered.
      failures: kernels that could not be lowered.
      refusals: backends that a kernel without backend-specific parameters could
        not be lowered for, where another one accepted it.
      notes: what the user should know of the values that the program got.
      findings: what running kernels here found wrong with them: races and the like.
      asked: whether the program asked for a device that is not there, so that
        another target could make it choose another kernel.
    """

    kernels: list[Kernel] = dataclasses.field(default_factory=list)
    failures: list[Failure] = dataclasses.field(default_factory=list)
    refusals: list[Failure] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    findings: list[str] = dataclasses.field(default_factory=list)
    asked: bool = False


class _NotExecuted(Exception):
    """A kernel was lowered, and our interpreter cannot run it: `broken` if that is its own fault."""

    def __init__(self, reason: str, *, broken: bool = False):
        super().__init__(reason)
        self.broken = broken


class _Recorder:
    """Listens to JAX's lowering and fills a `Captured`."""

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        pretend: bool,
        run: bool,
        execute: bool = False,
        on_kernel: Callable[[Kernel], None] = lambda _: None,
    ):
        self.captured = Captured()
        self.target: Target | None = targets[0] if pretend else None
        self._targets = tuple(targets)
        self._run = run
        self._execute = execute
        self._on_kernel = on_kernel
        self._lowering_for: Target | None = None
        self._seen: set[tuple[Any, ...]] = set()

    def asked(self) -> None:
        if self._lowering_for is None:
            self.captured.asked = True

    def on_cpu(self, call: KernelCall) -> Sequence[Any]:
        refusals: list[Failure] = []
        accepted = 0
        values: Sequence[Any] | None = None
        for backend, target in self._choices(call.backends):
            try:
                with self._answering(target):
                    if self._run and self._execute and values is None:
                        values = call.executed(backend, target.platform, self._executor)
                    else:
                        call.emit_for(backend, target.platform)
                accepted += 1
            except _NotExecuted as error:
                if error.broken:
                    raise
                accepted += 1
                note = f"{call.name}: its values are those of the unmodified kernel in JAX's "
                _extend(self.captured.notes, [f"{note}interpret mode: {error}"])
            except Exception as error:
                refusals.append(_failure(call, backend, target, error))
        if accepted:
            _extend(self.captured.refusals, refusals)
        else:
            _extend(self.captured.failures, _joined(refusals))
        return self._values(call) if values is None else values

    def _executor(self, emitted: Emitted) -> Executed:
        from .interpreter.in_jax import executed

        kernel = kernel_of(emitted, self._target_of(backend_of_call(emitted.op).platform))

        def found(kernel: Kernel, finding: Any) -> None:
            _extend(self.captured.findings, [f"{kernel.name}: {finding}"])

        try:
            return executed(kernel, found)
        except Unsupported as error:
            raise _NotExecuted(str(error).split("\n")[0]) from error
        except Exception as error:
            raise _NotExecuted("the interpreter broke", broken=True) from error

    def _choices(self, backends: tuple[str, ...]) -> list[tuple[str, Target]]:
        """What to lower a call for: its backends on the chips that were asked for.

        A call for one backend only is lowered for it even if no such chip was
        asked for: it would otherwise be lost.
        """
        choices = []
        for backend in backends:
            platform = get_backend(backend).platform
            chips = [target for target in self._targets if target.platform == platform]
            if not chips and len(backends) == 1:
                chips = [DEFAULT_TARGETS[platform]]
            choices += [(backend, chip) for chip in chips]
        return choices

    @contextlib.contextmanager
    def _answering(self, target: Target) -> Iterator[None]:
        before = self.target, self._lowering_for
        self.target = self._lowering_for = target
        try:
            yield
        finally:
            self.target, self._lowering_for = before

    def _values(self, call: KernelCall) -> Sequence[Any]:
        if not self._run:
            return call.zeros()
        try:
            return call.interpreted()
        except Exception as error:
            note = f"{call.name}: its values are zeros: {_first_paragraph(error)}"
            _extend(self.captured.notes, [note])
            return call.zeros()

    def emitted(self, kernel: Emitted) -> None:
        captured = kernel_of(kernel, self._target_of(backend_of_call(kernel.op).platform))
        if captured.identity in self._seen:
            return
        self._seen.add(captured.identity)
        self.captured.kernels.append(captured)
        self._on_kernel(captured)

    def failed(self, call: KernelCall, error: Exception) -> None:
        platform = self.target.platform if self.target else ""
        target = self._target_of(platform) if platform else "this machine"
        failure = Failure(
            call.name, "/".join(call.backends), target, _first_paragraph(error), call.source
        )
        _extend(self.captured.failures, [failure])

    def _target_of(self, platform: str) -> str:
        if self._lowering_for is not None:
            return self._lowering_for.name
        for target in self._targets:
            if target.platform == platform:
                return target.name
        return DEFAULT_TARGETS[platform].name


def backend_of_call(op: ir.Operation) -> Backend:
    """The backend that compiles a custom call."""
    call_target = op.attributes["call_target_name"].value
    return next(backend for backend in all_backends() if backend.recognise(call_target))


def kernel_of(emitted: Emitted, target: str) -> Kernel:
    """The kernel of a custom call that was just emitted, lowered for `target`."""
    backend = backend_of_call(emitted.op)
    digest = _digest(backend.payload(emitted.op))
    encoding = {**emitted.encoding, "payload_sha256": digest}
    decoded = backend.decode(emitted.op, target, emitted.asm, emitted.level, encoding)
    call = emitted.call
    source = (call.source if call else None) or _first_source(decoded.asm)
    return dataclasses.replace(
        decoded,
        name=_best_name(decoded.name, call.name if call else None, source),
        source=source,
        versions=_versions(backend.platform),
    )


def _extend(known: list, new: Sequence) -> None:
    """Appends what is not there yet: JAX may lower one call several times."""
    known += [item for item in dict.fromkeys(new) if item not in known]


_ANONYMOUS = {
    "anonymous",
    "unknown",
    "_lambda_",
    "<lambda>",
    "main",
    "wrapper",
    "body",
    "run_scoped",
}


def _best_name(from_module: str, from_call: str | None, source: str | None) -> str:
    """The first name that says something, else that of the function in the source."""
    for name in (from_module, from_call):
        if name and name.strip("_") and name not in _ANONYMOUS:
            return name
    return (source and _function_at(source)) or "kernel"


def _first_source(asm: str) -> str | None:
    """``file:line`` of the module's first Python location that is not JAX's own."""
    from .jax_compat.kernel_call import is_jax_internal

    for path, line in re.findall(r'loc\("([^"]+\.py)":(\d+):', asm):
        if not is_jax_internal(path):
            return f"{path}:{line}"
    return None


@functools.lru_cache(maxsize=64)
def _function_at(source: str) -> str | None:
    """Name of the innermost function around a ``file:line``, for a kernel that JAX has no name for."""
    path, line = source.rsplit(":", 1)
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= int(line) <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno).name if around else None


def _failure(call: KernelCall, backend: str, target: Target, error: Exception) -> Failure:
    return Failure(call.name, backend, target.name, _first_paragraph(error), call.source)


def _joined(failures: list[Failure]) -> list[Failure]:
    """One failure of a kernel that no backend accepted."""
    if len(failures) <= 1:
        return failures
    return [
        dataclasses.replace(
            failures[0],
            backend="/".join(f.backend for f in failures),
            target="/".join(dict.fromkeys(f.target for f in failures)),
            error="; ".join(f"{f.backend}: {f.error}" for f in failures),
        )
    ]


def _first_paragraph(error: BaseException) -> str:
    text = str(error).strip().split("\n\n")[0].strip() or "no message"
    text = re.sub(r"\s+", " ", text)
    return f"{type(error).__name__}: {text[:500]}"


@functools.cache
def _versions(platform: str) -> tuple[tuple[str, str], ...]:
    return installed("jax", "jaxlib", {"tpu": "libtpu", "cuda": "jax-cuda13-plugin"}[platform])


# --- API --------------------------------------------------------------------------


def _targets(target: str | Target | Sequence[str | Target] | None) -> list[Target]:
    if target is None:
        return list(DEFAULT_TARGETS.values())
    many = [target] if isinstance(target, str | Target) else list(target)
    split = [part for t in many for part in (t.split(",") if isinstance(t, str) else [t])]
    return [t if isinstance(t, Target) else get_target(t) for t in split]


def this_machine() -> Target | None:
    """The chip of JAX's default device; None where JAX runs on the CPU.

    Does not start JAX's backends where they can only be the CPU's: a program may
    still want to configure them.
    """
    import jax

    if jax.config.jax_platforms == "cpu":
        return None
    device = jax.devices()[0]
    if device.platform == "cpu":
        return None
    return target_of_device_kind(device.platform, device.device_kind)


def target_of_device_kind(platform: str, kind: str) -> Target:
    """The known chip of that device kind."""
    from .targets import TARGETS

    for target in TARGETS.values():
        if target.device_kind == kind or (
            platform == "gpu" and target.name.upper() in kind.upper().replace("-", " ").split()
        ):
            return target
    raise CaptureError(
        f"this machine has a '{kind}', which is no known target",
        hint=f"known targets: {', '.join(TARGETS)}",
    )


@contextlib.contextmanager
def capturing(
    target: str | Target | Sequence[str | Target] | None = None,
    *,
    run: bool = True,
    execute: bool = False,
    every_thread: bool = False,
) -> Iterator[list[Kernel]]:
    """Captures every kernel that is lowered in the block.

    On a machine without the target's device, questions about the device are
    answered as the (first) target while arrays and execution stay on the CPU.

    Args:
      target: one or more chips, by name or as `Target`; by default a TPU v5e and an
        H100: a kernel without backend-specific parameters is captured for both.
      run: get the kernels' values from JAX's interpret mode; otherwise they are
        zeros of the right shape.
      execute: get them from the captured modules, rewritten ones included, which
        this toolkit's interpreter runs.
      every_thread: capture in every thread, not only in this one.

    Yields:
      The list of kernels, which fills while the block runs.

    Raises:
      CaptureError: when the block ends, if a kernel in it could not be lowered.
    """
    with recording(target, run=run, execute=execute, every_thread=every_thread) as captured:
        yield captured.kernels
    _raise_failures(captured)


@contextlib.contextmanager
def recording(
    target: str | Target | Sequence[str | Target] | None = None,
    *,
    run: bool = True,
    execute: bool = False,
    every_thread: bool = False,
    on_kernel: Callable[[Kernel], None] = lambda _: None,
) -> Iterator[Captured]:
    """`capturing`, with failures, refusals and notes as well.

    `on_kernel` is called with each kernel as soon as it is captured.
    """
    from .jax_compat import lowering

    targets = _targets(target)
    here = this_machine()
    pretend = here is None or (target is not None and here not in targets)
    if here is not None and target is None:
        targets = [here]
    recorder = _Recorder(targets, pretend=pretend, run=run, execute=execute, on_kernel=on_kernel)
    with lowering.listening(recorder, every_thread=every_thread):
        yield recorder.captured


@contextlib.contextmanager
def interpreting() -> Iterator[Listener]:
    """Someone who gives kernels that are lowered for the CPU their values.

    Raises:
      CaptureError: when the block ends, if a kernel in it could not be lowered.
    """
    from .jax_compat import lowering

    recorder = _Recorder(_targets(None), pretend=False, run=True, execute=True)
    with lowering.listening(recorder):
        yield recorder
    _raise_failures(recorder.captured)


def capture(
    function: Callable[..., Any],
    *args: Any,
    target: str | Target | Sequence[str | Target] | None = None,
    **kwargs: Any,
) -> list[Kernel]:
    """The kernels that a function lowers to, without running it.

    Args:
      function: traceable by JAX, jitted or not.
      *args, **kwargs: arrays, or `jax.ShapeDtypeStruct`s, or trees of them.
      target: see `capturing`.

    Returns:
      Each distinct kernel once, in the order of lowering.

    Raises:
      CaptureError: a kernel could not be lowered.
      whatever the function raises while it is traced.
    """
    with recording(target, run=False) as captured:
        lower(function, *args, **kwargs)
    _raise_failures(captured)
    return captured.kernels


def _raise_failures(captured: Captured) -> None:
    if captured.failures:
        failure = captured.failures[0]
        more = f" (and {len(captured.failures) - 1} more)" if len(captured.failures) > 1 else ""
        raise CaptureError(
            f"kernel '{failure.name}' does not lower for {failure.backend} on {failure.target}"
            f"{f' ({failure.source})' if failure.source else ''}: {failure.error}{more}"
        )


def lower(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Traces and lowers a function; arguments that are no arrays are constants to it."""
    import jax

    if hasattr(function, "trace"):  # jitted: it knows which of its arguments are static
        function.trace(*args, **kwargs).lower()
        return
    leaves, tree = jax.tree.flatten((args, kwargs))
    traced = [
        i for i, leaf in enumerate(leaves) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    ]

    def of_arrays(*arrays: Any) -> Any:
        full = list(leaves)
        for i, array in zip(traced, arrays):
            full[i] = array
        args, kwargs = jax.tree.unflatten(tree, full)
        return function(*args, **kwargs)

    jax.jit(of_arrays).trace(*(leaves[i] for i in traced)).lower()


def payload_matches(kernel: Kernel) -> bool:
    """Whether the kernel's module serialises to the very bytes that were captured."""
    payload = get_backend(kernel.backend).encode(kernel)
    return _digest(payload) == json.loads(kernel.encoding)["payload_sha256"]


def _digest(payload: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for part in sorted(payload):
        digest.update(payload[part])
    return digest.hexdigest()
