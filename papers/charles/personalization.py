"""Figure 18 of Charles et al. 2024: what models of ELS and of ULS give to held-out users."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from scipy import stats

from papers.studies.findings import Finding, Verdict
from papers.studies.intervals import Estimate, Losses, holm
from papers.studies.study import Study
from papers.table import Row

EPSILONS = (0.5, 4.0, 64.0)
SAME = 0.02
"""Nats a token within which two gains count as the same."""


class Personalization(Study):
    """Loss on the half of each held-out user that was kept back, before and after local SGD."""

    design: ClassVar[str] = "charles-personalization"
    figures: ClassVar[tuple[str, ...]] = ("charles-figure-18",)
    panel: ClassVar[tuple[str, ...]] = ("text",)
    line: ClassVar[tuple[str, ...]] = ("method",)
    x: ClassVar[str] = "epsilon"
    title: ClassVar[str] = "Loss of held-out users, before and after personalization"

    def rows(self, results: Path) -> list[Row]:
        """Two rows for each cell: without personalization, and with its best rate."""
        table = []
        for base in super().rows(results):
            own = [
                row
                for row in self.read(results)
                if all(
                    row["key"]["setting"][name] == base[name]
                    for name in ("text", "method", "epsilon")
                )
                and row["key"]["run"] != "tune"
            ]
            for personalized in (False, True):
                values = [measured(row)[personalized] for row in own]
                half = _half(values)
                mean = statistics.fmean(values)
                method = f"{base['method']}{', personalized' if personalized else ''}"
                table.append(
                    base | {"method": method, "loss": mean, "low": mean - half, "high": mean + half}
                )
        return table

    def findings(self, losses: Losses) -> list[Finding]:
        """None: losses without personalization tell nothing of it."""
        return []

    def findings_of(self, rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
        """The difference of the gains of ULS and ELS models, at each ε."""
        gaps, words = [], []
        for epsilon in EPSILONS:
            gains = {method: _gains(rows, method, epsilon) for method in ("uls", "els")}
            if min(map(len, gains.values())) < 2:
                raise LookupError(f"too few runs at epsilon {epsilon}")
            gap = _welch(gains["uls"], gains["els"])
            gaps.append(gap)
            words.append(
                f"ε = {epsilon:g}: ULS {statistics.fmean(gains['uls']):.3f}, "
                f"ELS {statistics.fmean(gains['els']):.3f}, difference {gap}"
            )
        alike = sum(gap.low >= -SAME and gap.high <= SAME for gap in gaps)
        if alike == len(gaps):
            verdict = Verdict.HOLDS
        elif any(told and abs(g.value) > SAME for told, g in zip(holm(gaps), gaps, strict=True)):
            verdict = Verdict.DOES_NOT_HOLD
        else:
            verdict = Verdict.IN_PART if alike else Verdict.CANNOT_TELL
        return [
            Finding(
                figure="charles-figure-18",
                paper="models of both algorithms gain alike by personalization",
                here=f"gain in nats a token (alike: within {SAME:g}): " + "; ".join(words),
                verdict=verdict,
            )
        ]


def measured(row: Mapping[str, Any]) -> tuple[float, float]:
    """Loss on the halves kept back, without and with the best local learning rate."""
    entries: list[dict[str, Any]] = row["personalization"]
    after = [entry["loss_with"] for entry in entries if entry["loss_with"] is not None]
    return float(entries[0]["loss_without"]), float(min(after))


def _gains(rows: Sequence[Mapping[str, Any]], method: str, epsilon: float) -> list[float]:
    gains = []
    for row in rows:
        setting = row["key"]["setting"]
        if row["key"]["run"] != "tune" and (setting["method"], setting["epsilon"]) == (
            method,
            epsilon,
        ):
            without, with_own = measured(row)
            gains.append(without - with_own)
    return gains


def _half(values: Sequence[float]) -> float:
    if len(values) < 2:
        return math.inf
    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def _welch(one: Sequence[float], other: Sequence[float]) -> Estimate:
    result = stats.ttest_ind(one, other, equal_var=False)
    interval = result.confidence_interval(0.95)
    value = statistics.fmean(one) - statistics.fmean(other)
    return Estimate(
        value=value, low=float(interval.low), high=float(interval.high), p=float(result.pvalue)
    )
