"""Who computed a claim's ε, in one sentence, with a second accountant's figure beside it."""

from __future__ import annotations

from dataclasses import dataclass

from userdp.claims import Claim
from userdp.claims.claims import second_opinion
from userdp.reporting.numbers import epsilon_text
from userdp.reporting.table import MISSING

_ENCLOSES = "encloses the exact ε of the steps from both sides, and the upper end is claimed"
_HOW = {
    "contour": _ENCLOSES,
    "contour (remove, then add)": _ENCLOSES,
    "rdp-private-selection": "bounds the ε of the winner by Rényi divergences, from above only",
    "group-privacy": "lifts the ε of one example to that of a user by a lemma",
    "group-privacy-vadhan": "lifts the ε of one example to that of a user by Vadhan’s lemma",
}
_SEVERAL = "prices each part, and the prices are added up"


@dataclass(frozen=True, kw_only=True, slots=True)
class Accountants:
    """What two accountants say of one claim, in words.

    Args:
        sentence: both.
        second: the second one's ε, or `MISSING`.
        why: what follows from the two numbers, or why there is one only.
    """

    sentence: str
    second: str
    why: str


def accountants_of(claim: Claim) -> Accountants:
    """Both accountants of a finite claim.

    Raises:
        FailureError: the two contradict each other.
    """
    name = claim.guarantee.accountant
    how = _SEVERAL if len(claim.parts) > 1 else _HOW.get(name, "bounds ε from above")
    first = f"The accountant {name} {how}"
    second = second_opinion(claim)
    if second is None:
        why = "no second accountant here knows the price of what is claimed"
        return Accountants(sentence=f"{first}; {why}.", second=MISSING, why=why)
    figure = epsilon_text(second.epsilon)
    if second.epsilon >= claim.guarantee.epsilon:
        why = "looser, as it is a bound from above only"
    else:
        why = "tighter than the lemma that is claimed by"
    return Accountants(
        sentence=f"{first}; a second one, by other mathematics and other code (Rényi DP), says "
        f"ε ≤ {figure} at the same δ: {why}.",
        second=figure,
        why=why,
    )
