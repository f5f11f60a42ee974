"""`Proposal`: a plan, what it is predicted to do, why it was chosen and what it was chosen from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from userdp.codec import encode
from userdp.errors import UseError
from userdp.files import OPERATOR_FILE, SHAREABLE_FILE, read_json, write_json
from userdp.notebook import html_of
from userdp.planning.budget import PrivacyBudget
from userdp.planning.els import ElsCell
from userdp.planning.norms import GradientNorms
from userdp.planning.shown import HEADINGS, candidate_rows
from userdp.planning.uls import UlsCell
from userdp.plans import LedgerLine, NonPrivateLook, Plan, Series
from userdp.plans.origin import in_words, uncovered
from userdp.plans.plan import PROPOSAL_SCHEMA

if TYPE_CHECKING:
    import pandas as pd


class Origin(StrEnum):
    """Where a constant of a plan comes from.

    ``DECLARED``: the operator's own constant, the same on neighbouring data sets. ``PUBLIC``:
    measured on public users. ``HELD_OUT``: on private users whom the claim does not cover.
    ``DP_RELEASE``: a line in the store's ledger. ``NON_PRIVATE``: an exact number of the private
    data; nothing that was chosen by it is covered by the claim.
    """

    DECLARED = "declared"
    PUBLIC = "public"
    HELD_OUT = "held-out-users"
    DP_RELEASE = "dp-release"
    NON_PRIVATE = "non-private"


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """A public constant, and where it comes from.

    Args:
        name: "population", "population examples", "median examples per user", "gradient norms",
            "l2 clip norm" or "delta".
        value: the number; None for the norms, which are several.
        origin: where it comes from.
        query_id: the ledger's line, for a DP release.
    """

    name: str
    value: float | None
    origin: Origin
    query_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """Every configuration computed.

    Args:
        uls_optimum: problem (10), over all group sizes.
        uls_estimate_and_double: Algorithm 3, on the noise of the mean gradient (Equation 6).
        uls_estimate_and_double_literal: Algorithm 3 on noise multipliers, as it is printed.
        uls_other_steps: the optimum for other T at the same compute B T, by T; that of T included.
        uls: what was computed to know the optimum, by rising group size.
        els: the sweep over group sizes, ascending.
        els_median_rule: the one of the median rule, if a median is known.
    """

    uls_optimum: UlsCell
    uls_estimate_and_double: UlsCell
    uls_estimate_and_double_literal: UlsCell
    uls_other_steps: tuple[UlsCell, ...]
    uls: tuple[UlsCell, ...]
    els: tuple[ElsCell, ...]
    els_median_rule: ElsCell | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """What `userdp plan` answers.

    Guarantee: ``plan.guarantee()`` is within the training share of ``budget``; with the releases
    that its parameters were taken from, everything is within (``budget.epsilon``,
    ``budget.delta``). Constants of origin ``non-private`` are covered by none of it.

    Args:
        plan: frozen; what `userdp train --plan` runs.
        budget: the total and its split.
        compute: B asked for, gradients per step.
        prediction: what the plan is expected to do, by name.
        reason: why this one, in words.
        constants: where each constant comes from.
        norms: the gradient norms behind it; what of them is operator-only is left out of the file.
        candidates: every configuration computed.
        notes: what else the operator should know.
        calibrations: how many σ were computed.
        series: of which the plan is one run, if one was asked for: the budget is for all of it.
    """

    schema: ClassVar[str] = PROPOSAL_SCHEMA

    plan: Plan
    budget: PrivacyBudget
    compute: float
    prediction: Mapping[str, Any]
    reason: str
    constants: tuple[Constant, ...]
    norms: GradientNorms
    candidates: Candidates
    notes: tuple[str, ...] = ()
    calibrations: int = 0
    series: Series | None = None

    @property
    def users(self) -> int | None:
        """The declared number of users, if one was: a plan of examples counts those."""
        for constant in self.constants:
            if constant.name == "population" and constant.value is not None:
                return int(constant.value)
        return None

    @property
    def basis(self) -> str:
        """What the plan was chosen from, in words; kept with the run and shown in its report."""
        return in_words(self.plan.origins)

    @property
    def operator_only(self) -> bool:
        """Whether an exact number of people's text is behind it, which no epsilon covers."""
        return uncovered(self.plan.origins)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for the file and for ``--json``; without the operator's quantiles."""
        shareable = replace(self, norms=replace(self.norms, quantiles=None))
        values: dict[str, Any] = encode(shareable)
        return {**values, "budget": values["budget"] | self.budget.shares, "basis": self.basis}

    def to_pandas(self) -> pd.DataFrame:
        """One row a candidate, and which of them is the plan."""
        import pandas as pd

        return pd.DataFrame([row.values for row in candidate_rows(self)])

    def _repr_html_(self) -> str:
        rows = candidate_rows(self)
        return html_of(
            self.reason,
            [row.cells for row in rows],
            columns=HEADINGS,
            strong=[number for number, row in enumerate(rows) if row.chosen],
            below=(f"Chosen from {self.basis}.", *self.notes),
        )

    def save(self, path: Path) -> None:
        """Write as JSON, whole or not at all; for its owner only where it holds private numbers."""
        mode = OPERATOR_FILE if self.operator_only else SHAREABLE_FILE
        write_json(path, self.to_dict(), mode=mode)


_FIELDS = {
    "population": "population",
    "population examples": "population.examples",
    "median examples per user": "sampling.group_size",
    "gradient norms": "clip",
    "l2 clip norm": "clip.l2_norm",
}
"""What in a plan a constant of the planner decides."""


def origins_of(constants: tuple[Constant, ...]) -> dict[str, LedgerLine | NonPrivateLook]:
    """The origins of a plan's constants; those that are declared or public are not written."""
    origins: dict[str, LedgerLine | NonPrivateLook] = {}
    for constant in constants:
        name, place = constant.name, _FIELDS.get(constant.name, constant.name)
        if constant.origin is Origin.DP_RELEASE:
            origins[place] = LedgerLine(what=name, line=constant.query_id or "unknown")
        elif constant.origin in (Origin.NON_PRIVATE, Origin.HELD_OUT):
            held_out = constant.origin is Origin.HELD_OUT
            origins[place] = NonPrivateLook(what=name, held_out=held_out)
    return origins


def declared_users(given: object) -> int | None:
    """The number of users that a proposal's constants name, or those in its file; None without.

    A plan of examples counts those. Where it was made from a number of users, that stands beside.
    """
    if isinstance(given, Proposal):
        return given.users
    if not isinstance(given, str | os.PathLike):
        return None
    constants = read_json(Path(given), what="a plan").get("constants")
    for constant in constants if isinstance(constants, list) else ():
        if isinstance(constant, dict) and constant.get("name") == "population":
            value = constant.get("value")
            return int(value) if isinstance(value, int | float) and value >= 1 else None
    return None


def as_plan(given: object) -> Plan:
    """The plan itself, wherever one is taken: a `Plan`, what `userdp.plan` answered, or a file.

    Raises:
        UseError: it is none of these, or the file is none of `userdp plan` or `Plan.save`.
    """
    if isinstance(given, str | os.PathLike):
        return Plan.load(Path(given))
    plan = given.plan if isinstance(given, Proposal) else given
    if not isinstance(plan, Plan):
        raise UseError(
            f"a plan is needed, and a {type(given).__name__} is none",
            hint="give what userdp.plan answered, a userdp.Plan, or the file that either wrote",
        )
    return plan
