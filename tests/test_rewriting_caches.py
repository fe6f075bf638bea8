"""Rewriting in place against JAX's caches: nobody finds, and no block leaves, a stale executable.

The pass used here changes what kernels compute, so that values tell which kernel ran.
"""

import concurrent.futures
import dataclasses
import gc
import importlib.util
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from mosaic_toolkit import rewrite, rewriting
from mosaic_toolkit.jax_compat import ir
from mosaic_toolkit.pass_pipeline import PassPipeline
from mosaic_toolkit.passes import Pass

ROOT = Path(__file__).parent.parent
X = np.arange(64 * 128, dtype=np.float32).reshape(64, 128)
ARRAY = jax.ShapeDtypeStruct(X.shape, X.dtype)


@dataclasses.dataclass(frozen=True)
class Scale(Pass):
    """Puts another number in the place of 2.0."""

    name = "scale"

    by: int = 3

    def run(self, graph):
        for op in graph.ops("arith.constant"):
            if str(op.attributes["value"]) == "2.000000e+00 : f32":
                with graph.module.context, ir.Location.unknown():
                    value = ir.FloatAttr.get(ir.F32Type.get(), float(self.by))
                graph.set_attribute(op, "value", value)


def by(factor):
    return PassPipeline((Scale(factor),))


def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2.0


def f(x):
    return pl.pallas_call(
        double,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(),
    )(x)


@jax.custom_vjp
def by_hand(x):
    return f(x)


by_hand.defvjp(lambda x: (f(x), None), lambda _, g: (f(g),))


@pytest.fixture(autouse=True)
def values_on_the_cpu():
    """Outside of a block too, values are those of the lowered kernel."""
    from mosaic_toolkit.capture import capturing

    with capturing("v5e", execute=True):
        yield


def factor(function, *args):
    """What a function multiplies by, by its values."""
    found = np.asarray(function(*(args or (X,))))
    numbers = set((found.ravel()[1:] / X.ravel()[1:]).tolist())
    assert len(numbers) == 1
    return numbers.pop()


def lowered(function, *args):
    """The programs's text for a TPU."""
    traced = jax.jit(function).trace(*(args or (ARRAY,)))
    return traced.lower(lowering_platforms=("tpu",)).as_text()


WAYS = {
    "eager": lambda: f,
    "jitted before": lambda: jax.jit(f),
    "jitted twice": lambda: jax.jit(jax.jit(f)),
    "inside another": lambda: (lambda inner: jax.jit(lambda x: inner(x) + 0))(jax.jit(f)),
    "scan": lambda: jax.jit(
        lambda x: jax.lax.scan(lambda c, _: (c, f(c)), x, None, length=2)[1][1]
    ),
    "cond": lambda: jax.jit(lambda x: jax.lax.cond(x[0, 0] < 1, f, lambda x: x, x)),
    "vmap": lambda: lambda x: jax.vmap(f)(x[None])[0],
    "remat": lambda: jax.jit(jax.checkpoint(f)),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_before_inside_between_and_after(way):
    function = WAYS[way]()
    assert factor(function) == 2
    with rewriting(by(3)) as log:
        assert factor(function) == 3
        assert factor(function) == 3
        with rewriting(by(5)):  # the outer one has left it no 2.0
            assert factor(function) == 3
        assert factor(function) == 3
    assert factor(function) == 2
    with rewriting(by(5)):
        assert factor(function) == 5
        jax.clear_caches()
        assert factor(function) == 5
    jax.clear_caches()
    assert factor(function) == 2
    assert {entry.outcome for entry in log} == {"rewritten"}


@pytest.mark.parametrize("way", WAYS)
def test_a_rewritten_function_of_a_function_that_was_compiled_before(way):
    function = WAYS[way]()
    assert factor(function) == 2
    three, five = rewrite(function, by(3)), rewrite(function, by(5))
    assert (factor(three), factor(five), factor(function)) == (3, 5, 2)
    assert (factor(jax.jit(three)), factor(jax.jit(five)), factor(function)) == (3, 5, 2)
    jax.clear_caches()
    assert (factor(three), factor(five), factor(function)) == (3, 5, 2)
    assert {entry.outcome for entry in three.log} == {"rewritten"}


def test_an_error_ends_a_block():
    function = jax.jit(f)
    with pytest.raises(ZeroDivisionError), rewriting(by(3)):
        1 / (factor(function) - 3)
    assert factor(function) == 2


def test_a_kernel_is_rewritten_where_it_is_lowered_not_where_it_is_traced():
    def text(traced):
        return traced.lower(lowering_platforms=("tpu",)).as_text()

    outside = jax.jit(f).trace(ARRAY)
    plain = text(outside)
    with rewriting(by(3)):
        rewritten = text(outside)
        inside = jax.jit(f).trace(ARRAY)
        assert text(inside) == rewritten
        finished = outside.lower(lowering_platforms=("tpu",))
    assert plain != rewritten
    assert text(inside) == text(outside) == plain
    assert finished.as_text() == rewritten


def test_threads_have_blocks_of_their_own():
    function = jax.jit(f)
    assert factor(function) == 2
    together = threading.Barrier(3, timeout=120)

    def inside(number):
        from mosaic_toolkit.capture import capturing

        found = []
        with (
            capturing("v5e", execute=True),
            rewriting(by(number)) if number != 2 else capturing("v6e", execute=True),
        ):
            for _ in range(3):
                together.wait()
                found.append(factor(function))
        return found

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert list(pool.map(inside, (3, 5, 2))) == [[3] * 3, [5] * 3, [2] * 3]
    assert factor(function) == 2


def test_a_rewritten_function_in_other_threads():
    g = rewrite(f, by(3))

    def run(_):
        from mosaic_toolkit.capture import capturing

        with capturing("v5e", execute=True):
            return factor(g), factor(f)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(4))) == [(3, 2)] * 4


# --- transformations -------------------------------------------------------------------


def grad(function):
    """The gradient of a product with X: the function's own factor, as it is linear."""
    return lambda x: jax.grad(lambda y: (function(y) * X).sum())(x)


def tangent(function):
    """The derivative in the direction of X."""
    return lambda x: jax.jvp(function, (x,), (x,))[1]


@pytest.mark.parametrize(
    ("function", "grad"), [(f, tangent), (by_hand, grad)], ids=["forward", "reverse"]
)
@pytest.mark.parametrize("jitted", [False, True])
def test_derivatives(function, grad, jitted):
    wrapped = jax.jit if jitted else lambda g: g
    of_function = wrapped(grad(function))
    assert factor(of_function) == 2
    with rewriting(by(3)):
        assert factor(of_function) == 3
    assert factor(of_function) == 2
    g = rewrite(function, by(3))
    assert factor(wrapped(grad(g))) == 3
    assert factor(wrapped(grad(jax.jit(g)))) == 3
    assert factor(rewrite(of_function, by(5))) == 5
    assert factor(of_function) == 2


def test_batches_of_a_rewritten_function():
    g = rewrite(by_hand, by(3))
    assert factor(lambda x: jax.vmap(g)(x.reshape(8, 8, 128)).reshape(x.shape)) == 3
    assert factor(lambda x: jax.vmap(grad(by_hand))(x[None])[0]) == 2
    assert factor(lambda x: jax.vmap(grad(g))(x[None])[0]) == 3
    assert factor(jax.jit(jax.checkpoint(g))) == 3


def test_two_rewritten_functions_in_one_program():
    three, five = rewrite(f, by(3)), rewrite(f, by(5))
    assert factor(jax.jit(lambda x: f(x) + three(x) + five(x))) == 2 + 3 + 5
    with rewriting(by(7)):  # a block comes before what a function brings with it
        assert factor(three) == 7
    assert factor(three) == 3


def test_what_was_traced_outlives_the_function():
    g = rewrite(f, by(3))
    traced = jax.make_jaxpr(g)(ARRAY)
    log = g.log
    del g
    gc.collect()
    others = [rewrite(f, by(number)) for number in (5, 7)]  # may get its place in memory
    assert factor(lambda x: jax.extend.core.jaxpr_as_fun(traced)(x)[0]) == 3
    assert [entry.outcome for entry in log] == ["rewritten"]
    assert [len(other.log) for other in others] == [0, 0]


# --- export, and the persistent cache --------------------------------------------------


def exported(function):
    return jax.export.export(jax.jit(function), platforms=["tpu"])(ARRAY)


def test_export():
    """A program is exported as it is lowered, and is no longer rewritten when it is called."""
    function = jax.jit(f)
    plain = exported(function)
    with rewriting(by(3)):
        three = exported(function)
    assert exported(function).mlir_module() == plain.mlir_module() != three.mlir_module()
    with rewriting(by(3)) as log:
        text = lowered(plain.call)
    assert log == []
    assert payloads(text) == payloads(plain.mlir_module())
    assert payloads(lowered(three.call)) == payloads(three.mlir_module())
    assert payloads(exported(rewrite(f, by(3))).mlir_module()) == payloads(three.mlir_module())


def payloads(text):
    """The kernels in a program, as their custom calls hold them."""
    found = re.findall(r"\\22body\\22: \\22([^\\]+)", text)
    assert found
    return found


def test_one_program_has_one_text():
    """Caches that processes share are keyed by it."""
    first, second = rewrite(f, by(3)), rewrite(f, by(3))
    assert lowered(first) == lowered(second) != lowered(rewrite(f, by(5)))


CACHED = """
import os, sys
import jax, jax.numpy as jnp
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
sys.path.insert(0, {tests!r})
import test_rewriting_caches as t
from mosaic_toolkit import capturing, rewrite, rewriting

function = jax.jit(t.f)
with capturing("v5e", execute=True):
    print(t.factor(function), end=" ")
    with rewriting(t.by(3)):
        print(t.factor(function), end=" ")
    with rewriting(t.by(5)):
        print(t.factor(function), end=" ")
    print(t.factor(function), t.factor(rewrite(function, t.by(7))))
"""


def python(code, *arguments):
    paths = [str(ROOT / "toolkit"), str(ROOT / "passes")]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_persistent_cache_across_processes(tmp_path):
    code = CACHED.format(tests=str(ROOT / "tests"))
    assert [python(code, tmp_path) for _ in range(2)] == [["2.0", "3.0", "5.0", "2.0", "7.0"]] * 2
    assert any(tmp_path.iterdir())  # something was kept


OF_A_TPU = """
import os, sys
os.environ.update(TPU_SKIP_MDS_QUERY="1", TPU_WORKER_HOSTNAMES="localhost",
                  TPU_ACCELERATOR_TYPE="v5litepod-1", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
import jax
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
sys.path.insert(0, {tests!r})
import test_rewriting_caches as t
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
from mosaic_toolkit import rewrite, rewriting

device = topologies.get_topology_desc("v5e:2x2", "tpu").devices[0]
x = jax.ShapeDtypeStruct(t.X.shape, t.X.dtype, sharding=SingleDeviceSharding(device))

def code(function):
    before = set(os.listdir(sys.argv[1]))
    text = function.trace(x).lower(lowering_platforms=("tpu",)).compile().as_text()
    kept = len(set(os.listdir(sys.argv[1])) - before)
    return kept, hash(tuple(t.re.findall(r'"body":"([^"]+)', text)))

function = jax.jit(t.f)
found = [code(function)]
for factor in (3, 5, 3):
    jax.clear_caches()
    with rewriting(t.by(factor)):
        found.append(code(function))
jax.clear_caches()
found.append(code(function))
found.append(code(jax.jit(rewrite(t.f, t.by(3)))))
jax.clear_caches()
found.append(code(jax.jit(rewrite(t.f, t.by(3)))))
kept, codes = zip(*found)
names = list(dict.fromkeys(codes))
print(*kept, *map(names.index, codes))
"""


@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="libtpu is not installed")
def test_the_persistent_cache_of_programs_for_a_tpu(tmp_path):
    """Each rewrite is one entry, found again by the next process."""
    code = OF_A_TPU.format(tests=str(ROOT / "tests"))
    codes = ["0", "1", "2", "1", "0", "1", "1"]
    first, second = (python(code, tmp_path) for _ in range(2))
    assert second == ["0"] * 7 + codes
    assert first[7:] == codes
    assert [count != "0" for count in first[:7]] == [True, True, True, False, False, True, False]
