"""Who was in a store when something was charged to its people, and what each was charged in all.

A claim holds for everybody who was in the store when its run was opened: adding or removing any one
of them changes what was released by at most its ε. Whoever joined later was in none of it, and pays
only for what came after. All of this is exact, and the operator's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from userdp.claims.claims import Claim, store_claim
from userdp.data import meta as layout
from userdp.data.meta import State, StateKind, joined_at
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.ledger.charges import Charge
from userdp.ledger.history import History


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One user of a store.

    Args:
        row: in the whole store.
        joined: the number of the state, from 0, in which their first text came.
        splits: that hold text of theirs.
    """

    row: int
    joined: int
    splits: tuple[Split, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Intake:
    """The users who joined a store in one state.

    Args:
        number: of the state, from 0.
        state: how it came about.
        users: who joined in it and are still there.
        charges: what was charged to them since.
        total: the claim over all of it; None where nothing was charged to them.
    """

    number: int
    state: State
    users: int
    charges: tuple[Charge, ...]
    total: Claim | None


def member_of(store: UserStore, row: int) -> Member:
    """What the index says of the user at ``row``."""
    spans = store.spans()
    own = spans["user"] == row
    codes = set(spans["split"][own].tolist())
    states = store.meta.states
    return Member(
        row=row,
        # Of a user whose records were all too short nothing is in the store.
        joined=joined_at(states, int(spans["segment"][own].min())) if codes else len(states) - 1,
        splits=tuple(split for split, code in layout.SPLIT_CODES.items() if code in codes),
    )


def charged_to(store: UserStore, history: History, member: Member) -> list[Charge]:
    """What was charged while a user was in the store.

    A charge of which it is not known in which state the store was counts for everybody: of a ledger
    of before that was written, of a store that this one replaced, or of another one that shares the
    ledger. So does every charge for somebody who came after an erasure: it is not kept who was
    erased, and they may have come back. A run in a state of this very store is none of somebody
    whose whole text is held out in it; a DP answer and a selection may be about anybody's.
    """
    only_held_out = member.splits == (Split.HELD_OUT_USERS,)
    return [
        charge
        for charge in _since(store, history, member.joined)
        if not only_held_out or not _of_training_text(store, charge)
    ]


def may_have_returned(store: UserStore, joined: int) -> bool:
    """Whether somebody was erased before the users of a state joined: it may be one of them."""
    return any(state.kind is StateKind.ERASED for state in store.meta.states[: joined + 1])


def _of_training_text(store: UserStore, charge: Charge) -> bool:
    """Whether a charge is known to be a run over the training text of this very store."""
    run = charge.query_epsilon is None and charge.selection is None
    return run and state_number(store, charge) is not None


def intakes(store: UserStore, history: History) -> Iterator[Intake]:
    """The users by the state in which they joined, and what those of each were charged in all.

    Their total counts a user as trained on, which is at least what a held-out one was charged.
    """
    spans = store.spans()
    first = np.full(store.users, np.iinfo(np.int32).max, dtype=np.int64)
    np.minimum.at(first, spans["user"], spans["segment"].astype(np.int64))
    segments, counts = np.unique(first, return_counts=True)
    users = np.zeros(len(store.meta.states), dtype=np.int64)
    for segment, count in zip(segments.tolist(), counts.tolist(), strict=True):
        if segment < store.meta.segments:  # else of users whose records were all too short
            users[joined_at(store.meta.states, segment)] += count
    for number, state in enumerate(store.meta.states):
        if state.kind is StateKind.ERASED:
            continue
        charges = tuple(_since(store, history, number))
        yield Intake(
            number=number,
            state=state,
            users=int(users[number]),
            charges=charges,
            total=claim_over(history, charges),
        )


def claim_over(history: History, charges: tuple[Charge, ...]) -> Claim | None:
    """The claim over some of a ledger's charges; None over none."""
    if not charges:
        return None
    return store_claim(replace(history, charges={charge.run_id: charge for charge in charges}))


def state_number(store: UserStore, charge: Charge) -> int | None:
    """The number, from 0, of the state in which something was charged; None if that is unknown."""
    ids = [state.id for state in store.meta.states]
    return ids.index(charge.state) if charge.state in ids else None


def _since(store: UserStore, history: History, joined: int) -> Iterator[Charge]:
    joined = 0 if may_have_returned(store, joined) else joined
    for charge in history.charges.values():
        number = state_number(store, charge)
        if number is None or number >= joined:
            yield charge
