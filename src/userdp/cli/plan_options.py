"""The options of `train` that make a plan where no plan file is given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from userdp.errors import UseError

if TYPE_CHECKING:
    from userdp.plan import Plan
    from userdp.training.config import PlainPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOptions:
    """A plan, from flags.

    Args:
        sampling: users (ULS: whole users join a step) or examples (ELS: single examples).
        population: the declared nominal number of users (ULS), or of examples after the cap
            (ELS): a public constant that you choose, never a count of the private data.
        cohort_size: users expected per step (ULS).
        batch_size: examples expected per step (ELS), or in each step (--privacy none).
        group_size: most examples of a user in a step (ULS) or in all training (ELS).
        steps: noisy updates; physical micro-batches never count.
        l2_clip_norm: clip norm of each unit's gradient.
        item_clip_norm: clips each example of a user first, if given (ULS).
        delta: in (0, 1).
        target_epsilon: the budget; the least noise within it is used.
        noise_multiplier: in place of a budget: noise deviation divided by the clip norm.
        accountant: contour (exact); or Group Privacy for --sampling examples, priced per example
            and lifted to users by the best lemma (group-privacy) or Vadhan's
            (group-privacy-vadhan): more noise for the same epsilon.
        adjacency: add-or-remove (the default); fixed-graph for a store of --owners greedy, where
            group_size is at least its --records-per-user (ELS).
        unsafe_shuffle: shuffled batches in place of Poisson samples; no epsilon is claimed.
        clip_form: threshold (the default); normalized: also divides by the clip norm, so that the
            learning rate means the same at every clip norm; automatic: scales all gradients.
        clip_stability: gamma of automatic clipping; 0.01 by default.
        layer_split: clip each layer to its share of the clip norm: equal ones, or by dimension.
        clip_quantile: adapt the clip norm until this fraction of units stays unclipped; 0.5 is
            good. Its count is part of what the noise multiplier accounts for.
        clip_learning_rate: of the adapting clip norm; 0.2 by default.
        count_noise_std: noise on the count of unclipped units; by default, so much that the
            gradient's noise grows by 2% at most.
    """

    sampling: Literal["users", "examples"] | None = None
    population: int | None = None
    cohort_size: float | None = None
    batch_size: float | None = None
    group_size: int | None = None
    steps: int | None = None
    l2_clip_norm: float | None = None
    item_clip_norm: float | None = None
    delta: float | None = None
    target_epsilon: Annotated[float | None, Parameter(name=("--target-epsilon", "--epsilon"))] = (
        None
    )
    noise_multiplier: float | None = None
    accountant: Literal["contour", "group-privacy", "group-privacy-vadhan"] | None = None
    adjacency: Literal["add-or-remove", "fixed-graph"] | None = None
    unsafe_shuffle: bool = False
    clip_form: Literal["threshold", "normalized", "automatic"] | None = None
    clip_stability: float | None = None
    layer_split: Literal["uniform", "dimension"] | None = None
    clip_quantile: float | None = None
    clip_learning_rate: float | None = None
    count_noise_std: float | None = None


def build_plan(options: PlanOptions) -> Plan:
    """The private plan of these options; `UseError` names what is missing or means nothing."""
    from userdp.adaptive import AdaptiveClipping
    from userdp.guarantees import ClipForm, LayerSplit

    plan = _sampled_plan(options)
    changes: dict[str, Any] = {}
    if options.clip_form is not None:
        changes["clip_form"] = ClipForm(options.clip_form)
    if options.clip_stability is not None:
        if options.clip_form != "automatic":
            raise UseError("--clip-stability says nothing without --clip-form automatic")
        changes["clip_stability"] = options.clip_stability
    if options.layer_split is not None:
        changes["layer_split"] = LayerSplit(options.layer_split)
    if options.clip_quantile is not None:
        rate = options.clip_learning_rate
        changes["adaptive"] = AdaptiveClipping(
            quantile=options.clip_quantile,
            learning_rate=0.2 if rate is None else rate,
            count_noise_std=options.count_noise_std,
        )
    else:
        for name in ("clip_learning_rate", "count_noise_std"):
            if getattr(options, name) is not None:
                raise UseError(f"{_flag(name)} says nothing without --clip-quantile")
    return replace(plan, **changes)


def _sampled_plan(options: PlanOptions) -> Plan:
    """The plan with its sampler and noise; clipping options come after."""
    from userdp.accounting import Accountant
    from userdp.guarantees import Adjacency
    from userdp.plan import Plan

    if options.sampling is None:
        raise UseError(
            "train needs a plan: --plan FILE, or --sampling users|examples with its options, or "
            "--privacy none",
            hint="see `userdp train --help`",
        )
    by_user = options.sampling == "users"
    size = "cohort_size" if by_user else "batch_size"
    stray = "batch_size" if by_user else "cohort_size"
    _require(options, ("population", size, "group_size", "steps", "l2_clip_norm", "delta"))
    if getattr(options, stray) is not None:
        raise UseError(
            f"{_flag(stray)} says nothing with --sampling {options.sampling}",
            hint=f"use {_flag(size)}",
        )
    assert options.population is not None
    assert options.group_size is not None
    assert options.steps is not None
    assert options.l2_clip_norm is not None
    assert options.delta is not None
    if by_user:
        if options.accountant not in (None, "contour"):
            raise UseError(
                f"--accountant {options.accountant} says nothing with --sampling users: a user is "
                "clipped as a whole, so there is no group to lift a claim to",
                hint="use --sampling examples, or leave --accountant out",
            )
        if options.adjacency == "fixed-graph":
            raise UseError(
                "--adjacency fixed-graph is for --sampling examples: a user's records lie with "
                "other users too, so that clipping by user bounds nothing",
                hint="use --sampling examples",
            )
        assert options.cohort_size is not None
        return Plan.for_users(
            population=options.population,
            cohort_size=options.cohort_size,
            group_size=options.group_size,
            steps=options.steps,
            l2_clip_norm=options.l2_clip_norm,
            item_clip_norm=options.item_clip_norm,
            target_delta=options.delta,
            target_epsilon=options.target_epsilon,
            noise_multiplier=options.noise_multiplier,
            unsafe_shuffle=options.unsafe_shuffle,
        )
    assert options.batch_size is not None
    if options.item_clip_norm is not None:
        raise UseError("--item-clip-norm says nothing with --sampling examples: a unit is one")
    return Plan.for_examples(
        population=options.population,
        batch_size=options.batch_size,
        group_size=options.group_size,
        steps=options.steps,
        l2_clip_norm=options.l2_clip_norm,
        target_delta=options.delta,
        target_epsilon=options.target_epsilon,
        noise_multiplier=options.noise_multiplier,
        unsafe_shuffle=options.unsafe_shuffle,
        accountant=Accountant(options.accountant or "contour"),
        adjacency=Adjacency(options.adjacency or "add-or-remove"),
    )


def build_plain_plan(options: PlanOptions) -> PlainPlan:
    """What `--privacy none` needs: steps and a batch size, and nothing that speaks of privacy."""
    from userdp.training.config import PlainPlan

    for name in PlanOptions.__slots__:
        if name not in ("steps", "batch_size") and getattr(options, name):
            raise UseError(f"{_flag(name)} says nothing with --privacy none")
    _require(options, ("steps", "batch_size"))
    assert options.steps is not None
    assert options.batch_size is not None
    if options.batch_size != int(options.batch_size):
        raise UseError(f"--batch-size must be a whole number, got {options.batch_size!r}")
    return PlainPlan(steps=options.steps, batch_size=int(options.batch_size))


def _require(options: PlanOptions, names: tuple[str, ...]) -> None:
    missing = [_flag(name) for name in names if getattr(options, name) is None]
    if missing:
        raise UseError(f"missing {', '.join(missing)}", hint="see `userdp train --help`")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
