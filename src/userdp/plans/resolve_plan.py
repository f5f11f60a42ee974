"""`resolve`: the one way to a plan, from a file, from a budget, or from single fields."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from userdp.accounting.accountants import Accountant
from userdp.core.errors import UseError
from userdp.core.vocabulary import PrivacyUnit
from userdp.noise import Gaussian
from userdp.noise.clip_forms import AdaptiveClipping, Clip, ClipForm
from userdp.plans.frozen_plan import Budget, Plan
from userdp.plans.preset_defaults import Preset, preset, require_signal
from userdp.plans.proposal import Proposal, as_plan
from userdp.sampling import Sampling, sampling_named

_SIZES = {PrivacyUnit.USER: "cohort_size", PrivacyUnit.EXAMPLE: "batch_size"}
_OPTIONS = (
    "epsilon", "population", "delta", "steps", "cohort_size", "group_size", "l2_clip_norm",
    "sampling_probability",
)  # fmt: skip
_BY_SIZE = ("sampling_probability", "batch_size", "group_size")
"""Constants of a sampling that follow from fields of the plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanFields:
    """The fields of a plan that the operator chose: its budget, and others than the preset's.

    Args:
        epsilon: the budget; > 0.
        population: the declared nominal number of units that are sampled: of users, or of examples
            after the cap of G per user. A public constant, never a count of the private data.
        delta: in (0, 1); of a preset population^-1.1 by default.
        steps: T, noisy updates; physical micro-batches never count.
        cohort_size: M, users expected per step (ULS), or in every step where it is fixed.
        batch_size: B, examples expected per step (ELS).
        group_size: G, most examples of a user in a step (ULS), or in all training (ELS).
        l2_clip_norm: C, the clip norm of each unit's gradient.
        noise_multiplier: in place of a budget: noise deviation divided by the clip norm.
        accountant: contour (exact); or Group Privacy for sampling of examples, priced per example
            and lifted to users by the best lemma (group-privacy) or Vadhan's
            (group-privacy-vadhan): more noise for the same epsilon.
        sampling: ``kind``, a name in `userdp.sampling.SAMPLINGS`, users by default; and constants
            of its own.
        clip: further fields of `userdp.noise.clip_forms.Clip`.
        adaptation: fields of `AdaptiveClipping`; any of them makes the clip norm adapt.
    """

    epsilon: float | None = None
    population: int | None = None
    delta: float | None = None
    steps: int | None = None
    cohort_size: float | None = None
    batch_size: float | None = None
    group_size: int | None = None
    l2_clip_norm: float | None = None
    noise_multiplier: float | None = None
    accountant: Accountant | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    clip: Mapping[str, Any] = field(default_factory=dict)
    adaptation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> list[str]:
        """Names of the chosen fields, for messages."""
        tables = ("sampling", "clip", "adaptation")
        single = [n for n, one in asdict(self).items() if one is not None and n not in tables]
        return [*single, *(f"{name}.{one}" for name in tables for one in getattr(self, name))]


_NOTHING = PlanFields()


def resolve(
    plan: Plan | Proposal | str | os.PathLike[str] | None = None,
    chosen: PlanFields = _NOTHING,
    *,
    low_rank: bool = False,
) -> tuple[Plan, Preset | None]:
    """The given plan, or the plan of a budget and of single fields; and its preset, if any.

    Guarantee: nothing here reads a store. With a budget and a population a preset chooses all other
    fields (`userdp.plans.preset_defaults`), and the noise is the least for the budget. With a noise
    multiplier in the budget's place, or a sampling of examples, every field must be given.

    Args:
        plan: a plan, a proposal, or the file of either.
        chosen: in place of a plan: a budget, and fields that replace the preset's.
        low_rank: adapters are trained, for the preset.

    Raises:
        UseError: a field is missing, given twice or without meaning, or next to nothing could be
            learned.
    """
    if plan is not None:
        if chosen.given:
            raise UseError(
                f"a plan says it all, and {', '.join(map(_spoken, chosen.given))} would make it "
                "another",
                hint="leave that out, or --plan",
            )
        return as_plan(plan), None
    if not chosen.given:
        raise UseError(
            "training needs a plan: --epsilon and --population, from which a preset chooses the "
            "rest; or --plan FILE",
            hint="for instance --epsilon 4 --population 20000",
        )
    constants = dict(chosen.sampling)
    sampling = sampling_named(constants.pop("kind", "users"))
    size = _SIZES[sampling.unit]
    for stray in set(_SIZES.values()) - {size}:
        if getattr(chosen, stray) is not None:
            raise UseError(
                f"{stray} says nothing with sampling {sampling.kind}", hint=f"give {size}"
            )
    epsilon, population, noise = chosen.epsilon, chosen.population, chosen.noise_multiplier
    if (noise is None) == (epsilon is None):
        raise UseError(
            "give exactly one of --epsilon and plan.noise_multiplier: the one determines the other",
            hint="for instance --epsilon 4 --population 20000",
        )
    by_preset = None
    if sampling.kind == "users" and epsilon is not None and population is not None:
        by_preset = preset(
            epsilon=epsilon, population=population, delta=chosen.delta, low_rank=low_rank
        )
    needed = ("population", size, "group_size", "steps", "l2_clip_norm", "delta")
    values = {name: getattr(chosen, name) for name in needed}
    values |= {name: getattr(by_preset, name, None) for name in needed if values[name] is None}
    require_said(values, why="a plan needs it")
    result = Plan(
        sampling=sampling.of_size(
            values[size],
            population=values["population"],
            group_size=values["group_size"],
            **constants_of(sampling, constants, without=_BY_SIZE),
        ),
        clip=_clip(chosen, values["l2_clip_norm"], sampling),
        noise=Gaussian(multiplier=1.0 if noise is None else noise),
        steps=values["steps"],
        population=values["population"],
        budget=Budget(target_delta=values["delta"], target_epsilon=epsilon),
        accountant=chosen.accountant or Accountant.CONTOUR,
    )
    result = result if epsilon is None else result.calibrated()
    if by_preset is not None:
        require_signal(result)
    return result, by_preset


def constants_of(
    sampling: type[Sampling], given: Mapping[str, Any], *, without: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The given constants of a sampling.

    Raises:
        UseError: a constant without a default is missing, or the sampling has no such constant.
    """
    known = {one.name: one.default for one in fields(sampling) if one.name not in without}
    needed = {name: given.get(name) for name, default in known.items() if default is MISSING}
    require_said(needed, why=f"sampling {sampling.kind} needs it")
    if stray := [f"sampling.{name}" for name in given if name not in known]:
        raise UseError(f"{', '.join(stray)} has no meaning with sampling {sampling.kind}")
    return dict(given)


def require_said(values: Mapping[str, Any], *, why: str) -> None:
    """`UseError` that names each value which is None."""
    if missing := [_spoken(name) for name, value in values.items() if value is None]:
        raise UseError(f"missing {', '.join(missing)}: {why}")


def _spoken(name: str) -> str:
    """The option or setting of a field of a plan."""
    if name in _OPTIONS:
        return f"--{name.replace('_', '-')}"
    if "." in name:
        return name
    return f"{'plan' if name in PlanFields.__dataclass_fields__ else 'sampling'}.{name}"


def _clip(chosen: PlanFields, l2_norm: float, sampling: type[Sampling]) -> Clip:
    """How units are clipped; `UseError` where a given field has no meaning."""
    clip = {**chosen.clip, "l2_norm": l2_norm}
    if "item_norm" in clip and sampling.unit is PrivacyUnit.EXAMPLE:
        raise UseError(
            f"clip.item_norm says nothing with sampling {sampling.kind}: a unit is one example"
        )
    form = clip.get("form", ClipForm.THRESHOLD)
    if "stability" in clip and form != ClipForm.AUTOMATIC:
        raise UseError(f"clip.stability says nothing with clip.form {form}")
    adapting = chosen.adaptation
    if adapting and "quantile" not in adapting:
        raise UseError(f"adaptation.{next(iter(adapting))} says nothing without its quantile")
    return Clip(**clip, adaptation=AdaptiveClipping(**adapting) if adapting else None)
