"""Who computed a claim's ε, in one sentence, with a second accountant's figure beside it."""

from __future__ import annotations

from userdp.claims import Claim
from userdp.claims.second import second_opinion
from userdp.reporting.numbers import epsilon_text

_HOW = {
    "contour": "encloses the exact ε of the steps from both sides, and the upper end is claimed",
    "contour (remove, then add)": (
        "encloses the exact ε of the steps from both sides, and the upper end is claimed"
    ),
    "rdp-private-selection": "bounds the ε of the winner by Rényi divergences, from above only",
    "group-privacy": "lifts the ε of one example to that of a user by a lemma",
    "group-privacy-vadhan": "lifts the ε of one example to that of a user by Vadhan’s lemma",
}
_SEVERAL = "prices each part, and the prices are added up"


def accountants_in_words(claim: Claim) -> str:
    """One sentence about a finite claim.

    Raises:
        FailureError: the two accountants contradict each other.
    """
    name = claim.guarantee.accountant
    how = _SEVERAL if len(claim.parts) > 1 else _HOW.get(name, "bounds ε from above")
    first = f"The accountant {name} {how}"
    second = second_opinion(claim)
    if second is None:
        return f"{first}; no second accountant here knows the price of what is claimed."
    figure = f"ε ≤ {epsilon_text(second.epsilon)} at the same δ"
    if second.epsilon >= claim.guarantee.epsilon:
        return (
            f"{first}; a second one, by other mathematics and other code (Rényi DP, a bound from "
            f"above only), says {figure}, which is looser and contradicts nothing."
        )
    return (
        f"{first}; a second one, by other mathematics and other code (Rényi DP, a bound from above "
        f"only), says even {figure}."
    )
