"""Conditions: what a claim rests on that no price covers, and their sentences (``words.toml``)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from userdp.plans import Plan


@cache
def sentences() -> Mapping[str, Any]:
    """What is said of claims: ``words.toml``."""
    return tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


class ConditionKind(StrEnum):
    """What a claim may rest on that no price covers, by its name in JSON and in ``words.toml``."""

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
        told: str = sentences()["condition"][self.kind]
        return told.format(told=self.told)


COPIED = Condition(
    kind=ConditionKind.COPY,
    told="its file was copied, put back or changed by something else than userdp",
)


def about(kind: ConditionKind, names: Iterable[str]) -> tuple[Condition, ...]:
    """One condition about all that is named; none where nothing is."""
    told = ", ".join(sorted(set(names)))
    return (Condition(kind=kind, told=told),) if told else ()


def of_plan(plan: Plan | None) -> tuple[Condition, ...]:
    """What a plan itself says of where its constants come from."""
    origins = {} if plan is None else plan.origins
    looks = [one.statistic for one in origins.values() if one.exact]
    return about(ConditionKind.PLAN, looks)


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


def looks_in_one(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """The same, with all exact numbers that were shown in one condition."""
    kept = set(conditions)
    looks = {one for one in kept if one.kind is ConditionKind.LOOKS}
    names = [name for one in looks for name in one.told.split(", ")]
    return tuple(sorted(kept - looks | set(about(ConditionKind.LOOKS, names))))
