"""``userdp selftest``: the gradient engines on this machine and model, against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import Parameter

from userdp.cli.output import Answer
from userdp.reporting.table import Table, table_of
from userdp.training.selftest import SelftestConfig, run_selftest


def selftest(*, config: Annotated[SelftestConfig | None, Parameter(name="*")] = None) -> Answer:
    """Check every gradient engine against the reference in float64, and time it.

    It uses random tokens and no data. A unit's norm must agree to 1e-5, and no unit may move the
    clipped sum by more than the clip norm. The exit status is 1 if one does not.

    Args:
        config: see SelftestConfig.
    """
    result = run_selftest(config or SelftestConfig())
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
