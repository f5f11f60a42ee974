"""Findings whose contrasts depend on the losses: where the best cell lies, and what gains.

Each rule takes the losses and rows of a design and the figure's table, and returns what we find.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scipy import stats

from papers.findings import Contrast, Finding, Verdict, finding_of
from papers.losses import TUNE, Estimate, Losses, Row, holm

NEAR = 0.02
"""Nats a token within which a cell counts as good as the best of its panel, or two gains as the
same."""
NEAR_BEST: Mapping[str, Any] = {"part": "all", "limit": NEAR}
"""How a difference from the best of a panel answers "works well throughout"."""
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


def _named(panel: Mapping[str, Any]) -> str:
    return "{text}, ε = {epsilon:g}, B = {gradients:g}".format(**panel)


def _worst(losses: Losses, panel: Mapping[str, Any], chosen: int) -> Estimate:
    """The loss of the chosen group size less that of the best other one, and p against `NEAR`."""
    against = [
        losses.difference({**panel, "group_size": chosen}, {**panel, "group_size": g}, limit=NEAR)
        for g in _sizes(losses, panel)[0]
        if g != chosen
    ]
    return max(against, key=lambda one: one.value).corrected(len(against), limit=NEAR)


def _passed(worst: Sequence[Estimate]) -> int:
    """How many of the panels' differences are at most `NEAR`, by Holm's rule over them."""
    return sum(sure and one.value <= NEAR for sure, one in zip(holm(worst), worst, strict=True))


def _beside_one(
    losses: Losses, panels: Sequence[Mapping[str, Any]], near: Sequence[Contrast], template: str
) -> Finding:
    """What is near the best of every panel, beside what each group size passes (``COUNTED``).

    Panels in which a choice is near say nothing of it if one example a user, for which nobody looks
    at sizes, is near the best in as many: then the finding cannot be decided.
    """
    passed = {
        g: _passed([_worst(losses, panel, g) for panel in panels])
        for g in _sizes(losses, panels[0])[0]
    }
    counted = ", ".join(f"G = {g} in {count}" for g, count in passed.items())
    words = f"panels that each G passes by the same test: {counted}"
    found = finding_of(near, template.replace("COUNTED", words))
    if found.verdict != Verdict.DOES_NOT_HOLD and passed[1] >= _passed([one for _, one, _ in near]):
        return replace(found, verdict=Verdict.CANNOT_TELL)
    return found


def median(losses: Losses, _: Sequence[Row], table: Mapping[str, Any]) -> Finding:
    """Whether the median's group size is near the best of every panel."""
    panels = _panels(losses, table.get("where", {}))
    return _beside_one(
        losses,
        panels,
        [(_named(panel), _worst(losses, panel, MEDIAN), NEAR_BEST) for panel in panels],
        f"loss of G = {MEDIAN} less the best other G's, at most {NEAR:g} (after correction) in "
        "{told} of {total} panels: {words}; COUNTED",
    )


def small_group(losses: Losses, _: Sequence[Row], table: Mapping[str, Any]) -> Finding:
    """Whether the best group size is at least ten times smaller than the cohort, M = B / G."""
    contrasts: list[Contrast] = []
    for panel in _panels(losses, table.get("where", {})):
        best: dict[bool, dict[str, Any]] = {}
        for g in sorted(
            _sizes(losses, panel)[0], key=lambda g: losses.mean(**panel, group_size=g).value
        ):
            best.setdefault(10 * g * g <= panel["gradients"], {**panel, "group_size": g})
        small, large = best[True], best[False]
        name = f"{_named(panel)}: G = {small['group_size']} less G = {large['group_size']}"
        told = {"part": "all", "expect": table.get("expect", -1)}
        contrasts.append((name, losses.difference(small, large), told))
    return finding_of(
        contrasts,
        "best G up to a tenth of M, less the best G above a tenth, at each ε and B: {words}",
    )


def strategies(losses: Losses, _: Sequence[Row], table: Mapping[str, Any]) -> Finding:
    """Whether the cell that Estimate-and-Double takes is near the best of every panel."""
    near: list[Contrast] = []
    others: list[str] = []
    panels = _panels(losses, table.get("where", {}))
    for panel in panels:
        chosen = CHOICES[panel["epsilon"], panel["gradients"]]
        near.append((f"{_named(panel)}: G = {chosen}", _worst(losses, panel, chosen), NEAR_BEST))
        sizes = _sizes(losses, panel)[0]
        for kind, g in (("cohort", sizes[0]), ("group", sizes[-1])):
            if g != chosen:
                gap = losses.difference({**panel, "group_size": chosen}, {**panel, "group_size": g})
                others.append(f"{_named(panel)}, largest {kind}: {gap}")
    return _beside_one(
        losses,
        panels,
        near,
        "loss of the G that Estimate-and-Double and the planner take, less the best other G's, at "
        f"most {NEAR:g} (after correction) in {{told}} of {{total}}: {{words}}; COUNTED. Less that "
        f"of the largest cohort (G = 1) or group (G = 8), where another cell: {'; '.join(others)}. "
        "The greedy oracle was not run",
    )


def clip_norms(losses: Losses, _: Sequence[Row], table: Mapping[str, Any]) -> Finding:
    """What larger batches give, over clip norms, and how far losses spread over these.

    A cell has one run. So batches are compared by pairs of equal clip norms, and a spread has no
    interval.
    """
    gains: list[Contrast] = []
    spreads: dict[tuple[str, float], float] = {}
    for method in table["methods"]:
        by_batch = []
        for gradients in (16.0, 64.0):
            settings = losses.settings(method=method, gradients=gradients)
            settings.sort(key=lambda setting: setting["clip_norm"])
            own = [losses.runs(**setting)[0] for setting in settings]
            spreads[method, gradients] = max(own) - min(own)
            by_batch.append(own)
        gains.append((method, paired(*by_batch), {"part": "batches", "expect": 1}))
    unknown = {"part": "clip norms", "expect": 1}
    for gradients in (16.0, 64.0):
        ours, theirs = (spreads[method, gradients] for method in table["methods"])
        gap = Estimate(value=ours - theirs, low=-math.inf, high=math.inf)
        gains.append((f"spread at B = {gradients:g}, {ours:.3f} less {theirs:.3f}", gap, unknown))
    return finding_of(
        gains,
        "Shakespeare, ε = 1, k = 10, one run a cell: loss at B = 16 less that at B = 64, mean of "
        "five clip norms from 0.03 to 30 in pairs, with Student's interval over these; spread of "
        "losses over clip norms, Group Privacy's less ULS's, without an interval: {words}",
    )


def paired(one: Sequence[float], other: Sequence[float]) -> Estimate:
    """The mean of ``one`` less ``other``, pair by pair, with Student's interval.

    >>> print(paired([3.0, 5.0, 4.0], [2.0, 3.0, 3.0]))
    +1.3333 [-0.1009, +2.7676]
    """
    test = stats.ttest_rel(one, other)
    low, high = test.confidence_interval(0.95)
    value = statistics.fmean(one) - statistics.fmean(other)
    return Estimate(value=value, low=float(low), high=float(high), p=float(test.pvalue))


def personalized(row: Mapping[str, Any]) -> tuple[float, float]:
    """Loss on the halves kept back, without and with the best local learning rate."""
    entries: list[dict[str, Any]] = row["personalization"]
    after = [entry["loss_with"] for entry in entries if entry["loss_with"] is not None]
    return float(entries[0]["loss_without"]), float(min(after))


def alike_gains(_: Losses, rows: Sequence[Row], table: Mapping[str, Any]) -> Finding:
    """The difference of the gains by personalization of ULS and ELS models, at each ε.

    Gains are alike if they differ by at most `NEAR`, in either direction.
    """
    gaps: list[Contrast] = []
    for epsilon in (0.5, 4.0, 64.0):
        uls, els = (_gains(rows, method, epsilon) for method in ("uls", "els"))
        if min(len(uls), len(els)) < 2:
            raise LookupError(f"too few runs at epsilon {epsilon}")
        welch = stats.ttest_ind(uls, els, equal_var=False)
        low, high = welch.confidence_interval(0.95)
        means = statistics.fmean(uls), statistics.fmean(els)
        value = means[0] - means[1]
        error = (high - low) / 2 / stats.t.ppf(0.975, welch.df)
        beyond = abs(abs(value) - NEAR) / error
        gap = Estimate(
            value=value, low=float(low), high=float(high), p=float(2 * stats.t.sf(beyond, welch.df))
        )
        name = f"ε = {epsilon:g}: ULS {means[0]:.3f}, ELS {means[1]:.3f}, difference"
        gaps.append((name, gap, {"part": "all", "limit": NEAR, "either_direction": True}))
    return finding_of(gaps, f"gain in nats a token (alike: within {NEAR:g}): {{words}}")


def _gains(rows: Sequence[Row], method: str, epsilon: float) -> list[float]:
    """What personalization gives the model of each measured run of a cell."""
    own = (row for row in rows if row["key"]["run"] != TUNE)
    pairs = (
        personalized(row)
        for row in own
        if (row["key"]["setting"]["method"], row["key"]["setting"]["epsilon"]) == (method, epsilon)
    )
    return [without - with_own for without, with_own in pairs]


RULES: Mapping[str, Callable[[Losses, Sequence[Row], Mapping[str, Any]], Finding]] = {
    "median": median,
    "small group": small_group,
    "strategies": strategies,
    "clip norms": clip_norms,
    "alike gains": alike_gains,
}
