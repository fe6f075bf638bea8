"""What ``mosaic-dump verify`` says: what was tried, then values, then findings."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..interpreter.agreement import Agreement
from ..interpreter.execute import Setting
from ..verify import Verification
from . import values

_DOUBT = "agreement on these inputs and schedules is evidence, not proof"


def render(result: Verification) -> str:
    """The verdict first, for people."""
    lines = [
        f"{'verified' if result.verified else 'NOT verified'}: {result.before} -> {result.after}",
        "",
        f"tried       {result.runs} pairs of runs: {result.inputs}",
        f"schedules   {_schedules(result.settings)}",
        f"values      {_values(result)}",
    ]
    lines += [f"unstable    {line}" for line in result.unstable]
    for title, findings in (
        ("before", result.before_findings),
        ("after", result.after_findings),
        ("suspect", result.suspects),
    ):
        lines += [f"{title:<11} {finding}" for finding in findings]
    if not (result.before_findings or result.after_findings):
        lines.append("findings    none: no race, deadlock, access out of bounds or unbalanced wait")
    return "\n".join([*lines, "", _DOUBT])


def _schedules(settings: tuple[Setting, ...]) -> str:
    timings = Counter(setting.timing for setting in settings)
    fills = f"NaN and {len(settings) - 1} patterns" if len(settings) > 1 else "NaN"
    how = ", ".join(f"{count} {timing}" for timing, count in timings.items())
    return f"{len(settings)} timings of copies and threads ({how}); uninitialised memory {fills}"


def _values(result: Verification) -> str:
    if result.agreement is None:
        return "not compared: a kernel did not come to its end"
    text = _agreement(result.agreement)
    before, after = result.unwritten
    if before or after:
        text += f"; elements of the results never written: {before} before, {after} after"
    return text


def _agreement(agreement: Agreement) -> str:
    if agreement.identical:
        return "agree bit for bit"
    if agreement.ulps is None:
        return f"DIFFER at {agreement.where}"
    off = f"{agreement.ulps:.3g} ulps at {agreement.where}"
    if not agreement.agrees:
        return f"DIFFER by {off} (tolerated: {agreement.tolerance:.3g})"
    why = ", ".join(agreement.reordered) or "none of the accumulating operations differs in number"
    return (
        f"agree within {agreement.tolerance:.3g} ulps, not bit for bit: {off}; "
        f"order of accumulation changed in: {why}"
    )


def to_json(result: Verification) -> Any:
    return {**values.to_json(result), "verified": result.verified}


def from_json(data: Any) -> Verification:
    """The inverse of `to_json`.

    Raises:
      KeyError, TypeError, ValueError: `data` is no verification.
    """
    return values.from_json(Verification, {k: v for k, v in data.items() if k != "verified"})
