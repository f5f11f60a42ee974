"""Figures 4, 11 and 12 of Charles et al. 2024: is the median a good group size for ELS?"""

from __future__ import annotations

from typing import ClassVar

from papers.studies.findings import Finding, verdict_of
from papers.studies.intervals import Losses
from papers.studies.study import Study

MEDIAN = 8
"""The power of two next to both texts' medians, 7 and 9 examples a user."""

NEAR = 0.02
"""Nats a token within which a group size counts as good as the best."""


class ElsGroupSize(Study):
    """The loss of ELS against G, at two budgets of compute and two of privacy, on both texts."""

    design: ClassVar[str] = "charles-els"
    figures: ClassVar[tuple[str, ...]] = (
        "charles-figure-4",
        "charles-figure-11",
        "charles-figure-12",
    )
    panel: ClassVar[tuple[str, ...]] = ("text", "epsilon")
    line: ClassVar[tuple[str, ...]] = ("gradients",)
    x: ClassVar[str] = "group_size"
    title: ClassVar[str] = "ELS: loss against the group size; the median user has 7 and 9 examples"

    def findings(self, losses: Losses) -> list[Finding]:
        """The median's group size is near the best in every panel.

        (Until half of the runs were made, "not told from the best" counted as near, too: with so
        few runs that would have been ignorance taken for agreement.)
        """
        found = []
        for figure, where in (
            ("charles-figure-4", {}),
            ("charles-figure-11", {"text": "commits"}),
            ("charles-figure-12", {"text": "shakespeare"}),
        ):
            panels = {
                (s["text"], s["epsilon"], s["gradients"])
                for s in losses.settings(**where)
                if s["epsilon"] is not None
            }
            good, regrets, best = 0, [], []
            for text, epsilon, gradients in sorted(panels):
                here = {"text": text, "epsilon": epsilon, "gradients": gradients}
                sizes = [s["group_size"] for s in losses.settings(**here)]
                median = {**here, "group_size": MEDIAN}
                against = [
                    losses.difference(median, {**here, "group_size": size})
                    for size in sizes
                    if size != MEDIAN
                ]
                means = {size: losses.mean(**here, group_size=size).value for size in sizes}
                best.append(min(means, key=means.__getitem__))
                worst = max(against, key=lambda one: one.value)
                regrets.append((worst.value, f"{text}, ε = {epsilon:g}, B = {gradients:g}", worst))
                good += worst.value <= NEAR
            regret = max(regrets)
            found.append(
                Finding(
                    figure=figure,
                    paper="setting G to the median number of examples works well throughout",
                    here=f"G = {MEDIAN} is within {NEAR:g} nats of the best G in {good} of "
                    f"{len(panels)} panels; at most {regret[2]} above the best ({regret[1]}); the "
                    f"best G is {', '.join(f'{g} in {best.count(g)}' for g in sorted(set(best)))}",
                    verdict=verdict_of(good, len(panels)),
                )
            )
        return found
