r"""White-box checks: what a run did at each step against what its plan says.

Each check is a test of the hypothesis "the step is the plan's", with a p-value that holds at every
number of steps and units (`userdp.auditing.tails`): a check flags a right run with probability at
most `LEVEL`, where it flags p-values below that. `StepAudit.false_alarm` adds them up.

noise scale
    :math:`\sum z^2` of what was added, over the claimed variance: chi-square, two-sided.
noise shape
    the Kolmogorov-Smirnov distance from the claimed Gaussian, its scale included.
noise repeated between steps
    the cosine of two steps' noise: the greatest of all pairs.
noise repeated within a step
    the same between places of one step, over all steps at once.
number drawn
    all draws of all steps: Binomial(N T, q).
size of draws
    the spread of the steps' numbers around N q: batches of a fixed size have none. Where the plan
    bounds the size of a draw, a size beyond its bounds has no p-value: a right run has none.
participation
    the spread of each unit's number of draws around T q: a shuffled pass draws everybody once.
    Where each draw has one size B, the units that consecutive steps share, which are
    hypergeometric and independent from step to step: a shuffled pass shares none.
sensitivity
    a drawn unit moved the sum by more than the clip norm. No p-value: a right run, whose clip aims
    below the norm by more than all rounding, never does.

The laws are those of exact Gaussians and fair coins. Noise is rounded to a grid of 2^-20 standard
deviations and kept here as float32, which moves a distance or a cosine by less than 1e-6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from userdp.auditing.observer import Observed
from userdp.auditing.tails import (
    BinomialSpread,
    cosine_p_value,
    cosine_threshold,
    ks_p_value,
    ks_threshold,
    two_sided,
)
from userdp.plans import Plan

LEVEL = 1e-4
_BOUND_LEVEL = 1e-3  # of the bound on ε by the noise: one minus its confidence
_LEAST_NOISE = (
    0.1  # noise multiplier; with less the accountant's bracket is often only an upper bound
)
_MOST_RATIO = 1e3  # of noise seen and claimed; beyond it next to nothing is proved
_ABSURD = 1e15  # stands for noise that is no number, which fails every check
_MOST_STEPS = 2048  # whose noise is compared in pairs: two million pairs
_MOST_SHAPE = 100_000  # numbers that are sorted
_MOVE_ROUNDING = 1e-6  # of a difference of two float32 sums
_SURE = 0.95  # of broken runs are flagged, where a check says what it would have caught


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One test of a run against its plan.

    Args:
        name: what is tested.
        p_value: of the hypothesis that the run is the plan's; None where nothing could be seen.
        flagged: it is not `LEVEL` or more (or, of the sensitivity, a bound was passed).
        false_alarm: a right run is flagged with probability at most this.
        seen: the statistic.
        expected: what a right run has, about.
        power: what this check would have caught, in words.
    """

    name: str
    p_value: float | None = None
    flagged: bool = False
    false_alarm: float = 0.0
    seen: float | None = None
    expected: float
    power: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StepAudit:
    """The results of the white-box checks. Operator-only.

    Args:
        checks: all of them.
        noise_ratio: observed over claimed standard deviation of the noise.
        worst_move: the norm of the worst canary's clipped gradient over the clip norm.
        epsilon_lower: ε of the plan's mechanism at the most noise and the move that were seen.
        confidence: of ``epsilon_lower``, which takes the noise for Gaussian and the draws for the
            plan's; other checks test both.
        detectable_noise_ratio: noise of at most so much of the claimed would have been flagged in
            95% of runs.
        detectable_epsilon: the ε of a run with that much noise: the least excess that is caught.
        flagged: the names of the checks that failed.
        false_alarm: a right run fails a check, or proves more ε than its own, with at most this
            probability. A union bound: the checks' own probabilities and that of
            ``epsilon_lower``, whichever of them depend on one another.
    """

    checks: tuple[Check, ...]
    noise_ratio: float
    worst_move: float
    epsilon_lower: float
    confidence: float
    detectable_noise_ratio: float
    detectable_epsilon: float
    flagged: tuple[str, ...]
    false_alarm: float


def audit_steps(seen: Observed, plan: Plan, *, worst_move: float) -> StepAudit:
    """Hold every observed step against the plan.

    Args:
        seen: all steps of one run, two at least.
        plan: what the run claims; the accounted draws, whatever the sampler calls itself.
        worst_move: the greatest norm of a canary's clipped gradient over the clip norm.
    """
    noise = np.nan_to_num(np.stack(seen.noise), nan=_ABSURD, posinf=_ABSURD, neginf=-_ABSURD)
    moves = np.nan_to_num(np.array(seen.moves, dtype=np.float64), nan=_ABSURD, posinf=_ABSURD)
    ratio, upper, scale = _scale(noise)
    detectable = _detectable_ratio(noise.size)
    move = max([worst_move, *moves[moves < _ABSURD].tolist()])  # what is no number proves no ε

    def epsilon_at(noise_ratio: float) -> float:
        if noise_ratio > _MOST_RATIO or not plan.sampling.covered:
            return 0.0
        # More noise than was seen gives less: still a lower bound, and one that can be computed.
        noise_multiplier = max(_LEAST_NOISE, plan.noise.multiplier * noise_ratio)
        mechanism = plan.mechanism.with_noise_multiplier(noise_multiplier)
        return float(mechanism.with_steps(len(noise)).epsilon(plan.budget.target_delta).lower)

    checks = (
        scale,
        _shape(noise),
        _greatest_cosine("between steps", noise[:_MOST_STEPS], "the first {} steps"),
        _greatest_cosine("within a step", _places(noise, seen.parts), "{} places"),
        *participation_checks(
            seen.cohorts,
            population=seen.population,
            probability=plan.sampling.chance(seen.population),
            sizes=plan.sampling.sizes(seen.population),
        ),
        _sensitivity(moves),
    )
    return StepAudit(
        checks=checks,
        noise_ratio=ratio,
        worst_move=move,
        epsilon_lower=epsilon_at(upper / move) if move > 0 else 0.0,
        confidence=1 - _BOUND_LEVEL,
        detectable_noise_ratio=detectable,
        detectable_epsilon=epsilon_at(detectable),
        flagged=tuple(check.name for check in checks if check.flagged),
        false_alarm=math.fsum(check.false_alarm for check in checks) + _BOUND_LEVEL,
    )


def _tested(name: str, p: float, *, seen: float, expected: float, power: str) -> Check:
    """A check by its p-value. A p-value that is not a number is flagged."""
    return Check(
        name=name,
        p_value=p,
        flagged=not p >= LEVEL,
        false_alarm=LEVEL,
        seen=seen,
        expected=expected,
        power=power,
    )


def _blind(name: str, why: str, *, expected: float) -> Check:
    """A check that nothing can fail."""
    return Check(name=name, expected=expected, power="none: " + why)


def _scale(noise: NDArray[np.float32]) -> tuple[float, float, Check]:
    """Observed over claimed σ, its upper confidence bound, and the check."""
    count = noise.size
    square = float(np.square(noise, dtype=np.float64).sum())
    p = two_sided(float(stats.chi2.cdf(square, count)), float(stats.chi2.sf(square, count)))
    upper = math.sqrt(square / float(stats.chi2.ppf(_BOUND_LEVEL, count)))
    ratio = math.sqrt(square / count)
    power = f"noise of {_detectable_ratio(count):.4f} times the claimed or less, in 95% of runs"
    return ratio, upper, _tested("noise scale", p, seen=ratio, expected=1.0, power=power)


def _detectable_ratio(count: int) -> float:
    """The σ ratio r with P[r² χ² below the rejection threshold] = 0.95."""
    threshold = float(stats.chi2.ppf(LEVEL / 2, count))
    return math.sqrt(threshold / float(stats.chi2.ppf(_SURE, count)))


def _shape(noise: NDArray[np.float32]) -> Check:
    flat = noise.reshape(-1).astype(np.float64)
    flat = flat[:: max(1, -(-len(flat) // _MOST_SHAPE))]
    law, below = special.ndtr(np.sort(flat)), np.arange(len(flat)) / len(flat)
    distance = float(np.maximum(law - below, below + 1 / len(flat) - law).max())
    # The empirical function is within the second threshold of the true one in 95% of runs.
    caught = ks_threshold(LEVEL, len(flat)) + ks_threshold(1 - _SURE, len(flat))
    return _tested(
        "noise shape",
        ks_p_value(distance, len(flat)),
        seen=distance,
        expected=0.87 / math.sqrt(len(flat)),
        power=f"a distribution function off by {caught:.4f} or more, in 95% of runs",
    )


def _places(noise: NDArray[np.float32], parts: list[tuple[int, int]]) -> NDArray[np.float32]:
    """All steps' noise at each of the widest places: float32 (places, steps x width)."""
    width = max(end - start for start, end in parts)
    whole = [noise[:, start:end].reshape(-1) for start, end in parts if end - start == width]
    return np.stack(whole)


def _greatest_cosine(where: str, noise: NDArray[np.float32], rows_are: str) -> Check:
    """Are any two rows alike, or opposite? By the greatest cosine of a pair."""
    name, (count, dimension) = f"noise repeated {where}", noise.shape
    what = f"of {rows_are.format(count)}"
    pairs = count * (count - 1) // 2
    if not pairs:
        return _blind(name, f"there is no pair {what}", expected=0.0)
    rows = noise.astype(np.float64)
    units = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    most = float(np.abs((units @ units.T)[np.triu_indices(count, 1)]).max())
    threshold = cosine_threshold(LEVEL, dimension=dimension, pairs=pairs)
    return _tested(
        name,
        cosine_p_value(most, dimension=dimension, pairs=pairs),
        seen=most,
        expected=min(1.0, math.sqrt(2 * math.log(2 * pairs) / dimension)),
        power=f"a pair {what} whose cosine is beyond {threshold:.4f}"
        if threshold < 1
        else "none: two numbers alone always point the same way or opposite ways",
    )


def participation_checks(
    cohorts: list[NDArray[np.int64]],
    *,
    population: int,
    probability: float,
    sizes: tuple[int, int] | None = None,
) -> tuple[Check, ...]:
    """Are the draws independent coins of this probability? See the module's docstring.

    A cap on the draw changes the law of the coins by less than what δ pays for it, which is far
    below `LEVEL`: they are tested as if there were none, and the cap by itself.

    Args:
        cohorts: per step, distinct numbers of units, each in [0, population).
        population: N.
        probability: q.
        sizes: the fewest and the most units of a draw; any number up to N by default.
    """
    steps, q = len(cohorts), probability
    drawn_sizes = np.array([len(cohort) for cohort in cohorts], dtype=np.int64)
    fewest, most = (0, population) if sizes is None else sizes
    bounds = () if (fewest, most) == (0, population) else (_bounded(drawn_sizes, fewest, most),)
    if fewest == most:
        return (*bounds, _shared(cohorts, population=population, size=most))
    drawn = np.concatenate(cohorts) if cohorts else np.zeros(0, dtype=np.int64)
    counts = np.bincount(drawn, minlength=population).astype(np.int64)
    return (
        *bounds,
        _number(int(drawn_sizes.sum()), trials=population * steps, probability=q),
        _dispersion("size of draws", drawn_sizes, trials=population, probability=q, broken=0.0),
        _dispersion(
            "participation",
            counts,
            trials=steps,
            probability=q,
            broken=_shuffled_spread(steps * q),
        ),
    )


def _bounded(sizes: NDArray[np.int64], fewest: int, most: int) -> Check:
    """No draw is smaller or larger than the plan's sampling allows."""
    outside = np.maximum(fewest - sizes, sizes - most)
    return Check(
        name="bounds of draws",
        flagged=bool((outside > 0).any()),
        seen=float(max(outside.max(initial=0), 0)),
        expected=0.0,
        power=f"any of {len(sizes)} draws of fewer than {fewest} or more than {most} units",
    )


def _shared(cohorts: list[NDArray[np.int64]], *, population: int, size: int) -> Check:
    """Do consecutive draws of B units share as many as independent ones do?

    Given one draw, the number that the next one shares with it is hypergeometric with mean B²/N,
    whatever the one was, so that the numbers are independent. Their sum S over m = (T - 1)·B trials
    of chance p = B/N is no further spread than a binomial number (Hoeffding 1963, Theorem 4), so
    that P[S beyond s] <= e^{-m KL(s/m, p)} on either side.
    """
    name, pairs = "participation", len(cohorts) - 1
    if pairs < 1 or not 0 < size < population:
        return _blind(name, "everybody joins every step, or there is one step", expected=0.0)
    shared = sum(len(np.intersect1d(one, other)) for one, other in pairwise(cohorts))
    trials, chance = pairs * size, size / population
    part = shared / trials
    distance = float(special.rel_entr(part, chance) + special.rel_entr(1 - part, 1 - chance))
    return _tested(
        name,
        min(1.0, 2 * math.exp(-trials * distance)),
        seen=float(shared),
        expected=trials * chance,
        power=f"units shared by {pairs} pairs of draws: shuffled batches of so many share none"
        + ("" if trials * -math.log1p(-chance) > math.log(2 / LEVEL) else ", which it cannot tell"),
    )


def _number(total: int, *, trials: int, probability: float) -> Check:
    """All draws of all steps: one binomial number, whose law is known."""
    name, expected = "number drawn", trials * probability
    if not trials:
        return _blind(name, "nobody could be drawn", expected=0.0)
    law = stats.binom(trials, probability)
    fewest = int(law.ppf(LEVEL / 2)) - 1  # P[X <= fewest] < LEVEL / 2
    most = int(law.isf(LEVEL / 2)) + 1  # P[X >= most] <= LEVEL / 2

    # P[X <= fewest] = 1 - I_q(fewest + 1, N - fewest) is 95% at the one, P[X >= most] at the other
    low, high = 0.0, 1.0
    if fewest >= 0:
        low = float(special.betaincinv(fewest + 1, trials - fewest, 1 - _SURE))
    if most <= trials:
        high = float(special.betaincinv(most, trials - most + 1, _SURE))
    return _tested(
        name,
        two_sided(float(law.cdf(total)), float(law.sf(total - 1))),
        seen=float(total),
        expected=expected,
        power=f"a probability of {low:.4g} or less, or {high:.4g} or more, in 95% of runs",
    )


def _shuffled_spread(expected: float) -> float:
    """Mean (n - c)² of a unit's number of draws n when passes are shuffled; c as in the check."""
    part = expected - math.floor(expected)  # of the units are drawn once more than the others
    centre = round(2 * expected) / 2 - math.floor(expected)
    return (1 - part) * centre**2 + part * (1 - centre) ** 2


def _dispersion(
    name: str, numbers: NDArray[np.int64], *, trials: int, probability: float, broken: float
) -> Check:
    """The spread of independent Binomial(trials, probability) numbers, by `BinomialSpread`."""
    if not (len(numbers) and trials and 0 < probability < 1):
        return _blind(name, "everybody joins every step", expected=1.0)
    law = BinomialSpread(count=len(numbers), trials=trials, probability=probability)
    spread, expected = law.total(numbers), max(law.squares(law.mean), 1e-30)
    threshold = law.lower_threshold(LEVEL / 2)
    lowest = law.squares(threshold) / expected if threshold >= 0 else -1.0
    fixed = broken * len(numbers) / expected
    caught = f"a spread of {lowest:.3f} of the claimed or less"
    power = caught if threshold >= 0 else "no small spread, in so few numbers"
    power += f"; fixed or shuffled batches have {fixed:.3f}"
    power += "" if fixed <= lowest else ", which it cannot tell"
    return _tested(
        name,
        law.p_value(spread),
        seen=law.squares(spread) / expected,
        expected=1.0,
        power=power,
    )


def _sensitivity(moves: NDArray[np.float64]) -> Check:
    return Check(
        name="sensitivity",
        flagged=bool((moves > 1 + _MOVE_ROUNDING).any()),
        seen=float(moves.max()) if len(moves) else None,
        expected=1.0,
        power=f"any of {len(moves)} drawn units that moves a sum by more than the clip norm",
    )
