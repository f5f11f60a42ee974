"""Erase a person: from the store, and from what was made of the store's text elsewhere.

What goes: the person's records, id, hash and index entries; files of scores of the store; working
files of killed runs; what audits kept of people one by one; and weights that learned from them
without privacy. What stays: what was released under a guarantee, with its price.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from userdp.claims.ledger_lineage import run_lineage
from userdp.core.errors import FailureError, UseError
from userdp.core.files import sweep
from userdp.core.stages import Progress
from userdp.data.selection import is_scores
from userdp.data.store_folder import changing, remembered
from userdp.data.user_store import UserStore
from userdp.data.writer import erase_user
from userdp.ledger import StoreLedger
from userdp.ledger.charged_parts import Unclaimed
from userdp.ledger.run_folder import LEDGER, RunFolder
from userdp.ledger.run_ledger import RunRecord
from userdp.ledger.run_lock import open_runs
from userdp.ledger.store_history import History
from userdp.people.member_statements import Statement, statement_for

_WEIGHTS = ("model", "adapter", "checkpoints", "checkpoint-*", "*.safetensors")
"""Where runs, and the trainers of `transformers`, write weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forgotten:
    """A person was erased.

    Args:
        statement: for the person.
        removed: files and folders elsewhere that went: weights without privacy, audits' numbers,
            scores.
        runs_not_found: runs whose folder was not found, so that nothing there was removed.
    """

    statement: Statement
    removed: tuple[Path, ...]
    runs_not_found: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundRun:
    """A run over the people of a store.

    Args:
        run_id: of the run.
        folder: its place.
        without_privacy: the runs over these people, itself included, that its weights descend from
            and that no price covers.
    """

    run_id: str
    folder: RunFolder
    without_privacy: frozenset[str]


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
    also = tuple(also)
    for place in also:
        if not place.exists():
            raise UseError(f"there is nothing at {place} to look through")
    UserStore.open(store, fixed_graph=True)  # refuses what is no store
    with changing(store):
        opened = UserStore.open(store, fixed_graph=True)  # as it is under the lock
        ledger = StoreLedger(store)
        # Before the id is looked up: a refusal by these says nothing of who is there.
        if running := open_runs(ledger.runs):
            raise UseError(
                f"a run over this store is open ({', '.join(running)}), and would go on reading "
                "the text of the person who is erased",
                hint="stop it, erase, and go on with it by --resume: what is spent stays spent",
            )
        history = ledger.history()
        runs = find_runs(store, history, also)
        scores = filter(is_scores, remembered(store))
        try:
            statement = statement_for(opened, user, history)
        except UseError:
            ledger.look("forget")  # that nobody has this id is an answer
            raise
        learned = {charge.run_id for charge in statement.charges}
        weights = [
            place
            for run in runs
            if run.without_privacy & learned
            for name in _WEIGHTS
            for place in run.folder.path.glob(name)
        ]
        if weights and not yes:
            ledger.look("forget")  # it tells that the person is there, who stays for now
            raise UseError(
                "weights learned from this person without privacy, and would be deleted: "
                + ", ".join(map(str, weights)),
                hint="say --yes to delete them with the person's records",
            )
        references = [run.folder.audit / "references" for run in runs]
        removed = [*weights, *(place for place in references if place.exists()), *scores]
        (progress or Progress()).stage("erasing", None)
        for run in runs:
            sweep(run.folder.audit)  # copies of text that a killed audit left
        erase_user(store, statement.row, remove=removed)
        late = open_runs(ledger.runs)
    if late:
        raise FailureError(
            "the person was erased, but a run was opened at the same moment and may have read "
            f"their text: {', '.join(late)}",
            hint="stop it; resumed, it goes on without them",
        )
    found = {run.run_id for run in runs}
    charged = [one.run_id for one in history.charges.values() if one.is_run]
    lost = tuple(run for run in (*charged, *history.trials) if run not in found)
    return Forgotten(statement=statement, removed=tuple(removed), runs_not_found=lost)


def find_runs(store: Path, history: History, also: Iterable[Path] = ()) -> list[FoundRun]:
    """The folders of runs that were charged in a store's ledger.

    They are looked for where they were made, beside one another and beside the store (copies lie
    there, and the winner of a sweep), and anywhere below ``also``.
    """
    made = remembered(store)
    beside = {store.absolute().parent, *(path.parent for path in made)}
    candidates = {path.resolve() for path in made}
    candidates |= {ledger.parent.resolve() for at in beside for ledger in at.glob(f"*/{LEDGER}")}
    candidates |= {ledger.parent.resolve() for at in also for ledger in at.rglob(LEDGER)}
    return [run for path in sorted(candidates) for run in _run_at(path, history)]


def _run_at(path: Path, history: History) -> Iterator[FoundRun]:
    try:
        run = RunRecord.read(path)
        parts = run_lineage(run).parts
    except UseError:  # damaged, or no run's: a run that is known is missed then among the others
        return
    if run.run_id in history.ids:
        unclaimed = {part.id for part in parts if isinstance(part, Unclaimed)} & history.ids
        if run.run_id in history.trials:  # a private selection pays for it
            unclaimed -= {run.run_id}
        yield FoundRun(run_id=run.run_id, folder=run.folder, without_privacy=frozenset(unclaimed))
