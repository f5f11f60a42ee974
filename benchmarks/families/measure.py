"""One family, whole or with adapters: what each engine does with it, how exactly, at what price."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.counted import counted_reference
from benchmarks.families.models import build
from benchmarks.families.sizes import Family
from userdp.errors import UseError
from userdp.gradients import (
    ENGINES,
    ClippedSum,
    Engine,
    Units,
    causal_lm_loss,
    clipped_sum,
    trainable_parameters,
)
from userdp.gradients.clipping import squared_norm
from userdp.gradients.engines import sharded
from userdp.gradients.engines.choice import choose
from userdp.gradients.engines.engine import Task
from userdp.gradients.precision import dtypes_of, is_narrow, margin
from userdp.gradients.shards import shard

_LENGTHS = ((7, 3), (9,), (1, 8, 5), (6,), (1,))
"""Tokens of each user's examples: ragged, padded, of one token, and a user of nothing else."""

_SHARE = 0.5
"""The clip norm over the median of the users' norms: some are clipped, some are not."""

_TIMED_ROWS, _TIMED_TOKENS = 16, 64
"""A pass of the batched engines on a CPU holds about 1,024 tokens."""

_SLOW = 1.0
"""Seconds of an ordinary step beyond which one round must do: scans written in Python."""


def cohort(vocabulary: int) -> Units:
    """Ragged users; beyond a row's length stand tokens that nobody must read."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([length for user in _LENGTHS for length in user])
    shape = (len(lengths), int(lengths.max()))
    return Units(
        input_ids=torch.randint(vocabulary, shape, generator=generator),
        lengths=lengths,
        offsets=torch.tensor([0, *map(len, _LENGTHS)]).cumsum(0),
    )


def measured(family: Family, *, adapters: bool) -> dict[str, Any]:
    """What stands in the table, but for the price. Nothing of it hangs on the machine's speed."""
    try:
        model = build(family, adapters=adapters)
    except (ValueError, AttributeError) as error:
        return {"cannot": str(error).splitlines()[0][:200]}
    units = cohort(int(family.config["vocab_size"]))
    row: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    try:
        alone = clipped_sum(model, causal_lm_loss, units, l2_clip_norm=1e6).norms
        clip = _SHARE * float(alone[alone > 0].median())
        choice = choose(model, causal_lm_loss, units, l2_clip_norm=clip)
    except UseError as error:
        return {**row, "refused": str(error)}
    row |= {
        "auto": choice.engine,
        "reason": choice.reason,
        "engines": {},
    }
    for name, engine in ENGINES.items():
        row["engines"][name] = _of_engine(engine, model, units, clip)
    joined()
    try:
        parts = shard(build(family, adapters=adapters))
        row["engines"]["sharded"] = _of_engine(sharded.clipped_sum, parts, units, clip, model)
    except (
        AttributeError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:  # FSDP
        row["engines"]["sharded"] = {"cannot": str(error).splitlines()[0][:200]}
    return row


def joined() -> None:
    """One process alone, as the sharded engine knows it."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def _of_engine(
    engine: Engine, model: nn.Module, units: Units, clip: float, same: nn.Module | None = None
) -> dict[str, Any]:
    """Whether it batched, its largest error over C, and the most that a user moved it, over C.

    Args:
        engine: to be measured.
        model: for it.
        units: the cohort.
        clip: C.
        same: the same model for the reference, where ``model`` is sharded.
    """
    try:
        engine(model, causal_lm_loss, units, l2_clip_norm=clip)
        with counted_reference() as calls:
            everybody = engine(model, causal_lm_loss, units, l2_clip_norm=clip)
    except UseError as error:
        return {"refused": str(error)}
    # The batched engines aim below C, and so does the reference that computes for one of them.
    ratio = everybody.norms.clamp(min=1e-30).reciprocal() * clip
    whole = same or model
    task = Task(model=whole, loss=causal_lm_loss, units=units, l2_clip_norm=clip)
    aimed = clip if engine is clipped_sum else task.aim
    if same is not None:  # the engine of sharded models aims there in every precision
        aimed = clip * (1 - margin([torch.float32]))
    exact = clipped_sum(whole, causal_lm_loss, units, l2_clip_norm=aimed)
    # In fewer bits than float32 the engine of sharded models takes a pass for each unit.
    narrow = any(map(is_narrow, dtypes_of(whole, causal_lm_loss, masked=False)))
    alone = len(units) if narrow else sum(calls)
    moves = []
    for out in range(len(units)):
        rest = engine(model, causal_lm_loss, without(units, out), l2_clip_norm=clip)
        moves.append(_apart(everybody, rest) / clip)
    return {
        "alone": alone,
        "clipped": int((ratio < 1).sum()),
        "error": _apart(everybody, exact) / clip,
        "moves": max(moves),
    }


def _apart(one: ClippedSum, other: ClippedSum) -> float:
    return math.sqrt(squared_norm(v - other.value[name] for name, v in one.value.items()))


def without(units: Units, out: int) -> Units:
    """All units but one."""
    begin, end = int(units.offsets[out]), int(units.offsets[out + 1])
    rows = [row for row in range(len(units.lengths)) if not begin <= row < end]
    counts = units.offsets.diff().tolist()
    return Units(
        input_ids=units.input_ids[rows],
        lengths=units.lengths[rows],
        offsets=torch.tensor([0, *counts[:out], *counts[out + 1 :]]).cumsum(0),
    )


def priced(family: Family, *, adapters: bool, rounds: int = 3) -> dict[str, float]:
    """Processor time of a step by `auto` and by the reference over that of an ordinary one.

    Args:
        family: at the size at which it is timed.
        adapters: whether only adapters train.
        rounds: of which the median is taken.
    """
    model = build(family, adapters=adapters)
    vocabulary = int(family.config["vocab_size"])
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(vocabulary, (_TIMED_ROWS, _TIMED_TOKENS), generator=generator)
    units = Units(
        input_ids=ids,
        lengths=torch.full((_TIMED_ROWS,), _TIMED_TOKENS),
        offsets=torch.arange(_TIMED_ROWS + 1),
    )
    parameters = list(trainable_parameters(model).values())

    def plain() -> None:
        losses = causal_lm_loss(model, units.input_ids, units.lengths)
        torch.autograd.grad(losses.mean(), parameters, allow_unused=True)

    steps: dict[str, Callable[[], object]] = {
        "plain": plain,
        **{
            name: partial(ENGINES[name], model, causal_lm_loss, units, l2_clip_norm=1.0)
            for name in ("auto", "reference")
        },
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    try:
        for number in range(rounds + 1):
            for name, step in steps.items():
                begin = time.process_time()
                step()
                times[name].append(time.process_time() - begin)
            if number and times["plain"][-1] > _SLOW:
                break
    except UseError:
        return {}
    median = {name: statistics.median(of_rounds[1:]) for name, of_rounds in times.items()}
    return {
        "plain_seconds": median["plain"],
        **{name: median[name] / median["plain"] for name in ("auto", "reference")},
    }
