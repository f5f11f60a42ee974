"""``userdp selftest``: every check of the mechanism, of every engine, on this machine and model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from userdp.commands.answer import Part
from userdp.training.distributed import joined
from userdp.training.selftest import SelftestConfig, run_selftest


def selftest(*, config: SelftestConfig | None = None) -> dict[str, Any]:
    """Check that private steps are right on this machine, for every engine.

    It uses random tokens and no data: gradients against plain autograd, the sensitivity, the
    noise's deviation, tail and grid; under torchrun of what the processes do together. The exit
    status is 1 if an invariant does not hold.

    Args:
        config: what to test.

    Returns:
        Each check with what it measured, and whether all ``passed``.
    """
    with joined():
        return run_selftest(config or SelftestConfig())


def in_words(result: Mapping[str, Any]) -> Iterator[Part]:
    """What was measured beside its bound, and what does not hold."""
    yield [{key: row[key] for key in row if key != "what"} for row in result["checks"]]
    for row in result["checks"]:
        if not row["passed"]:
            yield (
                f"Invariant {row['invariant']} does not hold ({row['engine'] or 'any engine'}): "
                f"{row['what']} came to {row['value']:.3g}, where at most {row['bound']:.3g} is "
                "right."
            )
    yield f"{result['model']} on {result['device']}, processes: {result['processes']}."
