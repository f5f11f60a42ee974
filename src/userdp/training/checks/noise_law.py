r"""Invariant 5: the noise of every parameter has the plan's deviation, and is Gaussian.

For each parameter and for all together: the mean, the root mean square, how many numbers lie beyond
three deviations (where a tail that is cut or too heavy shows first), and the distance of the whole
distribution. Where processes hold parts, each looks at the noise of its own; where each draws the
noise of its share of a sum that all hold, every share is looked at: that of one process which is
doubled, or left out, is seen there.

Numbers that no process draws noise for stay exactly zero, in all steps. A right number of noise is
rounded to zero with probability at most that of one cell of the grid, :math:`2^{-20} /
\sqrt{2\pi}`, in each step: so a few numbers between two shares are seen too.
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

_FAR = 3.0
_BEYOND = math.erfc(_FAR / math.sqrt(2))
_ROUNDED_TO_ZERO = 2.0**-20 / math.sqrt(2 * math.pi)
_MOST_SORTED = 1 << 20
"""A distribution of so many numbers is known to 0.4%."""


def _measure(subject: Subject) -> Iterator[Measured]:
    steps = drawn(subject)
    together = {piece: np.concatenate([step[piece] for step in steps]) for piece in steps[0]}
    looked_at = {"all parameters together": np.concatenate(list(together.values()))}
    for owner in sorted({piece.owner for piece in together if piece.owner is not None}):
        own = [numbers for piece, numbers in together.items() if piece.owner == owner]
        looked_at[f"all numbers of process {owner}"] = np.concatenate(own)
    looked_at |= {str(piece): numbers for piece, numbers in together.items()}
    for name, numbers in looked_at.items():
        for what, nats in _looks(numbers).items():
            yield Measured(
                what=f"how surprising {what} of the noise of {name} is, in nats (standard "
                f"deviation {_rms(numbers):.4f} of the plan's, {numbers.size:,} numbers)",
                value=nats,
                bound=surprise.MOST,
            )
    silent = sum(int(_silent([step[piece] for step in steps]).sum()) for piece in together)
    count = sum(numbers.size for numbers in steps[0].values())
    yield Measured(
        what=f"how surprising it is that {silent:,} of {count:,} numbers got no noise in any of "
        f"{len(steps)} steps, in nats",
        value=surprise.of_count(silent, count, _ROUNDED_TO_ZERO ** len(steps)) if silent else 0.0,
        bound=surprise.MOST,
    )


def _silent(steps: list[Floats]) -> NDArray[np.bool_]:
    """Which numbers are zero in every step."""
    zeros: NDArray[np.bool_] = np.all([numbers == 0 for numbers in steps], axis=0)
    return zeros


def _rms(numbers: Floats) -> float:
    return math.sqrt(float(np.dot(numbers, numbers)) / max(1, numbers.size))


def _looks(numbers: Floats) -> dict[str, float]:
    far = int((np.abs(numbers) > _FAR).sum())
    return {
        "the deviation": surprise.of_squares(numbers),
        "the mean": surprise.of_number(float(numbers.sum()) / math.sqrt(max(1, numbers.size))),
        "the count beyond three deviations": surprise.of_count(far, numbers.size, _BEYOND),
        "the distribution": surprise.of_distribution(numbers[:_MOST_SORTED]),
    }


CHECK = Check(
    name="noise",
    invariant=5,
    claim="the noise is Gaussian, and has the plan's standard deviation for every parameter",
    measure=_measure,
)
