"""The results under keys that say what they are, and as a table."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.step.methods import COMPILED, OTHERS


def flat(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Keys that say what they are."""
    found: dict[str, Any] = {}
    for result in results:
        key = result["setting"]
        ratios = result["ratios"]
        middle, low, high = ratios["auto"]
        found[f"ratio_{key}"] = middle
        found[f"ratio_{key}_low"], found[f"ratio_{key}_high"] = low, high
        for name in ["plain in parts", *COMPILED]:
            if name in ratios:
                found[f"ratio_{key}_to_{name.replace(' ', '_')}"] = middle / ratios[name][0]
        for name in OTHERS:
            if name in ratios:
                label = name.replace(" ", "_").replace("-", "_")
                found[f"speedup_{label}_{key}"] = ratios[name][0] / middle
        if "memory" in result:
            base = result["memory"]["plain"]
            for method, size in result["memory"].items():
                found[f"peak_memory_{method.replace(' ', '_').replace('-', '_')}_{key}"] = (
                    size / base
                )
        if result["exactness"] is not None:
            found[f"norm_error_{key}"] = result["exactness"]
        found[f"rounds_{key}"] = result["rounds"]
    return found


def show(results: list[dict[str, Any]], whole: dict[str, Any], console: Console) -> None:
    table = Table("setting", "method", "ratio", "90% interval", "peak memory", box=None)
    for result in results:
        for method, (middle, low, high) in result["ratios"].items():
            memory = result.get("memory", {})
            share = f"{memory[method] / memory['plain']:.2f}" if method in memory else ""
            name = f"{result['setting']} ({result['rounds']} rounds)" if method == "plain" else ""
            table.add_row(name, method, f"{middle:.2f}", f"{low:.2f} to {high:.2f}", share)
    if results:
        console.print(table)
        for name, reason in results[0]["skipped"].items():
            console.print(f"{name} not run: {reason}")
    if whole:
        console.print(
            f"whole step / clipping alone: {whole['ratio_full_step']:.3f} "
            f"({whole['ratio_full_step_low']:.3f} to {whole['ratio_full_step_high']:.3f}, "
            f"{whole['rounds_full_step']} rounds)"
        )
