"""Tables 2 and 4 of Chua et al. 2024: which of a user's records should be taken?"""

from __future__ import annotations

from typing import ClassVar

from papers.studies.findings import Finding, judged, verdict_by
from papers.studies.intervals import Losses
from papers.studies.study import Study

GROUP_PRIVACY, ULS = "group-privacy-vadhan", "uls"
EPSILON = 8.0
TEXTS = ("commits", "shakespeare")
"""They stand for the paper's mail and its books."""
# Of books the paper says that no selection is best at every budget; one budget cannot tell.
CLAIMS = (
    (
        "chua-table-2",
        GROUP_PRIVACY,
        "longest",
        "longest records are best on mail (on books none is at every ε)",
        TEXTS[:1],
    ),
    ("chua-table-4", ULS, "random-chunk", "random chunks are best throughout", TEXTS),
)


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
        return [_best(losses, *claim) for claim in CLAIMS]


def _best(
    losses: Losses, figure: str, method: str, best: str, paper: str, of_paper: tuple[str, ...]
) -> Finding:
    """Whether ``best`` is told to be below every other selection on the texts ``of_paper``."""
    gaps, expected = {}, []
    for text in TEXTS:
        here = {"text": text, "epsilon": EPSILON, "method": method}
        for setting in losses.settings(**here):
            other = setting["selection"]
            if other != best:
                gaps[f"{text}, {other}"] = losses.difference(
                    {**here, "selection": best}, {**here, "selection": other}
                )
                expected.append(-1 if text in of_paper else 0)
    words, answers = judged(gaps, expected)
    return Finding(
        figure=figure,
        paper=paper,
        here=f"at ε = {EPSILON:g}, loss of {best} less that of {words}",
        verdict=verdict_by(answers),
    )
