"""Figures 6, 7, 16 and 17 of Charles et al. 2024: privacy, compute and loss, of ELS and ULS."""

from __future__ import annotations

from typing import Any, ClassVar

from papers.studies.findings import Finding, judged, verdict_by
from papers.studies.intervals import Losses
from papers.studies.study import Study

BUDGETS = (8.0, 32.0, 128.0)
EPSILONS = (0.5, 4.0, 64.0)
TEXTS = {"commits": ("6", "16"), "shakespeare": ("7", "17")}
"""The figures of each text; ours stand for Stack Overflow and CC-News, in this order."""


class Tradeoff(Study):
    """ELS with the median's group size, ULS with Estimate-and-Double's shape."""

    design: ClassVar[str] = "charles-tradeoff"
    figures: ClassVar[tuple[str, ...]] = tuple(
        f"charles-figure-{number}" for pair in TEXTS.values() for number in pair
    )
    panel: ClassVar[tuple[str, ...]] = ("text", "gradients")
    line: ClassVar[tuple[str, ...]] = ("method",)
    x: ClassVar[str] = "epsilon"
    title: ClassVar[str] = "Privacy and loss at three budgets of compute"

    def findings(self, losses: Losses) -> list[Finding]:
        """ULS against ELS in each panel, and what sixteen times the compute gives either."""
        return [
            finding
            for text, (privacy, compute) in TEXTS.items()
            for finding in (
                self._at_equal_budgets(losses, text, f"charles-figure-{privacy}"),
                self._more_compute(losses, text, f"charles-figure-{compute}"),
            )
        ]

    def _at_equal_budgets(self, losses: Losses, text: str, figure: str) -> Finding:
        least, most, low, high = BUDGETS[0], BUDGETS[-1], EPSILONS[0], EPSILONS[-1]
        cases = {f"B = {b:g}, ε = {e:g}": _gap(text, b, e) for b in BUDGETS for e in EPSILONS}
        for b in BUDGETS:
            name = f"at ε = {low:g} less at {high:g}, B = {b:g}"
            cases[name] = _gap(text, b, low) + _gap(text, b, high, -1.0)
        for e in EPSILONS:
            name = f"at B = {most:g} less at {least:g}, ε = {e:g}"
            cases[name] = _gap(text, most, e) + _gap(text, least, e, -1.0)
        words, answers = judged({name: losses.contrast(cases[name]) for name in cases}, -1)
        alone, privacy, compute = answers[:9], answers[9:12], answers[12:]
        return Finding(
            figure=figure,
            paper="ULS is at least as good as ELS (on CC-News: in many settings), most of all at "
            "small ε and large compute",
            here=f"loss of ULS less that of ELS: told better in {alone.count(1)}, worse in "
            f"{alone.count(-1)} of {len(alone)}: {words}",
            verdict=verdict_by(alone, privacy, compute),
        )

    def _more_compute(self, losses: Losses, text: str, figure: str) -> Finding:
        least, most = BUDGETS[0], BUDGETS[-1]
        gains = {
            f"ε = {epsilon:g}": losses.contrast(
                _gap(text, least, epsilon) + _gap(text, most, epsilon, -1.0)
            )
            for epsilon in EPSILONS
        }
        words, answers = judged(gains, 1)
        return Finding(
            figure=figure,
            paper="more compute improves ULS more than ELS",
            here=f"what {most / least:g} times the compute gives ULS less what ELS gets: {words}",
            verdict=verdict_by(answers),
        )


def _gap(
    text: str, gradients: float, epsilon: float, weight: float = 1.0
) -> list[tuple[float, dict[str, Any]]]:
    """The loss of ULS less that of ELS, as a contrast."""
    here = {"text": text, "gradients": gradients, "epsilon": epsilon}
    return [(weight, {**here, "method": "uls"}), (-weight, {**here, "method": "els"})]
