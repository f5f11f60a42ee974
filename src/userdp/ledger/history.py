"""A store's ledger, read: who was charged what, what was looked at, declared, released.

`userdp.ledger.lines` folds the lines into a `History`, one after another; whatever depends on their
order, such as which series pays for a run, follows from that order alone, so that nobody can say it
otherwise later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from userdp.accounting import rdp
from userdp.accounting.filters import Cost, RenyiFilter
from userdp.accounting.private_selection import base_curve, selected_curve
from userdp.core.codec import encode
from userdp.core.errors import UseError
from userdp.core.vocabulary import NONE, Adjacency, Guarantee, PrivacyUnit
from userdp.plans import Plan, PrivateSelection, Series
from userdp.plans.tuning import mechanism_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Charge:
    """What one run or query costs the people of a store.

    Args:
        run_id: of the run, the query or the selection.
        at: the line that it was charged in.
        plan: None for a run without privacy, for a query and for a selection.
        steps: charged; 0 for a query and for a selection, which is charged as a whole.
        early: the run was settled before its end.
        query_epsilon: of a query with pure (ε, 0)-DP per user, add-or-remove; None for a run.
        query_name: what was asked.
        answer: what was released; None if a crash came between the charge and its answer.
        selection: of a private selection, all of whose trials this pays for.
        again: the run that this is a further charge of the whole plan of; None for a first one.
        base: what the model descends from that the run began from, or that the query is about, as
            plain values.
        constants: the digest of a run's plan and options.
        series: the id of the declared series that pays for it; None where it pays for itself.
        stopped: the attempts of a run that was settled early, where only these count against a
            filter (`History.why_whole`); None where the whole plan does.
        logged: a run that kept exact numbers for its operator.
        steered: a loop of somebody's own takes its steps; see `History.looked_during`.
        ended: the line that settled it; None before that.
        when: the date and time that it was charged at, in UTC.
        state: the id of the state that the store was in; empty where that was not written.
        recorded: of a run whose plan cannot be read here, since its sampling or noise is somebody's
            own and ``module`` was not imported: the price that its line records.
        module: where that sampling or noise is defined.
    """

    run_id: str
    at: int
    plan: Plan | None = None
    steps: int = 0
    early: bool = False
    query_epsilon: float | None = None
    query_name: str | None = None
    answer: int | None = None
    selection: PrivateSelection | None = None
    again: str | None = None
    base: Mapping[str, Any] | None = None
    constants: str = ""
    series: str | None = None
    stopped: int | None = None
    logged: bool = True
    steered: bool = False
    ended: int | None = None
    when: str | None = None
    state: str = ""
    recorded: Guarantee | None = None
    module: str = ""

    @property
    def as_recorded(self) -> str:
        """What it is in words, where `recorded` stands in place of its plan."""
        return (
            f"training by a sampling or noise of {self.module}, as recorded (import {self.module} "
            "to recompute)"
        )

    @property
    def is_run(self) -> bool:
        """Whether it is a run's, and neither a query's nor a selection's."""
        return self.query_epsilon is None and self.selection is None

    @property
    def settled(self) -> bool:
        """Whether what it costs is final."""
        return self.ended is not None or not self.is_run

    @property
    def shows_losses(self) -> bool:
        """Whether its operator sees exact losses of it."""
        return self.query_epsilon is None and self.logged

    @property
    def adjacency(self) -> Adjacency:
        """Which neighbours it is about."""
        if self.recorded is not None:
            return self.recorded.adjacency
        return Adjacency.ADD_OR_REMOVE if self.plan is None else self.plan.sampling.adjacency

    def price(self) -> Guarantee:
        """Its (ε, δ) by itself; ε is infinite of a run without privacy."""
        priced = self.selection or self.plan
        if priced is not None:
            return priced.guarantee()
        if self.recorded is not None:
            return self.recorded
        query = self.query_epsilon
        return Guarantee(
            epsilon=math.inf if query is None else query,
            delta=0.0,
            unit=PrivacyUnit.USER,
            adjacency=Adjacency.ADD_OR_REMOVE,
            sampling=NONE,
            accountant="none" if query is None else "pure",
        )

    def cost(self, opened: RenyiFilter) -> Cost:
        """What it takes from a filter; infinite where nothing bounds it."""
        if self.query_epsilon is not None:
            return opened.of_query(self.query_epsilon)
        if self.selection is not None:
            return _cost_of_selection(self.selection, opened)
        if self.plan is not None and self.plan.sampling.covered:
            cost = opened.of_steps(self.plan.mechanism, steps=self.stopped)
            if cost is not None:
                return cost
        price = self.price()
        if math.isinf(price.epsilon):
            return Cost(rho=math.inf)
        return opened.of_guarantee(price.epsilon, price.delta)


def _cost_of_selection(selection: PrivateSelection, opened: RenyiFilter) -> Cost:
    curve = base_curve(
        [mechanism_of(plan) for plan in selection.plans],
        score_epsilon=selection.score_epsilon,
        orders=sorted({*rdp.ORDERS, opened.order}),
    )
    rho = selected_curve(curve, selection.repetitions)[opened.order]
    most = max(plan.steps for plan in selection.plans)
    return Cost(rho=rho, steps=selection.repetitions.mean * most)


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """A series of runs that was declared, and what of it was taken.

    Args:
        id: random.
        series: what was declared.
        runs: of it that were charged.
    """

    id: str
    series: Series
    runs: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A budget with a filter: random id; total, order and reserve; when it was opened, in UTC."""

    id: str
    filter: RenyiFilter
    when: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Released:
    """Weights that a run over these people released.

    Args:
        run_id: of the run.
        weights: their digest (`userdp.claims.subject`).
        lineage: what they descend from, as plain values.
    """

    run_id: str
    weights: str
    lineage: Mapping[str, Any]


@dataclass(kw_only=True, slots=True)
class History:
    """A store's ledger, read.

    Args:
        path: of the ledger, for what is said of it.
        id: random, of the ledger; empty while it has no line.
        lines: how many there are.
        charges: by id, oldest first.
        nonces: of each opened charge, that of its last opening, and the attempts of before it.
        settled: runs that ended.
        slots: by private selection, the constants of each slot, by its id.
        taken: by slot, the trial that took it.
        scores: by trial of a private selection, its score, drawn once.
        bases: of trials of private selections, what the model descends from that each began from.
        looks: what showed its operator an exact number, and at which line.
        declared: constants by their digest, and the first line that records them.
        begun: constants of runs by their digest, and the line of the first run that has them.
        tunings: the line at which each began, by its id, and the constants of its candidates.
        released: weights.
        erasures: states of stores from which somebody was erased, and the state after it, by id.
        total: (ε, δ) within which all charges stay, if that was fixed before the first of them.
        budget: a total with a filter, if that was opened before the first of them.
        series: that were declared, by id.
        copied: its file was found to be another one than before (`userdp.ledger.place`).
    """

    path: Path = Path("ledger.jsonl")
    id: str = ""
    lines: int = 0
    charges: dict[str, Charge] = field(default_factory=dict)
    nonces: dict[str, tuple[str, int]] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    slots: dict[str, Mapping[str, str]] = field(default_factory=dict)
    taken: dict[str, str] = field(default_factory=dict)
    scores: dict[str, float | None] = field(default_factory=dict)
    bases: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    looks: list[tuple[int, str]] = field(default_factory=list)
    declared: dict[str, int] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    tunings: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    released: list[Released] = field(default_factory=list)
    erasures: list[tuple[str, str]] = field(default_factory=list)
    total: tuple[float, float] | None = None
    budget: Opened | None = None
    series: dict[str, Declared] = field(default_factory=dict)
    copied: bool = False

    @property
    def ids(self) -> frozenset[str]:
        """Of all that was charged here, under whichever id a model's lineage knows it."""
        shared = {*self.series} | ({self.budget.id} if self.budget is not None else set())
        return frozenset({*self.charges, *self.taken.values(), *self.tunings, *shared})

    @property
    def fixed(self) -> tuple[float, float] | None:
        """(ε, δ) that all that is charged claims or stays within; None where none was fixed."""
        if self.budget is not None:
            return self.budget.filter.epsilon, self.budget.filter.delta
        return self.total

    @property
    def total_delta(self) -> float:
        """δ of `fixed`; 0 where none was."""
        return 0.0 if self.fixed is None else self.fixed[1]

    @property
    def within(self) -> str:
        """The ledger's id if a total was fixed in it, that all its charges stay within."""
        return "" if self.fixed is None else self.id

    def charge(self, run_id: str) -> Charge:
        """The charge of that id; `UseError` if there is none."""
        if run_id not in self.charges:
            raise UseError(f"nothing was charged in {self.path} as {run_id}")
        return self.charges[run_id]

    def require(self, run_id: str) -> bool:
        """True; `UseError` if nothing here paid for what has that id, a trial or a tuning too."""
        if run_id not in self.ids:
            raise UseError(f"{run_id} has no reservation in {self.path}: nothing here paid for it")
        return True

    def require_last(self, run_id: str, known: Sequence[str]) -> None:
        """`UseError` unless a run may go on in the folder that holds the nonces ``known``.

        Guarantee (invariant 12): of all folders of a run, the copies included, at most one is
        accepted once `userdp.ledger.lines.Open` is written: the one that holds its nonce.

        Args:
            run_id: of the charge, or a trial's.
            known: none if the folder was never opened.
        """
        if run_id in self.settled:
            charge = self.charges.get(run_id)
            ended = "settled before its end" if charge is not None and charge.early else "finished"
            raise UseError(
                f"run {run_id} was {ended}, as {self.path} says: its steps are over, and this "
                "folder is of before that",
                hint="train again in another --out, with a plan and a budget of its own",
            )
        last, _ = self.nonces.get(run_id, (None, 0))
        if last not in known if last is not None else bool(known):
            raise UseError(
                f"the folder of run {run_id} is not the one that was opened last, as {self.path} "
                "says: it is a copy, or it or the store was put back to an earlier state. Going on "
                "would release more noisy steps than were charged",
                hint="go on in the folder that was opened last; or pay for the whole plan once "
                "more: --resume --set run.charge_again=true",
            )

    def require_slot(self, slot: str, constants: str) -> None:
        """`UseError` unless a private selection drew that slot, for a trial of these constants."""
        if not any(slots.get(slot) == constants for slots in self.slots.values()):
            raise UseError(
                f"no private selection in {self.path} pays for this trial: it has drawn no such "
                "slot, or one of other settings",
                hint="go on with the tuning: userdp tune STORE --out DIR --resume",
            )

    def prices(self) -> Iterator[Guarantee]:
        """What has to be paid by addition: each series once, and what no series pays for."""
        for declared in self.series.values():
            yield declared.series.guarantee()
        for charge in self.charges.values():
            if charge.series is None:
                yield charge.price()

    @property
    def looked(self) -> frozenset[str]:
        """What showed exact numbers: commands, and ``train`` for runs that kept a log of them."""
        return self.looked_before(self.lines)

    def looked_before(self, at: int) -> frozenset[str]:
        """`looked`, of the lines before ``at`` only."""
        looks = {what for place, what in self.looks if place < at}
        logs = any(one.at < at and one.shows_losses for one in self.charges.values())
        return frozenset(looks | ({"train"} if logs else set()))

    def looked_during(self, charge: Charge) -> frozenset[str]:
        """What showed exact numbers while a loop of somebody's own was open or interrupted.

        They may have chosen how it went on. What goes on at the price of a further charge was open
        since the first one.
        """
        if not charge.steered:
            return frozenset()
        first = self.charges.get(charge.again or "", charge)
        ended = self.lines if charge.ended is None else charge.ended
        looks = {what for at, what in self.looks if first.at < at < ended}
        logs = any(
            first.at < one.at < ended and one.shows_losses
            for one in self.charges.values()
            if first.run_id not in (one.run_id, one.again)
        )
        return frozenset(looks | ({"train"} if logs else set()))

    def tuning_of(self, constants: str) -> str | None:
        """The tuning that has these constants in its grid, and has not released a winner yet."""
        ended = {one.run_id for one in self.released}
        grids = ((name, grid) for name, (_, grid) in self.tunings.items() if name not in ended)
        return next((name for name, grid in grids if constants in grid), None)

    def only_erased_since(self, before: str, now: str) -> bool:
        """Whether a store that was in the state ``before`` and is in ``now`` only lost people."""
        reached = {before}
        for one, other in self.erasures:
            if one in reached:
                reached.add(other)
        return now in reached

    def fixed_at(self, constants: str, begun: int) -> int:
        """The line at which the constants of a run that was charged at ``begun`` were fixed.

        Where several runs were declared, which of them is trained could be chosen by a look: so
        each counts as declared once, and in its turn, before any that was declared later.
        """
        declared = self.declared.get(constants, begun)
        again = self.begun.get(constants, begun) < begun
        turn = [
            line
            for one, line in self.declared.items()
            if line < begun and not self.begun.get(one, begun) < begun
        ]
        return declared if declared < begun and not again and min(turn) == declared else begun

    def room_for(self, plan: Plan | None) -> Declared | None:
        """The series that would pay for a run of this plan: the first that has room for one."""
        for one in self.series.values():
            if plan is not None and one.runs < one.series.runs and one.series.holds(plan):
                return one
        return None

    def take_run(self, plan: Plan | None) -> str | None:
        """Take a run of this plan from the series that pays for it, and return its id, if any."""
        declared = self.room_for(plan)
        if declared is None:
            return None
        self.series[declared.id] = replace(declared, runs=declared.runs + 1)
        return declared.id

    def why_whole(self, run_id: str) -> str | None:
        """Why a run that stops here costs its whole plan, as a clause; None where its attempts do.

        When a run stopped may have been chosen by what it released. Under a filter that is allowed:
        each of its steps is a release of its own, and the filter holds wherever the releases end
        (`userdp.accounting.filters`). But *only* what was charged to the filter may have chosen it.
        So the steps that did not run are given back where the ledger shows no exact number of these
        people's text. Correlated noise is priced for all steps together, and gives none back.
        Whoever read the text itself, or timed the steps, and stopped the run by that, knows what no
        ledger shows; docs/budgets.md says so.
        """
        if self.budget is None:
            return "the store has no budget with a filter, and the moment may have been chosen"
        if self.looked:
            looks = ", ".join(sorted(self.looked))
            return f"exact numbers were shown ({looks}), which may have chosen the moment"
        if self.copied:
            return "the ledger was copied or moved, so that another copy may hold a look"
        if self.charges[run_id].again or any(one.again == run_id for one in self.charges.values()):
            return (
                "the run was charged more than once, so that copies of its folder may have gone on"
            )
        return None

    def readable(self, lineage: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """A lineage with what is charged here as recorded: no plan of it could be read there."""
        if not lineage or not any(one.recorded for one in self.charges.values()):
            return lineage

        def part(plain: Any) -> Any:
            charge = self.charges.get(plain.get("id", ""))
            if charge is None or charge.recorded is None:
                return plain
            bound, what = encode(charge.recorded), charge.as_recorded
            return {"kind": "bound", "id": charge.run_id, "what": what, "bound": bound}

        return {**lineage, "parts": [part(one) for one in lineage.get("parts", ())]}
