"""`Finding`: what a figure of a paper says, what our runs say, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from userdp.papers.studies.intervals import Estimate, holm


class Verdict(StrEnum):
    """Whether what a paper found is found here."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    DOES_NOT_HOLD = "does not hold"
    CANNOT_TELL = "cannot be told here"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One row of the page.

    Args:
        figure: its name for ``userdp reproduce``.
        paper: what the paper found.
        here: what we find, with numbers and intervals.
        verdict: in two words.
    """

    figure: str
    paper: str
    here: str
    verdict: Verdict


def verdict_of(holds: int, total: int) -> Verdict:
    """All of several questions, some, or none answered as in the paper.

    >>> verdict_of(3, 4)
    <Verdict.IN_PART: 'holds in part'>
    """
    if not total:
        return Verdict.CANNOT_TELL
    if holds == total:
        return Verdict.HOLDS
    return Verdict.IN_PART if holds else Verdict.DOES_NOT_HOLD


def verdict_by(told: Sequence[int], expected: Sequence[int]) -> Verdict:
    """Of several contrasts: whether the signs that are told (see `signs`) are those of the paper.

    Where none is as in the paper and none against it, nothing was told: too few runs.

    >>> verdict_by([-1, 0], [-1, -1]), verdict_by([0, 0], [-1, -1])
    (<Verdict.IN_PART: 'holds in part'>, <Verdict.CANNOT_TELL: 'cannot be told here'>)
    """
    right = sum(one == other for one, other in zip(told, expected, strict=True))
    if not right and not any(told):
        return Verdict.CANNOT_TELL
    return verdict_of(right, len(told))


def signs(estimates: list[Estimate]) -> list[int]:
    """Of several differences: -1 or 1 where the sign is told (Holm, 95% for all together), else 0.

    >>> signs([Estimate(value=-1, low=-2, high=0, p=1e-9), Estimate(value=1, low=0, high=2, p=0.9)])
    [-1, 0]
    """
    told = holm(estimates)
    return [
        0 if not is_told else (1 if estimate.value > 0 else -1)
        for estimate, is_told in zip(estimates, told, strict=True)
    ]
