"""Table 8 of Chua et al. 2024: adapters of a low rank against training all weights."""

from __future__ import annotations

from typing import ClassVar

from userdp.papers.studies.findings import Finding, verdict_of
from userdp.papers.studies.intervals import Losses
from userdp.papers.studies.study import Study

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
        """The gap of rank 32 to all weights, and whether lower ranks lose more."""
        words, right = [], []
        for epsilon in (None, 8.0):
            gaps = {
                rank: losses.difference(
                    {"epsilon": epsilon, "lora_rank": rank}, {"epsilon": epsilon, "lora_rank": None}
                )
                for rank in (4, 16, 32)
            }
            right.append(gaps[32].value <= MINOR)
            where = "without privacy" if epsilon is None else f"ε = {epsilon:g}"
            words.append(
                f"{where}: " + ", ".join(f"r = {rank} {gap}" for rank, gap in gaps.items())
            )
        return [
            Finding(
                figure="chua-table-8",
                paper="LoRA loses little (rank 32: 0.02 to 0.03 nats), more at lower ranks",
                here="loss less that of training all weights: " + "; ".join(words),
                verdict=verdict_of(sum(right), len(right)),
            )
        ]
