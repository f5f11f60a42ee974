r"""White-box checks: what a run did at each step against what its plan says. Numbers alone.

Each check is a test of the hypothesis "the step is the plan's", with a p-value; one below
`LEVEL` flags the run. Right runs are flagged with probability at most ``7 * LEVEL``.

noise scale
    :math:`\sum z^2` of what was added, over the claimed variance: chi-square, two-sided.
noise shape
    Kolmogorov-Smirnov against a Gaussian.
noise repeated between steps
    the inner product of two steps' noise, over its standard deviation: the greatest of all pairs.
noise repeated within a step
    the same between places of one step, summed over the steps.
number drawn
    all draws of all steps: Binomial(N T, q).
size of draws
    the spread of the steps' numbers around N q: batches of a fixed size have none.
participation
    the spread of each unit's number of draws around T q: a shuffled pass draws everybody once.
sensitivity
    a drawn unit moved the sum by more than the clip norm. No p-value: once is enough.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from userdp.auditing.observer import Observed
from userdp.plan import Plan

LEVEL = 1e-4
_BOUND_LEVEL = 1e-3
_LEAST_NOISE = 0.1
_MOST_STEPS = 2048
_MOST_SHAPE = 100_000
_MOVE_ROUNDING = 1e-6
_SURE = 3.9 + 1.64  # standard deviations: flagged at `LEVEL`, in 95% of runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One test of a run against its plan.

    Args:
        name: what is tested.
        p_value: of the hypothesis that the run is the plan's; None where nothing could be seen.
        flagged: it is below `LEVEL` (or, of the sensitivity, a bound was passed).
        seen: the statistic.
        expected: what a right run has, about.
        power: what this check would have caught, in words.
    """

    name: str
    p_value: float | None
    flagged: bool
    seen: float | None
    expected: float
    power: str

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepAudit:
    """What the white-box checks found. Operator-only.

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
    """

    checks: tuple[Check, ...]
    noise_ratio: float
    worst_move: float
    epsilon_lower: float
    confidence: float
    detectable_noise_ratio: float
    detectable_epsilon: float

    @property
    def flagged(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(check.name for check in self.checks if check.flagged)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            **asdict(self),
            "checks": [check.to_dict() for check in self.checks],
            "flagged": list(self.flagged),
        }


def audit_steps(seen: Observed, plan: Plan, *, worst_move: float) -> StepAudit:
    """Hold every observed step against the plan.

    Args:
        seen: all steps of one run, two at least.
        plan: what the run claims; the accounted draws, whatever the sampler calls itself.
        worst_move: the greatest norm of a canary's clipped gradient over the clip norm.
    """
    noise = np.stack(seen.noise)
    ratio, upper, scale = _scale(noise)
    detectable = _detectable_ratio(noise.size)
    move = max([worst_move, *seen.moves])

    def epsilon_at(noise_ratio: float) -> float:
        # More noise than was seen gives less: still a lower bound, and one that can be computed.
        noise_multiplier = max(_LEAST_NOISE, plan.noise_multiplier * noise_ratio)
        mechanism = plan.mechanism.with_noise_multiplier(noise_multiplier)
        return float(mechanism.with_steps(len(noise)).epsilon(plan.target_delta).lower)

    return StepAudit(
        checks=(
            scale,
            _shape(noise),
            _between_steps(noise),
            _within_steps(noise, seen.parts),
            *participation_checks(
                seen.cohorts, population=seen.population, probability=plan.sampling_probability
            ),
            _sensitivity(seen.moves),
        ),
        noise_ratio=ratio,
        worst_move=move,
        epsilon_lower=epsilon_at(upper / move) if move > 0 else 0.0,
        confidence=1 - _BOUND_LEVEL,
        detectable_noise_ratio=detectable,
        detectable_epsilon=epsilon_at(detectable),
    )


def _two_sided(lower: float, upper: float) -> float:
    return float(min(1.0, 2 * min(lower, upper)))


def _scale(noise: NDArray[np.float32]) -> tuple[float, float, Check]:
    """Observed over claimed σ, its upper confidence bound, and the check."""
    count = noise.size
    square = float(np.square(noise, dtype=np.float64).sum())
    p = _two_sided(stats.chi2.cdf(square, count), stats.chi2.sf(square, count))
    upper = math.sqrt(square / float(stats.chi2.ppf(_BOUND_LEVEL, count)))
    ratio = math.sqrt(square / count)
    caught = _detectable_ratio(count)
    return (
        ratio,
        upper,
        Check(
            name="noise scale",
            p_value=p,
            flagged=p < LEVEL,
            seen=ratio,
            expected=1.0,
            power=f"noise of {caught:.4f} times the claimed or less, in 95% of runs",
        ),
    )


def _detectable_ratio(count: int) -> float:
    """The σ ratio r with P[r² χ² below the rejection threshold] = 0.95."""
    threshold = float(stats.chi2.ppf(LEVEL / 2, count))
    return math.sqrt(threshold / float(stats.chi2.ppf(0.95, count)))


def _shape(noise: NDArray[np.float32]) -> Check:
    flat = noise.reshape(-1).astype(np.float64)
    flat = flat[:: max(1, -(-len(flat) // _MOST_SHAPE))]
    spread = float(flat.std()) or 1.0
    found = stats.kstest(flat / spread, "norm")
    p = float(found.pvalue)
    return Check(
        name="noise shape",
        p_value=p,
        flagged=p < LEVEL,
        seen=float(found.statistic),
        expected=0.87 / math.sqrt(len(flat)),
        power=f"a distribution function off by {2.4 / math.sqrt(len(flat)):.4f} or more",
    )


def _between_steps(noise: NDArray[np.float32]) -> Check:
    part = noise[:_MOST_STEPS].astype(np.float64)
    part /= np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-30)
    cosines = (part @ part.T)[np.triu_indices(len(part), 1)] * math.sqrt(noise.shape[1])
    return _greatest("noise repeated between steps", cosines, f"of the first {len(part)} steps")


def _within_steps(noise: NDArray[np.float32], parts: list[tuple[int, int]]) -> Check:
    width = max((end - start for start, end in parts), default=0)
    whole = [noise[:, start:end] for start, end in parts if end - start == width]
    if len(whole) < 2:
        return _greatest("noise repeated within a step", np.zeros(0), "with a single place")
    flat = np.stack([part.reshape(-1) for part in whole]).astype(np.float64)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-30)
    cosines = (flat @ flat.T)[np.triu_indices(len(flat), 1)] * math.sqrt(flat.shape[1])
    return _greatest("noise repeated within a step", cosines, f"of {len(whole)} places")


def _greatest(name: str, scores: NDArray[np.float64], what: str) -> Check:
    """The greatest of many standard normal scores, by a union bound."""
    if not len(scores):
        return Check(
            name=name, p_value=None, flagged=False, seen=None, expected=0.0, power="none: " + what
        )
    most = float(np.abs(scores).max())
    p = float(min(1.0, len(scores) * 2 * stats.norm.sf(most)))
    threshold = float(stats.norm.isf(LEVEL / (2 * len(scores))))
    return Check(
        name=name,
        p_value=p,
        flagged=p < LEVEL,
        seen=most,
        expected=math.sqrt(2 * math.log(max(2, 2 * len(scores)))),
        power=f"a pair {what} correlated beyond {threshold:.1f} standard deviations",
    )


def participation_checks(
    cohorts: list[NDArray[np.int64]], *, population: int, probability: float
) -> tuple[Check, Check, Check]:
    """Are the draws independent coins of this probability? See the module's docstring.

    Args:
        cohorts: per step, distinct numbers of units, each in [0, population).
        population: N.
        probability: q.
    """
    steps, q = len(cohorts), probability
    sizes = np.array([len(cohort) for cohort in cohorts], dtype=np.float64)
    drawn = np.concatenate(cohorts) if cohorts else np.zeros(0, dtype=np.int64)
    total = int(sizes.sum())
    p_total = _two_sided(
        float(stats.binom.cdf(total, population * steps, q)),
        float(stats.binom.sf(total - 1, population * steps, q)),
    )
    spread = math.sqrt(max(q * (1 - q), 1e-30) * population * steps)
    number = Check(
        name="number drawn",
        p_value=p_total,
        flagged=p_total < LEVEL,
        seen=float(total),
        expected=population * steps * q,
        power=f"a probability off by {_SURE * spread / (population * steps * q):.1%} or more",
    )
    counts = np.bincount(drawn, minlength=population).astype(np.float64)
    return (
        number,
        _dispersion("size of draws", sizes, trials=population, probability=q, broken=0.0),
        _dispersion(
            "participation",
            counts,
            trials=steps,
            probability=q,
            broken=_shuffled_spread(steps * q),
        ),
    )


def _shuffled_spread(expected: float) -> float:
    """Variance of a unit's number of draws when passes are shuffled: whole passes draw all once."""
    part = expected - math.floor(expected)
    return part * (1 - part)


def _dispersion(
    name: str, counts: NDArray[np.float64], *, trials: int, probability: float, broken: float
) -> Check:
    """Σ (n − m)² of independent Binomial(trials, probability) counts, by its exact two moments."""
    mean, variance = trials * probability, trials * probability * (1 - probability)
    if variance <= 0 or not len(counts):
        return Check(
            name=name,
            p_value=None,
            flagged=False,
            seen=None,
            expected=1.0,
            power="none: everybody joins every step",
        )
    fourth = variance * (1 + 3 * (trials - 2) * probability * (1 - probability))
    error = math.sqrt(max(fourth - variance**2, 1e-30) / len(counts)) / variance
    seen = float(np.square(counts - mean).mean()) / variance
    # Near-normal sums of squares have a gamma's skew; matched to both moments.
    shape = 1 / error**2
    p = _two_sided(
        float(stats.gamma.cdf(seen, shape, scale=1 / shape)),
        float(stats.gamma.sf(seen, shape, scale=1 / shape)),
    )
    lowest = float(stats.gamma.ppf(LEVEL / 2, shape, scale=1 / shape))
    sees = broken / variance < lowest
    return Check(
        name=name,
        p_value=p,
        flagged=p < LEVEL,
        seen=seen,
        expected=1.0,
        power=f"a spread of {lowest:.3f} of the claimed or less; fixed or shuffled batches have "
        f"{broken / variance:.3f}" + ("" if sees else ", which it cannot tell"),
    )


def _sensitivity(moves: list[float]) -> Check:
    most = max(moves, default=None)
    return Check(
        name="sensitivity",
        p_value=None,
        flagged=most is not None and not most <= 1 + _MOVE_ROUNDING,
        seen=most,
        expected=1.0,
        power=f"any of {len(moves)} drawn units that moves a sum by more than the clip norm",
    )
