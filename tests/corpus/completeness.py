"""Which kernels of the covered libraries no case calls."""

from __future__ import annotations

from collections.abc import Iterable

from . import sites
from .case import Case
from .outcome import Outcome

_MAKES_A_MAKER = "has returned when the kernel is made, by the function that it returned"

# ``module`` or ``module:function`` -> why no case calls it.
EXCLUDED: dict[str, str] = {
    "tokamax._src.mosaic_gpu:dynamic_scheduling_persistent_kernel": _MAKES_A_MAKER,
    "tokamax._src.mosaic_gpu:static_scheduling_persistent_kernel": _MAKES_A_MAKER,
    "tokamax._src.mosaic_tpu:custom_buffered_pallas_call": _MAKES_A_MAKER,
    "tokamax._src.mosaic_tpu:poison_tpu_memory": "a test's helper, and runs at once",
    "tokamax._src.ops.experimental.fused_moe.kernel:_build_combine_kernel": (
        "no case yet: the layer combines in its main kernel at the shapes of our cases"
    ),
}


def uncovered_modules(cases: Iterable[Case]) -> list[str]:
    """Modules with kernels that no case names and `EXCLUDED` does not explain."""
    named = {module for case in cases for module in case.modules}
    return [
        module
        for library in sites.LIBRARIES
        for module in sites.declared(library)
        if module not in named and module not in EXCLUDED
    ]


def unreached(outcomes: Iterable[Outcome]) -> list[str]:
    """Functions that make kernels, as ``module:function``, that no case ran."""
    seen = {tuple(site) for outcome in outcomes for site in outcome.sites}
    return [
        f"{module}:{function}"
        for library in sites.LIBRARIES
        for module, functions in sites.declared(library).items()
        for function in sorted(functions)
        if (module, function) not in seen
        and module not in EXCLUDED
        and f"{module}:{function}" not in EXCLUDED
    ]
