"""The options of `train` that make a plan where no plan file is given."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, cast

from userdp.cli.sampling_options import (
    Options,
    constants_of,
    flag,
    options_class,
    require_options,
)
from userdp.clip import AdaptiveClipping, Clip, ClipForm, LayerSplit
from userdp.errors import UseError
from userdp.sampling import SAMPLINGS
from userdp.vocabulary import PrivacyUnit

if TYPE_CHECKING:
    from userdp.plans import Plan
    from userdp.training.config import PlainPlan


_SIZES = {PrivacyUnit.USER: "cohort_size", PrivacyUnit.EXAMPLE: "batch_size"}
_GIVEN_BY_SIZE = ("sampling_probability", "batch_size")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Constants:
    """A plan, from flags.

    Args:
        population: the declared nominal number of users (ULS), or of examples after the cap
            (ELS): a public constant that you choose, never a count of the private data.
        cohort_size: users expected per step (ULS), or in every step where it is fixed.
        batch_size: examples expected per step (ELS), or in each step (--privacy none).
        steps: noisy updates; physical micro-batches never count.
        l2_clip_norm: clip norm of each unit's gradient.
        item_clip_norm: clips each example of a user first, if given (ULS).
        delta: in (0, 1).
        epsilon: the budget; the least noise within it is used.
        noise_multiplier: in place of a budget: noise deviation divided by the clip norm.
        accountant: contour (exact); or Group Privacy for --sampling examples, priced per example
            and lifted to users by the best lemma (group-privacy) or Vadhan's
            (group-privacy-vadhan): more noise for the same epsilon.
        clip_form: how a gradient becomes one of at most the clip norm, threshold by default;
            docs/clipping.md says what each form does. None moves epsilon.
        clip_stability: gamma, of a form that has one; 0.01 by default.
        layer_split: clip each layer to its share of the clip norm: equal ones, or by dimension.
        clip_quantile: adapt the clip norm until this fraction of units stays unclipped; 0.5 is
            good. Its count is part of what the noise multiplier accounts for.
        clip_learning_rate: of the adapting clip norm; 0.2 by default.
        count_noise_std: noise on the count of unclipped units; by default, so much that the
            gradient's noise grows by 2% at most.
    """

    population: int | None = None
    cohort_size: float | None = None
    batch_size: float | None = None
    steps: int | None = None
    l2_clip_norm: float | None = None
    item_clip_norm: float | None = None
    delta: float | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    accountant: Literal["contour", "group-privacy", "group-privacy-vadhan"] | None = None
    clip_form: ClipForm | None = None
    clip_stability: float | None = None
    layer_split: LayerSplit | None = None
    clip_quantile: float | None = None
    clip_learning_rate: float | None = None
    count_noise_std: float | None = None


if TYPE_CHECKING:
    PlanOptions = Options
else:
    PlanOptions = options_class("PlanOptions", without=_GIVEN_BY_SIZE, bases=(_Constants,))


def build_plan(options: PlanOptions) -> Plan:
    """The private plan of these options; `UseError` names what is missing or means nothing."""
    from userdp.accounting import Accountant
    from userdp.noise import Gaussian
    from userdp.plans import Budget, Plan

    missing = (
        "train needs a plan: --epsilon and --population, from which a preset chooses the rest; or "
        "--plan FILE, or --sampling with its options, or --privacy none"
    )
    if options.sampling is None:
        raise UseError(
            missing, hint="for instance userdp train store --out run --epsilon 4 --population 20000"
        )
    sampling = SAMPLINGS[options.sampling]
    size = _SIZES[sampling.unit]
    needed = ("population", size, "group_size", "steps", "l2_clip_norm", "delta")
    require_options({name: getattr(options, name) for name in needed}, why="a plan needs it")
    for stray in set(_SIZES.values()) - {size}:
        if getattr(options, stray) is not None:
            raise UseError(
                f"{flag(stray)} says nothing with --sampling {sampling.kind}",
                hint=f"use {flag(size)}",
            )
    if options.item_clip_norm is not None and sampling.unit is PrivacyUnit.EXAMPLE:
        raise UseError(
            f"--item-clip-norm says nothing with --sampling {sampling.kind}: a unit is one example"
        )
    if (options.noise_multiplier is None) == (options.epsilon is None):
        raise UseError(
            "give exactly one of --noise-multiplier and --epsilon: the one determines the other"
        )
    plan = Plan(
        sampling=sampling.of_size(
            getattr(options, size),
            population=options.population,
            **constants_of(options, sampling, without=_GIVEN_BY_SIZE),
        ),
        clip=_clip(options),
        noise=Gaussian(
            multiplier=1.0 if options.noise_multiplier is None else options.noise_multiplier
        ),
        steps=options.steps,
        population=options.population,
        budget=Budget(target_delta=options.delta, target_epsilon=options.epsilon),
        accountant=Accountant(options.accountant or "contour"),
    )
    return plan if options.epsilon is None else plan.calibrated()


def _clip(options: PlanOptions) -> Clip:
    form = options.clip_form or ClipForm.THRESHOLD
    if options.clip_stability is not None and not form.stabilized:
        raise UseError(f"--clip-stability says nothing with --clip-form {form}")
    adapting = _given(
        options,
        quantile="clip_quantile",
        learning_rate="clip_learning_rate",
        count_noise_std="count_noise_std",
    )
    if adapting and options.clip_quantile is None:
        raise UseError(
            "--clip-learning-rate and --count-noise-std say nothing without --clip-quantile"
        )
    clip = _given(
        options,
        l2_norm="l2_clip_norm",
        item_norm="item_clip_norm",
        form="clip_form",
        stability="clip_stability",
        split="layer_split",
    )
    return Clip(**clip, adaptation=AdaptiveClipping(**adapting) if adapting else None)


def _given(options: PlanOptions, **names: str) -> dict[str, Any]:
    """The options that were given, by the names that a dataclass has for them."""
    values = {own: getattr(options, name) for own, name in names.items()}
    return {own: value for own, value in values.items() if value is not None}


def build_plain_plan(options: PlanOptions) -> PlainPlan:
    """What `--privacy none` needs: steps and a batch size, and nothing that speaks of privacy."""
    from userdp.training.config import PlainPlan

    for name in (one.name for one in fields(cast("Any", PlanOptions))):
        if name not in ("steps", "batch_size") and getattr(options, name):
            raise UseError(f"{flag(name)} says nothing with --privacy none")
    needed = {"steps": options.steps, "batch_size": options.batch_size}
    require_options(needed, why="--privacy none needs it")
    if options.batch_size != int(options.batch_size):
        raise UseError(f"--batch-size must be a whole number, got {options.batch_size!r}")
    return PlainPlan(steps=options.steps, batch_size=int(options.batch_size))
