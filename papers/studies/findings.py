"""`Finding`: what a figure of a paper says, what our runs say, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from papers.studies.intervals import Estimate, holm


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
        figure: its name for ``python -m papers``.
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


def verdict_by(*parts: Sequence[int]) -> Verdict:
    """Whether a sentence of a paper holds, from the answers (see `judged`) to each of its parts.

    It holds only if every contrast of every part is told as the paper has it. A part that says
    something of several contrasts ("beats each") is refuted by one that is told against it. The
    sentence holds in part if a part that is not refuted has a contrast told as the paper has it.

    >>> verdict_by([1, 0]), verdict_by([1, -1])
    (<Verdict.IN_PART: 'holds in part'>, <Verdict.DOES_NOT_HOLD: 'does not hold'>)
    >>> verdict_by([1, 1], [1]), verdict_by([0, 0])
    (<Verdict.HOLDS: 'holds'>, <Verdict.CANNOT_TELL: 'cannot be told here'>)
    """
    if all(answer > 0 for part in parts for answer in part):
        return Verdict.HOLDS
    if any(1 in part and -1 not in part for part in parts):
        return Verdict.IN_PART
    return Verdict.DOES_NOT_HOLD if any(-1 in part for part in parts) else Verdict.CANNOT_TELL


def judged(
    estimates: Mapping[str, Estimate], expected: int | Sequence[int]
) -> tuple[str, list[int]]:
    """Of several differences of one row: all of them in words, and the answer of each.

    An answer is 1 if the sign is told as expected, -1 if it is told against that, 0 if it is not
    told, or if nothing is expected (0): the paper's sentence says nothing of this difference.

    Args:
        estimates: by what they compare.
        expected: the sign that the paper's sentence gives each, or all of them.

    >>> judged({"one less other": Estimate(value=1, low=0, high=2, p=1e-9)}, -1)
    ('one less other: +1.0000 [+0.0000, +2.0000] (against)', [-1])
    """
    told = signs(list(estimates.values()))
    if isinstance(expected, int):
        expected = [expected] * len(told)
    answers = [one * other for one, other in zip(told, expected, strict=True)]
    words = [
        f"{name}: {estimates[name]}"
        + (" (against)" if answer < 0 else "" if sign else " (not told)")
        for name, sign, answer in zip(estimates, told, answers, strict=True)
    ]
    return "; ".join(words), answers


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
