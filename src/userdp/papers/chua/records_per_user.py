"""Tables 3, 5 and 6 of Chua et al. 2024: how many records a user, and which algorithm."""

from __future__ import annotations

from typing import Any, ClassVar

from userdp.papers.studies.findings import Finding, signs, verdict_by
from userdp.papers.studies.intervals import Losses
from userdp.papers.studies.study import Study

TEXTS = ("commits", "shakespeare")
EPSILONS = (1.0, 8.0)
GROUP_PRIVACY, ULS = "group-privacy-vadhan", "uls"
FEW, MOST = 2, 10


class RecordsPerUser(Study):
    """Both algorithms of the paper against k, at equal gradients a step."""

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
    cases = [(text, epsilon) for text in texts for epsilon in EPSILONS]
    gains = []
    for text, epsilon in cases:
        here = {"text": text, "epsilon": epsilon, "method": method, **common}
        gains.append(losses.difference({**here, "group_size": MOST}, {**here, "group_size": FEW}))
    told = signs(gains)
    if method == GROUP_PRIVACY:
        paper = "small ε favours a small k (2 or 5), ε = 8 a larger one"
        expected = [1 if epsilon < 2 else -1 for _, epsilon in cases]
    else:
        paper = "a larger k improves User-wise DP-SGD at every ε"
        expected = [-1] * len(cases)
    numbers = "; ".join(
        f"{text}, ε = {epsilon:g}: {gain}{'' if sign else ' (not told)'}"
        for (text, epsilon), gain, sign in zip(cases, gains, told, strict=True)
    )
    return Finding(
        figure=figure,
        paper=paper,
        here=f"loss of k = {MOST} less that of k = {FEW}: {numbers}",
        verdict=verdict_by(told, expected),
    )


def order(losses: Losses) -> Finding:
    """User-wise DP-SGD with k = 10 against Group Privacy with its best k: Table 6."""
    gaps, words = [], []
    for text in TEXTS:
        for epsilon in EPSILONS:
            here = {"text": text, "epsilon": epsilon}
            best = min(
                (losses.mean(**here, method=GROUP_PRIVACY, group_size=k).value, k)
                for k in (2, 5, 10)
            )[1]
            gap = losses.difference(
                {**here, "method": ULS, "group_size": MOST},
                {**here, "method": GROUP_PRIVACY, "group_size": best},
            )
            gaps.append(gap)
            words.append(f"{text}, ε = {epsilon:g}, k = {best}: {gap}")
    told = signs(gaps)
    return Finding(
        figure="chua-table-6",
        paper="User-wise DP-SGD (k = 10) is below Group Privacy with its best k, most at small ε",
        here="its loss less that of Group Privacy: " + "; ".join(words),
        verdict=verdict_by(told, [-1] * len(told)),
    )
