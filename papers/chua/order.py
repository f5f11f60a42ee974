"""Why ULS stands last on our Group Privacy page, and first in Table 6 of Chua et al. 2024."""

from __future__ import annotations

from typing import ClassVar

from papers.studies.findings import Finding, judged, verdict_by
from papers.studies.intervals import Losses
from papers.studies.study import Study

GROUP_PRIVACY, ULS = "group-privacy-vadhan", "uls"
NAME = "chua-table-6-order"


class Order(Study):
    """One setting, and what changes when a user gives less, a step is larger, or steps are more."""

    design: ClassVar[str] = "uls-order"
    figures: ClassVar[tuple[str, ...]] = (NAME,)
    panel: ClassVar[tuple[str, ...]] = ("gradients", "steps")
    line: ClassVar[tuple[str, ...]] = ("method",)
    x: ClassVar[str] = "group_size"
    title: ClassVar[str] = "Commits, ε = 4: Group Privacy with k = 10, and ULS"

    def findings(self, losses: Losses) -> list[Finding]:
        """The gap of ULS to Group Privacy, changed in one thing at a time."""
        base = {"gradients": 32.0, "steps": 40}
        cases = [
            ("k = 10, B = 32, T = 40 (3 users a step)", 10, base),
            ("k = 3 (11 users a step)", 3, base),
            ("k = 1 (32 users a step)", 1, base),
            ("k = 10, 120 steps (3 users a step)", 10, {**base, "steps": 120}),
            ("k = 10, B = 128 (13 users a step)", 10, {**base, "gradients": 128.0}),
        ]
        gaps = {
            case: losses.difference(
                {**shape, "method": ULS, "group_size": k},
                {**shape, "method": GROUP_PRIVACY, "group_size": 10},
            )
            for case, k, shape in cases
        }
        # Expected: behind (1) where a step has three users, ahead (-1) where it has more.
        words, answers = judged(gaps, [1, -1, -1, 1, -1])
        few, more, one_example = answers[::3], answers[1:3] + answers[4:], answers[2:3]
        return [
            Finding(
                figure=NAME,
                paper="(our question) ULS stands behind Group Privacy here because a step has too "
                "few users, not because of its sampling",
                here="loss of ULS less that of Group Privacy: " + words,
                verdict=verdict_by(few, more, one_example),
            )
        ]
