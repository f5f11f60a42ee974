"""Figure 8 of Charles et al. 2024: more users in the accounting. Every ε here is simulated."""

from __future__ import annotations

from typing import ClassVar

from papers.studies.findings import Finding, judged, verdict_by
from papers.studies.intervals import Losses
from papers.studies.study import Study

FACTORS = (1, 10, 100)
LEAST, MOST = 16.0, 64.0


class Users(Study):
    """ELS and ULS with 1, 10 and 100 times as many users in the accounting as there are."""

    design: ClassVar[str] = "charles-users"
    figures: ClassVar[tuple[str, ...]] = ("charles-figure-8",)
    panel: ClassVar[tuple[str, ...]] = ("population_factor",)
    line: ClassVar[tuple[str, ...]] = ("method",)
    x: ClassVar[str] = "gradients"
    title: ClassVar[str] = "Shakespeare, ε = 4 with so many times more users (simulated)"

    def findings(self, losses: Losses) -> list[Finding]:
        """Who gains more by compute, and who by users."""
        compute = {
            f"compute, {f} times the users": losses.contrast(
                [
                    (1.0, {"population_factor": f, "method": "uls", "gradients": LEAST}),
                    (-1.0, {"population_factor": f, "method": "uls", "gradients": MOST}),
                    (-1.0, {"population_factor": f, "method": "els", "gradients": LEAST}),
                    (1.0, {"population_factor": f, "method": "els", "gradients": MOST}),
                ]
            )
            for f in FACTORS
        }
        users = {
            f"users, B = {b:g}": losses.contrast(
                [
                    (1.0, {"population_factor": 1, "method": "els", "gradients": b}),
                    (-1.0, {"population_factor": 100, "method": "els", "gradients": b}),
                    (-1.0, {"population_factor": 1, "method": "uls", "gradients": b}),
                    (1.0, {"population_factor": 100, "method": "uls", "gradients": b}),
                ]
            )
            for b in (LEAST, MOST)
        }
        words, answers = judged(compute | users, 1)
        return [
            Finding(
                figure="charles-figure-8",
                paper="ULS gains more by compute, ELS by users in the accounting",
                here="what four times the compute gives ULS less what it gives ELS, and what a "
                f"hundred times the users give ELS less what they give ULS: {words}",
                verdict=verdict_by(answers[:3], answers[3:]),
            )
        ]
