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
    """Check that private steps are right on this machine, for every engine.

    It uses random tokens and no data: gradients against plain autograd, the sensitivity, infinite
    gradients, the noise's deviation, distribution, tail and grid, cohorts, masks; under torchrun of
    what the processes do together. The exit status is 1 if an invariant does not hold.

    Args:
        config: see SelftestConfig.
    """
    with joined():
        result = run_selftest(config or SelftestConfig())
    return Answer(values=result, parts=_parts(result), status=0 if result["passed"] else 1)


def _parts(result: dict[str, Any]) -> Iterator[Table | str]:
    yield table_of(
        result["checks"],
        {
            "invariant": lambda row: str(row["invariant"]),
            "check": lambda row: row["check"],
            "engine": lambda row: row["engine"] or MISSING,
            "measured": lambda row: f"{row['value']:.3g}",
            "at most": lambda row: f"{row['bound']:.3g}",
            "result": lambda row: "ok" if row["passed"] else "FAILED",
        },
    )
    for row in result["checks"]:
        if not row["passed"]:
            yield (
                f"Invariant {row['invariant']} does not hold ({row['engine'] or 'any engine'}): "
                f"{row['what']} came to {row['value']:.3g}, where at most "
                f"{row['bound']:.3g} is right."
            )
    several = f", {result['processes']} processes" if result["processes"] > 1 else ""
    yield (
        f"{result['model']} on {result['device']}{several}: auto takes {result['auto']}, "
        f"since {result['reason']}."
    )
