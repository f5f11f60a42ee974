"""Table 8 of Chua et al. 2024: adapters of a low rank against training all weights."""

from __future__ import annotations

from typing import ClassVar

from papers.studies.findings import Finding, judged, verdict_by
from papers.studies.intervals import Losses
from papers.studies.study import Study

MINOR = 0.05
"""Nats a token: the paper's gap of r = 32 is ln(19.05 / 18.53) = 0.028 on mail, 0.016 on books."""


class Lora(Study):
    """Ranks, with and without privacy."""

    design: ClassVar[str] = "chua-lora"
    figures: ClassVar[tuple[str, ...]] = ("chua-table-8",)
    panel: ClassVar[tuple[str, ...]] = ("epsilon",)
    line: ClassVar[tuple[str, ...]] = ("method",)
    x: ClassVar[str] = "lora_rank"
    none: ClassVar[str] = "all weights"
    title: ClassVar[str] = "Commits, ULS: rank of the adapters"

    def findings(self, losses: Losses) -> list[Finding]:
        """The gap of each rank to all weights, and whether lower ranks lose more than rank 32.

        That a gap is minor, or is not, is told by its whole interval, not by its mean.
        """
        words, little, lower = [], [], {}
        for epsilon in (None, 8.0):
            ranks = {r: {"epsilon": epsilon, "lora_rank": r} for r in (None, 4, 16, 32)}
            gaps = {r: losses.difference(ranks[r], ranks[None]) for r in (4, 16, 32)}
            little.append((gaps[32].high <= MINOR) - (gaps[32].low > MINOR))
            where = "without privacy" if epsilon is None else f"ε = {epsilon:g}"
            mark = {1: "", 0: " (not told)", -1: " (against)"}[little[-1]]
            listed = ", ".join(f"r = {rank} {gap}" for rank, gap in gaps.items())
            words.append(f"{where}: {listed}{mark}")
            for rank in (4, 16):
                name = f"{where}, r = {rank} less r = 32"
                lower[name] = losses.difference(ranks[rank], ranks[32])
        more, answers = judged(lower, 1)
        return [
            Finding(
                figure="chua-table-8",
                paper="LoRA loses little (rank 32: 0.02 to 0.03 nats), more at lower ranks",
                here="loss less that of training all weights: " + "; ".join([*words, more]),
                verdict=verdict_by(little, answers),
            )
        ]
