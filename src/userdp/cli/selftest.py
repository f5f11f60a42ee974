"""``userdp selftest``: the gradient engines on this machine and model, against the reference."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from userdp.cli.output import emit


def selftest(
    *,
    model: str = "bundled",
    group_size: int = 4,
    units: int = 8,
    length: int | None = None,
    rounds: int = 5,
    lora_rank: int | None = None,
    device: str | None = None,
    json: bool = False,
) -> int:
    """Check every gradient engine against the reference in float64, and time it.

    Random tokens, no data. A unit's norm must agree to 1e-5, and no unit may move the clipped sum
    by more than the clip norm. Exit status 1 if one does not.

    Args:
        model: "bundled", a folder of a Hugging Face causal language model, or its name on the hub.
        group_size: examples of a unit.
        units: units in the cohort.
        length: tokens of an example; what the model reads, and at most 128, if not given.
        rounds: times each engine is timed; ratios are medians over rounds.
        lora_rank: test with low-rank adapters of this rank.
        device: where to run, such as cpu or cuda; cuda if there is one.
        json: print one JSON object on stdout.
    """
    from userdp.training.selftest import SelftestConfig, run_selftest

    result = run_selftest(
        SelftestConfig(
            model=model,
            group_size=group_size,
            units=units,
            length=length,
            rounds=rounds,
            lora_rank=lora_rank,
            device=device,
        )
    )
    emit(result, json=json, render=lambda console: _print(console, result))
    return 0 if result["passed"] else 1


def _print(console: Console, result: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("engine")
    for name in ("norm error", "largest move / C", "step / plain", ""):
        table.add_column(name, justify="right")
    for row in result["engines"]:
        table.add_row(
            row["engine"],
            f"{row['norm_error']:.1e}",
            f"{row['largest_move']:.6f}",
            f"{row['step_ratio']:.2f}",
            "ok" if row["passed"] else "FAILED",
        )
    console.print(table)
    console.print(
        f"{result['model']}: {result['units']} units of {result['group_size']} x "
        f"{result['length']} tokens on {result['device']}. auto takes {result['auto']}: "
        f"{result['reason']}.",
        soft_wrap=True,
        markup=False,
    )
