"""What a claim may rest on that no price covers, and how that is said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from userdp.plans import Plan
from userdp.plans.origin import NonPrivateLook


class ConditionKind(StrEnum):
    """What a claim may rest on that no price covers; by its value it is known in JSON."""

    LOOKS = "exact-looks"
    BASE = "base-of-unknown-origin"
    MEMORY = "weights-changed-in-memory"
    ADAPTERS = "adapters-of-unknown-origin"
    PLAN = "plan-from-exact-numbers"
    COPY = "copied-ledger"
    TEXT = "text-of-unknown-origin"
    FILTERED = "filtered-against-private"
    OTHERS = "base-of-other-people"
    EVALUATION = "evaluation-on-public-data"
    SILOS = "silos-per-subject"
    SILO_LEDGERS = "silo-ledgers-missing"
    CHOSEN = "chosen-among-runs"


_WORDS = {
    ConditionKind.LOOKS: "nothing of its training was chosen by the exact numbers that {told} "
    "showed its operator before",
    ConditionKind.BASE: "the model that it began from ({told}) had learned nothing of these people",
    ConditionKind.MEMORY: "the weights in memory that it began from, which are not those in the "
    "files of {told}, had learned nothing of these people",
    ConditionKind.ADAPTERS: "the adapters that it began with ({told}) had learned nothing of these "
    "people",
    ConditionKind.PLAN: "what its plan was chosen from ({told}) says nothing of these people",
    ConditionKind.COPY: "no other copy of the store or of its ledger was charged, and no charge "
    "was taken back with it ({told})",
    ConditionKind.TEXT: "the text that it learned from ({told}) was written by no model of these "
    "people's text",
    ConditionKind.FILTERED: "nobody of this store is in the private data ({told}) that text it "
    "learned from was filtered against",
    ConditionKind.OTHERS: "nobody whose text the base model learned from ({told}) is in the store "
    "that it was trained on next (for those people themselves nothing is claimed)",
    ConditionKind.EVALUATION: "the evaluation data ({told}) that may have steered its training "
    "holds nothing of these people",
    ConditionKind.SILOS: "nobody has items in more than {told} silos",
    ConditionKind.SILO_LEDGERS: "nothing was released of the people of the silos whose ledgers are "
    "not here ({told}) before they joined",
    ConditionKind.CHOSEN: "no model here was chosen among {told}",
}
_WORDS_OF_A_STORE = {
    ConditionKind.LOOKS: "nothing that was charged here was chosen by the exact numbers that "
    "{told} showed its operator before",
    ConditionKind.PLAN: "what plans were chosen from ({told}) says nothing of these people",
}
"""Where a store's total says it otherwise than a model's claim."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Condition:
    """Something that has to be true for a claim to hold, and that no software here can check.

    Args:
        kind: of it.
        told: what it is about: names of commands, of a model; public.
    """

    kind: ConditionKind
    told: str = ""

    @property
    def in_words(self) -> str:
        """A clause that follows "provided that"."""
        return _WORDS[self.kind].format(told=self.told)

    @property
    def in_words_of_a_store(self) -> str:
        """The same of everything that was charged in a store."""
        return _WORDS_OF_A_STORE.get(self.kind, _WORDS[self.kind]).format(told=self.told)


COPIED = Condition(
    kind=ConditionKind.COPY,
    told="its file was copied, put back or changed by something else than userdp",
)


def looked_at(looks: Iterable[str]) -> tuple[Condition, ...]:
    """That exact numbers which these commands showed did not choose anything; none without any."""
    told = ", ".join(sorted(looks))
    return (Condition(kind=ConditionKind.LOOKS, told=told),) if told else ()


def among_runs(runs: int, looks: Iterable[str]) -> Condition:
    """That a run was not chosen among those over the same people; 0 ``runs``: not known how many.

    Args:
        runs: how many there are, itself included.
        looks: what showed exact numbers of their models; none where only releases could choose.
    """
    told = ", ".join(sorted(looks))
    by = f"by exact numbers ({told})" if told else "by what they released"
    unknown = "other runs over the same people, of which only their store knows, and it is not here"
    told = f"{runs} runs over the same people {by}" if runs else unknown
    return Condition(kind=ConditionKind.CHOSEN, told=told)


def of_plan(plan: Plan | None) -> tuple[Condition, ...]:
    """What a plan itself says of where its constants come from."""
    origins = {} if plan is None else plan.origins
    looks = {one.what for one in origins.values() if isinstance(one, NonPrivateLook)}
    told = ", ".join(sorted(looks))
    return (Condition(kind=ConditionKind.PLAN, told=told),) if told else ()
