"""What the whole tool buys: our recipe beside the papers' methods, at equal ε.

Gradients are equal as planned, not as taken: users with fewer than G examples give fewer. Group
Privacy is priced by Vadhan's lemma, with 4% more noise than by the lemma of Chua et al.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from papers.studies.findings import Finding, judged, verdict_by
from papers.studies.intervals import Losses
from papers.studies.study import Study
from papers.table import Row
from userdp.reporting.drawing import panels, save

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


BASE = {"commits": 5.2371, "shakespeare": 6.3693}
"""Held-out loss of the base model before any fine-tuning (docs/results/findings.md)."""


class WholeTool(Study):
    """Five runs of each method and of ours, and ours at smaller budgets."""

    design: ClassVar[str] = "whole-tool"
    figures: ClassVar[tuple[str, ...]] = ("whole-tool",)
    panel: ClassVar[tuple[str, ...]] = ("text",)
    line: ClassVar[tuple[str, ...]] = ("optimizer", "method", "selection")
    x: ClassVar[str] = "epsilon"
    title: ClassVar[str] = "Our recipe beside the papers' methods, at equal planned gradients"

    def findings(self, losses: Losses) -> list[Finding]:
        """Our loss less each other method's at ε = 2, and our smallest ε that is no worse."""
        gaps = {}
        for text in TEXTS:
            ours = {**OURS, "text": text, "epsilon": EPSILON}
            for name, fields in OTHERS.items():
                gap = losses.difference(ours, {**fields, "text": text, "epsilon": EPSILON})
                gaps[f"{text}, {name}"] = gap
        words, answers = judged(gaps, -1)
        return [
            Finding(
                figure="whole-tool",
                paper="(our question) the planner, AdamBC, averaging and tight accounting together "
                "beat each paper's own method",
                here=f"our loss less theirs at ε = {EPSILON:g}: {words}; Group Privacy is priced "
                "by Vadhan's lemma, 4% more noise than by its paper's",
                verdict=verdict_by(answers),
            )
        ]

    def draw(self, rows: Sequence[Row], path: Path) -> None:
        """A line for each method: its loss and 95% interval; a panel for each text."""
        figure, axes = panels(len(TEXTS), height=2.6)
        lines: list[tuple[str, dict[str, Any], str]] = [
            (f"{name}, ε = {EPSILON:g}", {**fields, "epsilon": EPSILON}, "tab:gray")
            for name, fields in OTHERS.items()
        ]
        lines += [
            (f"userdp, ε = {epsilon:g}", {**OURS, "epsilon": epsilon}, "tab:blue")
            for epsilon in (EPSILON, EPSILON / 2)
        ]
        for axis, text in zip(axes, TEXTS, strict=True):
            for place, (_, fields, color) in enumerate(reversed(lines)):
                for row in rows:
                    if row["text"] == text and all(row[k] == v for k, v in fields.items()):
                        half = row["high"] - row["loss"]
                        axis.errorbar(
                            row["loss"], place, xerr=half, fmt="o", color=color, capsize=3
                        )
            axis.axvline(BASE[text], linestyle=":", color="tab:red")
            axis.set_yticks(range(len(lines)), [label for label, _, _ in reversed(lines)])
            axis.set_ylim(-0.6, len(lines) - 0.4)
            axis.set_title(f"{text} (dotted: before fine-tuning)", fontsize=9)
            axis.set_xlabel("loss on held-out people, nats a token")
            axis.grid(alpha=0.3, axis="x")
        axes[1].set_yticklabels([])
        figure.suptitle(
            "Each method at equal ε, people and planned gradients; 95% intervals", fontsize=10
        )
        save(figure, path)
