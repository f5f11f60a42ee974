"""`Proposal`: a plan, what it is predicted to do, why it was chosen and what it was chosen from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from userdp.codec import decode, encode
from userdp.files import OPERATOR_FILE, SHAREABLE_FILE
from userdp.json_files import read_json, write_json
from userdp.plan import LedgerLine, NonPrivateLook, Plan
from userdp.plan.origin import in_words, uncovered
from userdp.planning.budget import PrivacyBudget
from userdp.planning.els import ElsCell
from userdp.planning.norms import GradientNorms
from userdp.planning.uls import Doubling, Optimum, UlsCell

SCHEMA = "userdp.proposal/1"


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
        optimum: problem (10), over all group sizes.
        doubling: Algorithm 3, on the noise of the mean gradient (Equation 6).
        literal: Algorithm 3 on noise multipliers, as it is printed.
        steps: the optimum for other T at the same compute B T, by T; that of T itself included.
        els: the sweep over group sizes, ascending.
        els_choice: the one of the median rule, if a median is known.
    """

    optimum: Optimum
    doubling: Doubling
    literal: Doubling
    steps: tuple[UlsCell, ...]
    els: tuple[ElsCell, ...]
    els_choice: ElsCell | None

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "uls_optimum": {
                **self.optimum.cell.to_dict(),
                "cells_computed": len(self.optimum.evaluated),
                "group_sizes": self.optimum.candidates,
            },
            "uls_estimate_and_double": self.doubling.cell.to_dict(),
            "uls_estimate_and_double_literal": self.literal.cell.to_dict(),
            "uls_other_steps": [
                {**cell.to_dict(), "averaged_noise_std": cell.averaged_noise_std}
                for cell in self.steps
            ],
            "uls": [cell.to_dict() for cell in self.optimum.evaluated],
            "els": [cell.to_dict() for cell in self.els],
            "els_median_rule": None if self.els_choice is None else self.els_choice.to_dict(),
        }


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
    """

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
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def basis(self) -> str:
        """What the plan was chosen from, in words; kept with the run and shown in its report."""
        return in_words(self.plan.origins)

    @property
    def operator_only(self) -> bool:
        """Whether an exact number of people's text is behind it, which no epsilon covers."""
        return uncovered(self.plan.origins)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        norms = self.norms.to_dict()
        norms.pop("quantiles", None)
        return {
            "schema": SCHEMA,
            "plan": encode(self.plan),
            "basis": self.basis,
            "reason": self.reason,
            "prediction": dict(self.prediction),
            "budget": self.budget.to_dict(),
            "compute": self.compute,
            "constants": [asdict(constant) for constant in self.constants],
            "norms": norms,
            "candidates": self.candidates.to_dict(),
            "notes": list(self.notes),
            "calibrations": self.calibrations,
            **self.extra,
        }

    def save(self, path: Path) -> None:
        """Write as JSON, whole or not at all; its owner's alone where it holds private numbers."""
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
    found: dict[str, LedgerLine | NonPrivateLook] = {}
    for constant in constants:
        name, place = constant.name, _FIELDS.get(constant.name, constant.name)
        if constant.origin is Origin.DP_RELEASE:
            found[place] = LedgerLine(what=name, line=constant.query_id or "unknown")
        elif constant.origin in (Origin.NON_PRIVATE, Origin.HELD_OUT):
            held_out = constant.origin is Origin.HELD_OUT
            found[place] = NonPrivateLook(what=name, held_out=held_out)
    return found


def declared_users(path: Path) -> int | None:
    """The number of users that a plan file's constants name; None in one of `Plan.save`.

    A plan of examples counts those. Where it was made from a number of users, that stands beside.
    """
    found = read_json(path, what="a plan").get("constants")
    for constant in found if isinstance(found, list) else ():
        if isinstance(constant, dict) and constant.get("name") == "population":
            value = constant.get("value")
            return int(value) if isinstance(value, int | float) and value >= 1 else None
    return None


def load_plan(path: Path) -> Plan:
    """The plan in a file that `userdp plan` or `Plan.save` wrote.

    Raises:
        UseError: the file holds neither.
    """
    values = read_json(path, what="a plan")
    plan = values.get("plan") if values.get("schema") == SCHEMA else values
    return decode(Plan, plan, what=f"the plan in {path}")
