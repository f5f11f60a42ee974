"""The claim in words: the same sentence wherever a command, a page or a card says an ε."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from userdp.claims.parts import Steps, Unclaimed
from userdp.vocabulary import delta_up, round_up

if TYPE_CHECKING:
    from userdp.claims.claims import Claim

SPENT_SO_FAR = (
    "This is what was spent so far, not a guarantee that was fixed beforehand: prices were chosen "
    "after earlier ones were seen (Rogers et al. 2016)"
)
_WHY = {
    "training without privacy": "people's text was trained on without privacy",
    "training with a known seed": (
        "its randomness was fixed by a known seed, which anybody could repeat"
    ),
    "noise of an unknown sampler": (
        "a ledger does not say what drew its noise, which may have been float32"
    ),
}


def headline(claim: Claim) -> str:
    """What is claimed, with all that it rests on, without a full stop at its end.

    "(ε ≤ …, δ = …)-DP per user, add-or-remove adjacency"; then the conditions; then, where the
    prices were not fixed beforehand, that their sum is no guarantee.
    """
    if not claim.finite:
        return f"no ε is claimed: {why_nothing(claim)}"
    words = claim_in_words(claim)
    if claim.conditions:
        words += f", provided that {conditions_in_words(claim)}"
    return words if claim.lineage.fixed else f"{words}. {SPENT_SO_FAR}"


def claim_in_words(claim: Claim) -> str:
    """A finite claim without what it rests on, for those who say that beside it."""
    told = claim.guarantee
    return (
        f"(ε ≤ {round_up(told.epsilon)}, δ = {delta_up(told.delta)})-DP per {told.unit}, "
        f"{told.adjacency} adjacency"
    )


def conditions_in_words(claim: Claim) -> str:
    """All conditions of a claim in one clause, which follows "provided that"."""
    return "; and ".join(claim.conditions_in_words)


def so_far_in_words(claim: Claim) -> str | None:
    """What the attempted steps of an unfinished run cost by themselves; None of any other."""
    if claim.so_far is None or not claim.finite:
        return None
    only = claim.so_far
    return (
        f"The run is not finished, and the claim is of its whole plan. The {claim.steps:,} steps "
        f"that were attempted so far cost ε = {round_up(only.epsilon)} at δ = "
        f"{delta_up(only.delta)} by themselves. That is no claim: when a run stops may be chosen "
        "by what its steps released"
    )


def printed_in_words(claim: Claim) -> str | None:
    """What is printed beside the model, and what both cost together; None where nothing is."""
    both = claim.together
    if both is None or not claim.finite:
        return None
    epsilons = [round_up(one.pure_epsilon) for one in claim.printed]
    what = ", ".join(
        f"{one.name} (ε = {epsilon})" for one, epsilon in zip(claim.printed, epsilons, strict=True)
    )
    words = f"Printed beside the model, at a price of its own, is the evaluation: {what}. "
    if not math.isfinite(both.epsilon):
        return (
            f"{words}It is per user, add-or-remove, and the model is not: no sum of the two ε "
            "bounds what both tell together"
        )
    return (
        f"{words}For somebody whose text is in both, the model with the evaluation printed beside "
        f"it is (ε ≤ {round_up(both.epsilon)}, δ = {delta_up(both.delta)})-DP per {both.unit}, "
        f"{both.adjacency} adjacency. {SPENT_SO_FAR}"
    )


def why_nothing(claim: Claim) -> str:
    """Why a claim's ε is infinite."""
    reasons = [part.why for part in claim.parts if isinstance(part, Unclaimed)]
    plans = [part.plan for part in claim.parts if isinstance(part, Steps)]
    if claim.trial:
        return "it is a trial of a private selection, of which only the winner claims anything"
    if claim.subject == "run" and claim.plan is None:
        return "it was trained without privacy"
    if reasons:
        return "; ".join(dict.fromkeys(_WHY.get(reason, reason) for reason in reasons))
    if any(not plan.sampling.covered for plan in plans):
        return "it drew shuffled batches, which no accountant here covers"
    if not claim.parts:
        return "nothing was charged"
    if len({part.guarantee().adjacency for part in claim.parts}) > 1:
        return "its parts are of different adjacencies, and no sum of their ε bounds anything"
    return "its accountant gave no finite bound"
