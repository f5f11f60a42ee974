"""Table 9 of Chua et al. 2024: both algorithms under the recipe of Li et al. 2022."""

from __future__ import annotations

from typing import ClassVar

from papers.chua.records_per_user import EQUAL_BATCHES
from papers.studies.findings import Finding, judged, verdict_by
from papers.studies.intervals import Losses
from papers.studies.study import Study


class Recipe(Study):
    """A small threshold in place of normalized clipping, and larger batches."""

    design: ClassVar[str] = "chua-recipe"
    figures: ClassVar[tuple[str, ...]] = ("chua-table-9",)
    panel: ClassVar[tuple[str, ...]] = ("text",)
    line: ClassVar[tuple[str, ...]] = ("method",)
    x: ClassVar[str] = "epsilon"
    title: ClassVar[str] = "The recipe of Li et al. 2022: commits, k = 5"

    def findings(self, losses: Losses) -> list[Finding]:
        """ULS with random chunks against Group Privacy with the longest records."""
        gaps = {
            f"ε = {epsilon:g}": losses.difference(
                {"epsilon": epsilon, "method": "uls"},
                {"epsilon": epsilon, "method": "group-privacy-vadhan"},
            )
            for epsilon in (1.0, 8.0)
        }
        words, answers = judged(gaps, 0)
        return [
            Finding(
                figure="chua-table-9",
                paper="User-wise DP-SGD is better at every ε under this recipe, too",
                here=f"its loss less that of Group Privacy: {words}; {EQUAL_BATCHES}",
                verdict=verdict_by(answers),
            )
        ]
