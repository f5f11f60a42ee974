"""What a person is told who asks what became of their text, or to be forgotten.

Plain words for somebody who is no engineer. It names the releases that their text was in the store
for and the bound that each gives. It does not say whether a step *drew* their text: that is secret,
nobody wrote it down, and the bound holds either way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from userdp.claims.claims import Claim
from userdp.data.splits import Split
from userdp.ledger.charges import Charge
from userdp.ledger.history import History
from userdp.people.membership import Member, claim_over
from userdp.reporting.meaning import meaning_of_claim, percent_up
from userdp.vocabulary import delta_up, round_up


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """Something that was made of the text of people, this person's among them.

    Args:
        id: of the run or answer, as the ledger knows it.
        what: in words.
        claim: the bound that it gives by itself.
        weights: the digest of the released weights; None where none were, or none are known.
        trained: steps of a training drew people, of whom this person may be one.
    """

    id: str
    what: str
    claim: Claim
    weights: str | None
    trained: bool

    @property
    def bounded(self) -> bool:
        """Whether anything protects the person in it."""
        return math.isfinite(self.claim.guarantee.epsilon)

    @property
    def in_words(self) -> str:
        """One line of the statement."""
        weights = f"; its weights have the SHA-256 {self.weights[:16]}…" if self.weights else ""
        if not self.bounded:
            return f"{self.what} ({self.id}{weights}): no bound, since it was made without privacy"
        guarantee = self.claim.guarantee
        bound = f"epsilon = {round_up(guarantee.epsilon)}"
        if guarantee.delta:
            bound += f" at delta = {delta_up(guarantee.delta)}"
        return f"{self.what} ({self.id}{weights}): {bound}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What can be said to one person.

    Args:
        splits: the parts of the store that held text of theirs.
        releases: what their text was in the store for, oldest first.
        total: the bound over all of it together; None over nothing.
        notes: what this does not cover, for this store.
    """

    splits: tuple[Split, ...]
    releases: tuple[Release, ...]
    total: Claim | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "splits": [str(split) for split in self.splits],
            "releases": [
                {
                    "id": one.id,
                    "what": one.what,
                    "weights": one.weights,
                    "epsilon": one.claim.guarantee.epsilon if one.bounded else None,
                    "delta": one.claim.guarantee.delta,
                }
                for one in self.releases
            ],
            "epsilon": self.total.guarantee.epsilon if self.total and self.total.finite else None,
            "delta": None if self.total is None else self.total.guarantee.delta,
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        """The statement in words, a paragraph or a point each."""
        if self.splits == (Split.HELD_OUT_USERS,):
            yield (
                "In this store your text is in the part that tests models, and does not train them."
            )
        else:
            yield "In this store your text is in the part that models are trained on."
        if not self.releases:
            yield "Nothing that its ledger holds was released of a store with your text in it."
        else:
            yield "It was in the store for the following."
            yield from (f"- {one.in_words}" for one in self.releases)
        if any(one.trained for one in self.releases):
            yield (
                "Whether it was drawn in any step of a training is not known to anybody: the draws "
                "are secret and were not kept."
            )
        if self.total is not None and self.total.finite:
            yield f"All of it together: {self.total.headline}."
            yield from self._meaning(self.total)
        yield "What was released is not changed by your leaving: it cannot be called back."
        yield from (f"- {note}" for note in self.notes)

    def _meaning(self, total: Claim) -> Iterator[str]:
        """What the bound means; nothing where it is none yet, as its headline then says."""
        meaning = meaning_of_claim(total)
        if meaning is not None and total.lineage.fixed and not total.conditions:
            yield (
                "Somebody who sees all that was released, knows everybody else's text, and thought "
                "it equally likely before that yours was there and that it was not, guesses right "
                f"with a probability of at most {percent_up(meaning.best_guess)}."
            )


def statement_of(
    history: History, member: Member, charges: list[Charge], notes: tuple[str, ...]
) -> Statement:
    """The statement for one user.

    Args:
        history: of the store's ledger.
        member: who.
        charges: what was charged while they were in the store (`membership.charged_to`).
        notes: see `Statement`.
    """
    weights = {one.run_id: one.weights for one in history.released}
    releases = []
    for charge in (one for one in charges if one.again is None):
        further = (one for one in charges if one.again == charge.run_id)
        claim = claim_over(history, (charge, *further))
        assert claim is not None
        own = next((p for p in claim.parts if p.id == charge.run_id), None)
        what = own.in_words if own is not None else claim.composition
        releases.append(
            Release(
                id=charge.run_id,
                what=what,
                claim=claim,
                weights=weights.get(charge.run_id),
                trained=charge.query_epsilon is None,
            )
        )
    return Statement(
        splits=member.splits,
        releases=tuple(releases),
        total=claim_over(history, tuple(charges)),
        notes=notes,
    )
