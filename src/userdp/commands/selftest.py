"""``userdp selftest``: every check of the mechanism, of every engine, on this machine and model."""

from __future__ import annotations

from typing import Annotated, Any

from userdp.training.distributed import joined
from userdp.training.selftest import SelftestConfig, run_selftest


def selftest(
    *, config: SelftestConfig | None = None, **options: Annotated[Any, SelftestConfig]
) -> dict[str, Any]:
    """Check that private steps are right on this machine.

    It uses random tokens and no data: gradients against plain autograd, the sensitivity, the
    noise's deviation, tail and grid; under torchrun of what the processes do together. The exit
    status is 1 if an invariant does not hold.

    Example::

        userdp selftest --model bundled

    Args:
        config: what to test; in its place, its fields as keywords.
        options: fields of `SelftestConfig`, such as ``model``.

    Returns:
        Each check with what it measured, and whether all ``passed``.
    """
    with joined():
        return run_selftest(config or SelftestConfig(**options))
