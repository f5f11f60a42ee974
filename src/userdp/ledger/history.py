"""A store's ledger, read: who was charged what, what was looked at, declared, released.

`fold` reads the lines one after another. Whatever depends on their order follows from that order
alone, so that nobody can say it otherwise later.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from userdp.accounting import rdp
from userdp.accounting.filters import Cost, RenyiFilter
from userdp.accounting.private_selection import base_curve, selected_curve
from userdp.core.codec import decode, encode
from userdp.core.errors import UseError
from userdp.core.vocabulary import NONE, Adjacency, Guarantee, PrivacyUnit
from userdp.ledger.lines import (
    Answer,
    BeginTuning,
    Declare,
    Forget,
    Look,
    Open,
    OpenBudget,
    Plain,
    Query,
    Release,
    Reserve,
    Score,
    Settle,
    Store,
    StoreLine,
    Trial,
)
from userdp.plans import Plan, PrivateSelection
from userdp.plans.tuning import mechanism_of

L = TypeVar("L", bound=StoreLine)


@dataclass(frozen=True, kw_only=True, slots=True)
class Charge:
    """What one run or query costs the people of a store.

    Args:
        run_id: of the run, the query or the selection.
        at: the line that it was charged in.
        when: the date and time of that, in UTC.
        state: the id of the state that the store was in; empty where that was not written.
        plan: None for a run without privacy, for a query and for a selection.
        recorded: of a run whose plan cannot be read here, since its sampling or noise is somebody's
            own and ``module`` was not imported: the price that its line records.
        module: where that sampling or noise is defined.
        selection: of a private selection, all of whose trials this pays for.
        query_epsilon: of a query with pure (ε, 0)-DP per user, add-or-remove; None for a run.
        query_name: what was asked.
        answer: what was released; None if a crash came between the charge and its answer.
        again: the run whose whole plan is charged again; None for a first charge.
        base: what the model descends from that the run began from, or that the query is about, as
            plain values.
        constants: the digest of a run's plan and options.
        logged: a run that kept exact numbers for its operator.
        steered: a loop of somebody's own takes its steps; see `History.looked_during`.
        ended: the line that settled it; None before that.
        settlement: what that line says.
    """

    run_id: str
    at: int
    when: str = ""
    state: str = ""
    plan: Plan | None = None
    recorded: Guarantee | None = None
    module: str = ""
    selection: PrivateSelection | None = None
    query_epsilon: float | None = None
    query_name: str | None = None
    answer: int | None = None
    again: str | None = None
    base: Plain | None = None
    constants: str = ""
    logged: bool = True
    steered: bool = False
    ended: int | None = None
    settlement: Settle | None = None

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
    def steps(self) -> int:
        """Steps that were charged; 0 for a query and for a selection, which is one charge."""
        if self.settlement is not None:
            return self.settlement.steps
        return 0 if self.plan is None else self.plan.steps

    @property
    def stopped(self) -> int | None:
        """The attempts of a run that was settled early, where only these count against a filter."""
        ended = self.settlement
        return ended.steps if ended is not None and ended.early and not ended.whole else None

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


@dataclass(frozen=True, kw_only=True)
class History:
    """A store's ledger, read; `fold` makes it.

    Args:
        path: of the ledger.
        lines: of it.
        charges: by id, oldest first.
        recorded: those of them whose plan cannot be read here.
        copied: its file is another one than was begun with its first line.
    """

    path: Path = Path("ledger.jsonl")
    lines: tuple[StoreLine, ...] = ()
    charges: Mapping[str, Charge] = field(default_factory=dict)
    recorded: Mapping[str, Charge] = field(default_factory=dict)
    copied: bool = False

    def of(self, kind: type[L]) -> Iterator[tuple[int, L]]:
        """The lines of a kind, each with its place."""
        return ((at, line) for at, line in enumerate(self.lines) if isinstance(line, kind))

    @cached_property
    def id(self) -> str:
        """Random, of the ledger; empty while it has no line."""
        return next((line.id for _, line in self.of(Store)), "")

    @cached_property
    def openings(self) -> dict[str, Open]:
        """The last opening of each run, by the charge that pays for it."""
        return {line.run_id: line for _, line in self.of(Open)}

    @cached_property
    def settled(self) -> set[str]:
        """Runs that ended, by the charge that paid for them; trials of selections too."""
        return {line.run_id for _, line in self.of(Settle)}

    @cached_property
    def tunings(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """The line at which each tuning began, by its id, and its candidates' constants."""
        return {line.run_id: (at, line.constants) for at, line in self.of(BeginTuning)}

    @cached_property
    def slots(self) -> dict[str, Mapping[str, str]]:
        """By private selection, the constants of each slot, by its id."""
        return {line.run_id: line.slots for _, line in self.of(BeginTuning) if line.selection}

    @cached_property
    def taken(self) -> dict[str, str]:
        """By slot, the trial that took it."""
        return {line.slot: line.run_id for _, line in self.of(Trial)}

    @cached_property
    def bases(self) -> dict[str, Plain]:
        """By trial of a private selection, what the model descends from that it began from."""
        return {line.run_id: self._readable(line.base) or {} for _, line in self.of(Trial)}

    @cached_property
    def scores(self) -> dict[str, float | None]:
        """By trial of a private selection, its score."""
        return {line.run_id: line.value for _, line in self.of(Score)}

    @cached_property
    def looks(self) -> list[tuple[int, str]]:
        """What showed its operator an exact number, and at which line."""
        return [(at, line.what) for at, line in self.of(Look)]

    @cached_property
    def declared(self) -> dict[str, int]:
        """Constants of runs by their digest, and the line that declares them."""
        return {line.constants: at for at, line in self.of(Declare)}

    @cached_property
    def begun(self) -> dict[str, int]:
        """Constants of runs by their digest, and the line of the first run that has them."""
        firsts = [(line.constants, at) for at, line in self.of(Reserve) if line.again is None]
        return dict(reversed(firsts))

    @cached_property
    def released(self) -> list[Release]:
        """Weights that runs over these people released, each once.

        The last word on the same weights counts: a trial that won claims what choosing it cost.
        """
        last = {line.weights: line for _, line in self.of(Release)}
        return [replace(one, lineage=self._readable(one.lineage) or {}) for one in last.values()]

    @cached_property
    def budget(self) -> OpenBudget | None:
        """The total with a filter, if one was opened before the first charge."""
        return next((line for _, line in self.of(OpenBudget)), None)

    @cached_property
    def ids(self) -> frozenset[str]:
        """Of all that was charged here, under whichever id a model's lineage knows it."""
        budget = [] if self.budget is None else [self.budget.run_id]
        return frozenset({*self.charges, *self.taken.values(), *self.tunings, *budget})

    @property
    def total_delta(self) -> float:
        """δ of the budget; 0 without one."""
        return 0.0 if self.budget is None else self.budget.filter.delta

    @property
    def within(self) -> str:
        """The ledger's id if a budget was opened in it, that all its charges stay within."""
        return "" if self.budget is None else self.id

    def charge(self, run_id: str) -> Charge:
        """The charge of that id; `UseError` if there is none."""
        if run_id not in self.charges:
            raise UseError(f"nothing was charged in {self.path} as {run_id}")
        return self.charges[run_id]

    def require_last(self, run_id: str, known: Sequence[str]) -> None:
        """`UseError` unless a run may go on in the folder that holds the nonces ``known``.

        Guarantee (invariant 12): of all folders of a run, the copies included, at most one is
        accepted once `userdp.ledger.lines.Open` is written: the one that holds its nonce.

        Args:
            run_id: of the charge, or a trial's.
            known: none if the folder was never opened.
        """
        ended = next((line for _, line in self.of(Settle) if line.run_id == run_id), None)
        if ended is not None:
            how = "settled before its end" if ended.early else "finished"
            raise UseError(
                f"run {run_id} was {how}, as {self.path} says: its steps are over, and this "
                "folder is of before that",
                hint="train again in another --out, with a plan and a budget of its own",
            )
        last = self.openings.get(run_id)
        if last.nonce not in known if last is not None else bool(known):
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

    def looked_before(self, at: int) -> frozenset[str]:
        """What showed exact numbers before a line: commands, and ``train`` for logs of runs."""
        return self._shown(-1, at)

    def looked_during(self, charge: Charge) -> frozenset[str]:
        """What showed exact numbers while a loop of somebody's own was open or interrupted.

        They may have chosen how it went on. What goes on at the price of a further charge was open
        since the first one.
        """
        if not charge.steered:
            return frozenset()
        first = self.charges.get(charge.again or "", charge)
        ended = len(self.lines) if charge.ended is None else charge.ended
        return self._shown(first.at, ended, but=first.run_id)

    def _shown(self, after: int, before: int, *, but: str = "") -> frozenset[str]:
        """What showed exact numbers between two lines, but for the log of a run."""
        logs = any(
            after < one.at < before and one.shows_losses
            for one in self.charges.values()
            if not but or but not in (one.run_id, one.again)
        )
        looks = {what for at, what in self.looks if after < at < before}
        return frozenset(looks | ({"train"} if logs else set()))

    def tuning_of(self, constants: str) -> str | None:
        """The tuning that has these constants in its grid, and has not released a winner yet."""
        ended = {one.run_id for one in self.released}
        grids = ((name, grid) for name, (_, grid) in self.tunings.items() if name not in ended)
        return next((name for name, grid in grids if constants in grid), None)

    def only_erased_since(self, before: str, now: str) -> bool:
        """Whether a store that was in the state ``before`` and is in ``now`` only lost people."""
        reached = {before}
        for _, line in self.of(Forget):
            if line.before in reached:
                reached.add(line.after)
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
        if looked := self.looked_before(len(self.lines)):
            looks = ", ".join(sorted(looked))
            return f"exact numbers were shown ({looks}), which may have chosen the moment"
        if self.copied:
            return "the ledger was copied or moved, so that another copy may hold a look"
        if self.charges[run_id].again or any(one.again == run_id for one in self.charges.values()):
            return (
                "the run was charged more than once, so that copies of its folder may have gone on"
            )
        return None

    def _readable(self, lineage: Plain | None) -> Plain | None:
        """A lineage with what is charged here as recorded: no plan of it could be read there."""
        if not lineage or not self.recorded:
            return lineage

        def part(plain: Any) -> Any:
            charge = self.recorded.get(plain.get("id", ""))
            if charge is None:
                return plain
            bound, what = encode(charge.recorded), charge.as_recorded
            return {"kind": "bound", "id": charge.run_id, "what": what, "bound": bound}

        return {**lineage, "parts": [part(one) for one in lineage.get("parts", ())]}


def fold(lines: Iterable[StoreLine], path: Path) -> History:
    """What the store's ledger at ``path`` says; no lines are no charges.

    Raises:
        UseError: a line speaks of something that no line before it charged.
    """
    charges: dict[str, Charge] = {}
    recorded: dict[str, Charge] = {}
    read = tuple(lines)
    copied = any(isinstance(one, Store) and _is_other(path, one.inode) for one in read[:1])
    history = History(path=path, lines=read, charges=charges, recorded=recorded, copied=copied)
    for at, line in enumerate(read):
        match line:
            case Reserve():
                charges[line.run_id] = charge = _of_run(history, line, at)
                if charge.recorded is not None:
                    recorded[line.run_id] = charge
            case Query():
                charges[line.run_id] = Charge(
                    run_id=line.run_id,
                    at=at,
                    when=line.when,
                    state=line.state,
                    query_epsilon=line.pure_epsilon,
                    query_name=line.name,
                    base=history._readable(line.base),
                )
            case BeginTuning() if line.selection is not None:
                charges[line.run_id] = Charge(
                    run_id=line.run_id,
                    at=at,
                    when=line.when,
                    state=line.state,
                    selection=line.selection,
                )
            case Answer():
                charge = history.charge(line.run_id)
                charges[line.run_id] = replace(charge, answer=line.value)
            case Settle() if line.run_id in charges:
                charges[line.run_id] = replace(charges[line.run_id], ended=at, settlement=line)
    return history


def _of_run(history: History, line: Reserve, at: int) -> Charge:
    plan, noted = None, line.recorded
    try:
        plan = None if line.plan is None else _plan(json.dumps(line.plan))
    except UseError:
        if noted is None:
            raise
    return Charge(
        run_id=line.run_id,
        at=at,
        when=line.when,
        state=line.state,
        plan=plan,
        recorded=noted.guarantee if noted is not None and plan is None else None,
        module="" if noted is None else noted.module,
        again=line.again,
        base=history._readable(line.base),
        constants=line.constants,
        logged=line.logged,
        steered=line.steered,
    )


@lru_cache(maxsize=1024)  # most runs share a plan
def _plan(text: str) -> Plan:
    return decode(Plan, json.loads(text), what="the plan of a charge")


def _is_other(path: Path, inode: int) -> bool:
    return path.exists() and path.stat().st_ino != inode
