"""Batches of a fixed size beside Poisson sampling, at equal ε: what they cost in loss.

Ganesh 2024, Section 5 and Figure 2, prices batches of a fixed size (each example of the batch takes
another's place, so that the sensitivity doubles); it trains nothing.
"""

from __future__ import annotations

from typing import ClassVar

from papers.studies.findings import Finding, judged, verdict_by
from papers.studies.intervals import Losses
from papers.studies.study import Study

NAME = "ganesh-fixed-size"
PAIRS = (("els", "fixed-examples"), ("uls", "fixed-users"))


class FixedSize(Study):
    """ELS and ULS, Poisson and of a fixed size."""

    design: ClassVar[str] = "ganesh-fixed"
    figures: ClassVar[tuple[str, ...]] = (NAME,)
    panel: ClassVar[tuple[str, ...]] = ("epsilon",)
    line: ClassVar[tuple[str, ...]] = ("text",)
    x: ClassVar[str] = "method"
    title: ClassVar[str] = "Shakespeare: Poisson sampling and batches of a fixed size, at equal ε"

    def findings(self, losses: Losses) -> list[Finding]:
        """The loss of a fixed size less that of Poisson sampling."""
        gaps = {
            f"{poisson.upper()}, ε = {epsilon:g}": losses.difference(
                {"method": fixed, "epsilon": epsilon}, {"method": poisson, "epsilon": epsilon}
            )
            for poisson, fixed in PAIRS
            for epsilon in (1.0, 8.0)
        }
        words, answers = judged(gaps, 1)
        return [
            Finding(
                figure=NAME,
                paper="at equal σ a fixed size costs the ε of half that σ under Poisson sampling "
                "(no training there); so at equal ε it should cost loss",
                here=f"loss of a fixed size less that of Poisson sampling: {words}",
                verdict=verdict_by(answers),
            )
        ]
