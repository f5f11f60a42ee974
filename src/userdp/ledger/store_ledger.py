"""The store ledger: what the people in a user store have been charged, over all runs.

A run *reserves* its whole plan when it starts and *settles* when it ends. A run that never
settles stays charged in full. A private selection is one line for all of its trials, which
reserve nothing of their own; how many were drawn is secret. A DP statistic (`userdp.queries`) is a
line of its own, written before its answer is drawn; the answer follows on another. Whatever shows
its operator an exact number writes a line too: a constant that is recorded later may have been
chosen by it.

The file is ``ledger.jsonl`` in the store's folder, or one that several stores of the same people
share. It is the operator's. ``ledger.json`` in the store's folder names it, and holds the hash of
its last line, so that a ledger that is gone or was put back to an earlier state is noticed; the
counters beside it (`userdp.ledger.run_lock`) know steps of which such a ledger says nothing. A copy
of a store is another file than its first line says. Nothing can tell it from a store that was moved
to another disk, so that neither is refused; but claims say that they count on no other copy having
been charged.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from userdp.core import files
from userdp.core.codec import decode, encode
from userdp.core.errors import UseError
from userdp.ledger import journal
from userdp.ledger.lines import Line, Look, Store
from userdp.ledger.permitted_lines import follow
from userdp.ledger.run_folder import LEDGER
from userdp.ledger.run_lock import Counter, attempts_in
from userdp.ledger.store_history import History, fold

PLACE = "ledger.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Note:
    """What ``ledger.json`` holds.

    Args:
        shared: the file of a ledger that several stores share; None for one of the store's own.
        head: the hash of the last line when this store last wrote.
    """

    shared: str | None = None
    head: str = journal.Tail().head


class StoreLedger:
    """The privacy ledger of one user store, or of several that share it.

    Attributes:
        store: the folder of the store.
        path: of the ledger's file.
        runs: the folder of the counters beside it.
    """

    def __init__(self, store: Path) -> None:
        self.store, self._place = store, store / PLACE
        shared = self._noted().shared
        self.path = Path(shared) if shared else store / LEDGER
        # Of a shared ledger by its name: beside it may lie runs, or another ledger's counters.
        self.runs = self.path.with_name(f"{self.path.name}.runs") if shared else store / "runs"

    @staticmethod
    def require_shareable(store: Path, ledger: Path) -> None:
        """`UseError` if `share` would refuse."""
        shared, known = ledger.resolve(), StoreLedger(store).path
        refused = shared.is_dir() or shared.is_relative_to(store.resolve())
        if not refused and shared.exists() and shared.stat().st_size:  # records, or a run's ledger?
            refused = not any(isinstance(line, Store) for line in journal.read(shared).lines[:1])
        if refused or (known != shared and ((store / PLACE).exists() or known.exists())):
            raise UseError(
                f"{ledger} cannot be the ledger that {store} shares with other stores: that is a "
                "file outside of them, new or theirs already, and one of its own would be lost",
                hint="name a file beside the stores when they are prepared: --ledger people.jsonl",
            )
        shared.parent.mkdir(parents=True, exist_ok=True)  # or it is told before the store is made

    @classmethod
    def share(cls, store: Path, path: Path) -> None:
        """Let ``store`` be charged in the ledger at ``path``, which stores of the same people name.

        It is begun now, if it was not: so that each of its stores knows it from here on, and
        notices where it is gone, or another one.

        Raises:
            UseError: the store has a ledger already.
        """
        cls.require_shareable(store, path)
        if not (store / PLACE).exists():
            cls(store)._note(_Note(shared=str(path.resolve())))
        cls(store).append()

    def counter(self, run_id: str, *, begun: bool) -> Counter:
        """What counts the attempts of a run, held by this process; see `Counter`."""
        return Counter(self.runs / run_id, begun=begun)

    def history(self) -> History:
        """The ledger, read; empty if nothing was ever written in it.

        Raises:
            UseError: it does not hold what it held before.
        """
        # Read before the ledger: a run that another process begins in between is then in the
        # ledger, and not among the counted. The other way round it would seem to be lost.
        noted, counted = self._noted(), attempts_in(self.runs)
        return self._whole(journal.read(self.path), noted, counted)

    def append(self, *lines: Line) -> History:
        """Write lines that the ledger does not hold yet, on the disk before this returns.

        Guarantee: no other process writes between the look at the ledger and these lines: what is
        drawn or charged once (`userdp.ledger.permitted_lines.is_new`) is so for all processes.

        Args:
            lines: all of them are written, or none; begins a ledger where there is none.

        Returns:
            What the ledger says now.

        Raises:
            UseError: a line may not follow, the people would be charged beyond their budget, or the
                ledger does not hold what it held before.
            FailureError: the disk refused.
        """
        history = History(path=self.path)
        if not self.path.exists():  # one that is gone is not begun again
            self.history()

        def added(read: journal.Read) -> tuple[Line, ...]:
            nonlocal history
            # Under the ledger's lock, so that no charge comes between the two.
            history = self._whole(read, self._noted(), attempts_in(self.runs))
            begin = Store(id=secrets.token_hex(16), inode=self.path.stat().st_ino)
            history = follow(history, lines if read.lines else (begin, *lines))
            return history.lines[len(read.lines) :]

        tail = journal.append(self.path, added, mode=files.OPERATOR_FILE)
        noted = self._noted()
        if noted.head != tail.head:  # of two who write at once either may come last here
            self._note(replace(noted, head=tail.head))
        return history

    def look(self, what: str) -> None:
        """Record that ``what`` shows an exact number of people's text; call it before it does."""
        self.append(Look(what=what))

    def _noted(self) -> _Note:
        if not self._place.exists():
            return _Note()
        kept = files.read_json(self._place, what="where the ledger is")
        return decode(_Note, kept, what=str(self._place))

    def _note(self, note: _Note) -> None:
        files.write_json(self._place, encode(note), mode=files.OPERATOR_FILE)

    def _whole(self, read: journal.Read, noted: _Note, counted: Mapping[str, int]) -> History:
        """What the ledger says; `UseError` if it held something before that it does not hold."""
        if read.lines and not isinstance(read.lines[0], Store):
            raise UseError(f"{self.path} is no ledger of a store")
        history = fold(read.lines, self.path)
        known = {*history.charges, *history.trials}
        unknown = any(taken and name not in known for name, taken in counted.items())
        if unknown or not read.holds(noted.head):
            raise UseError(
                f"the privacy ledger {self.path} is gone, was put back to an earlier state, or was "
                "written anew: it does not hold what these people were charged, so that nothing "
                "may be charged and nothing claimed",
                hint="prepare the store elsewhere; what was trained before is not in its claims",
            )
        return history


def new_id() -> str:
    """A random id of a run, a slot, an opening or a budget: 64 bits."""
    return secrets.token_hex(8)
