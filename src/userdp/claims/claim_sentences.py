"""A claim as data, and the sentences that are said of it (``claim_sentences.toml``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from userdp.accounting.mechanisms import NoisySteps
from userdp.claims.lineage import Condition, Lineage, sentences
from userdp.core.vocabulary import Guarantee, delta_up, round_up
from userdp.ledger.charged_parts import Part, Query, Steps, Unclaimed
from userdp.plans import Plan

SPENT, BOUND = "spent so far", "guarantee"
SPENT_SO_FAR: str = sentences()["note"]["spent_so_far"]


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
        plan: of the single run that this is the claim of; None without one.
        printed: what was released under DP after the run had ended, at prices of its own, and
            stands beside the model wherever that is told of.
        together: what the model and those answers cost a user whose text is in both; ε is infinite
            where no sum bounds anything. For somebody who was only trained on, or only asked, it
            is less. None where nothing is printed.
    """

    guarantee: Guarantee
    lineage: Lineage
    subject: str
    steps: int
    complete: bool
    so_far: Guarantee | None = None
    plan: Plan | None = None
    printed: tuple[Query, ...] = ()
    together: Guarantee | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.lineage.parts

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return self.lineage.conditions

    @property
    def finite(self) -> bool:
        """Whether anything is claimed."""
        return math.isfinite(self.guarantee.epsilon)

    @property
    def mechanism(self) -> NoisySteps | None:
        """What the claim prices, where one mechanism is all of it and its price is finite."""
        match self.parts:
            case (Steps(plan=plan),) if self.finite:
                return plan.mechanism
        return None

    @property
    def standing(self) -> str:
        """`BOUND`, or `SPENT` where prices were chosen after earlier ones were seen."""
        return BOUND if self.lineage.fixed else SPENT

    @property
    def conditions_in_words(self) -> tuple[str, ...]:
        """Clauses that follow "provided that"."""
        return tuple(one.in_words for one in self.conditions)

    @property
    def composition(self) -> str:
        """How the parts were put together."""
        if len(self.parts) > 1:
            return f"basic composition of {len(self.parts)} parts"
        return self.parts[0].in_words if self.parts else str(sentences()["nothing"]["empty"])

    @property
    def headline(self) -> str:
        """What is claimed, with all that it rests on, without a full stop at its end.

        "(ε ≤ …, δ = …)-DP per user, add-or-remove adjacency"; then the conditions; then, where the
        prices were not fixed beforehand, that their sum is no guarantee.
        """
        if not self.finite:
            return f"no ε is claimed: {self.why_nothing}"
        words = in_words(self.guarantee)
        if self.conditions:
            words += f", provided that {'; and '.join(self.conditions_in_words)}"
        return words if self.lineage.fixed else f"{words}. {SPENT_SO_FAR}"

    @property
    def why_nothing(self) -> str:
        """Why ε is infinite."""
        told: Mapping[str, str] = sentences()["nothing"]
        reasons = [part.why for part in self.parts if isinstance(part, Unclaimed)]
        if reasons:
            return "; ".join(dict.fromkeys(reasons))
        if not self.parts:
            return told["empty"]
        if any(not plan.sampling.covered for part in self.parts for plan in part.plans):
            return told["shuffled"]
        several = len({part.guarantee().adjacency for part in self.parts}) > 1
        return told["adjacencies" if several else "accountant"]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences beside the claim, without full stops: what the steps so far cost, and what is
        printed beside the model.
        """
        words, notes = sentences()["note"], list[str]()
        spent, both = self.so_far, self.together
        if spent is not None and self.finite:
            price = {"epsilon": round_up(spent.epsilon), "delta": delta_up(spent.delta)}
            notes.append(words["unfinished"].format(steps=self.steps, **price))
        if both is not None and self.finite:
            what = (f"{one.name} (ε = {round_up(one.pure_epsilon)})" for one in self.printed)
            adds_up = words["sum" if math.isfinite(both.epsilon) else "no_sum"]
            total = adds_up.format(together=in_words(both), spent=SPENT_SO_FAR)
            notes.append(words["printed"].format(printed=", ".join(what), sum=total))
        return tuple(notes)

    def __str__(self) -> str:
        return f"{self.headline}."

    def to_dict(self) -> dict[str, Any]:
        """The claim as plain values, for JSON."""
        printed = [
            {"id": one.id, "what": one.in_words, "epsilon": one.pure_epsilon}
            for one in self.printed
        ]
        both = {} if self.together is None else asdict(self.together)
        return {
            **asdict(self.guarantee),
            "subject": self.subject,
            "headline": self.headline,
            "steps": self.steps,
            "complete": self.complete,
            "composition": self.composition,
            "standing": self.standing,
            "conditions": list(self.conditions_in_words),
            "parts": [{"id": part.id, **priced(part)} for part in self.parts],
            "epsilon_so_far": None if self.so_far is None else self.so_far.epsilon,
            **({"printed": printed, "together": both} if printed else {}),
        }


def priced(part: Part) -> dict[str, Any]:
    """What a part is, its ε and its δ, as plain values."""
    own = part.guarantee()
    return {"what": part.in_words, "epsilon": own.epsilon, "delta": own.delta}


def in_words(told: Guarantee) -> str:
    """A guarantee without what it rests on, for those who say that beside it."""
    return (
        f"(ε ≤ {round_up(told.epsilon)}, δ = {delta_up(told.delta)})-DP per {told.unit}, "
        f"{told.adjacency} adjacency"
    )


def foreseen_in_words(claim: Mapping[str, Any]) -> str:
    """Each part of a claim to come, and what they come to."""
    parts = ", ".join(f"{_up(part)} for {part['what']}" for part in claim["parts"])
    return f"{parts}: {_up(claim)} in all, delta {delta_up(claim['delta'], 3)}, per user"


def dry_run_in_words(dry_run: Mapping[str, Any]) -> str:
    """What a run would cost and claim, as its dry run found."""
    claim, paid = dry_run["claim"], dry_run["store"].guarantee
    told: Mapping[str, str] = sentences()["dry_run"]
    return told["found"].format(
        **dry_run,
        minutes=dry_run["seconds"] / 60,
        mebibytes=dry_run["bytes"] / 2**20,
        model=told["and_then"].join([foreseen_in_words(claim), *claim["conditions"]]),
        paid=f"epsilon {round_up(paid.epsilon)}, delta {delta_up(paid.delta, 3)}",
    )


def _up(price: Mapping[str, Any]) -> str:
    return "no epsilon" if price["epsilon"] is None else f"epsilon {round_up(price['epsilon'])}"
