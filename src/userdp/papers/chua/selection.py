"""Tables 2 and 4 of Chua et al. 2024: which of a user's records should be taken?"""

from __future__ import annotations

from typing import ClassVar

from userdp.papers.studies.findings import Finding, Verdict, signs, verdict_of
from userdp.papers.studies.intervals import Losses
from userdp.papers.studies.study import Study

GROUP_PRIVACY, ULS = "group-privacy-vadhan", "uls"
EPSILON = 8.0


class Selection(Study):
    """Every selection, for both algorithms, at k = 10."""

    design: ClassVar[str] = "chua-selection"
    figures: ClassVar[tuple[str, ...]] = ("chua-table-2", "chua-table-4")
    panel: ClassVar[tuple[str, ...]] = ("text",)
    line: ClassVar[tuple[str, ...]] = ("method",)
    x: ClassVar[str] = "selection"
    title: ClassVar[str] = "Selections of ten records a user, ε = 8"

    def findings(self, losses: Losses) -> list[Finding]:
        """The paper's best selection against all others, on each text."""
        return [
            self._best(
                losses,
                "chua-table-2",
                method=GROUP_PRIVACY,
                best="longest",
                paper="longest records are best on mail; on books no selection stands out",
            ),
            self._best(
                losses,
                "chua-table-4",
                method=ULS,
                best="random-chunk",
                paper="random chunks are best throughout",
            ),
        ]

    def _best(self, losses: Losses, figure: str, *, method: str, best: str, paper: str) -> Finding:
        words, right = [], []
        for text in ("commits", "shakespeare"):
            here = {"text": text, "epsilon": EPSILON, "method": method}
            others = [
                str(s["selection"]) for s in losses.settings(**here) if s["selection"] != best
            ]
            gaps = [
                losses.difference({**here, "selection": best}, {**here, "selection": other})
                for other in others
            ]
            told = signs(gaps)
            right.append(all(sign < 0 for sign in told))
            listed = ", ".join(
                f"{other} {gap}{'' if sign else ' (not told)'}"
                for other, gap, sign in zip(others, gaps, told, strict=True)
            )
            words.append(f"{text}: {best} less {listed}")
        if figure == "chua-table-2":
            # The paper's own answer differs by text: it is found again where one text has a best
            # selection, longest, and the other none.
            verdict = {2: Verdict.IN_PART, 1: Verdict.HOLDS, 0: Verdict.DOES_NOT_HOLD}[sum(right)]
        else:
            verdict = verdict_of(sum(right), len(right))
        return Finding(figure=figure, paper=paper, here="; ".join(words), verdict=verdict)
