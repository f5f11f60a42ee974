"""Invariant 5: the noise of every parameter has the plan's deviation, and is Gaussian.

For each parameter and for all together: the mean, the root mean square, how many numbers lie beyond
three deviations (where a tail that is cut or too heavy shows first), and the distance of the whole
distribution. Where processes hold parts, each looks at the noise of its own: that of one process
which is doubled, or left out, is seen there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from userdp.training.checks import surprise
from userdp.training.checks.check import Check, Measured
from userdp.training.checks.noise_drawn import Floats, drawn
from userdp.training.checks.subject import Subject

_FAR = 3.0
_BEYOND = math.erfc(_FAR / math.sqrt(2))
_MOST_SORTED = 1 << 20
"""A distribution of so many numbers is known to 0.4%."""


def _measure(subject: Subject) -> Iterator[Measured]:
    steps = drawn(subject)
    by_name = {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}
    everything = np.concatenate(list(by_name.values()))
    for name, numbers in {"all parameters together": everything, **by_name}.items():
        for what, nats in _looks(numbers).items():
            yield Measured(
                what=f"how surprising {what} of the noise of {name} is, in nats (standard "
                f"deviation {_rms(numbers):.4f} of the plan's, {numbers.size:,} numbers)",
                value=nats,
                bound=surprise.MOST,
            )


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
