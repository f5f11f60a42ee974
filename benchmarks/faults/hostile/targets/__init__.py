"""Every target, one kind of files a module."""

from __future__ import annotations

from benchmarks.faults.hostile.cases import Target


def targets() -> dict[str, Target]:
    """All of them, by name; imported when asked for, since some need torch."""
    from benchmarks.faults.hostile.targets import ledgers, stores

    kinds: list[type[Target]] = [*ledgers.TARGETS, *stores.TARGETS]
    return {kind.name: kind() for kind in kinds}
