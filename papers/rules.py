"""Findings that are no contrasts of cells told apart: where the best cell lies, and what gains.

Each rule takes the losses and rows of a design and the figure's table, and returns what we find.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scipy import stats

from papers.findings import Finding, Verdict, verdict_of
from papers.losses import TUNE, Estimate, Losses, Row, holm

NEAR = 0.02
"""Nats a token within which a cell counts as good as the best of its panel, or two gains as the
same."""
MEDIAN = 8
"""The power of two next to both texts' medians, 7 and 9 examples a user."""
CHOICES = {(0.25, 32.0): 2, (0.25, 128.0): 4, (1.0, 32.0): 1, (1.0, 128.0): 2}
"""By (ε, B): the group size that Estimate-and-Double and the planner take (norms.json)."""


def _panels(losses: Losses, where: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The texts, ε and budgets of compute over whose group sizes one may choose."""
    told = {
        (s["text"], s["epsilon"], s["gradients"])
        for s in losses.settings(**where)
        if s["epsilon"] is not None
    }
    return [dict(zip(("text", "epsilon", "gradients"), one, strict=True)) for one in sorted(told)]


def _sizes(losses: Losses, panel: Mapping[str, Any]) -> tuple[list[int], int]:
    """The group sizes of a panel, and that of the least mean loss."""
    sizes = sorted(s["group_size"] for s in losses.settings(**panel))
    return sizes, min(sizes, key=lambda g: losses.mean(**panel, group_size=g).value)


def _worst(losses: Losses, panel: Mapping[str, Any], chosen: int) -> Estimate:
    """The most by which the chosen group size is above another."""
    against = [
        losses.difference({**panel, "group_size": chosen}, {**panel, "group_size": g})
        for g in _sizes(losses, panel)[0]
        if g != chosen
    ]
    return max(against, key=lambda one: one.value)


def median(losses: Losses, _: Sequence[Row], table: Mapping[str, Any]) -> Finding:
    """Whether the median's group size is near the best in every panel.

    (Until half of the runs were made, "not told from the best" counted as near, too: with so few
    runs that would have been ignorance taken for agreement.)
    """
    panels = _panels(losses, table.get("where", {}))
    best = [_sizes(losses, panel)[1] for panel in panels]
    worst = [_worst(losses, panel, MEDIAN) for panel in panels]
    good = sum(one.value <= NEAR for one in worst)
    most = max(range(len(panels)), key=lambda number: worst[number].value)
    where = "{text}, ε = {epsilon:g}, B = {gradients:g}".format(**panels[most])
    counted = ", ".join(f"{g} in {best.count(g)}" for g in sorted(set(best)))
    return Finding(
        here=f"G = {MEDIAN} is within {NEAR:g} nats of the best G in {good} of {len(panels)} "
        f"panels; at most {worst[most]} above the best ({where}); the best G is {counted}",
        verdict=verdict_of(good, len(panels)),
    )


def small_group(losses: Losses, _: Sequence[Row], table: Mapping[str, Any]) -> Finding:
    """Whether the best group size is at least ten times smaller than the cohort, M = B / G."""
    panels = _panels(losses, table.get("where", {}))
    best = [_sizes(losses, panel)[1] for panel in panels]
    small = sum(10 * g * g <= panel["gradients"] for g, panel in zip(best, panels, strict=True))
    words = [
        "ε = {epsilon:g}, B = {gradients:g}".format(**panel) + f": best G = {g}"
        for panel, g in zip(panels, best, strict=True)
    ]
    return Finding(here="; ".join(words), verdict=verdict_of(small, len(panels)))


def strategies(losses: Losses, _: Sequence[Row], table: Mapping[str, Any]) -> Finding:
    """Whether the cell that Estimate-and-Double takes is near the best of every panel."""
    panels = _panels(losses, table.get("where", {}))
    near, words = 0, []
    for panel in panels:
        chosen = CHOICES[panel["epsilon"], panel["gradients"]]
        sizes, best = _sizes(losses, panel)
        worst = _worst(losses, panel, chosen)
        near += worst.value <= NEAR
        first, last = (
            losses.difference({**panel, "group_size": g}, {**panel, "group_size": best}).value
            for g in (sizes[0], sizes[-1])
        )
        words.append(
            "ε = {epsilon:g}, B = {gradients:g}".format(**panel)
            + f": planner and Estimate-and-Double take G = {chosen}, at most {worst.value:+.4f} "
            f"above another; the largest cohort is {first:+.4f} above the best, the largest group "
            f"{last:+.4f}"
        )
    return Finding(here="; ".join(words), verdict=verdict_of(near, len(panels)))


def clip_norms(losses: Losses, _: Sequence[Row], table: Mapping[str, Any]) -> Finding:
    """How far losses spread over clip norms, and what larger batches give; one run a cell."""
    spread, gain = [], []
    for method in table["methods"]:
        small, large = (
            [
                losses.runs(**setting)[0]
                for setting in losses.settings(method=method, gradients=gradients)
            ]
            for gradients in (16.0, 64.0)
        )
        spread.append(max(large) - min(large))
        gain.append(min(small) - min(large))
    right = [*(one > 0 for one in gain), spread[0] > spread[1]]
    return Finding(
        here=f"spread over clip norms from 0.03 to 30 at B = 64: {spread[0]:.3f} nats (Group "
        f"Privacy), {spread[1]:.3f} (ULS); B = 64 in place of 16, each at its best: {gain[0]:+.3f} "
        f"and {gain[1]:+.3f} nats lower (one run a cell, no interval)",
        verdict=verdict_of(sum(right), len(right)),
    )


def personalized(row: Mapping[str, Any]) -> tuple[float, float]:
    """Loss on the halves kept back, without and with the best local learning rate."""
    entries: list[dict[str, Any]] = row["personalization"]
    after = [entry["loss_with"] for entry in entries if entry["loss_with"] is not None]
    return float(entries[0]["loss_without"]), float(min(after))


def alike_gains(_: Losses, rows: Sequence[Row], table: Mapping[str, Any]) -> Finding:
    """The difference of the gains by personalization of ULS and ELS models, at each ε."""
    gaps, words = [], []
    for epsilon in (0.5, 4.0, 64.0):
        uls, els = (
            [
                without - with_own
                for without, with_own in map(personalized, measured(rows, method, epsilon))
            ]
            for method in ("uls", "els")
        )
        if min(len(uls), len(els)) < 2:
            raise LookupError(f"too few runs at epsilon {epsilon}")
        welch = stats.ttest_ind(uls, els, equal_var=False)
        low, high = welch.confidence_interval(0.95)
        means = statistics.fmean(uls), statistics.fmean(els)
        gap = Estimate(
            value=means[0] - means[1], low=float(low), high=float(high), p=float(welch.pvalue)
        )
        gaps.append(gap)
        words.append(f"ε = {epsilon:g}: ULS {means[0]:.3f}, ELS {means[1]:.3f}, difference {gap}")
    alike = sum(gap.low >= -NEAR and gap.high <= NEAR for gap in gaps)
    if alike == len(gaps):
        verdict = Verdict.HOLDS
    elif any(told and abs(g.value) > NEAR for told, g in zip(holm(gaps), gaps, strict=True)):
        verdict = Verdict.DOES_NOT_HOLD
    else:
        verdict = Verdict.IN_PART if alike else Verdict.CANNOT_TELL
    here = f"gain in nats a token (alike: within {NEAR:g}): " + "; ".join(words)
    return Finding(here=here, verdict=verdict)


def measured(rows: Sequence[Row], method: str, epsilon: float) -> list[Row]:
    """The rows of a cell's measured runs."""
    return [
        row
        for row in rows
        if row["key"]["run"] != TUNE
        and row["key"]["setting"]["method"] == method
        and row["key"]["setting"]["epsilon"] == epsilon
    ]


RULES: Mapping[str, Callable[[Losses, Sequence[Row], Mapping[str, Any]], Finding]] = {
    "median": median,
    "small group": small_group,
    "strategies": strategies,
    "clip norms": clip_norms,
    "alike gains": alike_gains,
}
