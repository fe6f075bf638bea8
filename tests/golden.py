"""Golden files: the module that a pipeline makes of a kernel, with a header that says how.

// kernel: dumps/kernels/matmul_tpu.py::matmul bfloat16[512,1024] bfloat16[1024,512]
// target: v5e
// pipeline: pipeline-depth{stages=1}
// jaxlib: 0.12.0
module ...
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path

from mosaic_toolkit.capture import capture
from mosaic_toolkit.kernel import ArrayType, Kernel

ROOT = Path(__file__).resolve().parents[1]
_HEADER = re.compile(r"// (\w+): (.*)\n")


@dataclasses.dataclass(frozen=True)
class Golden:
    kernel: str
    target: str
    pipeline: str
    jaxlib: str
    module: str

    @classmethod
    def read(cls, path: Path) -> Golden:
        text = path.read_text()
        fields, end = {}, 0
        while match := _HEADER.match(text, end):
            fields[match[1]] = match[2].strip()
            end = match.end()
        return cls(**{"jaxlib": "", **fields}, module=text[end:])

    def __str__(self) -> str:
        fields = dataclasses.asdict(self)
        module = fields.pop("module")
        return "".join(f"// {name}: {value}\n" for name, value in fields.items()) + module


def kernel_of(description: str, target: str) -> Kernel:
    """The only kernel of ``path.py::function type ...``, lowered for `target`."""
    import jax

    place, *types = description.split()
    path, _, function = place.partition("::")
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arrays = [ArrayType.parse(text) for text in types]
    args = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    (kernel,) = capture(getattr(module, function), *args, target=target)
    return kernel
