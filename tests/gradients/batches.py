"""Passes that users share without their fallback, and how many units went to the reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from torch import nn

from userdp.gradients import ClippedSum, Loss, Units
from userdp.gradients.certificate.state import State
from userdp.gradients.engines import Engine, batched, reference
from userdp.gradients.engines.choice import why_alone
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.uses import Forms
from userdp.gradients.model_randomness import StatesApart, secret_randomness


def reason_alone(model: nn.Module, loss: Loss, units: Units, **options: Any) -> str | None:
    """Why `auto` computes each of these units by itself; None where they share passes."""
    task = Task(model=model, loss=loss, units=units, **{"l2_clip_norm": 1.0, **options})
    with secret_randomness():
        return why_alone(task)


def batched_sum(
    model: nn.Module,
    loss: Loss,
    units: Units,
    *,
    form: Forms = None,
    strict: bool = True,
    **options: Any,
) -> ClippedSum:
    """The batched engine, which is not asked here whether it agrees with the reference.

    ``strict``: a shape of passes without a certificate is an error.
    """
    return Engine(partial(batched.sum_of_passes, form=form, strict=strict))(
        model, loss, units, **options
    )


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

    with patch.object(reference, "add_units", counted):
        yield calls
