"""The lines of ledgers: a frozen class for each kind.

Of those from `Store` to `OpenBudget`, in the ledger of a store's people,
`userdp.ledger.store_history` says what they come to, and `userdp.ledger.permitted_lines` when one
may follow. A run's ledger holds the kinds from `Begin` on, which
`userdp.ledger.run_ledger.RunRecord` reads. `Open` stands in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

from userdp.accounting.filters import RenyiFilter
from userdp.core.errors import UseError
from userdp.ledger.charged_parts import Choice, Part, Query, Steps
from userdp.plans import Plan, StepRecord

Plain = Mapping[str, Any]
"""A lineage or other plain values, which the rooms above decode."""


def now() -> str:
    """The date and time in UTC, for the operator's eyes: a store's ledger is never released."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of a ledger; of all its subclasses each has a ``kind`` of its own."""

    kind: ClassVar[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLine(Line):
    """A line about one run, statistic, tuning or budget.

    Args:
        run_id: random; of the charge, the trial, the tuning or the budget that it is about.
    """

    run_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Store(Line):
    """The first line.

    Args:
        id: random, of the ledger.
        inode: of the file that was begun with it: a copy is another one.
    """

    schema: ClassVar[str] = "userdp.store-ledger/12"
    kind: ClassVar[str] = "store"

    id: str
    inode: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Charge(Line):
    """These people are charged, before anything is drawn or trained.

    Args:
        pays_for: the whole plan of a run, a statistic, or a private selection with all of its
            trials; its id is new in the ledger.
        when: the date and time in UTC.
        state: the id of the store's state, which tells whose text is covered; empty where that is
            not known.
        base: what the model descends from that the run begins from, or that the statistic is about.
        constants: the digest of a run's plan and options, by which a tuning knows its runs.
        logged: exact losses of the run, or of a selection's trials, are shown to its operator.
        steered: a loop of somebody's own takes the steps of a run, which exact numbers may steer as
            long as it is open or interrupted.
    """

    kind: ClassVar[str] = "charge"

    pays_for: Part
    when: str = field(default_factory=now)
    state: str = ""
    base: Plain | None = None
    constants: str = ""
    logged: bool = False
    steered: bool = False

    @property
    def run_id(self) -> str:
        """Of the run, the statistic or the tuning."""
        return self.pays_for.id

    @property
    def plan(self) -> Plan | None:
        """Of a run, where every reader knows its classes."""
        return self.pays_for.plan if isinstance(self.pays_for, Steps) else None

    @property
    def is_run(self) -> bool:
        """Whether it is a run's, and neither a statistic's nor a selection's."""
        return not isinstance(self.pays_for, Query | Choice)


@dataclass(frozen=True, kw_only=True, slots=True)
class BeginTuning(RunLine):
    """A tuning begins: its grid is fixed.

    Args:
        constants: the digests of its candidates' constants.
        slots: of a private selection, drawn once (what is drawn later is not written): for each
            trial a new random id, and the digest of its constants.
    """

    kind: ClassVar[str] = "tuning"

    constants: tuple[str, ...]
    slots: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Open(RunLine):
    """A run was opened: only the folder that holds the nonce may go on with it.

    It stands in the ledger of the people first, and then in the run's.

    Args:
        attempts: that folders of the run began before; those of which the run's own ledger does
            not tell were lost with another folder, or cut off by a kill.
        nonce: new and random, and written in the run's folder already.
        after: the nonce of the opening before it, which the folder held; empty at the first.
        copied: the file of the people's ledger was found to be another one than was begun.
    """

    kind: ClassVar[str] = "open"

    attempts: int
    nonce: str
    after: str = ""
    copied: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Settle(RunLine):
    """A run ended, as planned or early: its steps are over.

    Args:
        early: before its plan, which it costs all the same: nobody goes on with it.
    """

    kind: ClassVar[str] = "settle"

    early: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Release(RunLine):
    """Weights were released, or the same ones with another lineage: those of a tuning's winner."""

    kind: ClassVar[str] = "release"

    weights: str
    lineage: Plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial(RunLine):
    """A trial took a slot of a private selection, once.

    Args:
        slot: that the selection drew.
        constants: of the trial, by their digest: those that the slot was drawn for.
        base: what the model descends from that it begins from.
    """

    kind: ClassVar[str] = "trial"

    slot: str
    constants: str
    base: Plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer(RunLine):
    """What was drawn for a statistic, or as the score of a private selection's trial.

    It is drawn once: what is drawn later is not written. An answer that could be drawn again, until
    one likes it, would be no part of what was paid for.

    Args:
        value: None for a trial without a score.
    """

    kind: ClassVar[str] = "answer"

    value: int | float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Look(Line):
    """A command is about to show an exact number of people's text.

    A constant that is recorded later may have been chosen by that number, and no ε covers it.
    """

    kind: ClassVar[str] = "look"

    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenBudget(RunLine):
    """A total with a filter, which counts all charges from now on.

    Guarantee: all that is released of these people satisfies (ε, δ) of the filter; charges that it
    does not admit are refused (`userdp.ledger.permitted_lines`).
    """

    kind: ClassVar[str] = "budget"

    filter: RenyiFilter
    when: str = field(default_factory=now)


@dataclass(frozen=True, kw_only=True, slots=True)
class Begin(Line):
    """The first line of a run's ledger.

    Args:
        run_id: random; of a tuning's winner that of the tuning.
        plan: None for a run without privacy: its ε is infinite.
        facts: public constants such as versions.
        lineage: what the run descends from, itself left out, as plain values.
        tuning_id: of a tuning that this run is a trial of, where that is no private selection.
        payer: what a claim counts in place of the run's own steps: the budget of its people's
            store, the choice that it won, or why nothing is claimed of it; None for its steps.
    """

    schema: ClassVar[str] = "userdp.ledger/12"
    kind: ClassVar[str] = "run"

    run_id: str
    plan: Plan | None
    facts: Plain
    lineage: Plain
    tuning_id: str | None = None
    payer: Part | None = None

    def __post_init__(self) -> None:
        if isinstance(self.payer, Choice) and self.plan not in self.payer.plans:
            raise UseError("the run is of a plan that its tuning did not try")


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt(Line):
    """A step is charged, before its update is applied."""

    kind: ClassVar[str] = "attempt"

    step: StepRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish(Line):
    """The run ended as planned, and what it released is bound.

    Args:
        attempts: steps that were charged.
        weights: digests of the released weights, those of the adapters first.
        files: digest of train.toml and of each file of the released model, by its place in the
            folder.
        since: what the model descends from besides, as a plain lineage: what was released or
            shown while the run was open, and may have steered it.
    """

    kind: ClassVar[str] = "finish"

    attempts: int
    weights: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    since: Plain | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved(Line):
    """The model was saved, or saved anew, after the run's end: the last such line binds its files,
    in place of the finishing line.
    """

    kind: ClassVar[str] = "saved"

    files: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen(Line):
    """What the run may have been chosen among (``told``, in words), as its people's store said when
    it was exported.
    """

    kind: ClassVar[str] = "chosen"

    told: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseLoss(Line):
    """A loss that was released under DP after the run's end, at a price of its own.

    Args:
        split: the store's name for the people who were asked.
        epsilon: (ε, 0)-DP per user, add-or-remove, of all that the line tells.
        query_ids: of the charges in the store's ledger.
        told: what was released, as `userdp evaluate --json` prints it.
    """

    kind: ClassVar[str] = "loss"

    split: str
    epsilon: float
    query_ids: tuple[str, ...]
    told: Plain
