"""The store ledger: what the people in a user store have been charged, over all runs.

A run *reserves* its whole plan when it starts and *settles* when it ends. A run that never
settles stays charged in full. A private selection is one line for all of its trials, which
reserve nothing of their own, and one line of slots, of which each is trained once: their number is
secret. A DP statistic (`userdp.queries`) is a line of its own, written before its answer is drawn;
the answer follows on another. Whatever shows its operator an exact number writes a line too: a
constant that is recorded later may have been chosen by it. What each kind of line holds, when it is
refused and what it comes to stands in `userdp.ledger.lines`.

The file is ``ledger.jsonl`` in the store's folder, or one that several stores of the same people
share (`userdp.ledger.place`). It is the operator's.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from userdp.core import files
from userdp.core.errors import UseError
from userdp.ledger import journal
from userdp.ledger.history import Charge, History
from userdp.ledger.lines import STORE, Copied, Look, Store, StoreLine, fold, follow
from userdp.ledger.place import Place, attempts_in


class StoreLedger:
    """The privacy ledger of one user store, or of several that share it.

    Raises:
        UseError: the store had a ledger, and it is gone or was put back to an earlier state.
    """

    def __init__(self, store: Path) -> None:
        self.place = Place(store)
        self.path = self.place.ledger

    @classmethod
    def share(cls, store: Path, path: Path) -> StoreLedger:
        """Let ``store`` be charged in the ledger at ``path``, which stores of the same people name.

        It is begun now, if it was not: so that each of its stores knows it from here on, and
        notices where it is gone, or another one.

        Raises:
            UseError: the store has a ledger already.
        """
        Place.share(store, path)
        ledger = cls(store)
        ledger.place.note(ledger._append((), begin=True).id)
        return ledger

    def history(self) -> History:
        """The ledger, read; empty if nothing was ever written in it."""
        # Counted before the ledger is read: a run that another process begins in between is then in
        # the ledger, and not among the counted. The other way round it would seem to be lost.
        counted = attempts_in(self.place.runs)
        history = fold(journal.read(self.path, STORE)[0] if self.path.exists() else (), self.path)
        if not history.lines:
            self.place.require_whole()
        else:
            history.copied = history.copied or self.place.is_other(history.id)
        self._require_counted(history, counted)
        return history

    def charges(self) -> list[Charge]:
        """One charge per run, oldest first; none without a file, or with one just begun."""
        return list(self.history().charges.values())

    def append(
        self, *lines: StoreLine, require: Callable[[History], None] | None = None
    ) -> History:
        """Write lines that the ledger does not hold yet, on the disk before this returns.

        Guarantee: no other process writes between the look at the ledger and these lines: what is
        drawn or charged once (`StoreLine.is_new`) is so for all processes.

        Args:
            lines: all of them are written, or none; begins a ledger where there is none.
            require: raises what refuses the ledger as it stands.

        Returns:
            What the ledger says now.

        Raises:
            UseError: a line may not follow, or the people would be charged beyond a total.
            FailureError: the disk refused.
        """
        return self._append(lines, require=require)

    def look(self, what: str) -> None:
        """Record that ``what`` shows an exact number of people's text; call it before it does."""
        self.append(Look(what=what))

    def _append(
        self,
        lines: Iterable[StoreLine],
        *,
        require: Callable[[History], None] | None = None,
        begin: bool = False,
    ) -> History:
        history = History(path=self.path)
        if not self.path.exists():  # what is refused leaves no file behind
            follow(history, lines)

        def added(before: list[StoreLine]) -> list[StoreLine]:
            nonlocal history
            history = fold(before, self.path)
            # Under the ledger's lock, so that no charge comes between the two.
            self._require_counted(history, attempts_in(self.place.runs))
            if require is not None:
                require(history)
            first: list[StoreLine] = [] if before else [Store(id=self.place.id)]
            if before and self.place.is_other(history.id):
                first.append(Copied())
            follow(history, first)
            new = follow(history, lines)
            if (not new and not begin) or (begin and before):
                return []
            self.place.require_whole()  # another process may have begun it
            self.place.id = history.id if before else self.place.fix_id()
            return [*first, *new]

        def written() -> None:
            self.place.note(self.place.id)

        journal.append(self.path, STORE, added, mode=files.OPERATOR_FILE, written=written)
        return history

    def _require_counted(self, history: History, counted: Mapping[str, int]) -> None:
        """`UseError` if the ledger does not know a charge that steps were taken of."""
        known = {*history.charges, *history.taken.values()}
        if not known.issuperset(name for name, taken in counted.items() if taken):
            raise UseError(
                f"steps were taken beside {self.path} that it knows nothing of: it was put back to "
                "an earlier state, and does not hold what these people were charged since",
                hint="prepare the store again; what was trained before is then not in its claims",
            )


def new_id() -> str:
    """A random id of a run, a slot, an opening or a budget: 64 bits."""
    return secrets.token_hex(8)
