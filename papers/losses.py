r"""Intervals of means and of differences between cells of one design.

Two runs of a cell say little about how runs scatter; several cells together say more. So the
standard deviation is *pooled* over the cells of a design that share a text, a base and an ε (the
root of the mean of their variances, weighted by degrees of freedom). That these scatter alike is
assumed. Cells of different ε are not pooled: more noise scatters runs more. Intervals are
Student's with those degrees of freedom, or with Welch and Satterthwaite's where a difference has
cells of several ε. Of several differences of one question the family's level is kept by Holm's
step-down rule (`holm`).
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy import stats

Row = Mapping[str, Any]
TUNE = "tune"
"""What a run that only helped to choose a learning rate is called."""
Fields = Mapping[str, Any]
"""The fields of a setting that name a cell, with their values."""
Pool = tuple[str, str, float | None]
"""A text, a base and an ε (None: without privacy), whose cells' runs are taken to scatter alike."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A number with its interval.

    Args:
        value: the estimate.
        low: of the 95% interval.
        high: of it.
        p: of the two-sided test that the number is zero, or the limit that it was asked about; 1
            where nothing can be told.
    """

    value: float
    low: float
    high: float
    p: float = 1.0

    def __str__(self) -> str:
        return f"{self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"

    def corrected(self, others: int, *, limit: float = 0.0) -> Estimate:
        """This difference from the best of so many others, which is the luckiest of them, too.

        So above the limit its p is Bonferroni's.
        """
        return replace(self, p=min(1.0, self.p * others)) if self.value > limit else self


class Losses:
    """The measured losses of a design's cells.

    Args:
        rows: of one design; those that chose learning rates are left out.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._cells: dict[str, list[float]] = {}
        self._settings: dict[str, Mapping[str, Any]] = {}
        for row in rows:
            if row["key"]["run"] != TUNE:
                name = json.dumps(row["key"]["setting"], sort_keys=True)
                self._cells.setdefault(name, []).append(float(row["loss"]))
                self._settings[name] = row["key"]["setting"]
        self._pooled: dict[Pool, tuple[float, int]] = {}

    def settings(self, **fields: Any) -> list[Mapping[str, Any]]:
        """The settings of the cells that have these fields, in the order of their first rows."""
        return [s for s in self._settings.values() if _has(s, fields)]

    def runs(self, **fields: Any) -> list[float]:
        """The losses of the one cell that has these fields.

        Raises:
            LookupError: no cell has them, or several do.
        """
        names = [name for name, s in self._settings.items() if _has(s, fields)]
        if len(names) != 1:
            raise LookupError(f"{len(names)} cells have {fields}")
        return self._cells[names[0]]

    def pooled(self, pool: Pool) -> tuple[float, int]:
        """The variance of a run of this text, base and ε, and its degrees of freedom."""
        if pool not in self._pooled:
            squares, freedom = 0.0, 0
            for name, losses in self._cells.items():
                if _pool(self._settings[name]) == pool and len(losses) > 1:
                    squares += statistics.variance(losses) * (len(losses) - 1)
                    freedom += len(losses) - 1
            self._pooled[pool] = (squares / freedom if freedom else math.inf, freedom)
        return self._pooled[pool]

    def mean(self, **fields: Any) -> Estimate:
        """The mean loss of the one cell that has these fields."""
        return self.contrast([(1.0, fields)])

    def difference(self, one: Fields, other: Fields, *, limit: float = 0.0) -> Estimate:
        """The mean loss of ``one`` less that of ``other``; below zero: ``one`` is better."""
        return self.contrast([(1.0, one), (-1.0, other)], limit=limit)

    def contrast(self, parts: Sequence[tuple[float, Fields]], *, limit: float = 0.0) -> Estimate:
        """A sum of mean losses of cells of one text, each times its weight.

        Args:
            parts: weights, and fields of the cells.
            limit: the number whose test ``p`` is of.
        """
        value = 0.0
        scales: dict[Pool, float] = {}
        for weight, fields in parts:
            runs = self.runs(**fields)
            value += weight * statistics.fmean(runs)
            pool = _pool(self.settings(**fields)[0])
            scales[pool] = scales.get(pool, 0.0) + weight**2 / len(runs)
        known = [(scale, *self.pooled(pool)) for pool, scale in scales.items()]
        if not all(freedom for _, _, freedom in known):
            return Estimate(value=value, low=-math.inf, high=math.inf)
        square = sum(scale * variance for scale, variance, _ in known)
        if square == 0:
            return Estimate(value=value, low=value, high=value)
        freedom = square**2 / sum((scale * each) ** 2 / own for scale, each, own in known)
        error = math.sqrt(square)
        half = float(stats.t.ppf(0.975, freedom)) * error
        p = float(2 * stats.t.sf(abs(value - limit) / error, freedom))
        return Estimate(value=value, low=value - half, high=value + half, p=p)


def _pool(setting: Mapping[str, Any]) -> Pool:
    return setting["text"], setting["base"], setting["epsilon"]


def _has(setting: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    return all(setting[name] == value for name, value in fields.items())


def holm(estimates: Sequence[Estimate], level: float = 0.05) -> list[bool]:
    """Which of several differences are told from zero, or from their limits.

    All errors together stay at ``level``.

    Source: Holm 1979.

    >>> ps = [0.001, 0.04, 0.03]
    >>> holm([Estimate(value=1, low=0, high=2, p=p) for p in ps])
    [True, False, False]
    """
    order = sorted(range(len(estimates)), key=lambda i: estimates[i].p)
    told = [False] * len(estimates)
    for rank, index in enumerate(order):
        if not estimates[index].p <= level / (len(estimates) - rank):
            break
        told[index] = True
    return told
