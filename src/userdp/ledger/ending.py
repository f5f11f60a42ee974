"""Ends a run before its plan: with its store, in its ledger, and for every copy of its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from userdp.errors import FailureError, UseError
from userdp.ledger.folder import RunFolder
from userdp.ledger.journal import append_entries, exclusive, read_entries
from userdp.ledger.opening import Counter
from userdp.ledger.place import PLACE
from userdp.ledger.run import charges_in, finish_of, plan_of
from userdp.ledger.store import StoreLedger


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A run that was settled before its end.

    Args:
        store: the folder of the store that it was charged in.
        run_id: of the charge.
        attempts: steps that any of its folders began.
        planned: steps that it had reserved.
        why_whole: why it costs its whole plan; None where a filter counts its attempts only.
    """

    store: Path
    run_id: str
    attempts: int
    planned: int
    why_whole: str | None

    @property
    def charged(self) -> int:
        """Steps that it costs."""
        return self.planned if self.why_whole is not None else self.attempts


def end_early(folder: RunFolder) -> Ended:
    """Settle an unfinished run for good: no folder of it goes on, and its price is final.

    Guarantee: while this decides, no process trains in the folder or in a copy of it. The store's
    ledger is written first, so that whatever a kill leaves, repeating this completes it.

    Raises:
        UseError: there is no run, it is finished or settled, it has no plan, or a private selection
            pays for it.
        FailureError: a process trains it.
    """
    hint = "name the folder that a run was trained in"
    if not folder.ledger.exists():
        raise UseError(f"there is no run at {folder.path}", hint=hint)
    if (folder.path / PLACE).exists():
        raise UseError(f"{folder.path} is a user store, not a run", hint=hint)
    busy = FailureError(
        f"the run at {folder.path} is in use by another process, which may take further steps",
        hint="end that process first (Ctrl-C), and settle then",
    )
    with exclusive(folder.lock, refusal=busy):
        entries = read_entries(folder.ledger)
        plan = plan_of(folder.ledger, entries)
        if finish_of(entries) is not None:
            raise UseError(
                f"the run at {folder.path} is finished and settled: there is nothing left to settle"
            )
        if plan is None:
            raise UseError(
                f"the run at {folder.path} trains without privacy: nothing of it has a price"
            )
        if entries[0].get("trial"):
            raise UseError(
                f"the run at {folder.path} is a trial of a private selection, which pays for all "
                "of them, whether or not they end",
                hint="go on with the sweep: userdp tune STORE --out DIR --resume",
            )
        if not folder.resume.exists():
            raise UseError(
                f"{folder.path} does not say which store its people are in: it is not the folder "
                "that was trained in",
                hint="settle the run in its own folder",
            )
        kept = folder.read_resume()
        store = Path(kept["store_path"])
        ledger = StoreLedger(store)
        charge = (charges_in(entries) or [str(kept["run_id"])])[-1]
        history = ledger.history()
        if charge not in history.charges:  # before anything is written where resume.json points
            raise UseError(
                f"the store at {store} knows nothing of the run at {folder.path}: it is not the "
                "one that the run was charged in",
                hint="settle the run where its store lies",
            )
        with Counter(ledger.place.counter(charge), begun=charge in history.nonces) as counter:
            attempts = min(counter.attempts, plan.steps)
            why = None
            if charge not in history.halted:
                why = ledger.halt(charge, attempts=attempts)
            # What the ledger says now: this may be asked for again, or the ledger may have moved,
            # which the line before this one notes.
            if ledger.history().charges[charge].stopped is None:
                why = why or "that was decided when it was settled, or the ledger was moved"
        if not any(entry["kind"] == "halt" for entry in entries):
            append_entries(folder.ledger, lambda _: [{"kind": "halt", "attempts": attempts}])
    return Ended(store=store, run_id=charge, attempts=attempts, planned=plan.steps, why_whole=why)
