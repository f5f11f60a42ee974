r"""The lattice attack on noise in float32: which of two clean sums does one noisy release tell?

The attacker knows the release y = grid·round((s + σ z)/grid) and that s is one of two vectors. For
each candidate s and each number it counts the float32 values v whose σv lies in the cell of y - s,
and weighs each by the width between float32 values there: the probability that float32 noise gives
to the cell, over that of a Gaussian. The sum of the logarithms' differences is the gain, in nats,
in favour of the truth, that float32's lattice adds to what a Gaussian tells anyway.

If z is not on that lattice, both candidates' counts are those of arbitrary cells: the gain has mean
0, and its standard error is that of a sum of independent numbers. Float32 noise in 1e6 numbers at
σ = 1.5 gains thousands of nats.

Source: the idea is that of Mironov 2012, "On significance of the least significant bits".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STDS = (1.5, 0.7, 13.37)
"""Deviations that are no powers of two: σ over the grid's cell is then no whole number."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What the lattice told.

    Args:
        nats: log-likelihood ratio in favour of the truth.
        standard_error: of ``nats``, if the noise is on no such lattice.
    """

    nats: float
    standard_error: float

    @property
    def errors(self) -> float:
        """The gain in standard errors; within ±4 for noise that tells nothing this way."""
        return self.nats / self.standard_error


def grid_of(std: float) -> float:
    """The public grid, written down anew: the power of two that is at most 2^-20 ``std``."""
    return float(2.0 ** (math.floor(math.log2(std)) - 20))


def candidates(count: int, *, l2_distance: float = 1.0) -> tuple[Floats, Floats]:
    """Two clean sums with one user's clipped gradient between them: nobody's, and some float64."""
    direction = np.random.default_rng(11).standard_normal(count)
    return np.zeros(count), direction * (l2_distance / math.sqrt(count))


def lattice_gain(release: Floats, *, truth: Floats, other: Floats, std: float) -> Gain:
    """What counting float32 values tells of ``truth`` against ``other``.

    Args:
        release: float64 (numbers,), on `grid_of` ``std``.
        truth: the clean sum.
        other: another one, of the same shape.
        std: of the noise.
    """
    gains = _log_excess(release, truth, std) - _log_excess(release, other, std)
    return Gain(
        nats=float(gains.sum()),
        standard_error=float(gains.std() * math.sqrt(len(gains))),
    )


def _log_excess(release: Floats, clean: Floats, std: float) -> Floats:
    """log of the width that the float32 values that lead to ``release`` stand for, over its cell's.

    If ``clean`` were the clean sum.
    """
    grid = grid_of(std)
    cell = np.rint(release / grid)
    count = _first_in(cell + 1, clean, std) - _first_in(cell, clean, std)
    centre = ((release - clean) / std).astype(np.float32)
    width = np.spacing(np.abs(centre)).astype(np.float64)
    # A cell without a value is impossible; a quarter keeps one mistake of ours from deciding all.
    found: Floats = np.log(np.maximum(count, 0.25) * width * (std / grid))
    # Near 0 a cell holds hundreds of values of several widths, which tell nothing.
    found[np.abs(centre) < 2.0**-6] = 0.0
    return found


def _first_in(cell: Floats, clean: Floats, std: float) -> NDArray[np.int64]:
    """The place, among all float32 values, of the first that the mechanism rounds to ``cell``.

    Values on the edge of two cells go where the mechanism's own rounding puts them: at σ = 1.5 a
    third of the edges are values, if the clean sum is on the grid.
    """
    grid = grid_of(std)
    near = _place((((cell - 0.5) * grid - clean) / std).astype(np.float32))
    below = sum(
        (np.rint((clean + std * _value(near + k).astype(np.float64)) / grid) < cell).astype(
            np.int64
        )
        for k in range(-2, 3)
    )
    found: NDArray[np.int64] = near - 2 + below
    return found


def _place(x: NDArray[np.float32]) -> NDArray[np.int64]:
    """How many float32 values lie between 0 and x, below 0 as a negative number."""
    bits = x.view(np.int32).astype(np.int64)
    found: NDArray[np.int64] = np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))
    return found


def _value(place: NDArray[np.int64]) -> NDArray[np.float32]:
    """The inverse of `_place`."""
    size = np.abs(place).astype(np.int32).view(np.float32)
    found: NDArray[np.float32] = np.where(place >= 0, size, -size)
    return found


def float32_release(clean: Floats, std: float, *, seed: int) -> Floats:
    """The broken twin: float32 noise, added and rounded to the grid in float64."""
    import torch

    generator: Any = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(clean), generator=generator, dtype=torch.float32).double().numpy()
    grid = grid_of(std)
    found: Floats = np.rint((clean + std * noise) / grid) * grid
    return found
