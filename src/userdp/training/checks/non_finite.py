"""Invariant 6: a unit whose gradient is infinite adds nothing, and is counted.

The infinity comes through the loss, of one made-up row; weights are not touched.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from userdp.gradients import Loss
from userdp.gradients.certificate.coupling import evaluating
from userdp.gradients.certificate.made_up import Answers
from userdp.gradients.losses import row_losses
from userdp.training.checks.check import Check, Measured
from userdp.training.checks.subject import Subject


class _Exploding:
    """A loss that is infinite for rows of one length, once it is told which."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self.length: int | None = None

    def __call__(
        self, model: nn.Module, input_ids: Tensor, lengths: Tensor, targets: Tensor | None = None
    ) -> Tensor:
        losses = row_losses(self._loss, model, input_ids, lengths, targets)
        if self.length is None:
            return losses
        return losses * torch.where(lengths == self.length, torch.inf, 1.0).to(losses.dtype)


_known: Answers[_Exploding] = Answers()


def _measure(subject: Subject) -> Iterator[Measured]:
    bound = subject.biting
    if bound is None:
        return
    units = subject.units.select(0, 2)
    # One for all engines: what they ask of a loss they ask once.
    loss = _known.of(subject.model, subject.loss).setdefault(None, _Exploding(subject.loss))
    struck = int(units.lengths[0])  # of the first unit's first row, and of no other
    if struck in units.lengths[1:].tolist():
        return
    with evaluating(subject.model):
        # They ask it here, where it is as harmless as the run's.
        subject.sum_of(units, bound, loss)
        other = subject.sum_of(units.select(1, 2), bound, loss)
        loss.length = struck
        try:
            total = subject.sum_of(units, bound, loss)
        finally:
            loss.length = None
    left = {name: value.sub_(other.value[name]) for name, value in total.value.items()}
    yield Measured(
        what="what a unit with an infinite gradient added to the sum, over C",
        value=sum(subject.squared(left).values()) ** 0.5 / bound,
        bound=subject.close,
    )
    yield Measured(
        what="how far the count of units with an infinite gradient is from 1",
        value=abs(total.non_finite - 1),
        bound=0,
    )


CHECK = Check(
    name="infinite gradients",
    invariant=6,
    claim="a unit with an infinite gradient adds nothing",
    measure=_measure,
    by_engine=True,
)
