"""Which part of our recipe pays: AdamBC and averaging of the weights, each with and without."""

from __future__ import annotations

from typing import Any, ClassVar

from papers.studies.findings import Finding, judged, verdict_by
from papers.studies.intervals import Losses
from papers.studies.study import Study

TEXTS = ("commits", "shakespeare")


class WholeToolParts(Study):
    """Two optimizers by two ways to average, at the planner's shape."""

    design: ClassVar[str] = "whole-tool-parts"
    figures: ClassVar[tuple[str, ...]] = ("whole-tool-parts",)
    panel: ClassVar[tuple[str, ...]] = ("text",)
    line: ClassVar[tuple[str, ...]] = ("averaging",)
    x: ClassVar[str] = "optimizer"
    title: ClassVar[str] = "What AdamBC and averaging buy at the planner's shape"

    def findings(self, losses: Losses) -> list[Finding]:
        """On each text, what AdamBC changes and what averaging changes, over the other's mean."""
        effects = {}
        for text in TEXTS:
            for name, field, new, old, other, others in (
                ("AdamBC", "optimizer", "adam-bc", "adamw", "averaging", ("none", "ema")),
                ("averaging", "averaging", "ema", "none", "optimizer", ("adamw", "adam-bc")),
            ):
                parts: list[tuple[float, dict[str, Any]]] = [
                    (weight, {"text": text, field: value, other: beside})
                    for weight, value in ((0.5, new), (-0.5, old))
                    for beside in others
                ]
                effects[f"{text}, {name}"] = losses.contrast(parts)
        words, answers = judged(effects, -1)
        return [
            Finding(
                figure="whole-tool-parts",
                paper="(our question) AdamBC and averaging each lower the loss",
                here=f"loss with less loss without: {words}",
                verdict=verdict_by(answers[::2], answers[1::2]),
            )
        ]
