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

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from userdp import files
from userdp.accounting.filters import RenyiFilter
from userdp.codec import encode
from userdp.errors import FailureError, UseError
from userdp.ledger import journal, lines
from userdp.ledger.budget import refuse_beyond, refuse_used
from userdp.ledger.history import Charge, History, Released
from userdp.ledger.lines import STORE, StoreLine, fold
from userdp.ledger.place import Place, attempts_in
from userdp.plans import Plan, PrivateSelection, Series
from userdp.vocabulary import require_delta, require_positive

Compose = Callable[[History], Sequence[StoreLine]]
"""From a ledger, read, to the lines that are to follow; it raises what it refuses."""


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
        ledger._write(lambda history: [], begin=True)
        ledger.place.note(ledger.history().id)
        return ledger

    def history(self) -> History:
        """The ledger, read; empty if nothing was ever written in it."""
        # Counted before the ledger is read: a run that another process begins in between is then in
        # the ledger, and not among the counted. The other way round it would seem to be lost.
        counted = attempts_in(self.place.runs)
        history = fold(journal.read(self.path, STORE)[0] if self.path.exists() else ())
        if not history.lines:
            self.place.require_whole()
        else:
            history.copied = history.copied or self.place.is_other(history.id)
        self._require_counted(history, counted)
        return history

    def charges(self) -> list[Charge]:
        """One charge per run, oldest first; none without a file, or with one just begun."""
        return list(self.history().charges.values())

    def append(self, compose: Compose) -> None:
        """Append what ``compose`` makes of the ledger so far; begins it where there is none."""
        self._write(compose)

    def amend(self, compose: Compose) -> None:
        """As `append`, but never begins a ledger."""
        if not self.history().lines:
            compose(History())
            raise FailureError(f"nothing was ever charged in {self.path}")
        self._write(compose)

    def _write(self, compose: Compose, *, begin: bool = False) -> None:
        def added(before: list[StoreLine]) -> list[StoreLine]:
            history = fold(before)
            # Under the ledger's lock, so that no charge comes between the two.
            self._require_counted(history, attempts_in(self.place.runs))
            new = list(compose(history))
            if not new and not begin:
                return []
            self.place.require_whole()  # another process may have begun it
            if not before:
                return [lines.Store(id=self.place.fix_id()), *new]
            self.place.id = history.id
            return [lines.Copied(), *new] if self.place.is_other(history.id) else new

        def written() -> None:
            self.place.note(self.place.id)

        journal.append(self.path, STORE, added, mode=files.OPERATOR_FILE, written=written)

    def _require_counted(self, history: History, counted: Mapping[str, int]) -> None:
        """`UseError` if the ledger does not know a charge that steps were taken of."""
        known = {*history.charges, *history.taken.values()}
        if not known.issuperset(name for name, taken in counted.items() if taken):
            raise UseError(
                f"steps were taken beside {self.path} that it knows nothing of: it was put back to "
                "an earlier state, and does not hold what these people were charged since",
                hint="prepare the store again; what was trained before is then not in its claims",
            )

    def _charge(self, line: lines.Reserve | lines.Query | lines.Selection) -> None:
        """Append what is charged; `UseError` if its id is taken, or it is beyond a total."""

        def compose(history: History) -> list[StoreLine]:
            if line.run_id in history.charges:
                raise UseError(f"{line.kind} {line.run_id} is already charged in {self.path}")
            again = line.again if isinstance(line, lines.Reserve) else None
            first = history.charges.get(again or "")
            if first is not None and first.series and history.room_for(first.plan) is None:
                raise UseError(
                    f"run {first.run_id} is one of a declared series, all of whose runs are taken: "
                    "a further charge of its plan would be a run more than was declared",
                    hint="train again in another --out",
                )
            line.fold(history, history.lines)
            refuse_beyond(self.path, history)
            return [line]

        self.append(compose)

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
        self._charge(
            lines.Reserve(
                run_id=run_id,
                plan=encode(plan),
                recorded=lines.Recorded.of(plan),
                again=again,
                base=base,
                constants=constants,
                logged=logged,
                steered=steered,
                when=_now(),
                state=state,
            )
        )

    def reserve_selection(
        self, selection_id: str, selection: PrivateSelection, *, state: str = ""
    ) -> None:
        """Charge a private selection, on the disk before this returns and so before any trial.

        Args:
            selection_id: new in this ledger.
            selection: what it is.
            state: as in `reserve`.

        Raises:
            UseError: the id is taken, or it is beyond a total or a filter.
        """
        self._charge(
            lines.Selection(run_id=selection_id, selection=selection, when=_now(), state=state)
        )

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
            UseError: the id is taken, ε out of range, or it is beyond a total or a filter.
        """
        self._charge(
            lines.Query(
                run_id=query_id,
                name=name,
                pure_epsilon=pure_epsilon,
                base=base,
                when=_now(),
                state=state,
            )
        )

    def answer(self, query_id: str, *, value: int) -> None:
        """Keep the answer of a charged query: it is a DP release, so it may stand here.

        Raises:
            UseError: the query was never charged, or has its answer.
        """

        def compose(history: History) -> list[StoreLine]:
            charge = history.charges.get(query_id)
            if charge is None or charge.query_epsilon is None:
                raise UseError(f"{query_id} is no query charged in {self.path}")
            if charge.answer is not None:
                raise UseError(f"query {query_id} has its answer in {self.path} already")
            return [lines.Answer(run_id=query_id, value=int(value))]

        self.amend(compose)

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

        def compose(history: History) -> list[StoreLine]:
            _require_last(self.path, history, run_id, known)
            return [lines.Open(run_id=run_id, attempts=attempts, nonce=nonce)]

        self.amend(compose)

    def require_last(self, run_id: str, known: Sequence[str]) -> None:
        """`UseError` if `open` would refuse a folder that holds these nonces."""
        _require_last(self.path, self.history(), run_id, known)

    def settle(
        self,
        run_id: str,
        *,
        steps: int,
        weights: str | None = None,
        lineage: Mapping[str, Any] | None = None,
        early: bool = False,
    ) -> None:
        """Note that a run ended, what it was charged, and what it released; twice does no harm.

        Args:
            run_id: reserved, or a trial's.
            steps: at most what it reserved.
            weights: the digest of the released weights, if there are such.
            lineage: what they descend from.
            early: before its plan: nobody goes on with it. A filter may then count ``steps`` only,
                see `History.why_whole`.

        Raises:
            UseError: nothing here paid for such a run, or it reserved less.
        """

        def compose(history: History) -> list[StoreLine]:
            charge = history.charges.get(run_id)
            if charge is None and (early or run_id not in history.taken.values()):
                raise UseError(f"run {run_id} has no reservation in {self.path}, so none to settle")
            if run_id in history.settled:
                return []
            plan = None if charge is None else charge.plan
            if plan is not None and not 0 <= steps <= plan.steps:
                raise UseError(
                    f"run {run_id} reserved {plan.steps} steps and cannot settle {steps}"
                )
            settled = lines.Settle(run_id=run_id, steps=steps, early=early, when=_now())
            if weights is None:
                return [settled]
            plain = dict(lineage or {})
            return [settled, lines.Release(run_id=run_id, weights=weights, lineage=plain)]

        self.amend(compose)

    def release(self, run_id: str, *, weights: str, lineage: Mapping[str, Any]) -> None:
        """Note that weights were released anew, with another lineage: those of a tuning's winner.

        Args:
            run_id: of the tuning.
            weights: their digest.
            lineage: what they descend from, now that they were chosen.
        """
        plain = dict(lineage)
        known = Released(run_id=run_id, weights=weights, lineage=plain)
        line = lines.Release(run_id=run_id, weights=weights, lineage=plain)
        self.amend(lambda history: [] if known in history.released else [line])

    def slots(self, selection_id: str, draw: Callable[[], Mapping[str, str]]) -> dict[str, str]:
        """The slots of a private selection, drawn once: a second call gives what the first drew.

        Args:
            selection_id: reserved here.
            draw: for each slot a new random id, and the digest of its trial's constants.
        """
        drawn: dict[str, str] = {}

        def compose(history: History) -> list[StoreLine]:
            if selection_id in history.slots:
                drawn.update(history.slots[selection_id])
                return []
            if selection_id not in history.charges:
                raise UseError(f"no selection {selection_id} is reserved in {self.path}")
            drawn.update(draw())
            return [lines.Slots(run_id=selection_id, slots=dict(drawn))]

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

        def compose(history: History) -> list[StoreLine]:
            for selection_id, slots in history.slots.items():
                selection = history.charges[selection_id].selection
                if slots.get(slot) == constants and selection and plan in selection.plans:
                    break
            else:
                raise UseError(
                    f"no private selection in {self.path} pays for this trial: it has drawn no "
                    "such slot, or one of other settings",
                    hint="go on with the tuning: userdp tune STORE --out DIR --resume",
                )
            if history.taken.get(slot, run_id) != run_id:
                raise UseError(
                    "the slot of this trial was taken before: a second training in it would be a "
                    "candidate that nobody paid for",
                    hint="put the trial's folder back, or begin a new tuning",
                )
            if slot in history.taken:
                return []
            return [lines.Trial(run_id=run_id, slot=slot, base=dict(base))]

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

        def compose(history: History) -> list[StoreLine]:
            if run_id in history.scores:
                kept.append(history.scores[run_id])
                return []
            if run_id not in history.taken.values():
                raise UseError(f"run {run_id} is no trial of a private selection in {self.path}")
            kept.append(draw())
            return [lines.Score(run_id=run_id, value=kept[0])]

        self.amend(compose)
        return kept[0]

    def begin_tuning(self, tuning_id: str, constants: Sequence[str]) -> None:
        """Record that a tuning begins: its whole grid is fixed now.

        Args:
            tuning_id: random.
            constants: digests of the plan and options of each candidate.

        Raises:
            UseError: it began with other constants: its base model was exchanged since.
        """
        grid = tuple(constants)

        def compose(history: History) -> list[StoreLine]:
            if tuning_id not in history.tunings:
                return [lines.BeginTuning(run_id=tuning_id, constants=grid)]
            if history.tunings[tuning_id][1] != grid:
                raise UseError(
                    "the base model is not the one that this tuning began with: trials that began "
                    "from another could not be compared, and their price would be another",
                    hint="put the base model back, or begin a new tuning",
                )
            return []

        self.append(compose)

    def forget(self, before: str, after: str) -> None:
        """Record that somebody was erased from a store, without saying who; call it before it is.

        A run that began on the state ``before`` may go on over the state ``after``. The line is no
        charge and no look: what was released stays released, at the price that was paid for it.

        Args:
            before: the id of the store's state with them.
            after: that of its state without them, new and random.
        """
        self.append(lambda history: [lines.Forget(before=before, after=after)])

    def look(self, what: str) -> None:
        """Record that ``what`` shows an exact number of people's text; call it before it does.

        A constant that is recorded later may have been chosen by that number, and no ε covers it.
        """
        self.append(lambda history: [lines.Look(what=what)])

    def declare(self, constants: str) -> None:
        """Record constants of a run to come, by their digest: nothing later can have chosen them.

        They count once, and in the order in which they were declared (`History.fixed_at`).
        What is recorded already stays as old as it is.
        """
        line = lines.Declare(constants=constants)
        self.append(lambda history: [] if constants in history.declared else [line])

    def declare_total(self, epsilon: float, delta: float) -> None:
        """Fix the total within which all charges here will stay; those beyond it are refused.

        Prices that are chosen one after another add up to a guarantee only within a total that was
        fixed before the first (a filter: Rogers et al. 2016).

        Raises:
            UseError: something was charged or looked at before.
        """
        require_positive("the total epsilon", epsilon)
        require_delta(delta)

        def compose(history: History) -> list[StoreLine]:
            refuse_used(self.path, history, "a total")
            return [lines.Total(epsilon=epsilon, delta=delta)]

        self.append(compose)

    def open_budget(self, opened: RenyiFilter) -> None:
        """Fix a total and its filter, which all charges are counted by from now on.

        Guarantee: all that is released of these people satisfies (ε, δ) of the filter; charges that
        it does not admit are refused (`userdp.ledger.budget`).

        Raises:
            UseError: something was charged, declared or looked at before.
        """

        def compose(history: History) -> list[StoreLine]:
            refuse_used(self.path, history, "a budget")
            return [lines.OpenBudget(run_id=new_id(), filter=opened, when=_now())]

        self.append(compose)

    def declare_series(self, series: Series) -> str:
        """Fix a series of runs, which those of its price are part of from now on; its id.

        One that is declared again before anything of it was taken is the same one.

        Raises:
            UseError: the store has a budget with a filter, which pays for every run; or a total
                that the series would exceed.
        """
        line, kept = lines.DeclareSeries(run_id=new_id(), series=series, when=_now()), list[str]()

        def compose(history: History) -> list[StoreLine]:
            if history.budget is not None:
                raise UseError(
                    f"{self.path} has a budget with a filter, which pays for every run: a series "
                    "beside it would be a second way to pay",
                    hint="plan without --repeat: the filter counts each run, in any number",
                )
            for known in history.series.values():
                if known.series == series and not known.runs:
                    kept.append(known.id)  # declared before, and nothing of it taken
                    return []
            line.fold(history, history.lines)
            refuse_beyond(self.path, history)
            return [line]

        self.append(compose)
        return kept[0] if kept else line.run_id


def new_id() -> str:
    """A random id of a run, a slot, an opening or a budget: 64 bits."""
    return secrets.token_hex(8)


def _now() -> str:
    """The date and time in UTC, for the operator's eyes: a store's ledger is never released."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _require_last(path: Path, history: History, run_id: str, known: Sequence[str]) -> None:
    if run_id in history.settled:
        charge = history.charges.get(run_id)
        ended = "settled before its end" if charge is not None and charge.early else "finished"
        raise UseError(
            f"run {run_id} was {ended}, as {path} says: its steps are over, and this folder is "
            "of before that",
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
