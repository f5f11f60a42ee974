r"""Invariant 5: no noise comes twice: not in two steps, two parameters, two blocks or processes.

Looked for in rows of four numbers, signs left out, at the same places from each parameter's
beginning, by multiples of :math:`2^{-22}` deviations. All lie on a coarser grid, so that two
independent numbers agree with probability at most :math:`2^{-20}`, two rows with :math:`2^{-80}`,
and any two of :math:`2^{23}` rows with less than :math:`2^{-34}`. Two steps are also held against
each other by their correlation, where the law has no memory. Where processes draw shares, each
share of a parameter is looked at from its own beginning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from userdp.training.checks import surprise
from userdp.training.checks.check import Check, Measured
from userdp.training.checks.noise_drawn import Floats, drawn
from userdp.training.checks.subject import Subject

_ROW = 4
_FINER = 2.0**22
"""Finer than any grid of noise, in deviations, and coarser than the rounding of a division."""
_MOST_ROWS = 1 << 14
"""Of one parameter and step, evenly spread; the same places of each block of noise."""


def _measure(subject: Subject) -> Iterator[Measured]:
    steps = drawn(subject)
    rows = np.concatenate([_rows(numbers) for step in steps for numbers in step.values()])
    if subject.scattered:  # whole sums are equal everywhere, and parts must not be
        rows = np.concatenate(subject.world.all_gather_object(rows))
    yield Measured(
        what="rows of four numbers of noise that came more than once, in some steps",
        value=float(len(rows) - len(np.unique(rows, axis=0))),
        bound=0,
    )
    if len(steps) < 2 or subject.law.memory:
        return
    one, other = (np.concatenate(list(step.values())) for step in steps[:2])
    length = math.sqrt(float(np.dot(one, one)))
    yield Measured(
        what="how surprising the correlation of the noise of two steps is, in nats",
        # Given one of them, the product with the other is a Gaussian number of that deviation.
        value=surprise.of_number(float(np.dot(one, other)) / length) if length else 0.0,
        bound=surprise.MOST,
    )


def _rows(numbers: Floats) -> NDArray[np.float64]:
    whole = numbers[: numbers.size - numbers.size % _ROW]
    rows = np.rint(np.abs(whole) * _FINER).reshape(-1, _ROW)
    rows = rows[(rows > 0).any(axis=1)]  # a sum without any noise is seen by its deviation
    stride = 1 << max(0, (len(rows) - 1).bit_length() - _MOST_ROWS.bit_length() + 1)
    return rows[::stride]


CHECK = Check(
    name="noise drawn once",
    invariant=5,
    claim="no two steps, parameters or processes share noise",
    measure=_measure,
)
