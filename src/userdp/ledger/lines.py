"""The lines of ledgers: for each kind one class, with its fields, what it refuses and how it folds.

`STORE` are the lines of a store's ledger, which fold into a `History`; `RUN` those of a run's, that
`userdp.ledger.folder.RunRecord` reads. A new kind is a class here, and known nowhere else.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

from userdp.accounting.filters import RenyiFilter
from userdp.core.codec import decode, encode
from userdp.core.errors import UseError
from userdp.core.vocabulary import Guarantee, require_delta, require_positive
from userdp.ledger.budget import refuse_beyond, refuse_used
from userdp.ledger.history import Charge, Declared, History, Opened, Released
from userdp.ledger.journal import Kinds
from userdp.plans import Plan, PrivateSelection, Series, StepRecord, Tuning

Plain = Mapping[str, Any]
"""A lineage or other plain values, which the rooms above decode."""


def now() -> str:
    """The date and time in UTC, for the operator's eyes: a store's ledger is never released."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _not_below_0(**counts: int) -> None:
    """A count below 0 would make a claim smaller."""
    for name, count in counts.items():
        if count < 0:
            raise UseError(f"a line of a ledger says {name} {count}, below 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreLine:
    """A line of a store's ledger."""

    kind: ClassVar[str]
    costs: ClassVar[bool] = False
    """Whether these people are charged by it, so that a total may refuse it."""

    def is_new(self, history: History) -> bool:
        """Whether it has to be written; False where the ledger says the same already.

        Raises:
            UseError: it may not follow the lines that are there.
        """
        return True

    def fold(self, history: History, at: int) -> None:
        """Put this line, the one at ``at``, into what was read before it.

        Raises:
            UseError: it speaks of something that no line before it charged.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, slots=True)
class Store(StoreLine):
    """The first line: the random id of the ledger."""

    schema: ClassVar[str] = "userdp.store-ledger/5"
    kind: ClassVar[str] = "store"

    id: str

    def fold(self, history: History, at: int) -> None:
        history.id = self.id


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """The price of a plan whose sampling or noise is somebody's own, for who reads without it.

    Args:
        module: that defines it.
        guarantee: of the plan; None where its sampling has no ε.
    """

    module: str
    guarantee: Guarantee | None

    @classmethod
    def of(cls, plan: Plan | None) -> Self | None:
        """Of a plan; None where all of it is of this package."""
        own = () if plan is None else (type(plan.sampling), type(plan.noise))
        for kind in own:
            if not kind.__module__.startswith("userdp."):
                # A script is imported by another process under its file's name.
                script = kind.__module__ == "__main__"
                module = Path(inspect.getfile(kind)).stem if script else kind.__module__
                covered = plan is not None and plan.sampling.covered
                return cls(module=module, guarantee=plan.guarantee() if plan and covered else None)
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChargeLine(StoreLine):
    """What these people are charged, before it is taken; its id is new in the ledger.

    Args:
        run_id: of the run, the answer or the selection.
        when: the date and time in UTC.
        state: the id of the store's state, which tells whose text it covers (`Forget`).
    """

    costs: ClassVar[bool] = True

    run_id: str
    when: str = field(default_factory=now)
    state: str = ""

    def is_new(self, history: History) -> bool:
        if self.run_id in history.charges:
            raise UseError(f"{self.kind} {self.run_id} is already charged in {history.path}")
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Reserve(ChargeLine):
    """A run is charged its whole plan.

    Args:
        plan: as plain values; None for a run without privacy.
        recorded: where the sampling or the noise of the plan is somebody's own.
        again: the run of which this is a further charge.
        base: what the model that it begins from descends from.
        constants: the digest of its plan and options, see `Declare`.
        logged: whether it keeps exact numbers for its operator.
        steered: a loop of somebody's own takes its steps, which exact numbers may steer as long as
            it is open or interrupted.
    """

    kind: ClassVar[str] = "reserve"

    plan: Plain | None
    recorded: Recorded | None = None
    again: str | None = None
    base: Plain | None = None
    constants: str = ""
    logged: bool = True
    steered: bool = False

    @classmethod
    def of(cls, run_id: str, plan: Plan | None) -> Self:
        """The whole plan of a run; None for one without privacy."""
        return cls(run_id=run_id, plan=encode(plan), recorded=Recorded.of(plan))

    def is_new(self, history: History) -> bool:
        first = history.charges.get(self.again or "")
        if first is not None and first.series and history.room_for(first.plan) is None:
            raise UseError(
                f"run {first.run_id} is one of a declared series, all of whose runs are taken: "
                "a further charge of its plan would be a run more than was declared",
                hint="train again in another --out",
            )
        # A slotted dataclass is a copy of its class, which ``super()`` without arguments misses.
        return ChargeLine.is_new(self, history)

    def fold(self, history: History, at: int) -> None:
        plan, noted = None, self.recorded
        try:
            plan = None if self.plan is None else _plan(json.dumps(self.plan))
        except UseError:
            if noted is None:
                raise
        read = plan is not None or noted is None
        history.charges[self.run_id] = Charge(
            run_id=self.run_id,
            at=at,
            plan=plan,
            recorded=None if read or noted is None else noted.guarantee,
            module="" if noted is None else noted.module,
            steps=int(self.plan["steps"]) if self.plan else 0,
            again=self.again,
            base=history.readable(self.base),
            constants=self.constants,
            series=history.take_run(plan),
            logged=self.logged,
            steered=self.steered,
            when=self.when,
            state=self.state,
        )
        if self.again is None:
            history.begun.setdefault(self.constants, at)


@lru_cache(maxsize=1024)  # most runs share a plan
def _plan(text: str) -> Plan:
    return decode(Plan, json.loads(text), what="the plan of a charge")


@dataclass(frozen=True, kw_only=True, slots=True)
class Open(StoreLine):
    """A run was opened: only the folder that holds the nonce may go on with it.

    Args:
        run_id: of the charge, or a trial's that took its slot.
        attempts: that its folders began before.
        nonce: new and random, and written in the run's folder already.
    """

    kind: ClassVar[str] = "open"

    run_id: str
    attempts: int
    nonce: str

    def is_new(self, history: History) -> bool:
        return history.require(self.run_id)

    def fold(self, history: History, at: int) -> None:
        history.nonces[self.run_id] = (self.nonce, self.attempts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settle(StoreLine):
    """A run ended, as planned or early: its steps are over, and its price is final.

    Args:
        run_id: of the charge, or a trial's.
        steps: at most what it reserved.
        early: before its plan: nobody goes on with it. A filter may then count ``steps`` only, see
            `History.why_whole`.
        when: the date and time in UTC.
    """

    kind: ClassVar[str] = "settle"

    run_id: str
    steps: int
    early: bool = False
    when: str = field(default_factory=now)

    def __post_init__(self) -> None:
        _not_below_0(steps=self.steps)

    def is_new(self, history: History) -> bool:
        charge = history.charges.get(self.run_id)
        if charge is None or charge.plan is None:
            history.require(self.run_id)
        elif self.run_id not in history.settled and self.steps > charge.plan.steps:
            raise UseError(
                f"run {self.run_id} reserved {charge.plan.steps} steps and cannot settle "
                f"{self.steps}"
            )
        return self.run_id not in history.settled

    def fold(self, history: History, at: int) -> None:
        history.settled.add(self.run_id)
        charge = history.charges.get(self.run_id)
        if charge is not None:
            counted = self.early and history.why_whole(self.run_id) is None
            history.charges[self.run_id] = replace(
                charge,
                steps=self.steps,
                early=self.early,
                stopped=self.steps if counted else None,
                ended=at,
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Release(StoreLine):
    """Weights were released, or the same ones with another lineage: those of a tuning's winner."""

    kind: ClassVar[str] = "release"

    run_id: str
    weights: str
    lineage: Plain

    def is_new(self, history: History) -> bool:
        known = Released(run_id=self.run_id, weights=self.weights, lineage=self.lineage)
        return history.require(self.run_id) and known not in history.released

    def fold(self, history: History, at: int) -> None:
        released = Released(
            run_id=self.run_id,
            weights=self.weights,
            lineage=history.readable(self.lineage) or {},
        )
        # The last word on these weights: a trial that won claims what choosing it cost.
        others = [one for one in history.released if one.weights != released.weights]
        history.released = [*others, released]


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection(ChargeLine):
    """A private selection is charged, with all of its trials, before any of them."""

    kind: ClassVar[str] = "selection"

    selection: PrivateSelection

    def fold(self, history: History, at: int) -> None:
        history.charges[self.run_id] = Charge(
            run_id=self.run_id,
            at=at,
            selection=self.selection,
            when=self.when,
            state=self.state,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Slots(StoreLine):
    """The trials of a private selection, drawn once: what is drawn later is not written.

    Args:
        run_id: of the selection.
        slots: for each a new random id, and the digest of its trial's constants.
    """

    kind: ClassVar[str] = "slots"

    run_id: str
    slots: Mapping[str, str]

    def is_new(self, history: History) -> bool:
        return history.charge(self.run_id).run_id not in history.slots

    def fold(self, history: History, at: int) -> None:
        history.slots[history.charge(self.run_id).run_id] = self.slots


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial(StoreLine):
    """A trial took a slot of a private selection, once; ``base``: what it began from."""

    kind: ClassVar[str] = "trial"

    run_id: str
    slot: str
    base: Plain

    def is_new(self, history: History) -> bool:
        if history.taken.get(self.slot, self.run_id) != self.run_id:
            raise UseError(
                "the slot of this trial was taken before: a second training in it would be a "
                "candidate that nobody paid for",
                hint="put the trial's folder back, or begin a new tuning",
            )
        return self.slot not in history.taken

    def fold(self, history: History, at: int) -> None:
        history.taken[self.slot] = self.run_id
        history.bases[self.run_id] = history.readable(self.base) or {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Score(StoreLine):
    """The score of a private selection's trial, drawn once; None for one without.

    A score that could be drawn again, until the trial that one likes wins, would be no part of what
    the selection paid for: what is drawn later is not written.
    """

    kind: ClassVar[str] = "score"

    run_id: str
    value: float | None

    def is_new(self, history: History) -> bool:
        if self.run_id not in history.taken.values():
            raise UseError(
                f"run {self.run_id} is no trial of a private selection in {history.path}"
            )
        return self.run_id not in history.scores

    def fold(self, history: History, at: int) -> None:
        history.scores[self.run_id] = self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Query(ChargeLine):
    """A statistic is charged, before it is drawn.

    Args:
        name: what is asked; public.
        pure_epsilon: the statistic is (ε, 0)-DP per user, add-or-remove; > 0, at most 700.
        base: what the model that it is about descends from.
    """

    kind: ClassVar[str] = "query"

    name: str
    pure_epsilon: float
    base: Plain | None = None

    def __post_init__(self) -> None:
        require_positive("pure_epsilon", self.pure_epsilon, at_most=700.0)

    def fold(self, history: History, at: int) -> None:
        history.charges[self.run_id] = Charge(
            run_id=self.run_id,
            at=at,
            query_epsilon=self.pure_epsilon,
            query_name=self.name,
            base=history.readable(self.base),
            when=self.when,
            state=self.state,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer(StoreLine):
    """The answer of a charged query: it is a DP release, so it may stand here."""

    kind: ClassVar[str] = "answer"

    run_id: str
    value: int

    def is_new(self, history: History) -> bool:
        if history.charge(self.run_id).answer is not None:
            raise UseError(f"query {self.run_id} has its answer in {history.path} already")
        return True

    def fold(self, history: History, at: int) -> None:
        charge = history.charge(self.run_id)
        if charge.query_epsilon is None:
            raise UseError(f"{self.run_id} is no query charged in {history.path}")
        history.charges[self.run_id] = replace(charge, answer=self.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Look(StoreLine):
    """A command is about to show an exact number of people's text.

    A constant that is recorded later may have been chosen by that number, and no ε covers it.
    """

    kind: ClassVar[str] = "look"

    what: str

    def fold(self, history: History, at: int) -> None:
        history.looks.append((at, self.what))


@dataclass(frozen=True, kw_only=True, slots=True)
class Forget(StoreLine):
    """Somebody is about to be erased: the ids of the store's states before and after that.

    A run that began on the state ``before`` may go on over the state ``after``. The line is no
    charge and no look: what was released stays released, at the price that was paid for it.
    """

    kind: ClassVar[str] = "forget"

    before: str
    after: str

    def fold(self, history: History, at: int) -> None:
        history.erasures.append((self.before, self.after))


@dataclass(frozen=True, kw_only=True, slots=True)
class Declare(StoreLine):
    """The constants of a run to come, by their digest: nothing later can have chosen them.

    They count once, and in the order in which they were declared (`History.fixed_at`).
    """

    kind: ClassVar[str] = "declare"

    constants: str

    def is_new(self, history: History) -> bool:
        return self.constants not in history.declared

    def fold(self, history: History, at: int) -> None:
        history.declared.setdefault(self.constants, at)


@dataclass(frozen=True, kw_only=True, slots=True)
class BeginTuning(StoreLine):
    """A tuning begins: its grid is fixed, by the digests of its candidates' constants."""

    kind: ClassVar[str] = "tuning"

    run_id: str
    constants: tuple[str, ...]

    def is_new(self, history: History) -> bool:
        known = history.tunings.get(self.run_id)
        if known is not None and known[1] != self.constants:
            raise UseError(
                "the base model is not the one that this tuning began with: trials that began "
                "from another could not be compared, and their price would be another",
                hint="put the base model back, or begin a new tuning",
            )
        return known is None

    def fold(self, history: History, at: int) -> None:
        history.tunings.setdefault(self.run_id, (at, self.constants))


@dataclass(frozen=True, kw_only=True, slots=True)
class Total(StoreLine):
    """A total that all charges stay within, by adding up; fixed before the first of them.

    Prices that are chosen one after another add up to a guarantee only within such a total (a
    filter: Rogers et al. 2016).
    """

    kind: ClassVar[str] = "total"

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        require_positive("the total epsilon", self.epsilon)
        require_delta(self.delta)

    def is_new(self, history: History) -> bool:
        refuse_used(history, "a total")
        return True

    def fold(self, history: History, at: int) -> None:
        history.total = (self.epsilon, self.delta)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenBudget(StoreLine):
    """A total with a filter, which counts all charges from now on.

    Guarantee: all that is released of these people satisfies (ε, δ) of the filter; charges that it
    does not admit are refused (`userdp.ledger.budget`).
    """

    kind: ClassVar[str] = "budget"

    run_id: str
    filter: RenyiFilter
    when: str = field(default_factory=now)

    def is_new(self, history: History) -> bool:
        refuse_used(history, "a budget")
        return True

    def fold(self, history: History, at: int) -> None:
        history.budget = Opened(id=self.run_id, filter=self.filter, when=self.when)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclareSeries(StoreLine):
    """A series of runs at one price, which those of its price are part of from now on.

    One that is declared again before anything of it was taken is the same one.
    """

    kind: ClassVar[str] = "series"
    costs: ClassVar[bool] = True

    run_id: str
    series: Series
    when: str = field(default_factory=now)

    def is_new(self, history: History) -> bool:
        if history.budget is not None:
            raise UseError(
                f"{history.path} has a budget with a filter, which pays for every run: a series "
                "beside it would be a second way to pay",
                hint="plan without --repeat: the filter counts each run, in any number",
            )
        known = history.series.values()
        return not any(one.series == self.series and not one.runs for one in known)

    def fold(self, history: History, at: int) -> None:
        history.series[self.run_id] = Declared(id=self.run_id, series=self.series)


@dataclass(frozen=True, kw_only=True, slots=True)
class Copied(StoreLine):
    """The ledger's file was found to be another one than before."""

    kind: ClassVar[str] = "copied"

    def fold(self, history: History, at: int) -> None:
        history.copied = True


STORE: Kinds = {
    one.kind: one
    for one in (
        Store, Reserve, Open, Release, Settle, Selection, Slots, Trial, Score, Query, Answer, Look,
        Forget, Declare, BeginTuning, Total, OpenBudget, DeclareSeries, Copied,
    )
}  # fmt: skip


def fold(lines: Iterable[StoreLine], path: Path) -> History:
    """What the store's ledger at ``path`` says; no lines are no charges."""
    history = History(path=path)
    for line in lines:
        line.fold(history, history.lines)
        history.lines += 1
    return history


def follow(history: History, lines: Iterable[StoreLine]) -> list[StoreLine]:
    """Fold lines that are to follow; those of them that have to be written.

    Raises:
        UseError: one may not follow, or the people would be charged beyond a total.
    """
    new = []
    for line in lines:
        if line.is_new(history):
            line.fold(history, history.lines)
            history.lines += 1
            new.append(line)
    if any(line.costs for line in new):
        refuse_beyond(history)
    return new


@dataclass(frozen=True, kw_only=True, slots=True)
class Begin:
    """The first line of a run's ledger.

    Args:
        run_id: random; of a tuning's winner that of the tuning.
        plan: None for a run without privacy: its ε is infinite.
        facts: public constants such as versions.
        lineage: what the run descends from, itself left out, as plain values.
        trial: a private selection pays for this run, of which only the winner claims anything.
        tuning_id: of any other tuning that this run is a trial of.
        payer: the filter or the series that pays for it, as plain values; None for itself.
        won: the tuning that this run is the winner of.
    """

    schema: ClassVar[str] = "userdp.ledger/5"
    kind: ClassVar[str] = "run"

    run_id: str
    plan: Plan | None
    facts: Plain
    lineage: Plain
    trial: bool = False
    tuning_id: str | None = None
    payer: Plain | None = None
    won: Tuning | None = None

    def __post_init__(self) -> None:
        if self.won is not None and self.plan not in self.won.plans:
            raise UseError("the run is of a plan that its tuning did not try")


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRun:
    """An opening: its nonce, and the charge in the store's ledger that pays for what follows."""

    kind: ClassVar[str] = "open"

    nonce: str
    charge: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """Attempts that other folders of this run took, or that a crash cut off."""

    kind: ClassVar[str] = "lost"

    attempts: int

    def __post_init__(self) -> None:
        _not_below_0(attempts=self.attempts)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCopied:
    """The store's ledger was found to be another file since the run began."""

    kind: ClassVar[str] = "copied"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """A step is charged, before its update is applied; ``attempt`` is its number, from 1."""

    kind: ClassVar[str] = "attempt"

    attempt: int
    step: StepRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """The run ended as planned, and what it released is bound.

    Args:
        attempts: steps that were charged.
        digests: of the released ``weights``, of the ``plan``, of ``train`` (train.toml) and of the
            ``adapter``'s weights; None for what is not there.
        files: digest of each file of the released model, by its place in the folder.
        looks: what showed exact numbers while it was open, and may have steered it.
        since: what was released meanwhile, and may have steered it, as a plain lineage.
    """

    kind: ClassVar[str] = "finish"

    attempts: int
    digests: Mapping[str, str | None]
    files: Mapping[str, str]
    looks: tuple[str, ...] = ()
    since: Plain | None = None

    def __post_init__(self) -> None:
        _not_below_0(attempts=self.attempts)


@dataclass(frozen=True, kw_only=True, slots=True)
class SettleRun:
    """The run was settled early."""

    kind: ClassVar[str] = "settle"

    attempts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """What was found when it was exported: how many runs it may have been chosen among, and by what
    exact numbers (``looks``); 0 ``runs``: not known how many.
    """

    kind: ClassVar[str] = "chosen"

    runs: int
    looks: tuple[str, ...]

    def __post_init__(self) -> None:
        _not_below_0(runs=self.runs)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseLoss:
    """A loss that was released under DP after the run's end, at a price of its own.

    Args:
        split: the store's name for the people who were asked.
        epsilon: (ε, 0)-DP per user, add-or-remove, of all that the line tells.
        query_ids: of the charges in the store's ledger.
        told: what was released, as `userdp evaluate --json` prints it.
    """

    kind: ClassVar[str] = "release"

    split: str
    epsilon: float
    query_ids: tuple[str, ...]
    told: Plain

    def __post_init__(self) -> None:
        require_positive("epsilon", self.epsilon, at_most=700.0)


RUN: Kinds = {
    one.kind: one
    for one in (
        Begin, OpenRun, Lost, RunCopied, Attempt, Finish, SettleRun, Chosen, ReleaseLoss,
    )
}  # fmt: skip
