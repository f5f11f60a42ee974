"""From ledgers to the claim: the one function that every printer of an ε asks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from userdp.accounting.mechanisms import NoisySteps
from userdp.claims.chosen import followed
from userdp.claims.conditions import Condition
from userdp.claims.headline import headline
from userdp.claims.inheritance import bases_of, run_lineage
from userdp.claims.lineage import Lineage, of_parts
from userdp.claims.parts import Part, Query, Steps, Unclaimed
from userdp.claims.payers import parts_of
from userdp.claims.printed import printed_dict, printed_in, together
from userdp.claims.store_conditions import conditions_of, in_one
from userdp.errors import UseError
from userdp.ledger import run as run_ledger
from userdp.ledger.folder import LEDGER
from userdp.ledger.history import History, history_of
from userdp.ledger.journal import read_entries
from userdp.ledger.place import PLACE, shared_elsewhere
from userdp.ledger.store import StoreLedger
from userdp.notebook import html_of
from userdp.plans import Plan
from userdp.vocabulary import (
    MIXED,
    NONE,
    Adjacency,
    Guarantee,
    PrivacyUnit,
    delta_up,
    require_delta,
    round_up,
)

ALONE = "one mechanism"
"""Composition of a claim that is the price of one thing and of nothing else."""
SPENT, BOUND = "spent so far", "guarantee"


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
        return together(self.guarantee, self.printed) if self.printed else None

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
        """The claim in words, with all that it rests on."""
        return headline(self)

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
            **printed_dict(self.guarantee, self.printed),
        }


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


def claim(path: Path, *, delta: float | None = None) -> Claim:
    """The claim of a run's or a store's ledger, or of the folder that holds one.

    Guarantee: everything that the run released, or that was released of the store, satisfies the
    claim under its conditions. A run claims its whole plan, whether or not all of it ran: when it
    stopped may have been chosen by what it released. Besides, it claims all that its constants and
    its base model descend from. A run whose sampling or noise had a known seed, or whose lines do
    not name a sampler of noise that the plan's price knows, claims nothing. The winner of a tuning
    claims what the tuning costs, whole; a trial of a private selection claims nothing.

    Args:
        path: a ledger, or the folder of a run or of a store.
        delta: of the whole, shared evenly by the parts that have one; each part's own by default.

    Raises:
        UseError: there is no ledger at ``path``, or it was edited.
    """
    if delta is not None:
        require_delta(delta)
    folder = path if path.is_dir() else path.parent
    if (folder / PLACE).exists():  # a store's: the ledger is held against what is kept beside it
        history = StoreLedger(folder).history()
        if not history.lines:
            raise UseError(f"the ledger of {folder} is empty: nothing was ever charged in it")
        return store_claim(history, delta)
    if path.is_dir():
        path = path / LEDGER
    return claim_of(path, read_entries(path), delta=delta)


def claim_of(path: Path, entries: list[dict[str, Any]], *, delta: float | None = None) -> Claim:
    """`claim` of the entries of the ledger at ``path``, for callers that have read them already."""
    if not entries:
        raise UseError(f"the ledger {path} is empty: nothing was ever charged in it")
    if entries[0].get("kind") == "store":
        history = history_of(path, entries)  # of a ledger that stores share: no store is named
        history.copied = history.copied or shared_elsewhere(path)
        return store_claim(history, delta)
    return _run_claim(path, entries, delta)


def _run_claim(path: Path, entries: list[dict[str, Any]], delta: float | None) -> Claim:
    lineage = run_lineage(path, [*entries, *followed(path, entries)])
    plan = run_ledger.plan_of(path, entries)
    steps = run_ledger.count_attempts(entries)
    guarantee = compose(lineage, delta=delta)
    own = next((part for part in lineage.parts if part.id == entries[0]["run_id"]), None)
    unfinished = plan is not None and steps < plan.steps and isinstance(own, Steps)
    return Claim(
        guarantee=guarantee,
        lineage=lineage,
        subject="run",
        steps=steps,
        complete=plan is not None and steps == plan.steps,
        so_far=plan.guarantee(steps, delta=delta) if plan and unfinished else None,
        trial=bool(entries[0].get("trial")),
        plan=plan,
        printed=printed_in(path, entries),
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
    lineage = of_parts(parts, *conditions_of(history, parts))
    # Of a sweep each trial and each score was charged here: its winner's price is in them already.
    sweeps = history.sweeps.keys() - history.charges.keys()
    for base in bases_of(history, charges):
        unpaid = tuple(part for part in base.parts if part.id not in sweeps)
        lineage += replace(base, parts=unpaid)
    lineage = lineage.among(history.id, history.ids)
    # A total that was fixed here bounds what was charged here, and nothing of another ledger.
    ours = all(part.id in history.ids for part in lineage.parts)
    within = history.within if ours else ""
    lineage = replace(lineage, within=within, conditions=in_one(lineage.conditions))
    return Claim(
        guarantee=compose(lineage, delta=delta),
        lineage=lineage,
        subject="store",
        steps=sum(charge.steps for charge in charges),
        complete=all(charge.settled for charge in charges),
        plan=single.plan if single else None,
    )
