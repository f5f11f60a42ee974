"""Tables 3, 5 and 6 of Chua et al. 2024: how many records a user, and which algorithm.

Group Privacy is priced by Vadhan's lemma: 13% more noise at k = 2 and ε = 8 than by the lemma of
Algorithm 1 (line 2), 7% at k = 10; 3% and 2% at ε = 1.
"""

from __future__ import annotations

from typing import Any, ClassVar

from papers.studies.findings import Finding, judged, verdict_by
from papers.studies.intervals import Losses
from papers.studies.study import Study

TEXTS = ("commits", "shakespeare")
EPSILONS = (1.0, 8.0)
GROUP_PRIVACY, ULS = "group-privacy-vadhan", "uls"
FEW, MOST = 2, 10
EQUAL_BATCHES = (
    "not the paper's question: both take the same B and T here, so that a step of User-wise DP-SGD "
    "has B / k users; the paper tunes batch and steps of each by itself"
)
EQUAL_GRADIENTS = (
    "not the paper's question: a step has B / k users here, a fifth as many at k = 10 as at "
    "k = 2; in the paper's Algorithm 2 the number of users does not follow k"
)


class RecordsPerUser(Study):
    """Both algorithms of the paper against k, at equal planned gradients a step."""

    design: ClassVar[str] = "chua-k"
    figures: ClassVar[tuple[str, ...]] = ("chua-table-3", "chua-table-5", "chua-table-6")
    panel: ClassVar[tuple[str, ...]] = ("text", "epsilon")
    line: ClassVar[tuple[str, ...]] = ("method",)
    x: ClassVar[str] = "group_size"
    title: ClassVar[str] = "Group Privacy and User-wise DP-SGD against k, 32 gradients a step"

    def findings(self, losses: Losses) -> list[Finding]:
        """Contrasts of k = 10 and k = 2, and of both algorithms at their best k."""
        return [
            by_records(losses, "chua-table-3"),
            by_records(losses, "chua-table-5"),
            order(losses),
        ]


def by_records(losses: Losses, figure: str, **common: Any) -> Finding:
    """What ten records a user give over two, by algorithm: Tables 3 and 5, and 10 and 11."""
    method = GROUP_PRIVACY if figure in ("chua-table-3", "chua-table-10") else ULS
    texts = sorted({s["text"] for s in losses.settings(**common)})
    gains = {}
    for text in texts:
        for epsilon in EPSILONS:
            here = {"text": text, "epsilon": epsilon, "method": method, **common}
            gains[f"{text}, ε = {epsilon:g}"] = losses.difference(
                {**here, "group_size": MOST}, {**here, "group_size": FEW}
            )
    if method == GROUP_PRIVACY:
        paper = "small ε favours a small k (2 or 5), ε = 8 a larger one"
        expected, why = [1, -1] * len(texts), ""
    else:
        paper = "a larger k improves User-wise DP-SGD at every ε"
        expected, why = [0, 0] * len(texts), f"; {EQUAL_GRADIENTS}"
    words, answers = judged(gains, expected)
    return Finding(
        figure=figure,
        paper=paper,
        here=f"loss of k = {MOST} less that of k = {FEW}: {words}{why}",
        verdict=verdict_by(answers[::2], answers[1::2]),
    )


def order(losses: Losses) -> Finding:
    """User-wise DP-SGD with k = 10 against Group Privacy with its best k: Table 6."""
    gaps = {}
    for text in TEXTS:
        for epsilon in EPSILONS:
            here = {"text": text, "epsilon": epsilon}
            best = min(
                (losses.mean(**here, method=GROUP_PRIVACY, group_size=k).value, k)
                for k in (2, 5, 10)
            )[1]
            gaps[f"{text}, ε = {epsilon:g}, k = {best}"] = losses.difference(
                {**here, "method": ULS, "group_size": MOST},
                {**here, "method": GROUP_PRIVACY, "group_size": best},
            )
    words, answers = judged(gaps, 0)
    return Finding(
        figure="chua-table-6",
        paper="User-wise DP-SGD (k = 10) is below Group Privacy with its best k, most at small ε",
        here=f"its loss less that of Group Privacy: {words}; {EQUAL_BATCHES}",
        verdict=verdict_by(answers),
    )
