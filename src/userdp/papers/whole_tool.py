"""What the whole tool buys: our recipe beside each paper's own method, at equal ε and gradients."""

from __future__ import annotations

from typing import Any, ClassVar

from userdp.papers.studies.findings import Finding, signs, verdict_of
from userdp.papers.studies.intervals import Losses
from userdp.papers.studies.study import Study

EPSILON = 2.0
TEXTS = ("commits", "shakespeare")
OURS: dict[str, Any] = {"optimizer": "adam-bc"}
OTHERS: dict[str, dict[str, Any]] = {
    "ELS of Charles et al.": {"method": "els", "optimizer": "adamw"},
    "ULS of Charles et al.": {"method": "uls", "selection": "random", "optimizer": "adamw"},
    "Group Privacy of Chua et al.": {"method": "group-privacy-vadhan", "optimizer": "adamw"},
    "User-wise DP-SGD of Chua et al.": {
        "method": "uls",
        "selection": "random-chunk",
        "optimizer": "adamw",
    },
}


class WholeTool(Study):
    """Five runs of each method and of ours, and ours at smaller budgets."""

    design: ClassVar[str] = "whole-tool"
    figures: ClassVar[tuple[str, ...]] = ("whole-tool",)
    panel: ClassVar[tuple[str, ...]] = ("text",)
    line: ClassVar[tuple[str, ...]] = ("optimizer", "method", "selection")
    x: ClassVar[str] = "epsilon"
    title: ClassVar[str] = "Our recipe beside the papers' methods, at equal gradients"

    def findings(self, losses: Losses) -> list[Finding]:
        """Our loss less each other method's at ε = 2, and our smallest ε that is no worse."""
        words, gaps = [], []
        for text in TEXTS:
            ours = {**OURS, "text": text, "epsilon": EPSILON}
            for name, fields in OTHERS.items():
                gap = losses.difference(ours, {**fields, "text": text, "epsilon": EPSILON})
                gaps.append(gap)
                words.append(f"{text}, {name}: {gap}")
        told = signs(gaps)
        return [
            Finding(
                figure="whole-tool",
                paper="(our question) the planner, AdamBC, averaging and tight accounting together "
                "beat each paper's own method",
                here=f"our loss less theirs at ε = {EPSILON:g}: " + "; ".join(words),
                verdict=verdict_of(sum(sign < 0 for sign in told), len(told)),
            )
        ]
