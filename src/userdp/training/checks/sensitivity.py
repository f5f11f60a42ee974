"""Invariant 3: leaving a unit out moves the clipped sum by at most C, the worst ones included.

C bites every unit. Those left out are of one row and of several, the longest, and the one with the
largest loss; each is also summed alone, where its whole contribution is seen.
"""

from __future__ import annotations

from collections.abc import Iterator

from userdp.gradients.certificate.coupling import evaluating
from userdp.training.checks.check import Check, Measured
from userdp.training.checks.subject import Subject, without

ROUNDING = 1e-12
"""Of the comparison itself, relative."""


def _measure(subject: Subject) -> Iterator[Measured]:
    bound = subject.biting
    if bound is None:
        return
    last = len(subject) - 1
    with evaluating(subject.model):
        whole = subject.sum_of(subject.units, bound).value
        for unit in (0, last - 1, last):
            moved = subject.sum_of(without(subject.units, unit), bound).value
            for name, value in whole.items():
                moved[name].sub_(value)  # in place: large models have no room for another
            yield Measured(
                what=f"by how much leaving made-up unit {unit} out moved the sum, over C",
                value=sum(subject.squared(moved).values()) ** 0.5 / bound,
                bound=1 + ROUNDING,
            )
        for unit in (1, last):
            alone = subject.sum_of(subject.units.select(unit, unit + 1), bound).value
            yield Measured(
                what=f"the norm of what made-up unit {unit} alone adds to the sum, over C",
                value=sum(subject.squared(alone).values()) ** 0.5 / bound,
                bound=1 + ROUNDING,
            )


CHECK = Check(
    name="sensitivity",
    invariant=3,
    claim="nobody moves the clipped sum by more than the clip norm",
    measure=_measure,
    by_engine=True,
)
