"""The options of `train` that make a plan where no plan file is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

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
        unsafe_shuffle: shuffled batches in place of Poisson samples; no epsilon is claimed.
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
    unsafe_shuffle: bool = False


def build_plan(options: PlanOptions) -> Plan:
    """The private plan of these options; `UseError` names what is missing or means nothing."""
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
