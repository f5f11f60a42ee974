"""Whether store, model and loss can take the steps of a plan; asked before the first charge.

A refusal can be seen by others, so none may depend on whose text a step drew (invariant 9).
Everything that can refuse is therefore asked here, on made-up rows and in passes as large as the
plan allows. An error of the model or its loss comes out as it is, before anything is charged.

A dry run goes on from there: it tells what the run would cost and claim, with nothing charged and
nothing written. There is one exception: if the store is refused for an exact number of its people's
text, the refusal tells something about that text, and is noted as a look.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.benchmark import Timer

from userdp.claims.claims import foreseen, store_claim
from userdp.core.errors import FailureError, UseError, ran_out_of_memory, warn
from userdp.core.vocabulary import Adjacency
from userdp.data.splits import SplitRule
from userdp.data.user_store import UserStore, require_intact
from userdp.gradients import Units
from userdp.gradients.certificate.coupling import require_rows_apart
from userdp.gradients.certificate.made_up import Shape, made_up
from userdp.gradients.certificate.state import State
from userdp.gradients.engines import reference, sharded
from userdp.gradients.engines.choice import why_alone
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.passes import rows_per_pass
from userdp.gradients.model_randomness import secret_randomness
from userdp.gradients.shards import sharded_parts
from userdp.ledger import StoreLedger
from userdp.ledger.permitted_lines import follow
from userdp.plans import Plan
from userdp.training.causal_models import require_context
from userdp.training.open_run import OpenRun, Training
from userdp.training.step_mechanism import StepMechanism, device_of


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
            f"the plan claims fixed-graph adjacency, and each record of {store.path} has one user",
            hint="use --set sampling.kind=examples",
        )
    if not bounded:
        return
    bound = int(rule["records_per_user"])
    if not claimed:
        raise UseError(
            f"{store.path} has records of several owners: {plan.sampling.adjacency} would be false",
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
            f"{store.path} holds out by how many are usable: a text would move records of others",
            hint="prepare it with --split hash --held-out-examples 0",
        )


def require_fit_for_steps(of: Training, mechanism: StepMechanism) -> None:
    """Refuse a model or a loss for which the engine cannot clip the units of a plan.

    Warns, once, of one for which it must compute units one at a time.

    Args:
        of: the training, of which the model is at the weights that it begins with.
        mechanism: of its steps.

    Raises:
        UseError: there is no such engine, rows are longer than the model reads or coupled, or a
            sharded model's layers are not covered.
        FailureError: memory has no room for one example.
    """
    model, loss, engine, meta = of.model, of.loss, of.options.engine, of.store.meta
    seq_len, masked, how = meta.seq_len, meta.loss_mask, mechanism.clipping()
    require_context(model, meta)
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
    of_a_unit = mechanism.rows_of_a_unit
    if engine == "reference" or of_a_unit > mechanism.micro_batch or mechanism.world.rank:
        return
    one = made_up_units(model, 1, of_a_unit, seq_len, masked=masked)
    if (reason := why_alone(Task(model=model, loss=loss, units=one, **how))) is not None:
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


# The dry run.


def dry_run_of(of: Training, mechanism: StepMechanism) -> dict[str, Any]:
    """The cost and the claim of a run that was made and not opened.

    Args:
        of: the training, as it would be written down.
        mechanism: of its steps.

    Returns:
        ``noise_multiplier`` and ``steps`` of the plan; ``seconds_per_step``, measured by the
        clipped sum of an expected cohort of made-up rows, without the optimizer's update;
        ``seconds`` of the whole run; ``bytes``, the most memory held until the end of a full pass
        of made-up rows, measured (of tensors on a GPU, else of this process), without an
        optimizer's state; ``claim`` of the model, as `userdp.claims.claims.foreseen` has it, with
        its ``conditions`` in words, as far as they are known before the run; and ``store``, the
        `Claim` of what its people will have paid then. All of it is said in words by
        `userdp.claims.claim_sentences.dry_run_in_words`.

    Raises:
        UseError: as opening it would.
        FailureError: memory has no room for a pass of as many rows as were asked for.
    """
    plan = mechanism.plan
    if of.options.resume:
        raise UseError("a dry run is of a run that begins", hint="leave out --resume")
    require_intact(of.store)
    history = StoreLedger(of.store.path).history()
    after = follow(history, OpenRun(of).charges_of_plan(history))
    seconds = _seconds_per_step(of, mechanism)
    return {
        "noise_multiplier": plan.noise.multiplier,
        "steps": plan.steps,
        "seconds_per_step": seconds,
        "seconds": seconds * plan.steps,
        "bytes": _most_bytes(mechanism.device),
        "claim": foreseen(history, plan, base=of.base),
        "store": store_claim(after),
    }


def _most_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _seconds_per_step(of: Training, mechanism: StepMechanism) -> float:
    """Seconds of one step of an expected cohort, from one full pass of made-up rows."""
    meta, state, rows = of.store.meta, State(of.model, of.loss), mechanism.rows_of_a_unit
    most = rows_per_pass(meta.seq_len, mechanism.micro_batch, mechanism.device)
    units = max(1, most // rows)
    hint = "take a smaller --micro-batch, or --set learning.activation_checkpointing=true"
    try:
        with room_for(f"a pass of {most} rows", hint=hint):
            made = made_up_units(of.model, units, rows, meta.seq_len, masked=meta.loss_mask)
            seconds = seconds_of(lambda: mechanism.clip(made)) / units
    finally:
        state.put_back()
    return seconds * mechanism.plan.denominator / mechanism.world.size


@secret_randomness()
def seconds_of(run: Callable[[], object]) -> float:
    """Seconds that ``run`` takes by the clock, after a first call that allocates and compiles."""
    threads = torch.get_num_threads()
    return Timer("run()", globals={"run": run}, num_threads=threads).timeit(1).median
