"""The command that runs a plan again, from public constants alone."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from userdp.accounting import Accountant
from userdp.guarantees import Adjacency, ClipForm, Sampling
from userdp.plan import Plan
from userdp.plan.small_delta import DeltaSize, size_of
from userdp.reporting.run_facts import RunFacts

_NEW_MODEL = ("layers", "width", "heads")
_KNOWN = {
    "sampling",
    "steps",
    "group_size",
    "sampling_probability",
    "noise_multiplier",
    "l2_clip_norm",
    "population",
    "target_delta",
    "target_epsilon",
    "item_clip_norm",
    "unsafe_shuffle",
    "clip_form",
    "clip_stability",
    "layer_split",
    "adaptive",
    "accountant",
    "adjacency",
}
"""Fields of a plan that `_plan_options` puts into words."""


def train_command(run: RunFacts) -> str:
    """``userdp train …`` with the run's plan and the settings that learning depends on.

    It draws fresh cohorts and noise, so that it repeats the distribution of the weights, not the
    weights. STORE, and a model's folder, are left for the reader to fill in.
    """
    plan = run.plan
    if plan is None:
        steps, batch = run.train.get("steps"), run.train.get("batch_size")
        options = ["--privacy", "none"]
        options += ["--steps", str(steps), "--batch-size", str(batch)] if steps and batch else []
    elif _in_words(plan):
        options = list(_plan_options(plan))
    else:
        options = ["--plan", "plan.json"]
    if plan and size_of(plan.target_delta, plan.population) is DeltaSize.TOO_LARGE:
        options.append("--allow-large-delta")
    parts = ["userdp", "train", "STORE", "--out", "RUN", *options, *_train_options(run.train)]
    return shlex.join(parts)


def _in_words(plan: Plan) -> bool:
    """Whether options can say all of the plan; else it is to be taken from the ledger's head."""
    return all(
        getattr(plan, field.name) == field.default
        for field in fields(plan)
        if field.name not in _KNOWN
    )


def _plan_options(plan: Plan) -> Iterator[str]:
    by_user = plan.sampling is Sampling.USERS
    yield from ("--sampling", str(plan.sampling), "--population", str(plan.population))
    size = _size(plan.sampling_probability, plan.population)
    yield from ("--cohort-size" if by_user else "--batch-size", _number(size))
    yield from ("--group-size", str(plan.group_size), "--steps", str(plan.steps))
    yield from ("--l2-clip-norm", _number(plan.l2_clip_norm))
    yield from ("--noise-multiplier", _number(plan.noise_multiplier))
    yield from ("--delta", _number(plan.target_delta))
    if plan.item_clip_norm is not None:
        yield from ("--item-clip-norm", _number(plan.item_clip_norm))
    if plan.accountant is not Accountant.CONTOUR:
        yield from ("--accountant", str(plan.accountant))
    if plan.adjacency is not Adjacency.ADD_OR_REMOVE:
        yield from ("--adjacency", str(plan.adjacency))
    if plan.unsafe_shuffle:
        yield "--unsafe-shuffle"
    if plan.clip_form is not ClipForm.THRESHOLD:
        yield from ("--clip-form", str(plan.clip_form))
    if plan.clip_form is ClipForm.AUTOMATIC:
        yield from ("--clip-stability", _number(plan.clip_stability))
    if plan.layer_split is not None:
        yield from ("--layer-split", str(plan.layer_split))
    if plan.adaptive is not None:
        yield from ("--clip-quantile", _number(plan.adaptive.quantile))
        yield from ("--clip-learning-rate", _number(plan.adaptive.learning_rate))
        if plan.adaptive.count_noise_std is not None:
            yield from ("--count-noise-std", _number(plan.adaptive.count_noise_std))


def _size(probability: float, population: int) -> float:
    """The expected size of which ``size / population`` is ``probability``, to the last bit."""
    size = probability * population
    near = [size, math.nextafter(size, 0), math.nextafter(size, math.inf), round(size, 9)]
    return next((found for found in near if found / population == probability), size)


def _train_options(train: Mapping[str, Any]) -> Iterator[str]:
    """Settings that say something; those that others make meaningless are left out."""
    for name, value in train.items():
        if name in ("steps", "batch_size") or _says_nothing(name, value, train):
            continue
        flag = "--" + name.replace("_", "-")
        for one in value if isinstance(value, list | tuple) else [value]:
            yield from (flag, _number(one) if isinstance(one, float) else str(one))
    if str(train.get("selection", "")).endswith("perplexity"):
        yield from ("--scores", "scores.arrow")


def _says_nothing(name: str, value: Any, train: Mapping[str, Any]) -> bool:
    new = train.get("model") == "new"
    lora = train.get("lora_rank") is not None
    return (
        value in (None, 0, (), [])
        or (name in _NEW_MODEL and not new)
        or (name == "seed" and not (new or lora))
        or (name == "bias_correction_floor" and train.get("optimizer") != "adam-bc")
        or (name in ("averaging", "averaging_decay") and train.get("averaging") == "none")
        or (name in ("precision", "base_precision") and value == "float32")
        or (name == "engine" and value == "auto")
        or (name == "selection" and value == "random")
    )


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)
