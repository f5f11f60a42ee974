"""What our runs say to a sentence of a paper: contrasts of cells, and a verdict by one rule.

A figure's table in ``figures.toml`` lists *contrasts*: sums of mean losses of cells (``plus``) less
others (``minus``), one for each combination of ``each``, with the sign that the paper's sentence
gives them (``expect``). ``where`` holds fields of all cells of a figure. Of a list in ``minus`` the
cell of least mean loss is taken, and the difference corrected for that choice. Contrasts of one
``part`` are one part of the sentence; each entry of the list is a part of its own by default. What
no contrast says is said by a rule of `papers.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from papers.design import products
from papers.losses import Estimate, Losses, holm


class Verdict(StrEnum):
    """Whether what a paper found is found here."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    DOES_NOT_HOLD = "does not hold"
    CANNOT_TELL = "cannot be decided here"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What we find, with numbers and intervals, and the verdict."""

    here: str
    verdict: Verdict


Contrast = tuple[str, Estimate, Mapping[str, Any]]
"""What is compared; the difference; and the entry of the figure's table that asks for it:

``expect``, the sign that the paper's sentence gives it, 0 if it says nothing of it; or ``limit``,
the most that it may be (with ``either_direction``, its absolute value); or neither, if it is only
shown; and ``part``, a name or several: the parts of the sentence that it answers.
"""


def verdict_by(*parts: Sequence[int]) -> Verdict:
    """Whether a sentence of a paper holds, from the answers to each of its parts.

    An answer is 1 if a contrast is told as the paper has it, -1 if it is told against that, else 0.
    The sentence holds only if every contrast of every part is told as the paper has it. A part that
    says something of several contrasts ("beats each") is refuted by one that is told against it.
    The sentence holds in part if a part that is not refuted has a contrast told as the paper has
    it.

    >>> verdict_by([1, 0]), verdict_by([1, -1])
    (<Verdict.IN_PART: 'holds in part'>, <Verdict.DOES_NOT_HOLD: 'does not hold'>)
    >>> verdict_by([1, 1], [1]), verdict_by([0, 0])
    (<Verdict.HOLDS: 'holds'>, <Verdict.CANNOT_TELL: 'cannot be decided here'>)
    """
    if all(answer > 0 for part in parts for answer in part):
        return Verdict.HOLDS
    if any(1 in part and -1 not in part for part in parts):
        return Verdict.IN_PART
    return Verdict.DOES_NOT_HOLD if any(-1 in part for part in parts) else Verdict.CANNOT_TELL


def contrasts_of(table: Mapping[str, Any], losses: Losses) -> list[Contrast]:
    """The contrasts of a figure's table, estimated.

    Raises:
        LookupError: a cell that one of them needs has not been run.
    """
    found: list[Contrast] = []
    for number, entry in enumerate(table["contrasts"]):
        for chosen in products(entry.get("each", {})):
            cells: list[tuple[float, dict[str, Any]]] = []
            choices = 1
            for side, sign in (("plus", 1.0), ("minus", -1.0)):
                for own in entry[side]:
                    fields = {**table.get("where", {}), **chosen, **own}
                    alike = products(fields)
                    choices *= len(alike)
                    cell = min(alike, key=lambda one: losses.mean(**one).value)
                    cells.append((sign * entry.get("weight", 1.0), cell))
            last = cells[-1][1]
            epsilon = last.get("epsilon")
            budget = "without privacy" if epsilon is None else f"ε = {epsilon:g}"
            name = entry["name"].format(**last, budget=budget)
            limit = entry.get("limit", 0.0)
            estimate = losses.contrast(cells, limit=limit).corrected(choices, limit=limit)
            found.append((name, estimate, {"part": str(number), **entry}))
    return found


def finding_of(contrasts: Sequence[Contrast], template: str) -> Finding:
    """All contrasts in words, and the verdict.

    Whether a sign, or the side of a limit, is told is decided by Holm's rule over all contrasts
    that have an ``expect`` or a ``limit``.

    Args:
        contrasts: of one figure.
        template: with the place ``{words}``, and, of the first part, ``{told}`` as the paper has it
            and ``{against}`` that, of ``{total}``.

    >>> estimate = Estimate(value=1, low=0, high=2, p=1e-9)
    >>> finding_of([("one less other", estimate, {"part": "0", "expect": -1})], "{words}").here
    'one less other: +1.0000 [+0.0000, +2.0000] (against)'
    """
    family = [e for _, e, entry in contrasts if "expect" in entry or "limit" in entry]
    told = iter(holm(family))
    words: list[str] = []
    answers: dict[str, list[int]] = {}
    for name, estimate, entry in contrasts:
        if "limit" in entry:
            sure = next(told)
            size = abs(estimate.value) if entry.get("either_direction") else estimate.value
            answer = (1 if size <= entry["limit"] else -1) if sure else 0
        elif "expect" in entry:
            sure = next(told)
            answer = entry["expect"] * (1 if estimate.value > 0 else -1) if sure else 0
        else:
            words.append(f"{name}: {estimate}")
            continue
        mark = " (against)" if answer < 0 else "" if sure else " (undecided)"
        words.append(f"{name}: {estimate}{mark}")
        for part in [entry["part"]] if isinstance(entry["part"], str) else entry["part"]:
            answers.setdefault(part, []).append(answer)
    first = next(iter(answers.values()))
    counts = {"told": first.count(1), "against": first.count(-1), "total": len(first)}
    here = template.format(words="; ".join(words), **counts)
    return Finding(here=here, verdict=verdict_by(*answers.values()))
