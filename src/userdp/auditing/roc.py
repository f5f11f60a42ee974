"""How well a score tells members from others: ROC, AUC and its interval, TPR at low FPR."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from userdp.errors import UseError

_POINTS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Roc:
    """Members told from others by one score. Operator-only.

    Args:
        members: how many.
        others: how many.
        auc: probability that a member scores above another person; ties count half.
        auc_low: of the bootstrap interval.
        auc_high: of the bootstrap interval.
        confidence: of that interval.
        tpr_at_low_fpr: members found where at most ``low_fpr`` of the others are.
        low_fpr: by default 1%.
        curve: (false positive rate, true positive rate), at most 200 points.
        at_chance: whether 0.5 lies within the interval.
    """

    members: int
    others: int
    auc: float
    auc_low: float
    auc_high: float
    confidence: float
    tpr_at_low_fpr: float
    low_fpr: float
    curve: tuple[tuple[float, float], ...]
    at_chance: bool


def area(members: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """The AUC: (Mann and Whitney's U) / (members x others).

    >>> area(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    ranks = rankdata(np.concatenate([members, others]))
    n = len(members)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * len(others)))


def roc(
    members: NDArray[np.float64],
    others: NDArray[np.float64],
    *,
    low_fpr: float = 0.01,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Roc:
    """ROC of a score that is greater for members.

    The interval is a percentile bootstrap: people of both sides are drawn anew, with replacement.

    Raises:
        UseError: fewer than two people on a side.
    """
    if min(len(members), len(others)) < 2:
        raise UseError("two members and two others at least are needed to tell them apart")
    draw = np.random.default_rng(seed)
    areas = [
        area(draw.choice(members, len(members)), draw.choice(others, len(others)))
        for _ in range(resamples)
    ]
    tail = (1 - confidence) / 2
    low, high = np.quantile(areas, [tail, 1 - tail])
    thresholds = np.array([np.inf, *np.unique(np.concatenate([members, others]))[::-1]])
    fpr, tpr = _reaching(others, thresholds), _reaching(members, thresholds)
    kept = np.unique(np.linspace(0, len(fpr) - 1, _POINTS).astype(int))
    return Roc(
        members=len(members),
        others=len(others),
        auc=area(members, others),
        auc_low=float(low),
        auc_high=float(high),
        confidence=confidence,
        tpr_at_low_fpr=float(tpr[fpr <= low_fpr].max()),
        low_fpr=low_fpr,
        curve=tuple(zip(fpr[kept].tolist(), tpr[kept].tolist(), strict=True)),
        at_chance=bool(low <= 0.5 <= high),
    )


def _reaching(values: NDArray[np.float64], thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The part of ``values`` at or above each threshold."""
    below = np.searchsorted(np.sort(values), thresholds, side="left")
    part: NDArray[np.float64] = (len(values) - below) / len(values)
    return part
