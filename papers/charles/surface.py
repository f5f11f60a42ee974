"""Figures 5 and 13 to 15 of Charles et al. 2024 on the second text: ULS over G and M."""

from __future__ import annotations

from typing import Any, ClassVar

from papers.studies.findings import Finding, verdict_of
from papers.studies.intervals import Losses
from papers.studies.study import Study

NEAR = 0.02
"""Nats a token within which a cell counts as good as the best of its budget."""


class Surface(Study):
    """Loss over the group size at fixed budgets of compute.

    Budgets of privacy are so small that the planner does not take the largest cohort everywhere.
    """

    design: ClassVar[str] = "charles-surface"
    figures: ClassVar[tuple[str, ...]] = tuple(f"charles-figure-{n}" for n in (5, 13, 14, 15))
    panel: ClassVar[tuple[str, ...]] = ("text", "epsilon")
    line: ClassVar[tuple[str, ...]] = ("gradients",)
    x: ClassVar[str] = "group_size"
    title: ClassVar[str] = "Shakespeare: loss of ULS over G, with M = B / G users a step"

    def findings(self, losses: Losses) -> list[Finding]:
        """Where the best G lies, and what each strategy's cell loses."""
        panels = sorted({(s["epsilon"], s["gradients"]) for s in losses.settings()})
        small, near, words, regrets = [], [], [], []
        for epsilon, gradients in panels:
            here: dict[str, Any] = {"epsilon": epsilon, "gradients": gradients}
            sizes = sorted(s["group_size"] for s in losses.settings(**here))
            best = min(sizes, key=lambda g: losses.mean(**here, group_size=g).value)
            chosen = CHOICES[epsilon, gradients]
            small.append(10 * best * best <= gradients)
            against = [
                losses.difference({**here, "group_size": chosen}, {**here, "group_size": g})
                for g in sizes
                if g != chosen
            ]
            worst = max(against, key=lambda one: one.value)
            near.append(worst.value <= NEAR)
            first = losses.difference(
                {**here, "group_size": sizes[0]}, {**here, "group_size": best}
            )
            last = losses.difference(
                {**here, "group_size": sizes[-1]}, {**here, "group_size": best}
            )
            where = f"ε = {epsilon:g}, B = {gradients:g}"
            words.append(f"{where}: best G = {best}")
            regrets.append(
                f"{where}: planner and Estimate-and-Double take G = {chosen}, at most "
                f"{worst.value:+.4f} above another; the largest cohort is {first.value:+.4f} above "
                f"the best, the largest group {last.value:+.4f}"
            )
        group = Finding(
            figure="charles-figure-5",
            paper="raise M before G; the best G is at least ten times smaller than M",
            here="; ".join(words),
            verdict=verdict_of(sum(small), len(small)),
        )
        strategy = Finding(
            figure="charles-figure-15",
            paper="Estimate-and-Double is close to the optimum, and better than the largest cohort "
            "or group",
            here="; ".join(regrets),
            verdict=verdict_of(sum(near), len(near)),
        )
        return [
            group,
            Finding(
                figure="charles-figure-13",
                paper=group.paper,
                here=group.here + " (Figure 5's finding at several ε)",
                verdict=group.verdict,
            ),
            strategy,
        ]


CHOICES = {(0.25, 32.0): 2, (0.25, 128.0): 4, (1.0, 32.0): 1, (1.0, 128.0): 2}
"""By (ε, B): the group size that Estimate-and-Double and the planner take (norms.json)."""
