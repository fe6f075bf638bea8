"""Each private thing of JAX and jaxlib that the toolkit needs, by name."""

import ast
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "toolkit/mosaic_toolkit/jax_compat"

# Where JAX moves or renames one of these, the test that fails says which.
NEEDED = """
jax._src.callback.emit_python_callback
jax._src.cloud_tpu_init.get_tpu_library_path
jax._src.compiler.get_compile_options
jax._src.config.string_or_object_state
jax._src.core.Literal
jax._src.core.eval_jaxpr
jax._src.core.jaxpr_as_fun
jax._src.core.physical_aval
jax._src.effects.ordered_effects.filter_in
jax._src.interpreters.mlir.ModuleContext
jax._src.interpreters.mlir.TokenSet
jax._src.interpreters.mlir._lowerings
jax._src.interpreters.mlir._platform_specific_lowerings
jax._src.interpreters.mlir.aval_to_ir_type
jax._src.interpreters.mlir.func_dialect
jax._src.interpreters.mlir.lower_fun
jax._src.interpreters.mlir.make_ir_context
jax._src.lax.control_flow.conditionals.cond_p
jax._src.lib.cuda_versions
jax._src.pallas.core.Blocked
jax._src.pallas.core.GridMapping
jax._src.pallas.core.Squeezed
jax._src.pallas.core._backend_lowering_rules
jax._src.pallas.core.get_interpret_effects
jax._src.pallas.mosaic.core.CompilerParams
jax._src.pallas.mosaic.interpret.params.InterpretParams
jax._src.pallas.mosaic_gpu.core.BlockSpec
jax._src.pallas.mosaic_gpu.core.CompilerParams
jax._src.pallas.mosaic_gpu.core.Mesh
jax._src.pallas.mosaic_gpu.interpret.params.InterpretGPUParams
jax._src.pallas.mosaic_gpu.pallas_call.pallas_call
jax._src.pallas.mpmd.mpmd_map_p
jax._src.pallas.pallas_call.pallas_call_p
jax._src.pallas.triton.core.CompilerParams
jax._src.pallas.triton.lowering.lower_jaxpr_to_triton_module
jax._src.pallas.triton.pallas_call_registration
jax._src.sharding_impls.ShardingContext
jax._src.state.primitives.addupdate_p
jax._src.state.primitives.get_p
jax._src.state.primitives.swap_p
jax._src.state.types.TransformedRef
jax._src.tpu_custom_call._lower_mosaic_module_to_asm
jax._src.tpu_custom_call._tpu_custom_call_lowering
jax._src.tpu_custom_call.get_ir_version
jax._src.tpu_custom_call.tpu_custom_call_p
jax._src.xla_bridge.default_backend
jax._src.xla_bridge.get_backend
jax._src.xla_bridge.local_devices
jax.experimental.mosaic.gpu.core
jax.experimental.mosaic.gpu.core.LoweringSemantics
jax.experimental.mosaic.gpu.core._mosaic_gpu_lowering_rule
jax.experimental.mosaic.gpu.core.lower_mgpu_module
jax.experimental.mosaic.gpu.core.mosaic_gpu_p
jax.experimental.mosaic.gpu.fragmented_array.mgpu_lib
jax.experimental.mosaic.gpu.launch_context.LaunchContext
jax.experimental.mosaic.gpu.launch_context.Scratch
jax.experimental.mosaic.gpu.layout_inference.infer_layout
jaxlib._jax.Device
jaxlib._jax.DeviceList
jaxlib.mlir._mlir_libs._jax_mlir_ext.register_dialects
jaxlib.mlir.passmanager.PassManager.parse
""".split()  # noqa: SIM905

# Private modules whose members are too many to name: MLIR's public bindings.
BINDINGS = (
    "jaxlib.mlir.ir",
    "jaxlib.mosaic.python",
    "jaxlib.triton",
    "jaxlib.mlir.dialects",
    "jaxlib.version",
)


def resolve(name: str) -> object:
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", NEEDED)
def test_there_is(name):
    resolve(name)


def private_uses(path: Path) -> set[str]:
    """Dotted names of what a file uses of private modules."""
    tree = ast.parse(path.read_text())
    aliases: dict[str, str] = {}
    uses: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    aliases[alias.asname] = alias.name
    local = {"tcc": "jax._src.tpu_custom_call", "gpu": "jax.experimental.mosaic.gpu.core"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = aliases.get(node.value.id) or local.get(node.value.id)
            if owner:
                uses.add(f"{owner}.{node.attr}")
    modules = {use.rsplit(".", 1)[0] for use in uses}
    uses |= {name for name in aliases.values() if name not in modules}
    private = ("jax._src", "jaxlib", "jax.experimental.mosaic")
    return {use for use in uses if use.startswith(private) and not use.startswith(BINDINGS)}


def test_nothing_else_is_used():
    used = set().union(*map(private_uses, PACKAGE.glob("*.py")))
    assert used - set(NEEDED) == set(), "name it in NEEDED"
    used.add("jaxlib._jax.Device")  # by a plain import, which has no alias
    assert set(NEEDED) - used == set(), "no longer used"
