"""What a model descends from: everything that was paid for it, and what nobody paid for.

A model is a function of its own training, of the DP releases that its constants were chosen by, and
of all that the model it began from descends from in turn. Each of these is a `Part`, under the
random id that a ledger gave it, so that two ways to the same part count it once. What no price
covers is a `Condition`: something that has to be true for the claim to hold, said in its headline.

`run_lineage` reads it from a run's ledger, `inherited_at` and what follows it from a store's: a run
descends from what was released of the same people before its constants were recorded, since
they may have been chosen by that.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from userdp.claims.parts import (
    COPIED,
    Bound,
    Choice,
    Condition,
    ConditionKind,
    Filtered,
    Part,
    Query,
    Steps,
    Unclaimed,
    about,
    among_runs,
    of_plan,
)
from userdp.core.codec import decode, encode
from userdp.core.errors import UseError, UserdpError
from userdp.ledger import Charge, History, RunRecord, StoreLedger
from userdp.ledger.lines import Chosen, OwnPlan, Statistic, kept_of
from userdp.plans import Plan, PrivateSelection, StepRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Apart:
    """A part that was declared to be of other people than those of one ledger.

    Args:
        part: what it is.
        ledger: the id of that ledger; nothing was said of the people of any other.
    """

    part: Part
    ledger: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """What a model descends from.

    Args:
        parts: each once, in the order in which they were charged.
        conditions: each once.
        within: the id of the one ledger that all parts were charged in, if a total that they stay
            within was fixed there before the first of them; else empty.
        apart: what it descends from besides, that was declared to be of other people.
    """

    parts: tuple[Part, ...] = ()
    conditions: tuple[Condition, ...] = ()
    within: str = ""
    apart: tuple[Apart, ...] = ()

    @property
    def fixed(self) -> bool:
        """Whether prices, or a total, were fixed before the first of several parts was seen.

        The sum of prices that were chosen by what earlier ones released is no DP guarantee (Rogers
        et al. 2016, "Privacy Odometers and Filters"), and is told as what was spent so far.
        """
        return len(self.parts) < 2 or self.within != ""

    def __add__(self, other: Lineage) -> Lineage:
        """Both: a part that both descend from counts once, in its greater price."""
        parts = {part.id: part for part in self.parts}
        for part in other.parts:
            known = parts.get(part.id)
            parts[part.id] = part if known is None else _dearer(known, part)
        totals = {one.within for one in (self, other) if one.parts}
        apart = {(one.part.id, one.ledger): one for one in (*self.apart, *other.apart)}
        return Lineage(
            parts=tuple(parts.values()),
            conditions=tuple(sorted({*self.conditions, *other.conditions})),
            within=next(iter(totals)) if len(totals) == 1 else "",
            apart=tuple(one for one in apart.values() if one.part.id not in parts),
        )

    def among(self, ledger: str, known: Container[str]) -> Lineage:
        """This lineage as it is for the people of a ledger.

        What was declared to be of other people than those of *another* ledger may well be of
        these; and what this ledger itself charged is of these, whatever was declared.

        Args:
            ledger: its id.
            known: the ids of what was charged in it.
        """
        ours = [one for one in self.apart if one.ledger != ledger or one.part.id in known]
        others = tuple(one for one in self.apart if one not in ours)
        returned = Lineage(parts=tuple({one.part.id: one.part for one in ours}.values()))
        return replace(self, apart=others) + returned

    @property
    def plain(self) -> dict[str, Any]:
        """As plain values, for JSON; of a plan that only its own module reads, the price."""
        parts = tuple(map(_readable, self.parts))
        return dict(encode(replace(self, parts=parts)))


def lineage_from(values: Any, *, what: str) -> Lineage:
    """The inverse of `Lineage.plain`; `UseError` if the values are none."""
    return decode(Lineage, values, what=what)


def of_parts(parts: Iterable[Part], *conditions: Condition, within: str = "") -> Lineage:
    """A lineage of parts that were charged one after another."""
    whole = Lineage(conditions=conditions)
    return sum((Lineage(parts=(part,), within=within) for part in parts), Lineage()) + whole


def _readable(part: Part) -> Part:
    """A part for readers without the module of its plan's sampling or noise."""
    if not isinstance(part, Steps):
        return part
    match kept_of(part.plan):
        case OwnPlan() as own:
            return Bound(id=part.id, what=own.in_words, bound=part.guarantee())
        case None:
            return Unclaimed(id=part.id, why="training without privacy")
    return part


def _dearer(one: Part, other: Part) -> Part:
    """Of two records of one part: all that either charged for it, or the greater price."""
    if isinstance(one, Steps) and isinstance(other, Steps):
        return replace(one, further=tuple(dict.fromkeys((*one.further, *other.further))))
    return max(one, other, key=lambda part: part.guarantee().epsilon)


# Which way each line of a store's ledger is paid for: the first of these that applies, always. A
# store with a budget pays everything by its filter; without one, charges add up (basic
# composition).


def parts_of(history: History, charges: Iterable[Charge]) -> list[Part]:
    """What lines of a store's ledger paid for, each part once.

    A filter is one part as a whole, as soon as one of the lines is its own. Further charges of a
    run's plan are part of the run.
    """
    parts: dict[str, Part] = {}
    for charge in charges:
        part, first = _part_of(history, charge), parts.get(charge.line.again or "")
        if isinstance(first, Steps) and part.id == charge.run_id:
            part = replace(first, further=(*first.further, charge.run_id))
        parts[part.id] = part
    return list(parts.values())


def payer_of(history: History, run_id: str) -> Part | None:
    """What pays for a run together with others; None where it pays for itself.

    Args:
        history: of the ledger that it is charged in.
        run_id: of the run, or of a trial of a private selection.
    """
    charge = history.charges.get(run_id)
    if charge is None:
        trial = history.trials.get(run_id)
        tunings = (tuning for _, tuning in history.tunings.values() if trial is not None)
        paying = (one.run_id for one in tunings if trial is not None and trial.slot in one.slots)
        charge = history.charges.get(next(paying, ""))
    part = None if charge is None else _part_of(history, charge)
    return part if isinstance(part, Filtered) else None


def _part_of(history: History, charge: Charge) -> Part:
    opened, run_id = history.budget, charge.run_id
    if opened is not None:
        return Filtered(id=opened.run_id, filter=opened.filter, adjacency=charge.adjacency)
    match charge.line.pays_for:
        case Statistic(name=name, pure_epsilon=epsilon):
            return Query(id=run_id, name=name, pure_epsilon=epsilon)
        case PrivateSelection() as selection:
            return Choice(id=run_id, tuning=selection)
        case OwnPlan() as own:
            return Bound(id=run_id, what=own.in_words, bound=own.guarantee)
        case Plan() as plan:
            return Steps(id=run_id, plan=plan)
    return Unclaimed(id=run_id, why="training without privacy")


def inherited(history: History, run_id: str, constants: str) -> Lineage:
    """What constants descend from that were recorded when ``run_id`` was charged.

    What `userdp.ledger.lines.Declare` recorded earlier was not chosen by anything after that; see
    `inherited_at`.
    """
    own = history.charges.get(run_id)
    return inherited_at(history, history.fixed_at(constants) if own is None else own.fixed)


def inherited_at(history: History, at: int) -> Lineage:
    """What constants descend from that were recorded at line ``at`` of a store's ledger.

    All that was released of these people before is a part: the constants may have been chosen by
    it. All that showed an exact number before is a condition.
    """
    earlier = [charge for charge in history.charges.values() if charge.at < at]
    conditions = about(ConditionKind.LOOKS, history.looked_before(at))
    return _shown_by(history, earlier, *conditions, *([COPIED] if history.copied else ()))


def charged_since(history: History, own: Charge) -> Lineage:
    """What was released of these people since a run was charged, other than by the run itself.

    Whoever takes a run's steps in a loop of their own may choose by it what nobody recorded: the
    next learning rate, what becomes of the noisy sums, or the weights that the run goes on from.
    """
    later = [one for one in history.charges.values() if one.at > own.at]
    return _shown_by(history, [one for one in later if one.line.again != own.run_id])


def _shown_by(history: History, charges: Sequence[Charge], *conditions: Condition) -> Lineage:
    """What was released by charges of a store's ledger, and by the bases of their models."""
    # What has no price is a look: a condition. What it was used for is the operator's to say.
    own = filter(_is_priced, parts_of(history, charges))
    shown = of_parts(own, *conditions, within=history.within)
    for base in bases_of(history, charges):  # what a run here released also shows its base
        apart = tuple(one for one in base.apart if _is_priced(one.part))
        priced = of_parts(filter(_is_priced, base.parts), *base.conditions)
        shown += replace(priced, apart=apart)
    return shown


def _is_priced(part: Part) -> bool:
    return math.isfinite(part.guarantee().epsilon)


def bases_of(history: History, charges: Iterable[Charge]) -> Iterator[Lineage]:
    """What the models descend from that runs began from, or that answers were about.

    The trials of a private selection are charged in one line, and each has a base of its own.
    """
    for charge in charges:
        _, tuning = history.tunings.get(charge.run_id, (0, None))
        slots = {} if tuning is None else tuning.slots
        trials = [one for one in history.trials.values() if one.slot in slots]
        for base in (charge.line.base, *(trial.base for trial in trials)):
            if base:
                yield lineage_from(base, what=f"the base of {charge.run_id}")


def store_conditions(history: History, parts: Iterable[Part]) -> tuple[Condition, ...]:
    """The conditions of a ledger's charges, those of the base models of its runs left out.

    A store's total is of everything that was released of its people. So where one of its runs,
    answers or selections may have been chosen by an exact number, the total holds only if it was
    not:

    * Plan and options of a run, ε and kind of an answer: that no exact number chose them that was
      shown before they were fixed (`History.fixed_at`; an answer is fixed when it is charged). In
      a filter also *whether* a charge takes place has to follow from releases alone,
      so that there each counts from its own line.
    * What a plan itself was made from.
    * What was shown while somebody's own loop was open or interrupted.
    * What the released models' own claims rest on besides: a tuning's winner by exact losses, say.

    Args:
        history: of the ledger; only what is in its ``charges`` counts.
        parts: what they paid for.
    """
    charges = history.charges.values()
    shared = any(isinstance(part, Filtered) for part in parts)
    fixed = (one.at if shared else one.fixed for one in charges)
    looks = set(history.looked_before(max(fixed, default=0)))
    told = {COPIED} if history.copied else set()
    for charge in charges:
        looks |= history.looked_during(charge)
        paid = charge.line.pays_for
        for plan in paid.plans if isinstance(paid, PrivateSelection) else (charge.plan,):
            told.update(of_plan(plan))
    # Not those of a private selection's trials: of them the winner alone leaves, whose own line
    # says what it rests on.
    constants = {charge.line.constants for charge in charges}
    tunings = (one for _, one in history.tunings.values() if constants.intersection(one.constants))
    known = {*history.charges, *(one.run_id for one in tunings)}
    for released in history.released:
        if released.run_id in known:
            lineage = lineage_from(released.lineage, what="what weights descend from")
            # A total is of all runs, so that it does not matter which of them was chosen.
            told |= {one for one in lineage.conditions if one.kind is not ConditionKind.CHOSEN}
    return tuple(sorted({*told, *about(ConditionKind.LOOKS, looks)}))


# What a run's own ledger says.


def run_lineage(run: RunRecord) -> Lineage:
    """What the model of a run descends from, the run itself included."""
    inherited = lineage_from(run.begin.lineage, what=f"the lineage in {run.path}")
    # The run was charged in the ledger that it inherits from, within the same total.
    own = Lineage(parts=(_own_part(run),), within=inherited.within)
    conditions, since = {*of_plan(run.plan), *_chosen(run)}, Lineage()
    if run.copied:
        conditions.add(COPIED)
    if run.finish is not None and run.finish.since:
        since = lineage_from(run.finish.since, what=f"released meanwhile, in {run.path}")
    return inherited + own + since + Lineage(conditions=tuple(conditions))


def _chosen(run: RunRecord) -> Iterator[Condition]:
    """That a run was not chosen among others: as was found last, or as a tuning's trial is."""
    if run.chosen is not None:
        yield among_runs(run.chosen.runs, run.chosen.looks)
    elif run.begin.tuning_id:
        yield Condition(kind=ConditionKind.CHOSEN, told="the trials of a tuning")


def _own_part(run: RunRecord) -> Part:
    begin, plan = run.begin, run.plan
    if plan is None:
        return Unclaimed(id=run.run_id, why="training without privacy")
    if run.facts.get("unsafe_seeds"):
        return Unclaimed(id=run.run_id, why="training with a known seed")
    for step, number in {line.step: at for at, line in enumerate(run.steps, 1)}.items():
        _refuse_other_step(run.path, number, step, plan)  # thousands say the same
    if run.finish is not None and run.finish.digests.get("plan") != plan.digest:
        raise UseError(
            f"the finishing line of {run.path} is of another plan than its first line: the ledger "
            "was edited, and no epsilon can be claimed from it",
        )
    if begin.trial:
        return Unclaimed(id=run.run_id, why="a trial of a private selection")
    if begin.payer:
        return _payer(run.path, begin.payer, plan)
    if begin.won is not None:
        return Choice(id=run.run_id, tuning=begin.won)
    further = tuple(one for one in run.charges if one != run.run_id)
    return Steps(id=run.run_id, plan=plan, further=further)


def _payer(path: Path, values: Any, plan: Plan) -> Part:
    """What pays for a run together with others; `UseError` if it pays for no runs of this plan."""
    part = decode(Part, values, what=f"what pays for the run in {path}")
    if isinstance(part, Filtered) and plan.sampling.adjacency is part.adjacency:
        return part
    raise UseError(
        f"the first line of {path} says that {part.in_words} pays for the run, which is of another "
        "price: the ledger was edited, and no epsilon can be claimed from it"
    )


def _refuse_other_step(path: Path, attempt: int, step: StepRecord, plan: Plan) -> None:
    expected = StepRecord.of_plan(
        plan, l2_clip_norm=step.l2_clip_norm, noise_sampler=step.noise_sampler
    )
    for name in (field.name for field in fields(StepRecord)):
        recorded = getattr(step, name)
        if recorded != getattr(expected, name):
            raise UseError(
                f"attempt {attempt} in {path} has {name} {recorded!r}, the plan says "
                f"{getattr(expected, name)!r}: no epsilon can be claimed from this ledger"
            )


_OF_MODELS = {"audit", "evaluate", "generate --check", "personalize", "predict"}
"""Looks that tell models apart; others tell of text."""


def followed(run: RunRecord) -> RunRecord:
    """A run's record with the line that it lacks, where it may have been chosen among runs.

    A run's claim is of one run. Whoever trains several on the same people and shows the best of
    them shows a choice too: by exact numbers no ε covers it, and by what the runs released it costs
    what all of them cost together. A run's own ledger cannot know of runs that began after it, so
    that its people's store is asked. Every claim of a run is computed with it, and an export's
    ledger ends in it, since whoever has that has no store. By exact numbers a run may have been
    chosen among all runs of its store. What they released chose at no price only among those that
    no part of its claim pays for: a budget with a filter and a tuning pay for all of theirs.

    Args:
        run: of a folder. A trial of a private selection and a run without privacy claim nothing,
            and an export says what it knows.
    """
    if run.found is not None:
        return run
    run = replace(run, found=())
    told = run.begin.trial or run.chosen is not None or run.plan is None
    stores = None if told else run.folder.stores
    if stores is None:
        return run
    history = _history(stores, run.run_id)
    if history is None:
        return replace(run, found=(Chosen(runs=0, looks=()),))
    # Of a tuning's winner its trials are one with it.
    begun, tuning = history.tunings.get(run.run_id, (0, None))
    grid = () if tuning is None else tuning.constants
    ours = {
        one.run_id
        for one in history.charges.values()
        if run.run_id in (one.run_id, one.line.again)
        or (one.at > begun and one.line.constants in grid)
    }
    runs = [one for one in history.charges.values() if one.line.pays_for and not one.statistic]
    others = [one for one in runs if one.run_id not in ours and one.line.again not in ours]
    if not others:
        return run
    first = min(one.at for one in runs)
    looks = {what for at, what in history.looks if at > first and what in _OF_MODELS}
    looks |= {"train"} if any(one.shows_losses for one in runs) else set()
    paid = {part.id for part in run_lineage(run).parts}
    if not looks and paid.issuperset(part.id for part in parts_of(history, others)):
        return run
    count = 1 + sum(one.line.again is None for one in others)
    return replace(run, found=(Chosen(runs=count, looks=tuple(sorted(looks))),))


def _history(stores: tuple[Path, ...], run_id: str) -> History | None:
    """The ledger of the first store that knows the run."""
    for store in stores:
        try:
            history = StoreLedger(store).history() if store.is_dir() else History()
        except UserdpError:
            continue
        if run_id in history.ids:
            return history
    return None
