"""From ledgers to the claim: the one function that every printer of a claim asks, and its words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from userdp.accounting.accountants import Accountant, by_dp_accounting
from userdp.accounting.mechanisms import Mixture, NoisySteps
from userdp.accounting.rdp import has_curve
from userdp.claims.lineage import (
    Lineage,
    bases_of,
    followed,
    inherited_at,
    of_parts,
    parts_of,
    run_lineage,
    store_conditions,
)
from userdp.claims.parts import (
    Choice,
    Condition,
    Part,
    Query,
    Steps,
    Unclaimed,
    looks_in_one,
    times,
)
from userdp.claims.weights import description_of
from userdp.core.errors import FailureError, UseError
from userdp.core.vocabulary import (
    MIXED,
    NONE,
    Adjacency,
    Guarantee,
    PrivacyUnit,
    delta_up,
    require_delta,
    round_up,
)
from userdp.ledger import Charge, History, RunRecord, StoreLedger, journal
from userdp.ledger.folder import LEDGER
from userdp.ledger.lines import RUN, STORE, StoreLine, fold
from userdp.ledger.place import PLACE
from userdp.notebook import html_of
from userdp.plans import FixedGrid, Plan

SPENT, BOUND = "spent so far", "guarantee"
_LONGEST = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A guarantee, what it was computed from, and what it rests on.

    Args:
        guarantee: the claim; ε is infinite where a part of it has none.
        lineage: its parts and its conditions.
        subject: ``"run"``, ``"store"``, ``"model"`` or ``"federation"``.
        steps: attempted steps that were charged.
        complete: every planned step ran (run), or every run settled (store).
        so_far: what the attempted steps of an unfinished run cost by themselves, if it is one: no
            claim, since when it stopped may have been chosen by what it released.
        trial: it is a trial of a private selection: operator-only, and without a claim.
        plan: of the single run that this is the claim of; None without one.
        printed: what was released under DP after the run had ended, at prices of its own, and
            stands beside the model wherever that is told of.
    """

    guarantee: Guarantee
    lineage: Lineage
    subject: str
    steps: int
    complete: bool
    so_far: Guarantee | None = None
    trial: bool = False
    plan: Plan | None = None
    printed: tuple[Query, ...] = ()

    @property
    def together(self) -> Guarantee | None:
        """The model and what is printed beside it; None where nothing is."""
        return _together(self.guarantee, self.printed) if self.printed else None

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.lineage.parts

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return self.lineage.conditions

    @property
    def conditions_in_words(self) -> tuple[str, ...]:
        """Clauses that follow "provided that"."""
        if self.subject == "store":
            return tuple(one.in_words_of_a_store for one in self.conditions)
        return tuple(one.in_words for one in self.conditions)

    @property
    def finite(self) -> bool:
        """Whether anything is claimed."""
        return math.isfinite(self.guarantee.epsilon)

    @property
    def composition(self) -> str:
        """How the parts were put together."""
        if len(self.parts) > 1:
            return f"basic composition of {len(self.parts)} parts"
        return self.parts[0].in_words if self.parts else "nothing was charged"

    @property
    def headline(self) -> str:
        """What is claimed, with all that it rests on, without a full stop at its end.

        "(ε ≤ …, δ = …)-DP per user, add-or-remove adjacency"; then the conditions; then, where the
        prices were not fixed beforehand, that their sum is no guarantee.
        """
        if not self.finite:
            return f"no ε is claimed: {why_nothing(self)}"
        words = in_words(self.guarantee)
        if self.conditions:
            words += f", provided that {'; and '.join(self.conditions_in_words)}"
        return words if self.lineage.fixed else f"{words}. {SPENT_SO_FAR}"

    @property
    def standing(self) -> str:
        """`BOUND`, or `SPENT` where prices were chosen after earlier ones were seen."""
        return BOUND if self.lineage.fixed else SPENT

    @property
    def mechanism(self) -> NoisySteps | None:
        """What the claim prices, where one mechanism is all of it and its price is finite."""
        only = self.parts[0] if len(self.parts) == 1 else None
        if not self.finite or not isinstance(only, Steps) or only.charges > 1:
            return None
        return only.plan.mechanism

    @property
    def is_of_plan(self) -> bool:
        """Whether ε prices the run's plan and nothing else."""
        return self.mechanism is not None

    def __str__(self) -> str:
        return f"{self.headline}."

    def _repr_html_(self) -> str:
        rows = [
            (part.in_words, round_up(own.epsilon), delta_up(own.delta))
            for part in self.parts
            for own in [part.guarantee()]
        ]
        return html_of(str(self), rows, columns=("made of", "ε at most", "δ"))

    def to_dict(self) -> dict[str, Any]:
        """The claim as plain values, for JSON."""
        beside: dict[str, Any] = {}
        if self.together is not None:
            told = [(one.id, one.in_words, one.pure_epsilon) for one in self.printed]
            printed = [dict(zip(("id", "what", "epsilon"), one, strict=True)) for one in told]
            beside = {"printed": printed, "together": asdict(self.together)}
        return {
            **asdict(self.guarantee),
            "subject": self.subject,
            "headline": self.headline,
            "steps": self.steps,
            "complete": self.complete,
            "composition": self.composition,
            "standing": self.standing,
            "conditions": list(self.conditions_in_words),
            "parts": [
                {"id": part.id, "what": part.in_words, "epsilon": own.epsilon, "delta": own.delta}
                for part in self.parts
                for own in [part.guarantee()]
            ],
            "epsilon_so_far": None if self.so_far is None else self.so_far.epsilon,
            **beside,
        }


SPENT_SO_FAR = (
    "This is what was spent so far, not a guarantee that was fixed beforehand: prices were chosen "
    "after earlier ones were seen (Rogers et al. 2016)"
)
_WHY = {
    "training without privacy": "people's text was trained on without privacy",
    "training with a known seed": (
        "its randomness was fixed by a known seed, which anybody could repeat"
    ),
}


def in_words(told: Guarantee) -> str:
    """A guarantee without what it rests on, for those who say that beside it."""
    return (
        f"(ε ≤ {round_up(told.epsilon)}, δ = {delta_up(told.delta)})-DP per {told.unit}, "
        f"{told.adjacency} adjacency"
    )


def so_far_in_words(claim: Claim) -> str | None:
    """What the attempted steps of an unfinished run cost by themselves; None of any other."""
    if claim.so_far is None or not claim.finite:
        return None
    only = claim.so_far
    return (
        f"The run is not finished, and the claim is of its whole plan. The {claim.steps:,} steps "
        f"that were attempted so far cost ε = {round_up(only.epsilon)} at δ = "
        f"{delta_up(only.delta)} by themselves. That is no claim: when a run stops may be chosen "
        "by what its steps released"
    )


def printed_in_words(claim: Claim) -> str | None:
    """What is printed beside the model, and what both cost together; None where nothing is."""
    both = claim.together
    if both is None or not claim.finite:
        return None
    what = ", ".join(f"{one.name} (ε = {round_up(one.pure_epsilon)})" for one in claim.printed)
    words = f"Printed beside the model, at a price of its own, is the evaluation: {what}. "
    if not math.isfinite(both.epsilon):
        return (
            f"{words}It is per user, add-or-remove, and the model is not: no sum of the two ε "
            "bounds what both tell together"
        )
    return (
        f"{words}For somebody whose text is in both, the model with the evaluation printed beside "
        f"it is {in_words(both)}. {SPENT_SO_FAR}"
    )


def why_nothing(claim: Claim) -> str:
    """Why a claim's ε is infinite."""
    reasons = [part.why for part in claim.parts if isinstance(part, Unclaimed)]
    plans = [part.plan for part in claim.parts if isinstance(part, Steps)]
    if claim.trial:
        return "it is a trial of a private selection, of which only the winner claims anything"
    if claim.subject == "run" and claim.plan is None:
        return "it was trained without privacy"
    if reasons:
        return "; ".join(dict.fromkeys(_WHY.get(reason, reason) for reason in reasons))
    if any(not plan.sampling.covered for plan in plans):
        return "it drew shuffled batches, which no accountant here covers"
    if not claim.parts:
        return "nothing was charged"
    if len({part.guarantee().adjacency for part in claim.parts}) > 1:
        return "its parts are of different adjacencies, and no sum of their ε bounds anything"
    return "its accountant gave no finite bound"


_TIMES = {Adjacency.ADD_OR_REMOVE: 1, Adjacency.REPLACE: 2, Adjacency.ZERO_OUT: 2}
"""Prices of answers are for adding or removing a user. Whoever exchanges one removes one and adds
another, which costs twice as much (group privacy: Dwork and Roth 2014, Theorem 2.2). Under fixed
graph adjacency a record may have several owners, and no multiple holds."""


def _together(model: Guarantee, printed: Sequence[Query]) -> Guarantee:
    """What a model and the answers printed beside it cost a user whose text is in both.

    Guarantee: basic composition (Dwork and Roth 2014, Theorem 3.16), in the adjacency of the
    model's claim; ε is infinite where no sum bounds anything. For somebody who was only trained on,
    or only asked, it is less.
    """
    times = _TIMES.get(model.adjacency) if model.unit is PrivacyUnit.USER else None
    price = math.fsum(one.pure_epsilon for one in printed)
    epsilon = math.inf if times is None else math.fsum((model.epsilon, times * price))
    return replace(model, epsilon=epsilon, accountant=f"{model.accountant} + pure")


def _own_price(part: Part, delta: float | None) -> Guarantee:
    return part.guarantee(delta=delta)


def compose(
    lineage: Lineage,
    *,
    delta: float | None = None,
    price: Callable[[Part, float | None], Guarantee] = _own_price,
) -> Guarantee:
    """Basic composition (Dwork and Roth 2014, Theorem 3.16) of all parts: both ε and δ add up.

    A sum over different adjacencies bounds neither: it is infinite.

    Args:
        lineage: what is composed.
        delta: of the whole, shared evenly by the parts that have one; each part's own by default.
        price: of a part at its share of ``delta``.
    """
    deltas = sum(part.has_delta for part in lineage.parts)
    share = delta / deltas if delta and deltas else None
    parts = [price(part, share if part.has_delta else None) for part in lineage.parts]
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Unclaimed(id="", why="nothing was charged").guarantee(delta=delta)
    claimed = [part for part in parts if math.isfinite(part.epsilon)]
    adjacencies = {part.adjacency for part in claimed}
    samplings = {part.sampling for part in parts}
    # A subject is a user of several silos: whatever is priced per user is so for a subject too.
    units = {part.unit for part in claimed} - {PrivacyUnit.USER} or {PrivacyUnit.USER}
    void = len(units) > 1 or len(adjacencies) > 1 or len(claimed) < len(parts)
    return Guarantee(
        epsilon=math.inf if void else math.fsum(part.epsilon for part in parts),
        delta=min(math.fsum(part.delta for part in parts), math.nextafter(1.0, 0.0)),
        unit=units.pop() if len(units) == 1 else PrivacyUnit.USER,
        adjacency=next(iter(adjacencies)) if len(adjacencies) == 1 else Adjacency.ADD_OR_REMOVE,
        sampling=NONE if void else samplings.pop() if len(samplings) == 1 else MIXED,
        accountant="none" if void else " + ".join(sorted({part.accountant for part in parts})),
    )


def claim(of: Path | RunRecord | History, *, delta: float | None = None) -> Claim:
    """The claim of a run or a store: of its folder, its ledger, or what was read of that.

    Guarantee: everything that the run released, or that was released of the store, satisfies the
    claim under its conditions. A run claims its whole plan, whether or not all of it ran: when it
    stopped may have been chosen by what it released. Besides, it claims all that its constants and
    its base model descend from. A run whose sampling or noise had a known seed claims nothing. The
    winner of a tuning claims what the tuning costs, whole; a trial of a private selection claims
    nothing.

    Args:
        of: a ledger, or the folder of a run or of a store; or one of them, read.
        delta: of the whole, shared evenly by the parts that have one; each part's own by default.

    Raises:
        UseError: there is no ledger there, or it was edited.
    """
    if delta is not None:
        require_delta(delta)
    if isinstance(of, History):
        return store_claim(of, delta)
    if isinstance(of, RunRecord):
        return _run_claim(followed(of), delta)
    folder = of if of.is_dir() else of.parent
    if (folder / PLACE).exists():  # a store's: the ledger is held against what is kept beside it
        history = StoreLedger(folder).history()
    else:
        path = of / LEDGER if of.is_dir() else of
        lines, data = journal.read(path, STORE, RUN)
        if lines and not isinstance(lines[0], StoreLine):
            return claim(RunRecord.of(path, lines, data), delta=delta)
        history = fold(lines, path)  # of a ledger that stores share: no store is named
    if not history.lines:
        raise UseError(f"the ledger of {of} is empty: nothing was ever charged in it")
    return store_claim(history, delta)


def _run_claim(run: RunRecord, delta: float | None) -> Claim:
    lineage, plan, steps = run_lineage(run), run.plan, run.attempts
    own = next((part for part in lineage.parts if part.id == run.run_id), None)
    unfinished = plan is not None and steps < plan.steps and isinstance(own, Steps)
    return Claim(
        guarantee=compose(lineage, delta=delta),
        lineage=lineage,
        subject="run",
        steps=steps,
        complete=plan is not None and steps == plan.steps,
        so_far=plan.guarantee(steps, delta=delta) if plan and unfinished else None,
        trial=run.begin.trial,
        plan=plan,
        printed=tuple(
            Query(
                id="+".join(line.query_ids) or f"release {at}",
                name=f"loss on {line.split[:_LONGEST]}",
                pure_epsilon=line.epsilon,
            )
            for at, line in enumerate(run.releases)
        ),
    )


def store_claim(history: History, delta: float | None = None) -> Claim:
    """What these people paid: the charges of the ledger, and what its runs' base models paid.

    It rests on all that the claims of what was charged rest on (`store_conditions`).

    A run over this store releases weights that still hold what its base model had learned, and
    these people may have been in that: of a base model of other people only a declaration knows.
    """
    charges = list(history.charges.values())
    single = charges[0] if len(charges) == 1 else None
    parts = parts_of(history, charges)
    lineage = of_parts(parts, *store_conditions(history, parts))
    # Of a tuning each trial and each score was charged here: its winner's price is in them already.
    tunings = history.tunings.keys() - history.charges.keys()
    for base in bases_of(history, charges):
        unpaid = tuple(part for part in base.parts if part.id not in tunings)
        lineage += replace(base, parts=unpaid)
    lineage = lineage.among(history.id, history.ids)
    # A total that was fixed here bounds what was charged here, and nothing of another ledger.
    ours = all(part.id in history.ids for part in lineage.parts)
    within = history.within if ours else ""
    lineage = replace(lineage, within=within, conditions=looks_in_one(lineage.conditions))
    return Claim(
        guarantee=compose(lineage, delta=delta),
        lineage=lineage,
        subject="store",
        steps=sum(charge.steps for charge in charges),
        complete=all(charge.settled for charge in charges),
        plan=single.plan if single else None,
    )


def model_claim(lineage: Lineage) -> Claim:
    """The claim of a model by what its folder says that it descends from."""
    steps = (one.plan.steps * one.charges for one in lineage.parts if isinstance(one, Steps))
    return Claim(
        guarantee=compose(lineage),
        lineage=lineage,
        subject="model",
        steps=sum(steps),
        complete=True,
    )


def foreseen(
    history: History, plan: Plan, *, base: Lineage | str | Path | None = None, at: int | None = None
) -> dict[str, Any]:
    """ε and δ of the claim of a run of ``plan``, as things stand, and of each of its parts.

    Guarantee: a run that is charged before anything else is, and begins from ``base``, claims
    exactly this.

    Args:
        history: of the ledger that it is to be charged in.
        plan: of the run.
        base: what the model that it begins from descends from, or its folder, where that is known.
        at: the line at which the run's constants were fixed; by default the next one.

    Returns:
        Plain values; ε is None where the parts do not add up, as over several adjacencies.
    """
    if not isinstance(base, Lineage):
        described = None if base is None or not Path(base).is_dir() else description_of(Path(base))
        base = Lineage() if described is None else described.lineage
    lineage = base + inherited_at(history, history.lines if at is None else at)
    series = history.room_for(plan)
    own = Charge(
        run_id="the next run",
        at=history.lines,
        plan=plan,
        series=None if series is None else series.id,
    )
    lineage = lineage.among(history.id, history.ids)
    lineage += Lineage(parts=tuple(parts_of(history, [own])), within=history.within)
    return {
        **_plain(compose(lineage)),
        "parts": [{"what": part.in_words, **_plain(part.guarantee())} for part in lineage.parts],
    }


def foreseen_in_words(claim: Mapping[str, Any]) -> str:
    """Each part of a claim to come, and what they come to."""
    parts = ", ".join(f"{_up(part)} for {part['what']}" for part in claim["parts"])
    return f"{parts}: {_up(claim)} in all, delta {delta_up(claim['delta'], 3)}, per user"


def _plain(price: Guarantee) -> dict[str, Any]:
    epsilon = price.epsilon if math.isfinite(price.epsilon) else None
    return {"epsilon": epsilon, "delta": price.delta}


def _up(price: Mapping[str, Any]) -> str:
    return "no epsilon" if price["epsilon"] is None else f"epsilon {round_up(price['epsilon'])}"


class _NoSecond(Exception):
    """A part whose price only one accountant here knows."""


def second_opinion(
    claim: Claim, *, delta: float | None = None, by: Accountant = Accountant.RDP
) -> Guarantee | None:
    """The same claim by another accountant; None where only one accountant here knows its price.

    Guarantee: what ``claim`` covers satisfies the returned guarantee, under the same conditions.
    Nothing of it was computed by the contour accountant. It is at the δ of the claim, part by part.

    It knows the steps of Poisson samplings (ULS and ELS, single runs and all runs of a fixed grid)
    and, beside them, pure queries. It knows neither batches of a fixed size, nor a private
    selection, which is priced by Rényi DP in the first place, nor what was computed elsewhere.

    Args:
        claim: with a finite ε.
        delta: as it was given to `userdp.claims.claim`.
        by: Rényi DP, which is quick and looser; or the privacy loss distributions of the library
            dp-accounting, which take seconds and agree to three digits. None where that library is
            not installed.

    Raises:
        FailureError: the two contradict each other: this upper bound of the ε of some steps is
            smaller than the first accountant's certified *lower* bound of the same ε.
    """
    if not claim.finite or not any(part.has_delta for part in claim.parts):
        return None
    try:
        second = compose(claim.lineage, delta=delta, price=partial(_price, by=by))
    except _NoSecond:
        return None
    assert second.delta == claim.guarantee.delta, "asked at another delta than the claim's"
    return second if math.isfinite(second.epsilon) else None


def _price(part: Part, delta: float | None, *, by: Accountant) -> Guarantee:
    """As `Part.guarantee`, by the second accountant."""
    match part:
        case Query():
            return part.guarantee()  # ε is a constant of the mechanism: nothing is computed
        case Steps():
            share = None if delta is None else delta / part.charges
            return times(_steps(part.plan, share, by=by), part.charges)
        case Choice(tuning=FixedGrid() as tuning):
            return tuning.guarantee(delta=delta, price=partial(_steps, by=by))
    raise _NoSecond


def _steps(plan: Plan, delta: float | None, *, by: Accountant) -> Guarantee:
    """`Plan.guarantee` of all steps by the second accountant."""
    if not plan.sampling.covered or not has_curve(plan.mechanism):
        raise _NoSecond
    if by is Accountant.DP_ACCOUNTING:
        first = plan.guarantee(delta=delta)
        epsilon = _by_library(plan.mechanism, first.delta)
        second = replace(first, epsilon=epsilon, accountant=str(by))
    else:
        second = plan.guarantee(delta=delta, accountant=by)
    if plan.accountant is Accountant.CONTOUR and math.isfinite(second.epsilon):
        _refuse_contradiction(plan, second)
    return second


@lru_cache(maxsize=64)  # page, card and answer of one command tell the same claim
def _by_library(mechanism: NoisySteps, delta: float) -> float:
    if not isinstance(mechanism, Mixture):
        raise _NoSecond
    try:
        return by_dp_accounting(mechanism, delta, grid=1e-3).upper
    except (UseError, FailureError) as error:  # it is not installed, or it cannot price this
        raise _NoSecond from error


def _refuse_contradiction(plan: Plan, second: Guarantee) -> None:
    # The noise as it is drawn only costs more than the ideal noise, whose lower bound this is.
    first = plan.mechanism.epsilon(second.delta)
    if second.epsilon < first.lower:
        raise FailureError(
            f"two accountants contradict each other about {plan.steps} steps at delta = "
            f"{delta_up(second.delta)}: epsilon is at least {first.lower!r} by {first.accountant}, "
            f"and at most {second.epsilon!r} by {second.accountant}. One of them is wrong, so no "
            "epsilon can be relied on",
            hint="report it with the plan: every number of it is public",
        )
