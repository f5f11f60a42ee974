"""Who was in a store when something was charged to its people, and what a person can be told.

A claim holds for everybody who was in the store when its run was opened: adding or removing any one
of them changes what was released by at most its ε. Whoever joined later was in none of it, and pays
only for what came after. All of this is exact, and the operator's.

A statement is in plain words, for somebody who is no engineer. It names the releases that their
text was in the store for and the bound that each gives. It does not say whether a step *drew* their
text: that is secret, nobody wrote it down, and the bound holds either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from userdp.claims import Claim
from userdp.claims.claims import store_claim
from userdp.core.errors import UseError
from userdp.core.vocabulary import delta_up, round_up
from userdp.data.splits import Split
from userdp.data.store_meta import StateKind
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger
from userdp.ledger.charged_parts import Query
from userdp.ledger.lines import Charge
from userdp.ledger.store_history import History
from userdp.reporting.meaning import meaning_of_claim, percent_up


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """Something that was made of the text of people, this person's among them.

    Args:
        id: of the run or answer, as the ledger knows it.
        title: in words.
        claim: the bound that it gives by itself.
        weights: the digest of the released weights; None where none were, or none are known.
    """

    id: str
    title: str
    claim: Claim
    weights: str | None

    @property
    def in_words(self) -> str:
        """One line of the statement."""
        weights = f"; its weights have the SHA-256 {self.weights[:16]}…" if self.weights else ""
        bound = "no bound, since it was made without privacy"
        if self.claim.finite:
            epsilon, delta = self.claim.guarantee.epsilon, self.claim.guarantee.delta
            bound = f"epsilon = {round_up(epsilon)}"
            bound += f" at delta = {delta_up(delta)}" if delta else ""
        return f"{self.title} ({self.id}{weights}): {bound}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What can be said to one person.

    Args:
        row: of the person in the store.
        splits: the parts of the store that hold text of theirs.
        charges: while they were in the store.
        releases: that their text was in the store for, oldest first.
        total: the bound over all of it together; None over nothing.
        notes: what this does not cover, for this store.
    """

    row: int
    splits: tuple[Split, ...]
    charges: tuple[Charge, ...]
    releases: tuple[Release, ...]
    total: Claim | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "splits": [str(split) for split in self.splits],
            "releases": [
                {"id": one.id, "what": one.title, "weights": one.weights, **_price(one.claim)}
                for one in self.releases
            ],
            **_price(self.total),
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        """The statement in words, a paragraph or a point each."""
        held_out = Split.TRAIN not in self.splits
        part = "tests models, and does not train them" if held_out else "models are trained on"
        yield f"In this store your text is in the part that {part}."
        if not self.releases:
            yield "Nothing that its ledger holds was released of a store with your text in it."
        else:
            yield "It was in the store for the following."
            yield from (f"- {one.in_words}" for one in self.releases)
        if not all(isinstance(one.pays_for, Query) for one in self.charges):
            yield (
                "Whether it was drawn in any step of a training is not known to anybody: the draws "
                "are secret and were not kept."
            )
        if self.total is not None and self.total.finite:
            yield f"All of it together: {self.total.headline}."
            meaning = meaning_of_claim(self.total)
            # A sum of what was spent so far, or a bound under conditions, bounds no guess.
            if meaning is not None and self.total.lineage.fixed and not self.total.conditions:
                yield (
                    "Somebody who sees all that was released, knows everybody else's text, and "
                    "thought it equally likely before that yours was there and that it was not, "
                    f"guesses right with a probability of at most {percent_up(meaning.best_guess)}."
                )
        yield "What was released is not changed by your leaving: it cannot be called back."
        yield from (f"- {note}" for note in self.notes)


def statement_for(store: UserStore, user: str, history: History | None = None) -> Statement:
    """The statement for a user who is in a store; ``history`` is of its ledger, read if not given.

    A charge of which it is not known in which state the store was counts for everybody: of a store
    that this one replaced, or of another one that shares the ledger. So does every charge for
    somebody who came after an erasure: it is not kept who was erased, and they may have come back.
    A run in a state of this very store is none of somebody whose whole text is held out in it; a DP
    answer and a selection may be about anybody's.

    Raises:
        UseError: nobody has this id.
    """
    try:
        row = store.user_ids().index(user.encode())
    except ValueError:
        raise UseError(
            f"nobody in the store at {store.path} has this id, so there is nothing to erase",
            hint="ids are compared byte for byte, with case and spaces",
        ) from None
    history = history or StoreLedger(store.path).history()
    splits = tuple(split for split in Split if row in store.split(split).rows)
    joined = int(store.joined()[row])
    returned = _may_have_returned(store, joined)
    # A record of several owners trains with its first one, also where the others' are held out.
    single = store.meta.ownership["rule"] == "single" or splits == (Split.HELD_OUT_USERS,)
    trains = Split.TRAIN in splits or not single
    charges = tuple(
        charge
        for charge in _since(store, history, joined)
        if trains or returned or not _of_training_text(store, charge)
    )
    return Statement(
        row=row,
        splits=splits,
        charges=charges,
        releases=tuple(_releases(history, charges)),
        total=_claim_over(history, charges),
        notes=tuple(_notes(store, history, splits, returned=returned)),
    )


def intakes(store: UserStore, history: History) -> Iterator[dict[str, Any]]:
    """Each state in which users joined: how many are still there, and their charges in all.

    The total counts a user as trained on, which is at least what a held-out one was charged.
    """
    users = np.bincount(store.joined(), minlength=len(store.meta.states))
    for number, state in enumerate(store.meta.states):
        if state.kind is not StateKind.ERASED:
            charges = tuple(_since(store, history, number))
            total = _claim_over(history, charges)
            yield {
                "state": number + 1,
                "kind": str(state.kind),
                "users": int(users[number]),
                "charges": len(charges),
                "epsilon": total.guarantee.epsilon if total else 0.0,
                "delta": total.guarantee.delta if total else 0.0,
            }


def state_number(store: UserStore, charge: Charge) -> int | None:
    """The number, from 0, of the state in which something was charged; None if that is unknown."""
    ids = [state.id for state in store.meta.states]
    return ids.index(charge.state) if charge.state in ids else None


def _since(store: UserStore, history: History, joined: int) -> Iterator[Charge]:
    joined = 0 if _may_have_returned(store, joined) else joined
    for charge in history.charges.values():
        number = state_number(store, charge)
        if number is None or number >= joined:
            yield charge


def _may_have_returned(store: UserStore, joined: int) -> bool:
    """Whether somebody was erased before the users of a state joined: it may be one of them."""
    return any(state.kind is StateKind.ERASED for state in store.meta.states[: joined + 1])


def _of_training_text(store: UserStore, charge: Charge) -> bool:
    """Whether a charge is known to be a run over the training text of this very store."""
    return charge.is_run and state_number(store, charge) is not None


def _claim_over(history: History, charges: Sequence[Charge]) -> Claim | None:
    """The claim over some of a ledger's charges; None over none."""
    own = {charge.run_id: charge for charge in charges}
    return store_claim(replace(history, charges=own)) if own else None


def _releases(history: History, charges: Sequence[Charge]) -> Iterator[Release]:
    """A release for each charge."""
    weights = {one.run_id: one.weights for one in history.released}
    for charge in charges:
        claim = _claim_over(history, [charge])
        assert claim is not None
        titles = {part.id: part.in_words for part in claim.parts}
        title = titles.get(charge.run_id, claim.composition)
        digest = weights.get(charge.run_id)
        yield Release(id=charge.run_id, title=title, claim=claim, weights=digest)


def _price(claim: Claim | None) -> dict[str, float | None]:
    """ε and δ as plain values: no ε where nothing is bounded."""
    if claim is None:
        return {"epsilon": None, "delta": None}
    guarantee = claim.guarantee
    return {"epsilon": guarantee.epsilon if claim.finite else None, "delta": guarantee.delta}


def _notes(
    store: UserStore, history: History, splits: tuple[Split, ...], *, returned: bool
) -> Iterator[str]:
    """What a statement does not cover."""
    if returned:
        yield (
            "Somebody was erased from the store before your text came, and nobody wrote down who. "
            "It may have been you, so that all that was released before is counted too."
        )
    charges = history.charges.values()
    last = max((history.at[charge.run_id] for charge in charges), default=0)
    shown = {command for at, command in history.looks if at < last}
    shown |= {"tune" for at, _ in history.tunings.values() if at < last}
    shown = shown.union(*(history.looked_during(charge) for charge in charges))
    if shown:  # before the last charge, which they may have chosen
        yield (
            f"The operator was shown exact numbers of people's text ({', '.join(sorted(shown))}), "
            "yours perhaps among it. What was released may have been chosen by them, which no "
            "bound covers."
        )
    yield (
        "The records that this store was made of, backups, and copies that somebody made lie "
        "outside of it; whoever keeps them has to erase them there."
    )
    yield "Text of other people that quotes or names you is theirs, and stays."
    if store.meta.ownership["rule"] != "single":
        yield (
            "Records with several owners were given to one of them. Those that were given to "
            "somebody else are not found by your id, and stay."
        )
    if Split.TRAIN in splits:
        yield (
            "Differential privacy bounds what anybody can tell from what was released. It is no "
            "erasure of what a model learned: the bound is what remains."
        )
