"""What ``mosaic-dump apply`` and ``mosaic-dump passes`` say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..pass_pipeline import PipelineResult
from ..plugins import PassInfo


def step_lines(result: PipelineResult) -> Iterator[str]:
    """One line per pass: whether it changed the module, and what it printed."""
    for step in result.steps:
        yield f"{step.applied}: {'changed' if step.changed else 'no change'}"
        if step.output:
            yield step.output.rstrip()


def to_json(result: PipelineResult) -> dict[str, Any]:
    """The steps, and the kernel with its module's text."""
    return {
        "steps": [{"pass": str(s.applied), "changed": s.changed} for s in result.steps],
        "kernel": {**result.kernel.to_json(), "asm": result.kernel.asm},
    }


def render_listing(infos: Sequence[PassInfo]) -> str:
    """Each pass: what it does, its options, what it is for and where it comes from."""
    blocks = []
    for info in infos:
        lines = [f"{info.name}  {info.summary or ''}".rstrip()]
        lines += [f"    {option.usage}" for option in info.options]
        lines.append(
            f"    for {', '.join(info.backends or ('any backend',))}; from {info.provider}"
        )
        if info.error:
            lines.append(f"    does not load: {info.error}")
        blocks.append("\n".join(lines))
    mlir = "MLIR's own passes go by their names: canonicalize, cse, sccp, ..."
    return "\n\n".join([*blocks, mlir])


def listing_to_json(infos: Sequence[PassInfo]) -> list[dict[str, Any]]:
    """The passes with their options."""
    return [
        {
            "name": info.name,
            "summary": info.summary,
            "options": [
                {"name": o.name, "usage": o.usage, "required": o.required} for o in info.options
            ],
            "backends": list(info.backends) if info.backends is not None else None,
            "level": info.level,
            "provider": info.provider,
            "file": info.file,
            "error": info.error,
        }
        for info in infos
    ]
