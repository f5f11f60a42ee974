"""How many units the reference engine computed: what a batched engine sent back to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from userdp.gradients import ClippedSum
from userdp.gradients.engines import reference
from userdp.gradients.engines.engine import Task


@contextmanager
def counted_reference() -> Iterator[list[int]]:
    """Within, each call of the reference engine by another one adds its number of units."""
    calls: list[int] = []
    honest = reference.sum_of_units

    def counted(task: Task, *, forgiving: bool = False) -> ClippedSum:
        calls.append(len(task.units))
        return honest(task, forgiving=forgiving)

    reference.sum_of_units = counted
    try:
        yield calls
    finally:
        reference.sum_of_units = honest
