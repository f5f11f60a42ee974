"""Every target, one kind of files a module."""

from __future__ import annotations

from benchmarks.faults.hostile.cases import Target
from benchmarks.faults.hostile.targets import (
    exports,
    ledgers,
    models,
    runs,
    sources,
    stores,
    sweeps,
)


def targets() -> dict[str, Target]:
    """All of them, by name."""
    modules = (ledgers, stores, runs, sweeps, models, exports, sources)
    return {kind.name: kind() for module in modules for kind in module.TARGETS}
