"""Erase a person: from the store, and from what was made of the store's text elsewhere.

What goes: the person's records, id, hash and index entries; their rows in files of scores; working
files of killed runs; what audits kept of people one by one; and weights that learned from them
without privacy. What stays: what was released under a guarantee, with its price.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from userdp.data.erasure import erase_user
from userdp.data.files import locked
from userdp.data.places import Place, places_of
from userdp.data.progress import NoProgress, Progress
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.data.writer import remove_leftovers
from userdp.errors import FailureError, UseError
from userdp.ledger import StoreLedger
from userdp.ledger.history import History
from userdp.ledger.opening import open_charges
from userdp.people.membership import Member, charged_to, may_have_returned, member_of
from userdp.people.runs import find_runs, lost_runs
from userdp.people.statement import Statement, statement_of

_REFERENCES = Path("audit") / "references"
"""Where an audit keeps a number per person, and copies of their text while it works."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forgotten:
    """A person was erased.

    Args:
        statement: for the person.
        removed: files and folders elsewhere that went: weights without privacy, audits' numbers.
        lost_runs: runs whose folder was not found, so that nothing there was removed.
    """

    statement: Statement
    removed: tuple[Path, ...]
    lost_runs: tuple[str, ...]


def forget_user(
    store: Path,
    user: str,
    *,
    also: Iterable[Path] = (),
    yes: bool = False,
    progress: Progress | None = None,
) -> Forgotten:
    """Erase a user from a store and from what was made of its text.

    Guarantee: killed at any moment, the store holds the user as before or not at all; in the second
    case its next opening deletes the generation that held them. No claim changes: what was released
    while the user was in the store stays released, at the price that is in the ledger.

    An answer that leaves everybody where they are and tells whether somebody is in the store is a
    look, which the ledger notes before it is given.

    Args:
        store: its folder; no run over it may be open.
        user: the id, as `prepare` read it.
        also: further folders to look for runs in.
        yes: delete weights that learned from the user without privacy. Without it they are named,
            and nothing is done.
        progress: is told how far it is.

    Raises:
        UseError: no such user, or there are weights to delete and ``yes`` was not said: a look is
            noted, and nothing else has changed. Or a run is open, or another process changes the
            store: nothing has changed, and nothing is said of the user.
    """
    shown = progress or NoProgress()
    also = tuple(also)
    _require_there(also)
    UserStore.open(store, fixed_graph=True)  # refuses what is no store
    with locked(store):
        opened = UserStore.open(store, fixed_graph=True)  # as it is under the lock
        ledger = StoreLedger(store)
        # Before the id is looked up: a refusal by these says nothing of who is there.
        _refuse_open(open_charges(ledger.place.runs))
        history = ledger.history()
        runs = find_runs(store, history, also)
        scores = [Path(path) for path in places_of(store, Place.SCORES)]
        try:
            row = _row_of(opened, user)
        except UseError:
            ledger.look("forget")  # that nobody has this id is an answer
            raise
        member = member_of(opened, row)
        charges = charged_to(opened, history, member)
        learned = {charge.run_id for charge in charges}
        weights = [place for run in runs if run.without_privacy & learned for place in run.weights]
        if weights and not yes:
            ledger.look("forget")  # it tells that the person is there, who stays for now
            raise UseError(
                "weights learned from this person without privacy, and would be deleted: "
                + ", ".join(map(str, weights)),
                hint="say --yes to delete them with the person's records",
            )
        references = [run.folder.path / _REFERENCES for run in runs]
        removed = [*weights, *(place for place in references if place.exists())]
        statement = statement_of(history, member, charges, _notes(opened, member, history))
        remove_leftovers(store)
        state = secrets.token_hex(16)
        # Before it is done: a run may go on over an erasure only if the ledger holds it.
        ledger.forget(opened.meta.state.id, state)
        shown.stage("erasing", None)
        erase_user(store, row, state=state, remove=removed, scores=scores)
        late = open_charges(ledger.place.runs)
    if late:
        raise FailureError(
            "the person was erased, but a run was opened at the same moment and may have read "
            f"their text: {', '.join(late)}",
            hint="stop it; resumed, it goes on without them",
        )
    return Forgotten(
        statement=statement,
        removed=tuple(removed),
        lost_runs=tuple(lost_runs(history, runs)),
    )


def statement_for(store: Path, user: str) -> Statement:
    """The statement for a user who is in a store; nothing is erased."""
    opened = UserStore.open(store, fixed_graph=True)
    member = member_of(opened, _row_of(opened, user))
    history = StoreLedger(store).history()
    return statement_of(
        history, member, charged_to(opened, history, member), _notes(opened, member, history)
    )


def _row_of(store: UserStore, user: str) -> int:
    try:
        return store.user_ids().index(user.encode())
    except ValueError:
        raise UseError(
            f"nobody in the store at {store.path} has this id, so there is nothing to erase",
            hint="ids are compared byte for byte, with case and spaces",
        ) from None


def _refuse_open(charges: list[str]) -> None:
    if charges:
        raise UseError(
            f"a run over this store is open ({', '.join(charges)}), and would go on reading the "
            "text of the person who is erased",
            hint="stop it, erase, and go on with it with --resume: what it has spent stays spent",
        )


def _require_there(also: tuple[Path, ...]) -> None:
    for place in also:
        if not place.exists():
            raise UseError(f"there is nothing at {place} to look through")


def _notes(store: UserStore, member: Member, history: History) -> tuple[str, ...]:
    notes = []
    if may_have_returned(store, member.joined):
        notes.append(
            "Somebody was erased from the store before your text came, and nobody wrote down who. "
            "It may have been you, so that all that was released before is counted too."
        )
    told = _shown_before_the_last_charge(history)
    if told:
        notes.append(
            f"The operator was shown exact numbers of people's text ({', '.join(sorted(told))}), "
            "yours perhaps among it. What was released may have been chosen by them, which no "
            "bound covers."
        )
    notes += [
        "The records that this store was made of, backups, and copies that somebody made lie "
        "outside of it; whoever keeps them has to erase them there.",
        "Text of other people that quotes or names you is theirs, and stays.",
    ]
    rule = store.meta.ownership["rule"]
    if rule != "single":
        notes.append(
            "Records with several owners were given to one of them. Those that were given to "
            "somebody else are not found by your id, and stay."
        )
    if Split.TRAIN not in member.splits:
        return tuple(notes)
    notes.append(
        "Differential privacy bounds what anybody can tell from what was released. It is no "
        "erasure of what a model learned: the bound is what remains."
    )
    return tuple(notes)


def _shown_before_the_last_charge(history: History) -> set[str]:
    """What showed exact numbers that may have chosen something which was charged."""
    charges = history.charges.values()
    last = max((charge.at for charge in charges), default=0)
    told = {what for at, what in history.looks if at < last}
    if any(at < last for at, _ in history.sweeps.values()):
        told.add("sweep")
    return told.union(*(history.looked_during(charge) for charge in charges))
