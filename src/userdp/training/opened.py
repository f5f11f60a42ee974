"""A run that this process holds: what it descends from so far, and its end; also a late one."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from userdp import files
from userdp.claims.bound import bound_files
from userdp.claims.conditions import COPIED, looked_at
from userdp.claims.inheritance import charged_since, run_lineage
from userdp.claims.lineage import Lineage, lineage_from
from userdp.claims.weights import digest_of
from userdp.errors import UseError
from userdp.ledger import RunFolder, RunLedger, StoreLedger
from userdp.ledger.journal import read_entries
from userdp.ledger.run import charges_in, count_attempts, finish_of


@dataclass(kw_only=True, slots=True)
class OpenRun:
    """A run folder that this process holds, with its ledger, until `close`.

    Guarantee: while it is open nobody else trains in this folder or in a copy of it; the store has
    been charged with the whole plan before this exists.

    Args:
        run_id: random.
        folder: of the run.
        ledger: the run's.
        store: the ledger of the store's people.
        lock: of the folder.
        steered: a loop of somebody's own takes its steps, whose constants (the learning rate, say)
            nobody has recorded.
        began_with: the digest of the weights that the run was begun with, where that is known.
    """

    run_id: str
    folder: RunFolder
    ledger: RunLedger
    store: StoreLedger
    lock: ExitStack
    steered: bool
    began_with: str | None = None

    @property
    def lineage(self) -> Lineage:
        """What the model that this run releases descends from, the run itself included."""
        copied = [COPIED] if self.store.history().copied else []
        told = Lineage(conditions=(*copied, *looked_at(self.looks)))
        return self._own_lineage + self.since + told

    @property
    def since(self) -> Lineage:
        """What was released of these people since the run was charged, and may have steered it."""
        history = self.store.history()
        own = history.charges.get(self.run_id)
        return charged_since(history, own) if self.steered and own is not None else Lineage()

    @property
    def logged(self) -> bool:
        """Whether the run keeps exact numbers, as was said when it was charged."""
        charge = self.store.history().charges.get(self.run_id)
        return charge is None or charge.logged

    @property
    def looks(self) -> tuple[str, ...]:
        """What showed exact numbers since the run was charged, where they may have steered it."""
        history = self.store.history()
        own = history.charges.get(self.ledger.charge)
        if not self.steered or own is None:
            return ()
        return tuple(sorted(history.looked_during(own)))

    def released_elsewhere(self, weights: Collection[str]) -> bool:
        """Whether weights of such a digest hold what another run over these people has learned.

        Those that this run's own lineage tells of, such as its base model's, are none.
        """
        told = {part.id for part in self._own_lineage.parts}
        known = [
            lineage_from(one.lineage, what="the lineage of released weights")
            for one in self.store.history().released
            if one.weights in weights
        ]
        return any({part.id for part in one.parts} - told for one in known)

    @property
    def _own_lineage(self) -> Lineage:
        return run_lineage(self.ledger.path, read_entries(self.ledger.path))

    def finish(self, weights: str | None = None) -> None:
        """Note the end in the ledger and settle with the store.

        A kill between the two leaves a run that is finished and reserved: `settle_finished`, which
        is how this ends, is also what resuming such a run does.

        Args:
            weights: the digest of the weights that were released, if they are known here.
        """
        folder = self.folder
        plan, options = self.ledger.plan, folder.train
        note_copy(self.ledger, self.store)
        self.ledger.finish(
            {
                "weights": weights,
                "plan": None if plan is None else plan.digest,
                "train": files.digest_of_file(options) if options.exists() else None,
                "adapter": digest_of(folder.adapter) if folder.adapter.is_dir() else None,
            },
            files=bound_files(folder),
            looks=self.looks,
            since=self.since.plain if self.since != Lineage() else None,
        )
        if not settle_finished(folder, self.store):
            raise UseError(
                f"the ledger of the store at {self.store.path} knows this run no more: it was put "
                "back to an earlier state, and would claim less than was released",
                hint="put the latest ledger of the store back, and resume the run",
            )

    def close(self) -> None:
        """Let go of the folder; twice does no harm."""
        self.ledger.close()
        self.lock.close()


def settle_finished(folder: RunFolder, store: StoreLedger) -> bool:
    """Tell a store that a run has ended, by the run's own ledger, and forget the run's noise.

    Until then the store counts the run as open, and does not know its weights by their digest.

    Args:
        folder: of a run.
        store: the ledger of a store.

    Returns:
        Whether the store did not know it yet. False, and nothing is written, of a run that is not
        finished, that was settled, or that was charged elsewhere.
    """
    entries = read_entries(folder.ledger) if folder.ledger.exists() else []
    finish = finish_of(entries)
    if finish is None:
        return False
    folder.forget_noise()
    # What went on from a copy ends at a price of its own.
    charge, history = str((charges_in(entries) or [entries[0]["run_id"]])[-1]), store.history()
    known = charge in history.charges or charge in history.taken.values()
    if not known or charge in history.settled:
        return False
    digests: dict[str, Any] = finish["digests"]
    lineage = run_lineage(folder.ledger, entries).plain
    if digests.get("adapter") is not None:  # first: what a kill leaves undone here is done again
        store.release(charge, weights=digests["adapter"], lineage=lineage)
    store.settle(
        charge, steps=count_attempts(entries), weights=digests.get("weights"), lineage=lineage
    )
    return True


def note_copy(ledger: RunLedger, store: StoreLedger) -> None:
    """Have a run's ledger say what was found of its store's ledger since the run began."""
    if store.history().copied:
        own = run_lineage(ledger.path, read_entries(ledger.path))
        if COPIED not in own.conditions:
            ledger.note_copy()
