"""Whether store, model and loss can take the steps of a plan; asked before the first charge.

A refusal can be seen by others, so none may depend on whose text a step drew (invariant 9).
Everything that can refuse is therefore asked here, on made-up rows and in passes as large as the
plan allows. An error of the model or its loss comes out as it is, before anything is charged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from userdp.core.errors import FailureError, UseError, ran_out_of_memory, warn
from userdp.core.vocabulary import Adjacency
from userdp.data.splits import SplitRule
from userdp.data.user_store import UserStore
from userdp.gradients import Engine, Units, get_engine, trainable_parameters
from userdp.gradients.certificate.coupling import require_rows_apart
from userdp.gradients.certificate.made_up import Shape, made_up
from userdp.gradients.engines import reference, sharded
from userdp.gradients.engines.choice import why_alone
from userdp.gradients.engines.task import Task
from userdp.gradients.model_randomness import secret_randomness
from userdp.gradients.shards import sharded_parts
from userdp.plans import Plan
from userdp.training.distributed import current_world
from userdp.training.open_run import Training


def require_covered(store: UserStore, plan: Plan) -> None:
    """Refuse a plan whose adjacency is not the one that the store's preparation supports.

    A store of ``--records-per-user K`` holds records of several owners, so that
    one user's text lies with others too. Over it a plan must claim ``fixed-graph`` adjacency, with
    example-level sampling (`Plan` sees to that) and ``group_size`` at least K: then no cap binds,
    whether a record trains depends only on its own text, and a user owns at most G of what trains.

    A split of held-out records by their number among their holder's *usable* records would break
    that: a user who empties a shared record moves the holder's later records from one split to the
    other, though they are not this user's. Such stores are refused.

    Raises:
        UseError: names the rule that does not hold, and the way out.
    """
    rule = store.meta.ownership
    bounded = rule["adjacency"] == Adjacency.FIXED_GRAPH
    claimed = plan.sampling.adjacency is Adjacency.FIXED_GRAPH
    if claimed and not bounded:
        raise UseError(
            f"the plan claims fixed-graph adjacency, and each record of the store at {store.path} "
            "has one user: its claims are for add-or-remove",
            hint="use --set sampling.kind=examples",
        )
    if not bounded:
        return
    bound = int(rule["records_per_user"])
    if not claimed:
        raise UseError(
            f"records of the store at {store.path} have several owners: a claim that says "
            f"{plan.sampling.adjacency} would be false",
            hint=f"train with --set sampling.kind=fixed-graph --group-size {bound}, or "
            "prepare without --records-per-user, where a record belongs only to its first owner",
        )
    group = plan.sampling.group_size
    if group < bound:
        raise UseError(
            f"users own up to {bound} records of the store at {store.path}, and group_size is "
            f"{group}: other users would decide which of one holder's records it leaves out",
            hint=f"use --group-size {bound}, or prepare with --records-per-user {group}",
        )
    split = store.meta.sources[0].get("split", SplitRule.HASH)
    by_number = split == SplitRule.HASH and store.meta.held_out_examples > 0
    if by_number or split == SplitRule.FIRST_PART:
        raise UseError(
            f"{store.path} holds records out by how many are usable: a text would move records of "
            "others to another split",
            hint="prepare it with --split hash --held-out-examples 0",
        )


def require_fit_for_steps(of: Training, plan: Plan, how: Mapping[str, Any]) -> None:
    """Refuse a model or a loss for which the engine cannot clip the units of a plan.

    Warns, once, of one for which it must compute units one at a time.

    Args:
        of: the training, of which the model is at the weights that it begins with.
        plan: how many rows a unit has at most.
        how: the engine clips, see `StepMechanism.clipping`.

    Raises:
        UseError: there is no such engine, rows are coupled, or a sharded model's layers are not
            covered.
        FailureError: memory has no room for one example.
    """
    model, loss, engine, meta = of.model, of.loss, of.options.engine, of.store.meta
    seq_len, masked, rows = meta.seq_len, meta.loss_mask, how["micro_batch"]
    get_engine(engine)
    if sharded_parts(model):
        if engine != "auto":
            raise UseError("a sharded model has an engine of its own", hint="leave engine out")
        nobody = sharded.nobody(model, masked=masked)
        sharded.require_supported(Task(model=model, loss=loss, units=nobody, **how))
        return
    one = made_up_units(model, 1, 1, seq_len, masked=masked)
    # A larger pass that does not fit is halved (`gradients.engines.engine`), down to one example.
    # Whether a step comes down to one depends on the cohort, so it is asked here.
    with (
        room_for(
            f"one example of {seq_len} tokens",
            hint="take a device with more memory, --set learning.activation_checkpointing=true, "
            "--lora-rank, a smaller model, or a store of a smaller --seq-len",
        ),
        secret_randomness(),
    ):
        reference.sum_of_units(Task(model=model, loss=loss, units=one, l2_clip_norm=1.0))
    require_rows_apart(model, loss, masked=masked)
    of_a_unit = plan.sampling.group_size if plan.sampling.by_user else 1
    if engine == "reference" or of_a_unit > rows or current_world().rank:
        return
    one = made_up_units(model, 1, of_a_unit, seq_len, masked=masked)
    alone = Task(model=model, loss=loss, units=one, **how)
    if (reason := why_alone(alone)) is not None:
        warn(
            f"users cannot share a pass of this model: {reason}. Each is computed alone, which "
            "takes about 4 times as long (a dry run measures it). The claim is the same. Way "
            "out: freeze these layers, train adapters on others, take a larger group size, so that "
            "each user fills passes, or accept it by engine reference",
            stacklevel=4,  # where `make_private` is called
        )


@contextmanager
def room_for(what: str, *, hint: str) -> Iterator[None]:
    """`FailureError` where memory has no room for what the block computes; nothing was charged."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        raise FailureError(
            f"memory has no room for {what}; nothing was charged", hint=hint
        ) from None


def made_up_units(model: nn.Module, units: int, rows: int, seq_len: int, *, masked: bool) -> Units:
    """Units of so many whole rows, which are nobody's, where the model is."""
    shape = Shape((rows,) * units, (seq_len,) * (units * rows))
    return made_up(model, shape, masked=masked, device=device_of(model))


def engine_of(model: nn.Module, name: str) -> Engine:
    """The engine of that name; for a sharded model the engine of sharded models."""
    return sharded.clipped_sum if sharded_parts(model) else get_engine(name)


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's trainable parameters."""
    return next(iter(trainable_parameters(model).values())).device
