"""Figure 4 of Chua et al. 2024: clip norm and batch size, at a budget of ε = 1."""

from __future__ import annotations

from typing import ClassVar

from papers.studies.findings import Finding, verdict_of
from papers.studies.intervals import Losses
from papers.studies.study import Study

METHODS = ("group-privacy-vadhan", "uls")
BATCHES = (16.0, 64.0)


class ClipNorm(Study):
    """Loss against the clip norm of plain thresholds."""

    design: ClassVar[str] = "chua-clip"
    figures: ClassVar[tuple[str, ...]] = ("chua-figure-4",)
    panel: ClassVar[tuple[str, ...]] = ("method",)
    line: ClassVar[tuple[str, ...]] = ("gradients",)
    x: ClassVar[str] = "clip_norm"
    title: ClassVar[str] = "Shakespeare, ε = 1, k = 10: clip norm and batch size (one run each)"

    def findings(self, losses: Losses) -> list[Finding]:
        """How far losses spread over clip norms, and what larger batches give; one run a cell."""
        spread, gain = {}, {}
        for method in METHODS:
            own = {
                gradients: [
                    losses.runs(**setting)[0]
                    for setting in losses.settings(method=method, gradients=gradients)
                ]
                for gradients in BATCHES
            }
            if any(len(values) != 5 for values in own.values()):
                raise LookupError("some clip norms have not been run")
            spread[method] = max(own[64.0]) - min(own[64.0])
            gain[method] = min(own[16.0]) - min(own[64.0])
        right = [gain[method] > 0 for method in METHODS]
        right.append(spread[METHODS[0]] > spread[METHODS[1]])
        return [
            Finding(
                figure="chua-figure-4",
                paper="larger batches help both; Group Privacy is more sensitive to the clip norm",
                here="spread over clip norms from 0.03 to 30 at B = 64: "
                f"{spread[METHODS[0]]:.3f} nats (Group Privacy), {spread[METHODS[1]]:.3f} (ULS); "
                f"B = 64 in place of 16, each at its best: {gain[METHODS[0]]:+.3f} and "
                f"{gain[METHODS[1]]:+.3f} nats lower (one run a cell, no interval)",
                verdict=verdict_of(sum(right), len(right)),
            )
        ]
