"""``userdp selftest``: every check of the mechanism, of every engine, on this machine and model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import Parameter

from userdp.cli.output import Answer
from userdp.reporting.table import MISSING, Table, table_of
from userdp.training.distributed import joined
from userdp.training.selftest import SelftestConfig, run_selftest


def selftest(*, config: Annotated[SelftestConfig | None, Parameter(name="*")] = None) -> Answer:
    """Check that private steps are right on this machine, for every engine, and time them.

    It uses random tokens and no data: gradients against plain autograd, the sensitivity, infinite
    gradients, the noise's deviation, distribution, tail and grid, cohorts, masks, and under
    torchrun what processes do together. The exit status is 1 if an invariant does not hold.

    Args:
        config: see SelftestConfig.
    """
    with joined():
        result = run_selftest(config or SelftestConfig())
    return Answer(values=result, parts=_parts(result), status=0 if result["passed"] else 1)


_RESULTS = {True: "ok", False: "FAILED", None: "not asked"}


def _parts(result: dict[str, Any]) -> Iterator[Table | str]:
    yield table_of(
        result["checks"],
        {
            "invariant": lambda row: str(row["invariant"]),
            "check": lambda row: row["check"],
            "engine": lambda row: row["engine"] or MISSING,
            "measured": lambda row: _number(row["value"]),
            "at most": lambda row: _number(row["bound"]),
            "result": lambda row: _RESULTS[row["passed"]],
        },
    )
    for row in result["checks"]:
        if row["passed"] is False:
            yield (
                f"Invariant {row['invariant']} does not hold ({row['engine'] or 'any engine'}): "
                f"{row['what']} came to {_number(row['value'])}, where at most "
                f"{_number(row['bound'])} is right."
            )
    if result["step_ratio"]:
        yield table_of(
            result["step_ratio"].items(),
            {"engine": lambda pair: pair[0], "step / plain": lambda pair: f"{pair[1]:.2f}"},
        )
    several = f", {result['processes']} processes" if result["processes"] > 1 else ""
    yield (
        f"{result['model']}: {result['units']} units of {result['group_size']} x "
        f"{result['length']} tokens on {result['device']}{several}. auto takes {result['auto']}: "
        f"{result['reason']}."
    )


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3g}"
