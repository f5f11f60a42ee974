"""What the worst adversary reaches who chooses each next release, and when to stop, by outputs.

An oracle of its own: it shares no code with `userdp.accounting`. A release is a pair of laws
(P, Q); all that the adversary knows is L = log P/Q of everything so far. At the end he is paid
(1 - e^{ε - L})₊ under P, whose mean is the hockey-stick divergence at ε, so that his best mean over
all ways to choose is the least δ with which (ε, δ) holds for them all. Backward induction finds it:

    V(L, state) = max over what he may do of E_P[V(L + ℓ, state after it)], or his pay, if he stops.

**Error.** L is kept on a grid of step `STEP`. Each loss is a cell of the grid; moving its mass to
the cell's upper end can only raise V, which rises with L, and to its lower end only lower it. So
the two runs bracket the truth, up to `ROUNDING`: mass beyond the ends of a law (1e-14 each) is put
at infinity or at the end, and convolutions by FFT err by about 1e-15 of the largest value, 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.signal import fftconvolve
from scipy.special import ndtr

STEP = 4e-3
LOW, HIGH = -14.0, 22.0
ROUNDING = 1e-11
GRID = np.arange(round(LOW / STEP), round(HIGH / STEP) + 1) * STEP


@dataclass(frozen=True)
class Law:
    """The law of a release's loss ℓ = log P/Q under P, on the grid, both ways rounded.

    ``first`` is the cell number of the first weight's upper end; ``beyond`` the mass that the grid
    leaves out.
    """

    first: int
    weights: np.ndarray
    beyond: float = 0.0

    def then(self, values, *, upwards):
        """E[V(L + ℓ)] for every L of the grid; outside of it V is its value at the end, or 1."""
        first = self.first if upwards else self.first - 1
        count = len(self.weights)
        before, after = max(0, -first), max(0, first + count - 1)
        top = 1.0 if upwards else values[-1]
        padded = np.concatenate([np.full(before, values[0]), values, np.full(after, top)])
        if not upwards and before:
            padded[:before] = 0.0
        start = before + first
        window = padded[start : start + len(values) + count - 1]
        mean = fftconvolve(window, self.weights[::-1], mode="valid")
        return np.clip(mean + (self.beyond if upwards else 0.0), 0.0, 1.0)


def from_cdf(cdf, low, high):
    """Of a loss with this distribution function under P, which has next to nothing outside."""
    first, last = math.floor(low / STEP), math.ceil(high / STEP)
    at = cdf(np.arange(first, last + 1) * STEP)
    weights = np.diff(at)
    weights[0] += at[0]
    return Law(first + 1, np.maximum(weights, 0.0), beyond=max(0.0, 1.0 - float(at[-1])))


@cache
def sampled(q, sigma, *, remove):
    """One step of a Gaussian with sampling, to add or to remove a user; q = 1 is full batch.

    x ~ N(0, σ²) or the mixture. ℓ(x) = log(1 - q + q e^{(2x-1)/2σ²}) and its negative.
    """

    def x_of(loss):
        inner = (np.exp(loss) - (1 - q)) / q
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(inner > 0, sigma**2 * np.log(np.maximum(inner, 1e-300)) + 0.5, -np.inf)

    def mixture(x):
        return (1 - q) * ndtr(x / sigma) + q * ndtr((x - 1) / sigma)

    far = 1 + 7.7 * sigma
    high = math.log1p(q * math.expm1((2 * far - 1) / (2 * sigma**2)))
    low = math.log(max(1 - q, 1e-300) + q * math.exp((2 * (-7.7 * sigma) - 1) / (2 * sigma**2)))
    if remove:
        return from_cdf(lambda loss: mixture(x_of(loss)), low, high)
    return from_cdf(lambda loss: 1 - ndtr(x_of(-loss) / sigma), -high, -low)


@cache
def answer(pure):
    """Randomised response: the dominating pair of every (ε, 0)-DP answer."""
    likely, cells = 1 / (1 + math.exp(-pure)), math.ceil(pure / STEP - 1e-9)
    # Upwards both losses go up by less than a cell: -ε to -cells + 1, ε to cells.
    weights = np.zeros(2 * cells)
    weights[0], weights[-1] = 1 - likely, likely
    return Law(-cells + 1, weights)


def pay(epsilon):
    """What he gets who stops at L."""
    return np.maximum(-np.expm1(epsilon - GRID), 0.0)


def worst(start, moves, payment):
    """Lower and upper bound of the adversary's best mean pay.

    Args:
        start: the state that he begins in.
        moves: of a state, the releases that he may choose, and the state after each.
        payment: of a state, the ε that is claimed if he stops there.
    """
    bounds = []
    for upwards in (False, True):

        @cache
        def value(state, upwards=upwards):
            best = pay(payment(state))
            for law, after in moves(state):
                best = np.maximum(best, law.then(value(after), upwards=upwards))
            return best

        bounds.append(float(value(start)[np.searchsorted(GRID, -STEP / 2)]))
    return max(0.0, bounds[0] - ROUNDING), bounds[1] + ROUNDING
