"""The folders of the runs over a store: where an erasure looks for what was made of its text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from userdp.claims.inheritance import run_lineage
from userdp.claims.parts import Unclaimed
from userdp.data.places import Place, places_of
from userdp.errors import UseError
from userdp.ledger.folder import LEDGER, RunFolder
from userdp.ledger.history import History
from userdp.ledger.journal import read_entries


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundRun:
    """A run over the people of a store.

    Args:
        run_id: of the run.
        folder: where it lies.
        without_privacy: the runs over these people, itself included, that its weights descend from
            and that no price covers.
    """

    run_id: str
    folder: RunFolder
    without_privacy: frozenset[str]

    @property
    def weights(self) -> list[Path]:
        """The folders that hold weights of it, which are there."""
        places = (self.folder.model, self.folder.adapter, self.folder.checkpoints)
        return [place for place in places if place.exists()]


def find_runs(store: Path, history: History, also: Iterable[Path] = ()) -> list[FoundRun]:
    """The folders of runs that were charged in a store's ledger.

    They are looked for where they were made, beside one another and beside the store (copies lie
    there, and the winner of a sweep), and anywhere below ``also``.
    """
    made = [Path(path) for path in places_of(store, Place.RUN)]
    beside = {store.absolute().parent, *(path.parent for path in made)}
    candidates = {path.resolve() for path in made}
    candidates |= {ledger.parent.resolve() for at in beside for ledger in at.glob(f"*/{LEDGER}")}
    candidates |= {ledger.parent.resolve() for at in also for ledger in at.rglob(LEDGER)}
    return [run for path in sorted(candidates) for run in _run_at(path, history)]


def lost_runs(history: History, runs: Iterable[FoundRun]) -> list[str]:
    """The runs that were charged and whose folder is not among ``runs``."""
    found = {run.run_id for run in runs}
    charged = [
        charge.run_id
        for charge in history.charges.values()
        if charge.query_epsilon is None and charge.selection is None and charge.again is None
    ]
    return [run_id for run_id in (*charged, *history.taken.values()) if run_id not in found]


def _run_at(path: Path, history: History) -> Iterator[FoundRun]:
    folder = RunFolder(path)
    try:
        entries = read_entries(folder.ledger)
        if not entries or entries[0].get("kind") != "run":
            return
        run_id = str(entries[0]["run_id"])
        if run_id not in history.ids:
            return
        parts = run_lineage(folder.ledger, entries).parts
    except UseError:  # damaged: it may be anybody's, and is missed among the runs that are known
        return
    trial = bool(entries[0].get("trial"))
    unclaimed = {part.id for part in parts if isinstance(part, Unclaimed)} & history.ids
    if trial:  # a private selection pays for it
        unclaimed -= {run_id}
    yield FoundRun(run_id=run_id, folder=folder, without_privacy=frozenset(unclaimed))
