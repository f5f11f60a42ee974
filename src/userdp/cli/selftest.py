"""``userdp selftest``: the gradient engines on this machine and model, against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from userdp.cli.output import Answer
from userdp.reporting.table import Table, table_of


def selftest(
    *,
    model: str = "bundled",
    group_size: int = 4,
    units: int = 8,
    length: int | None = None,
    rounds: int = 5,
    lora_rank: int | None = None,
    device: str | None = None,
) -> Answer:
    """Check every gradient engine against the reference in float64, and time it.

    It uses random tokens and no data. A unit's norm must agree to 1e-5, and no unit may move the
    clipped sum by more than the clip norm. The exit status is 1 if one does not.

    Args:
        model: "bundled", a folder of a Hugging Face causal language model, or its name on the hub.
        group_size: examples of a unit.
        units: units in the cohort.
        length: tokens of an example; what the model reads, and at most 128, if not given.
        rounds: times each engine is timed; ratios are medians over rounds.
        lora_rank: test with low-rank adapters of this rank.
        device: where to run, such as cpu or cuda; cuda if there is one.
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
    return Answer(values=result, parts=_parts(result), status=0 if result["passed"] else 1)


def _parts(result: dict[str, Any]) -> Iterator[Table | str]:
    yield table_of(
        result["engines"],
        {
            "engine": lambda row: row["engine"],
            "norm error": lambda row: f"{row['norm_error']:.1e}",
            "largest move / C": lambda row: f"{row['largest_move']:.6f}",
            "step / plain": lambda row: f"{row['step_ratio']:.2f}",
            "result": lambda row: "ok" if row["passed"] else "FAILED",
        },
    )
    yield (
        f"{result['model']}: {result['units']} units of {result['group_size']} x "
        f"{result['length']} tokens on {result['device']}. auto takes {result['auto']}: "
        f"{result['reason']}."
    )
