r"""White-box checks: what a run did at each step against what its plan says.

Each check is a test of the hypothesis "the step is the plan's", with a p-value that holds at every
number of steps and units: :math:`P[p(X) \le a] \le a` for every a in [0, 1] when X comes from a
right run. So a check flags a right run with probability at most `LEVEL`, where it flags p-values
below that. `StepAudit.false_alarm` adds them up. No limit theorem is used, since a sum here may
have one term; where a law is computed with rounding, the rounding is added.

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
    how many steps' numbers are within one of N q: Binomial(T, P). Batches of one size all are.
participation
    how many units' numbers of draws are within one of T q: Binomial(N, P). In shuffled passes,
    which draw everybody once, all are; where some are favoured, too few.
    Of a plan whose every draw has one size nothing is known of these three.
sensitivity
    a drawn unit moved the sum by more than the clip norm. No p-value: a right run, whose clip aims
    below the norm by more than all rounding, never does.

The laws are those of exact Gaussians and fair coins. Noise is rounded to a grid of 2^-20 standard
deviations and kept here as float32, which moves a distance or a cosine by less than 1e-6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from userdp.auditing.observer import Observed
from userdp.plans import Plan

LEVEL = 1e-4
_BOUND_LEVEL = 1e-3  # of the bound on ε by the noise: one minus its confidence
_LEAST_NOISE = 0.1  # multiplier; with less the accountant's bracket is often only an upper bound
_MOST_RATIO = 1e3  # of noise seen and claimed; beyond it next to nothing is proved
_ABSURD = 1e15  # stands for noise that is no number, which fails every check
_MOST_STEPS = 2048  # whose noise is compared in pairs: two million pairs
_MOST_SHAPE = 100_000  # numbers that are sorted
_MOVE_ROUNDING = 1e-6  # of a difference of two float32 sums
_SURE = 0.95  # of broken runs are flagged, where a check says what it would have caught
_ROUNDING = 1e-9  # relative; far above what the sums here lose


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One test of a run against its plan.

    Args:
        name: what is tested.
        p_value: of the hypothesis that the run is the plan's; None where nothing could be seen.
        flagged: the p-value is not `LEVEL` or more: of a right run with probability at most
            `LEVEL`. Or, of the sensitivity, a bound was passed: of a right run never.
        seen: the statistic.
        expected: what a right run has, about.
        power: what this check would have caught, in words.
    """

    name: str
    p_value: float | None = None
    flagged: bool = False
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
    count, square = noise.size, float(np.square(noise, dtype=np.float64).sum())
    ratio = math.sqrt(square / count)
    upper = math.sqrt(square / float(stats.chi2.ppf(_BOUND_LEVEL, count)))
    # P[r² χ² below the rejection threshold] is 95% at this r.
    detectable = math.sqrt(float(stats.chi2.ppf(LEVEL / 2, count) / stats.chi2.ppf(_SURE, count)))
    move = max([worst_move, *moves[moves < _ABSURD].tolist()])  # what is no number proves no ε

    def epsilon_at(noise_ratio: float) -> float:
        if noise_ratio > _MOST_RATIO or not plan.sampling.covered:
            return 0.0
        # More noise than was seen gives less: still a lower bound, and one that can be computed.
        noise_multiplier = max(_LEAST_NOISE, plan.noise.multiplier * noise_ratio)
        mechanism = plan.mechanism.with_noise_multiplier(noise_multiplier)
        return float(mechanism.with_steps(len(noise)).epsilon(plan.budget.target_delta).lower)

    population, (fewest, most) = seen.population, plan.sampling.sizes(seen.population)
    chance = plan.sampling.chance(population)
    draws = participation_checks(seen.cohorts, population=population, probability=chance)
    if fewest == most:
        draws = (_tested("participation", None, 0.0, 0.0, "every draw has one size"),)
    scale = two_sided(float(stats.chi2.cdf(square, count)), float(stats.chi2.sf(square, count)))
    less = f"noise of {detectable:.4f} times the claimed or less, in 95% of runs"
    checks = (
        _tested("noise scale", scale, ratio, 1.0, less),
        _shape(noise),
        _greatest_cosine("between steps", noise[:_MOST_STEPS], "the first {} steps"),
        _greatest_cosine("within a step", _places(noise, seen.parts), "{} places"),
        *draws,
        Check(
            name="sensitivity",
            flagged=bool((moves > 1 + _MOVE_ROUNDING).any()),
            seen=float(moves.max()) if len(moves) else None,
            expected=1.0,
            power=f"any of {len(moves)} drawn units that moves a sum by more than the clip norm",
        ),
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
        false_alarm=math.fsum(LEVEL for one in checks if one.p_value is not None) + _BOUND_LEVEL,
    )


def _tested(name: str, p: float | None, seen: float, expected: float, power: str) -> Check:
    """A check by its p-value, None where nothing can be seen. One that is no number is flagged."""
    if p is None:
        return Check(name=name, expected=expected, power=f"none: {power}")
    values: dict[str, Any] = {"seen": seen, "expected": expected, "power": power}
    return Check(name=name, p_value=p, flagged=not p >= LEVEL, **values)


def _shape(noise: NDArray[np.float32]) -> Check:
    flat = noise.reshape(-1).astype(np.float64)
    flat = flat[:: max(1, -(-len(flat) // _MOST_SHAPE))]
    distance = float(stats.ks_1samp(flat, special.ndtr, method="asymp").statistic)
    # Massart's distance at the level, and that of the empirical function from the true one.
    caught = sum(math.sqrt(math.log(2 / p) / 2 / len(flat)) for p in (LEVEL, 1 - _SURE))
    power = f"a distribution function off by {caught:.4f} or more, in 95% of runs"
    p, expected = ks_p_value(distance, len(flat)), 0.87 / math.sqrt(len(flat))
    return _tested("noise shape", p, distance, expected, power)


def _places(noise: NDArray[np.float32], parts: list[tuple[int, int]]) -> NDArray[np.float32]:
    """All steps' noise at each of the widest places: float32 (places, steps x width)."""
    width = max(end - start for start, end in parts)
    whole = [noise[:, start:end].reshape(-1) for start, end in parts if end - start == width]
    return np.stack(whole)


def _greatest_cosine(where: str, noise: NDArray[np.float32], rows_are: str) -> Check:
    """Are any two rows alike, or opposite? By the greatest cosine of a pair."""
    name, (count, dimension) = f"noise repeated {where}", noise.shape
    what, pairs = f"pair of {rows_are.format(count)}", count * (count - 1) // 2
    if not pairs:
        return _tested(name, None, 0.0, 0.0, f"there is no {what}")
    rows = noise.astype(np.float64)
    units = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    most = float(np.abs((units @ units.T)[np.triu_indices(count, 1)]).max())
    p = cosine_p_value(most, dimension=dimension, pairs=pairs)
    expected = min(1.0, math.sqrt(2 * math.log(2 * pairs) / dimension))
    power = f"a {what} that is far more alike, or more opposite, than chance makes any"
    return _tested(name, p, most, expected, power)


def participation_checks(
    cohorts: list[NDArray[np.int64]], *, population: int, probability: float
) -> tuple[Check, ...]:
    """Are the draws independent coins of this probability? See the module's docstring.

    A cap on the draw changes the law of the coins by less than what δ pays for it, which is far
    below `LEVEL`: they are tested as if there were none.

    Args:
        cohorts: per step, distinct numbers of units, each in [0, population).
        population: N.
        probability: q.
    """
    steps, q = len(cohorts), probability
    drawn = np.array([len(cohort) for cohort in cohorts], dtype=np.int64)
    total, trials = int(drawn.sum()), population * steps
    law = stats.binom(trials, q)
    off = 5.5 * math.sqrt(q * (1 - q) / max(1, trials))  # 3.9 deviations flag, 1.6 more are sure
    counts = np.bincount(np.concatenate([*cohorts, []]).astype(np.int64), minlength=population)
    p = two_sided(float(law.cdf(total)), float(law.sf(total - 1))) if trials else None
    power = f"a probability that is off by {off:.2g} or more, in 95% of runs"
    return (
        _tested("number drawn", p, float(total), trials * q, power),
        _near_the_mean("size of draws", drawn, population, q),
        _near_the_mean("participation", counts, steps, q),
    )


def _near_the_mean(name: str, numbers: NDArray[np.int64], trials: int, probability: float) -> Check:
    """Are as many within one of their mean as of independent Binomial(trials, probability)?

    Args:
        name: of the check.
        numbers: what was seen.
        trials: of each number.
        probability: of each trial.
    """
    if not (len(numbers) and trials and 0 < probability < 1):
        return _tested(name, None, 1.0, 1.0, "everybody joins every step")
    mean, each = trials * probability, stats.binom(trials, probability)
    least, most = math.ceil(mean - 1), math.floor(mean + 1)
    near = float(each.cdf(most) - each.cdf(least - 1))
    seen, law = int(((least <= numbers) & (numbers <= most)).sum()), stats.binom(len(numbers), near)
    caught = min(1.0, 2 * near ** len(numbers))
    power = f"shuffled batches of one size, which have p = {caught:.2g}"
    power += "" if caught < LEVEL else " here: it cannot tell them"
    p = two_sided(float(law.cdf(seen)), float(law.sf(seen - 1)))
    return _tested(name, p, seen / len(numbers), near, power)


def two_sided(lower: float, upper: float) -> float:
    """A p-value from both tails, min(1, 2 min(P[X <= x], P[X >= x])).

    Guarantee: each half is at most a/2 with probability at most a/2, so that by a union bound the
    result is at most a with probability at most a, for discrete X too.
    """
    return float(min(1.0, 2 * min(lower, upper)))


def ks_p_value(distance: float, count: int) -> float:
    r"""Of a Kolmogorov-Smirnov distance of ``count`` independent numbers from their known law.

    .. math:: P[\sup_x |F_n(x) - F(x)| > d] \le 2 e^{-2 n d^2}

    for every n and d > 0 (Massart 1990, "The tight constant in the Dvoretzky-Kiefer-Wolfowitz
    inequality", Corollary 1). Nothing is estimated from the numbers, the scale neither: with an
    estimated scale the distance has another law.
    """
    return float(min(1.0, 2 * math.exp(-2 * count * distance**2)))


def cosine_p_value(cosine: float, *, dimension: int, pairs: int) -> float:
    r"""Of the greatest ``|cosine|`` among ``pairs`` pairs of Gaussian vectors.

    The direction of a Gaussian vector is uniform on the sphere, whatever its length, so that a
    pair's :math:`c^2` is Beta(1/2, (d - 1)/2) exactly: :math:`P[|c| \ge x] = I_{1-x^2}((d-1)/2,
    1/2)`. A union bound over the pairs makes no use of their dependence.
    """
    if dimension < 2:
        return 1.0  # two numbers always point the same way or opposite ways
    tail = float(special.betainc((dimension - 1) / 2, 0.5, min(1.0, max(0.0, 1 - cosine**2))))
    return min(1.0, pairs * tail * (1 + _ROUNDING))
