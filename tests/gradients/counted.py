"""How many units the reference engine computed: what a batched engine sent back to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest import mock

from userdp.gradients import ClippedSum, Units
from userdp.gradients.certificate.state import State
from userdp.gradients.engines import reference
from userdp.gradients.engines.task import Task
from userdp.gradients.model_randomness import StatesApart


def each(units: Units) -> Iterator[Units]:
    """Each unit by itself."""
    return (units.select(unit, unit + 1) for unit in range(len(units)))


@contextmanager
def counted_reference() -> Iterator[list[int]]:
    """Within, each call of the reference engine adds its number of units that have rows."""
    calls: list[int] = []
    honest = reference.add_units

    def counted(
        task: Task, total: ClippedSum, units: Iterable[int], state: State, states: StatesApart
    ) -> None:
        numbers = list(units)
        calls.append(sum(int(rows) > 0 for rows in task.units.offsets.diff()[numbers]))
        honest(task, total, numbers, state, states)

    with mock.patch.object(reference, "add_units", counted):
        yield calls
