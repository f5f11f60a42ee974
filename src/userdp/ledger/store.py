"""The store ledger: what the people in a user store have been charged, over all runs.

A run *reserves* its whole plan when it starts and *settles* when it ends. A run that never
settles stays charged in full. A private selection is one line for all of its trials, which
reserve nothing of their own, and one line of slots, of which each is trained once: their number is
secret. A DP statistic (`userdp.queries`) is a line of its own, written before its answer is drawn;
the answer follows on another. Whatever shows its operator an exact number writes a line too: a
constant that is recorded later may have been chosen by it. `declare` records constants beforehand.

The file is ``ledger.jsonl`` in the store's folder, or one that several stores of the same people
share (`userdp.ledger.place`). It is the operator's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from userdp import files
from userdp.codec import encode
from userdp.errors import UseError
from userdp.ledger.budget_lines import BudgetLines
from userdp.ledger.charges import Released
from userdp.ledger.history import History
from userdp.ledger.journal import append_entries
from userdp.ledger.place import Place
from userdp.ledger.store_journal import now
from userdp.plans import Plan, PrivateSelection
from userdp.vocabulary import require_positive


class StoreLedger(BudgetLines):
    """The privacy ledger of one user store, or of several that share it.

    Raises:
        UseError: the store had a ledger, and it is gone.
    """

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

        def lines(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
            moved = ledger.place.take(str(entries[0].get("id")) if entries else None)
            if not entries:
                return [ledger.first_line()]
            return [{"kind": "place"}] if moved else []

        def noted(whole: bool) -> None:
            if whole:
                ledger.place.settle()

        append_entries(ledger.path, lines, mode=files.OPERATOR_FILE, noted=noted)
        return ledger

    def reserve(
        self,
        run_id: str,
        plan: Plan | None,
        *,
        again: str | None = None,
        base: Mapping[str, Any] | None = None,
        constants: str = "",
        logged: bool = True,
        steered: bool = False,
        state: str = "",
    ) -> None:
        """Charge a run's whole plan, on the disk before this returns.

        Args:
            run_id: new in this ledger.
            plan: None for a run without privacy.
            again: the run of which this is a further charge.
            base: what the model that it begins from descends from, as plain values.
            constants: the digest of its plan and options, see `declare`.
            logged: whether it keeps exact numbers for its operator.
            steered: a loop of somebody's own takes its steps, which exact numbers may steer as long
                as it is open or interrupted.
            state: the id of the store's state, which tells whose text it covers; see `forget`.

        Raises:
            UseError: the run has a reservation already, it is beyond a total or a filter, or it is
                a further charge of a run of a series that has no run left.
        """
        entry = {"kind": "reserve", "run_id": run_id, "plan": encode(plan), "again": again}
        entry |= {"base": None if base is None else dict(base), "constants": constants}
        entry |= {"when": now(), "state": state} | ({} if logged else {"logged": False})
        entry |= {"steered": True} if steered else {}
        entry |= {} if plan is None else _recorded(plan)
        self.charge(entry, taken=f"run {run_id} is already reserved in {self.path}")

    def open(self, run_id: str, *, known: Sequence[str], nonce: str, attempts: int) -> None:
        """Record an opening of a run: from here on only who holds ``nonce`` may go on with it.

        Guarantee (invariant 12): of all folders of a run, the copies included, at most one is
        accepted after this, and it is the one that ``nonce`` is written in.

        Args:
            run_id: reserved, or a trial's that took its slot.
            known: the nonces that the run's folder holds; none if it was never opened.
            nonce: of this opening, new and random, and written in the run's folder already.
            attempts: steps charged so far.

        Raises:
            UseError: the run was settled; or it was opened from another folder since, or this one
                is a copy, or either was restored from a backup.
        """

        def compose(history: History) -> list[dict[str, Any]]:
            _require_last(self.path, history, run_id, known)
            return [{"kind": "open", "run_id": run_id, "attempts": attempts, "nonce": nonce}]

        self.amend(compose)

    def require_last(self, run_id: str, known: Sequence[str]) -> None:
        """`UseError` if `open` would refuse a folder that holds these nonces."""
        _require_last(self.path, self.history(), run_id, known)

    def reserve_selection(
        self, selection_id: str, selection: PrivateSelection, *, state: str = ""
    ) -> None:
        """Charge a private selection, on the disk before this returns and so before any trial.

        Args:
            selection_id: new in this ledger.
            selection: what it is.
            state: as in `reserve`.

        Raises:
            UseError: the id is taken.
        """
        entry = {"kind": "selection", "run_id": selection_id, "selection": encode(selection)}
        entry |= {"when": now(), "state": state}
        self.charge(entry, taken=f"selection {selection_id} is already reserved in {self.path}")

    def slots(self, selection_id: str, draw: Callable[[], Mapping[str, str]]) -> dict[str, str]:
        """The slots of a private selection, drawn once: a second call gives what the first drew.

        Args:
            selection_id: reserved here.
            draw: for each slot a new random id, and the digest of its trial's constants.
        """
        drawn: dict[str, str] = {}

        def compose(history: History) -> list[dict[str, Any]]:
            if selection_id in history.slots:
                drawn.update(history.slots[selection_id])
                return []
            if history.charges.get(selection_id) is None:
                raise UseError(f"no selection {selection_id} is reserved in {self.path}")
            drawn.update(draw())
            return [{"kind": "slots", "run_id": selection_id, "slots": dict(drawn)}]

        self.amend(compose)
        return drawn

    def take_slot(
        self, slot: str, run_id: str, plan: Plan, *, constants: str, base: Mapping[str, Any]
    ) -> None:
        """Give a slot of a private selection to a trial, once.

        Args:
            slot: drawn by `slots`.
            run_id: of the trial.
            plan: the trial's.
            constants: the digest of its plan and options.
            base: what the model that it begins from descends from, as plain values.

        Raises:
            UseError: no selection reserved it, another trial took it, or it is of other constants.
        """

        def compose(history: History) -> list[dict[str, Any]]:
            for selection_id, slots in history.slots.items():
                selection = history.charges[selection_id].selection
                if slots.get(slot) == constants and selection and plan in selection.plans:
                    break
            else:
                raise UseError(
                    f"no private selection in {self.path} pays for this trial: it has drawn no "
                    "such slot, or one of other settings",
                    hint="go on with the sweep: userdp tune STORE --out DIR --resume",
                )
            if history.taken.get(slot, run_id) != run_id:
                raise UseError(
                    "the slot of this trial was taken before: a second training in it would be a "
                    "candidate that nobody paid for",
                    hint="put the trial's folder back, or begin a new sweep",
                )
            if slot in history.taken:
                return []
            return [{"kind": "trial", "run_id": run_id, "slot": slot, "base": dict(base)}]

        self.amend(compose)

    def score(self, run_id: str, draw: Callable[[], float | None]) -> float | None:
        """The score of a private selection's trial, drawn once: a second call gives the first.

        A score that could be drawn again, until the trial that one likes wins, would be no part of
        what the selection paid for.

        Args:
            run_id: of the trial.
            draw: gives the score; None for one without.
        """
        kept: list[float | None] = []

        def compose(history: History) -> list[dict[str, Any]]:
            if run_id in history.scores:
                kept.append(history.scores[run_id])
                return []
            if run_id not in history.taken.values():
                raise UseError(f"run {run_id} is no trial of a private selection in {self.path}")
            kept.append(draw())
            return [{"kind": "score", "run_id": run_id, "value": kept[0]}]

        self.amend(compose)
        return kept[0]

    def query(
        self,
        query_id: str,
        *,
        name: str,
        pure_epsilon: float,
        base: Mapping[str, Any] | None = None,
        state: str = "",
    ) -> None:
        """Charge a statistic, on the disk before this returns and so before it is drawn.

        Args:
            query_id: new in this ledger.
            name: what is asked; public.
            pure_epsilon: the statistic is (ε, 0)-DP per user, add-or-remove; > 0, at most 700.
            base: what the model that it is about descends from, as plain values.
            state: as in `reserve`.

        Raises:
            UseError: the id is taken, or ε out of range.
        """
        require_positive("pure_epsilon", pure_epsilon, at_most=700.0)
        entry = {"kind": "query", "run_id": query_id, "name": name, "pure_epsilon": pure_epsilon}
        base_lines = None if base is None else dict(base)
        entry |= {"base": base_lines, "when": now(), "state": state}
        self.charge(entry, taken=f"query {query_id} is already charged in {self.path}")

    def answer(self, query_id: str, *, value: int) -> None:
        """Keep the answer of a charged query: it is a DP release, so it may stand here.

        Raises:
            UseError: the query was never charged, or has its answer.
        """

        def compose(history: History) -> list[dict[str, Any]]:
            charge = history.charges.get(query_id)
            if charge is None or charge.query_epsilon is None:
                raise UseError(f"{query_id} is no query charged in {self.path}")
            if charge.answer is not None:
                raise UseError(f"query {query_id} has its answer in {self.path} already")
            return [{"kind": "answer", "run_id": query_id, "value": int(value)}]

        self.amend(compose)

    def settle(
        self,
        run_id: str,
        *,
        steps: int,
        weights: str | None = None,
        lineage: Mapping[str, Any] | None = None,
    ) -> None:
        """Note that a run ended, what it was charged, and what it released.

        Args:
            run_id: reserved, or a trial's.
            steps: at most what it reserved.
            weights: the digest of the released weights, if there are such.
            lineage: what they descend from.
        """

        def compose(history: History) -> list[dict[str, Any]]:
            known = run_id in history.charges or run_id in history.taken.values()
            if not known:
                raise UseError(f"run {run_id} has no reservation in {self.path}, so none to settle")
            if run_id in history.settled:
                return []
            charge = history.charges.get(run_id)
            plan = None if charge is None else charge.plan
            if plan is not None and not 0 <= steps <= plan.steps:
                raise UseError(
                    f"run {run_id} reserved {plan.steps} steps and cannot settle {steps}"
                )
            released = {"weights": weights, "lineage": dict(lineage or {})} if weights else {}
            return [{"kind": "settle", "run_id": run_id, "steps": steps, **released}]

        self.amend(compose)

    def release(self, run_id: str, *, weights: str, lineage: Mapping[str, Any]) -> None:
        """Note that weights were released anew, with another lineage: those of a tuning's winner.

        Args:
            run_id: of the tuning.
            weights: their digest.
            lineage: what they descend from, now that they were chosen.
        """
        entry = {"kind": "release", "run_id": run_id, "weights": weights, "lineage": dict(lineage)}
        known = Released(run_id=run_id, weights=weights, lineage=dict(lineage))
        self.amend(lambda history: [] if known in history.released else [entry])

    def forget(self, before: str, after: str) -> None:
        """Record that somebody was erased from a store, without saying who; call it before it is.

        A run that began on the state ``before`` may go on over the state ``after``. The line is no
        charge and no look: what was released stays released, at the price that was paid for it.

        Args:
            before: the id of the store's state with them.
            after: that of its state without them, new and random.
        """
        self.append(lambda history: [{"kind": "forget", "before": before, "after": after}])

    def look(self, what: str) -> None:
        """Record that ``what`` shows an exact number of people's text; call it before it does.

        A constant that is recorded later may have been chosen by that number, and no ε covers it.
        """
        self.append(lambda history: [{"kind": "look", "what": what}])

    def declare(self, constants: str) -> None:
        """Record constants of a run to come, by their digest: nothing later can have chosen them.

        They count once, and in the order in which they were declared (`History.fixed_at`).
        What is recorded already stays as old as it is.
        """
        line = {"kind": "declare", "constants": constants}
        self.append(lambda history: [] if constants in history.declared else [line])

    def begin_sweep(self, sweep_id: str, constants: Sequence[str]) -> None:
        """Record that a sweep begins: its whole grid is fixed now.

        Args:
            sweep_id: random.
            constants: digests of the plan and options of each candidate.

        Raises:
            UseError: it began with other constants: its base model was exchanged since.
        """

        def compose(history: History) -> list[dict[str, Any]]:
            if sweep_id not in history.sweeps:
                return [{"kind": "sweep", "run_id": sweep_id, "constants": list(constants)}]
            if history.sweeps[sweep_id][1] != tuple(constants):
                raise UseError(
                    "the base model is not the one that this sweep began with: trials that began "
                    "from another could not be compared, and their price would be another",
                    hint="put the base model back, or begin a new sweep",
                )
            return []

        self.append(compose)


def _recorded(plan: Plan) -> dict[str, Any]:
    """The price of a plan whose sampling is somebody's own, for who reads the line without it."""
    module = type(plan.sampling).__module__
    if module.startswith("userdp."):
        return {}
    if module == "__main__":  # of a script, which another process imports by its name
        module = Path(inspect.getfile(type(plan.sampling))).stem
    price = encode(plan.guarantee()) if plan.sampling.covered else None
    return {"recorded": {"module": module, "guarantee": price}}


def _require_last(path: Path, history: History, run_id: str, known: Sequence[str]) -> None:
    if run_id in history.halted:
        raise UseError(
            f"run {run_id} was settled before its end, as {path} says: its steps are over",
            hint="train again in another --out, with a plan and a budget of its own",
        )
    if run_id in history.settled:
        raise UseError(
            f"run {run_id} was finished, as {path} says: its steps are spent, and this folder is a "
            "copy of before its end",
            hint="train again in another --out, with a plan and a budget of its own",
        )
    last, _ = history.nonces.get(run_id, (None, 0))
    if last not in known if last is not None else bool(known):
        raise UseError(
            f"the folder of run {run_id} is not the one that was opened last, as {path} says: it "
            "is a copy, or it or the store was put back to an earlier state. Going on would "
            "release more noisy steps than were charged",
            hint="go on in the folder that was opened last; or pay for the whole plan once more: "
            "--resume --set run.charge_again=true",
        )
