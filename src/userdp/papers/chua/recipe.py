"""Table 9 of Chua et al. 2024: both algorithms under the recipe of Li et al. 2022."""

from __future__ import annotations

from typing import ClassVar

from userdp.papers.studies.findings import Finding, signs, verdict_by
from userdp.papers.studies.intervals import Losses
from userdp.papers.studies.study import Study


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
        epsilons = (1.0, 8.0)
        gaps = [
            losses.difference(
                {"epsilon": epsilon, "method": "uls"},
                {"epsilon": epsilon, "method": "group-privacy-vadhan"},
            )
            for epsilon in epsilons
        ]
        told = signs(gaps)
        words = "; ".join(f"ε = {e:g}: {gap}" for e, gap in zip(epsilons, gaps, strict=True))
        return [
            Finding(
                figure="chua-table-9",
                paper="User-wise DP-SGD is better at every ε under this recipe, too",
                here=f"its loss less that of Group Privacy: {words}",
                verdict=verdict_by(told, [-1] * len(told)),
            )
        ]
