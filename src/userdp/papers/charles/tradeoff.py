"""Figures 6, 7, 16 and 17 of Charles et al. 2024: privacy, compute and loss, of ELS and ULS."""

from __future__ import annotations

from typing import ClassVar

from userdp.papers.studies.findings import Finding, Verdict, signs, verdict_by
from userdp.papers.studies.intervals import Losses
from userdp.papers.studies.study import Study

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
        cases = [(gradients, epsilon) for gradients in BUDGETS for epsilon in EPSILONS]
        gaps = [
            losses.difference(
                {"text": text, "gradients": b, "epsilon": e, "method": "uls"},
                {"text": text, "gradients": b, "epsilon": e, "method": "els"},
            )
            for b, e in cases
        ]
        told = signs(gaps)
        better, worse = told.count(-1), told.count(1)
        words = "; ".join(
            f"B = {b:g}, ε = {e:g}: {gap}{'' if sign else ' (not told)'}"
            for (b, e), gap, sign in zip(cases, gaps, told, strict=True)
        )
        if not worse and better:
            verdict = Verdict.HOLDS
        elif better:
            verdict = Verdict.IN_PART
        else:
            verdict = Verdict.DOES_NOT_HOLD if worse else Verdict.CANNOT_TELL
        return Finding(
            figure=figure,
            paper="ULS is at least as good as ELS (on CC-News: in most settings), most of all at "
            "small ε and large compute",
            here=f"loss of ULS less that of ELS: told better in {better}, worse in {worse} of "
            f"{len(cases)}: {words}",
            verdict=verdict,
        )

    def _more_compute(self, losses: Losses, text: str, figure: str) -> Finding:
        least, most = BUDGETS[0], BUDGETS[-1]
        gains = []
        for epsilon in EPSILONS:
            here = {"text": text, "epsilon": epsilon}
            gains.append(
                losses.contrast(
                    [
                        (1.0, {**here, "method": "uls", "gradients": least}),
                        (-1.0, {**here, "method": "uls", "gradients": most}),
                        (-1.0, {**here, "method": "els", "gradients": least}),
                        (1.0, {**here, "method": "els", "gradients": most}),
                    ]
                )
            )
        told = signs(gains)
        words = "; ".join(
            f"ε = {epsilon:g}: {gain}{'' if sign else ' (not told)'}"
            for epsilon, gain, sign in zip(EPSILONS, gains, told, strict=True)
        )
        return Finding(
            figure=figure,
            paper="more compute improves ULS more than ELS",
            here=f"what {most / least:g} times the compute gives ULS less what ELS gets: {words}",
            verdict=verdict_by(told, [1] * len(told)),
        )
