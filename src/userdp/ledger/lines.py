"""The lines of ledgers: for each kind one class, which holds its fields and folds them.

`STORE` are the lines of a store's ledger, which fold into a `History`; `RUN` those of a run's, that
`userdp.ledger.folder.RunRecord` reads. A new kind is a class here, and known nowhere else.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

from userdp.accounting.filters import RenyiFilter
from userdp.codec import decode
from userdp.errors import UseError
from userdp.ledger.history import Charge, Declared, History, Opened, Released
from userdp.ledger.journal import Kinds
from userdp.plans import Plan, PrivateSelection, Series, StepRecord, Tuning
from userdp.vocabulary import Guarantee, require_positive

Plain = Mapping[str, Any]
"""A lineage or other plain values, which the rooms above decode."""


def _not_below_0(**counts: int) -> None:
    """A count below 0 would make a claim smaller."""
    for name, count in counts.items():
        if count < 0:
            raise UseError(f"a line of a ledger says {name} {count}, below 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreLine:
    """A line of a store's ledger."""

    kind: ClassVar[str]

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
class Reserve(StoreLine):
    """A run is charged its whole plan; the fields are those of `Charge`."""

    kind: ClassVar[str] = "reserve"

    run_id: str
    plan: Plain | None
    recorded: Recorded | None
    again: str | None
    base: Plain | None
    constants: str
    logged: bool
    steered: bool
    when: str
    state: str

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
    """A run was opened: only the folder that holds the nonce may go on with it."""

    kind: ClassVar[str] = "open"

    run_id: str
    attempts: int
    nonce: str

    def fold(self, history: History, at: int) -> None:
        history.nonces[self.run_id] = (self.nonce, self.attempts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Release(StoreLine):
    """Weights were released, or the same ones with another lineage: those of a tuning's winner."""

    kind: ClassVar[str] = "release"

    run_id: str
    weights: str
    lineage: Plain

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
class Settle(StoreLine):
    """A run ended, as planned or early: its steps are over, and its price is final."""

    kind: ClassVar[str] = "settle"

    run_id: str
    steps: int
    early: bool
    when: str

    def __post_init__(self) -> None:
        _not_below_0(steps=self.steps)

    def fold(self, history: History, at: int) -> None:
        history.settled.add(self.run_id)
        charge = history.charges.get(self.run_id)
        if charge is not None:
            counted = self.early and history.why_whole(self.run_id) is None
            history.charges[self.run_id] = replace(
                charge,
                steps=self.steps,
                settled=True,
                early=self.early,
                stopped=self.steps if counted else None,
                ended=at,
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection(StoreLine):
    """A private selection is charged, with all of its trials."""

    kind: ClassVar[str] = "selection"

    run_id: str
    selection: PrivateSelection
    when: str
    state: str

    def fold(self, history: History, at: int) -> None:
        history.charges[self.run_id] = Charge(
            run_id=self.run_id,
            at=at,
            settled=True,
            selection=self.selection,
            when=self.when,
            state=self.state,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Slots(StoreLine):
    """The trials of a private selection were drawn: the constants of each slot, by its id."""

    kind: ClassVar[str] = "slots"

    run_id: str
    slots: Mapping[str, str]

    def fold(self, history: History, at: int) -> None:
        if self.run_id not in history.charges:
            raise UseError(f"slots of the selection {self.run_id}, which nothing charged")
        history.slots[self.run_id] = self.slots


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial(StoreLine):
    """A trial took a slot of a private selection; ``base``: what it began from."""

    kind: ClassVar[str] = "trial"

    run_id: str
    slot: str
    base: Plain

    def fold(self, history: History, at: int) -> None:
        history.taken[self.slot] = self.run_id
        history.bases[self.run_id] = history.readable(self.base) or {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Score(StoreLine):
    """The score of a private selection's trial was drawn; None for one without."""

    kind: ClassVar[str] = "score"

    run_id: str
    value: float | None

    def fold(self, history: History, at: int) -> None:
        history.scores[self.run_id] = self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Query(StoreLine):
    """A statistic is charged, before it is drawn; ``base``: of the model that it is about."""

    kind: ClassVar[str] = "query"

    run_id: str
    name: str
    pure_epsilon: float
    base: Plain | None
    when: str
    state: str

    def __post_init__(self) -> None:
        require_positive("pure_epsilon", self.pure_epsilon, at_most=700.0)

    def fold(self, history: History, at: int) -> None:
        history.charges[self.run_id] = Charge(
            run_id=self.run_id,
            at=at,
            settled=True,
            query_epsilon=self.pure_epsilon,
            query_name=self.name,
            base=history.readable(self.base),
            when=self.when,
            state=self.state,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer(StoreLine):
    """The answer of a charged query: a DP release."""

    kind: ClassVar[str] = "answer"

    run_id: str
    value: int

    def fold(self, history: History, at: int) -> None:
        charge = history.charges.get(self.run_id)
        if charge is None or charge.query_epsilon is None:
            raise UseError(f"{self.run_id} is no query that was charged")
        history.charges[self.run_id] = replace(charge, answer=self.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Look(StoreLine):
    """A command is about to show an exact number of people's text."""

    kind: ClassVar[str] = "look"

    what: str

    def fold(self, history: History, at: int) -> None:
        history.looks.append((at, self.what))


@dataclass(frozen=True, kw_only=True, slots=True)
class Forget(StoreLine):
    """Somebody is about to be erased: the ids of the store's states before and after that."""

    kind: ClassVar[str] = "forget"

    before: str
    after: str

    def fold(self, history: History, at: int) -> None:
        history.erasures.append((self.before, self.after))


@dataclass(frozen=True, kw_only=True, slots=True)
class Declare(StoreLine):
    """The constants of a run to come, by their digest."""

    kind: ClassVar[str] = "declare"

    constants: str

    def fold(self, history: History, at: int) -> None:
        history.declared.setdefault(self.constants, at)


@dataclass(frozen=True, kw_only=True, slots=True)
class BeginTuning(StoreLine):
    """A tuning begins: its grid is fixed, by the digests of its candidates' constants."""

    kind: ClassVar[str] = "tuning"

    run_id: str
    constants: tuple[str, ...]

    def fold(self, history: History, at: int) -> None:
        history.tunings.setdefault(self.run_id, (at, self.constants))


@dataclass(frozen=True, kw_only=True, slots=True)
class Total(StoreLine):
    """A total that all charges stay within, by adding up."""

    kind: ClassVar[str] = "total"

    epsilon: float
    delta: float

    def fold(self, history: History, at: int) -> None:
        history.total = (self.epsilon, self.delta)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenBudget(StoreLine):
    """A total with a filter."""

    kind: ClassVar[str] = "budget"

    run_id: str
    filter: RenyiFilter
    when: str

    def fold(self, history: History, at: int) -> None:
        history.budget = Opened(id=self.run_id, filter=self.filter, when=self.when)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclareSeries(StoreLine):
    """A series of runs at one price."""

    kind: ClassVar[str] = "series"

    run_id: str
    series: Series
    when: str

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


def fold(lines: Iterable[StoreLine]) -> History:
    """What a store's ledger says; no lines are no charges."""
    history = History()
    for line in lines:
        line.fold(history, history.lines)
        history.lines += 1
    return history


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
