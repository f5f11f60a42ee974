r"""Invariant 5: releases lie on the public grid, and tell nothing by a finer lattice of float32.

Noise drawn in float32, whether it is scaled there or after, puts between 2 and 5 float32 numbers
into each cell of the grid, now more and now fewer. So a release of it prefers some cells, and
counting tells the clean sum. Here the sum is zero: the attack's gain is

.. math:: \sum_k \log \frac{n_k}{\bar n_k}

over released numbers k, with :math:`n_k` the float32 numbers of the cell in units of the deviation
and :math:`\bar n_k` its width over their spacing. It is the log-likelihood ratio of float32 noise
against noise without a lattice; under the latter its exponential has mean 1 up to the curvature of
the density over a cell, so that it passes t nats with probability at most e^{-t} (Ville).

Noise that is rounded to float32 once it is scaled lies on a lattice that halves the grid's cells:
half of what lies between two cells then goes to the even one (ties). So even multiples are counted
too, of which there should be half.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from userdp.training.checks import surprise
from userdp.training.checks.check import Check, Measured
from userdp.training.checks.noise_drawn import Floats, calls, zeros
from userdp.training.checks.subject import Subject

_STD = 1.37
"""Not near a power of two, so that cells of the grid hold 2.9 times a power of two of them."""
_GRID = 2.0**-20
"""The grid of noise of that deviation, as docs/concepts/noise.md states it."""
_ENOUGH, _MOST = 1 << 15, 1 << 18
_IMPOSSIBLE = -20.0
"""Nats for a cell that holds no float32 number at all."""


def _measure(subject: Subject) -> Iterator[Measured]:
    released = _released(subject)
    off = released / _GRID
    yield Measured(
        what="how many released numbers lie off the public grid",
        value=float((off != np.rint(off)).sum()),
        bound=0,
    )
    yield Measured(
        what="what an attack gains that counts float32 numbers in the grid's cells, in nats",
        value=lattice_gain(released),
        bound=surprise.MOST,
    )
    far = off[np.abs(released) >= _STD]
    even = int((np.rint(far) % 2 == 0).sum())
    yield Measured(
        what=f"how surprising it is that {even:,} of {len(far):,} released numbers are even "
        "multiples of the grid, in nats",
        value=surprise.of_count(even, len(far), 0.5),
        bound=surprise.MOST,
    )


def _released(subject: Subject) -> Floats:
    """What a source makes of zeros; of a law with memory its first step."""
    source, parts = subject.noise(), list[Floats]()
    count = sum(value.numel() for value in zeros(subject, _MOST).values())
    for _ in range(1 if subject.law.memory else calls(subject, count, _ENOUGH)):
        value = zeros(subject, _MOST)
        source.add_(value, _STD)
        parts += [v.cpu().numpy().ravel() for v in value.values()]
    return np.concatenate(parts)


def lattice_gain(released: Floats) -> float:
    """The gain of the attack, in nats; see the module."""
    cells = np.abs(np.rint(released / _GRID))
    below, above = (cells - 0.5) * _GRID / _STD, (cells + 0.5) * _GRID / _STD
    # Within one binade, and not so near to 0 that a cell holds thousands.
    octave = np.floor(np.log2(np.maximum(below, 1e-9)))
    told = (below >= 0.25) & (above < 2.0 ** (octave + 1)) & (above < 16)
    below, above, octave = below[told], above[told], octave[told]
    inside = _place(above) - _place(below)
    expected = (above - below) / 2.0 ** (octave - 23)
    gain = np.full(len(inside), _IMPOSSIBLE)
    some = inside > 0
    gain[some] = np.log(inside[some] / expected[some])
    return float(gain.sum())


def _place(values: Floats) -> Floats:
    """The number of the least float32 number that is at least each of some positive values."""
    near = values.astype(np.float32)
    numbers = near.view(np.int32).astype(np.float64)
    return numbers + (near.astype(np.float64) < values)


CHECK = Check(
    name="noise's grid",
    invariant=5,
    claim="every release lies on the public grid and on no lattice of float32",
    measure=_measure,
)
