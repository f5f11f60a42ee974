"""`make_private`: the private steps of a PyTorch loop that is somebody else's.

::

    with make_private(model, optimizer, store, plan, out="run") as private:
        for step in private:
            optimizer.step()
            scheduler.step()
        private.save()

The loop owns the model, the optimizer and the schedule; each turn finds a noisy gradient in
``.grad``. Everything the loop does with it is post-processing. `PrivateRun.save` releases the
model.
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from userdp.claims.conditions import Condition, ConditionKind
from userdp.claims.lineage import Lineage, lineage_from
from userdp.codec import encode
from userdp.data.scores import digest_of_scores, lineage_of_scores, read_scores
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.data.strategy import Strategy
from userdp.errors import UseError, kind_of, warn
from userdp.gradients import (
    Loss,
    causal_lm_loss,
    get_engine,
    require_masked,
    require_uncoupled,
    trainable_parameters,
)
from userdp.gradients.shards import is_sharded, reshard
from userdp.ledger import RunFolder, StoreLedger
from userdp.planning.proposal import Proposal, as_plan, declared_users
from userdp.plans import Plan
from userdp.plans.small_delta import plan_with_small_delta
from userdp.sampling.coins import secret_generator
from userdp.strict_json import parse
from userdp.training.base_facts import base_facts
from userdp.training.collate import Collator
from userdp.training.config import PrivateOptions
from userdp.training.devices import machine_facts
from userdp.training.distributed import World, current_world
from userdp.training.distributed_run import SharedRun, shared_secret
from userdp.training.known_weights import KnownWeights, require_free
from userdp.training.microbatches import rows_for
from userdp.training.models import require_finite
from userdp.training.opened import OpenRun
from userdp.training.optimizers import require_same_parameters, rounded_away
from userdp.training.origin import (
    digest_of_frozen,
    digest_of_weights,
    lineage_of_text,
    lineage_of_weights,
)
from userdp.training.own_loop import own_loop
from userdp.training.private_run import PrivateRun
from userdp.training.questions import (
    device_of,
    on_made_up_rows,
    require_fit_for_steps,
)
from userdp.training.runs import TrainerNotes, open_run
from userdp.training.shared_noise import source_for
from userdp.training.store_facts import require_covered, store_facts
from userdp.vocabulary import require_count
from userdp.waiting import warn_of_spinning

_USUAL = PrivateOptions()


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    store: UserStore | str | os.PathLike[str],
    plan: Plan | Proposal | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    loss: Loss = causal_lm_loss,
    micro_batch: int = 32,
    resume: bool = False,
    options: PrivateOptions = _USUAL,
) -> PrivateRun:
    """Reserve ``plan`` in the store's ledger and open a run; iterate over it to train.

    Guarantee: everything computed from the gradients that the run hands out, weights included,
    satisfies ``plan.guarantee()``, whatever the loop does with them, as long as it reads the store
    in no other way. The exact numbers of ``exact_log=True`` are not covered, and the claim says so.

    Where `torch.distributed` has joined several processes, all of them call this with the same
    arguments, and train one model together (`userdp.training.distributed_run`): the first one holds
    the folder. A model sharded by `userdp.gradients.shards.shard` stays sharded.

    What the model's weights descend from is looked up: by the weights themselves in the store's
    ledger, and in the folder that ``model.name_or_path`` names. Weights that neither knows, and
    adapters of `peft` that are not new, make the claim conditional.

    Args:
        model: its parameters with ``requires_grad`` are trained; on any device.
        optimizer: over exactly those parameters.
        store: the user store, or where it is; its training split is read.
        plan: sampler, clip, noise, denominator and number of steps; or what `userdp.plan` answered,
            or the file of either.
        out: the run's folder; new, unless ``resume``.
        loss: per-row loss that couples no two rows and keeps nothing from pass to pass; over a
            store with a loss mask (conversations) it must take ``targets`` too, see
            `userdp.gradients.MaskedLoss`.
        micro_batch: most rows in one pass; memory, never privacy.
        resume: go on with the interrupted run in ``out``: the steps that its ledger does not hold
            yet, with fresh cohorts and noise. Restoring the weights is the caller's part; attempts
            whose update was lost stay charged.
        options: what few callers need to say.

    Raises:
        UseError: δ is 1 over the declared population or more, the plan's adjacency is not the
            store's (`userdp.training.store_facts`), the optimizer holds other parameters, the model
            or the loss couples users, or the model draws random numbers out of reach
            (`userdp.gradients.models.require_uncoupled`), another open run trains this model, the
            folder is not new (or, to resume, something changed), or a value is out of range.
            Nothing has been charged then.
        FailureError: another process holds the folder, or the disk refused; nothing has been
            charged then.
    """
    return open_private(
        model,
        optimizer,
        store,
        plan,
        out=out,
        loss=loss,
        micro_batch=micro_batch,
        resume=resume,
        options=options,
        notes=TrainerNotes(),
    )


def open_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    store: UserStore | str | os.PathLike[str],
    plan: Plan | Proposal | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    loss: Loss,
    micro_batch: int,
    resume: bool,
    options: PrivateOptions,
    notes: TrainerNotes,
) -> PrivateRun:
    """`make_private` for the trainers of this package, which say more of the run than a loop can.

    Args:
        model: see `make_private`, as for all others but one.
        optimizer: as there.
        store: as there.
        plan: as there.
        out: as there.
        loss: as there.
        micro_batch: as there.
        resume: as there.
        options: as there.
        notes: of the trainer.

    Raises:
        UseError, FailureError: as there.
    """
    scores, engine = options.scores, options.engine
    unsafe_seed, unsafe_noise_seed = options.unsafe_seeds.draws, options.unsafe_seeds.noise
    users, plan = declared_users(plan), as_plan(plan)
    reshard(model)  # an earlier evaluation, say, leaves layers gathered, under other parameters
    if device_of(model).type == "cpu":
        warn_of_spinning(torch.get_num_threads())
    require_same_parameters(model, optimizer)
    require_free(model)
    require_uncoupled(model)
    if not resume:  # a run that diverged may go on, to be settled
        require_finite(str(getattr(model, "name_or_path", "")), model)
        warn(rounded_away(optimizer))
    require_count("micro_batch", micro_batch)
    get_engine(engine)
    opened = (
        store if isinstance(store, UserStore) else UserStore.open(Path(store), fixed_graph=True)
    )
    require_covered(opened, plan)
    if not (resume or options.allow_large_delta):
        total = StoreLedger(opened.path).history().total_delta
        warn(plan_with_small_delta(plan, users=users, total_delta=total))
    if opened.meta.loss_mask:
        require_masked(loss)
    world = current_world()
    split = opened.split(Split.TRAIN)
    strategy = _strategy(options.selection)
    collator = Collator(
        split,
        plan,
        strategy=strategy,
        scores=None if scores is None else _scores(opened, strategy, scores),
        seq_len=opened.meta.seq_len,
        unsafe_seed=unsafe_seed,
    )
    try:
        plan.sampling.require_store(collator.counts)
    except UseError:  # whether it is refused is an exact fact about people's text
        world.on_rank_zero(lambda: StoreLedger(opened.path).look("train"))
        raise
    secret = shared_secret(world) if unsafe_seed is None else unsafe_seed
    sampler = plan.sampling.sampler(collator.counts, secret_generator(secret))
    same = {
        "model": shape_digest(model),
        "kind of seeds": "unsafe" if options.unsafe_seeds else "secret",
        "selection": str(strategy) if scores is None else f"{strategy} {digest_of_scores(scores)}",
        **notes.identity,
    }
    machine = machine_facts(device_of(model))
    world.require_same(
        {
            **same,
            "store": opened.meta.content_sha256,
            "plan": plan.digest,
            # A unit's gradient must not depend on who computes it, to the last bit.
            "kind of processor": f"{machine['device']}, torch {machine['torch']}",
            "number of threads": str(machine["threads"]),
        }
    )
    _require_own_devices(world, device_of(model))
    world.broadcast_model(model)
    rows = rows_for(plan, micro_batch, processes=world.size)
    with on_made_up_rows():
        require_fit_for_steps(
            model,
            loss,
            plan,
            engine=engine,
            micro_batch=rows,
            seq_len=opened.meta.seq_len,
            masked=opened.meta.loss_mask,
        )

    # A process holds a part of a sharded model alone.
    sharded = any(is_sharded(tensor) for tensor in model.parameters())
    trained = frozenset(trainable_parameters(model))
    frozen = None if sharded else digest_of_frozen(model, trained)
    if notes.train is None and frozen is not None:  # `userdp train` compares the whole base model
        same["frozen weights"] = frozen
    opened_with = None if resume else digest_of_weights(model)
    # What `userdp train` began with stands in train.toml.
    loop = (
        None
        if opened_with is None or notes.train is not None
        else own_loop(
            model,
            optimizer,
            weights=opened_with,
            loss=loss,
            micro_batch=micro_batch,
            engine=engine,
            selection=strategy,
        )
    )

    def origin() -> Lineage:
        known = lineage_of_weights(model, opened) if notes.base is None else notes.base
        known += lineage_of_text(opened)
        return known if scores is None else known + _lineage_of_scores(scores)

    def begin() -> OpenRun:
        run = open_run(
            Path(out),
            opened,
            plan,
            identity=same,
            facts={
                "selection": str(strategy),
                "store_facts": store_facts(opened),
                "base_model": base_facts(model, weights=opened_with),
                **notes.facts,
            },
            train=notes.train,
            loop=None if loop is None else encode(loop),
            base=origin(),
            unsafe_seeds=bool(options.unsafe_seeds),
            resume=resume,
            charge_again=options.charge_again,
            slot=notes.slot,
            scores=scores,
            exact_log=options.exact_log,
        )
        if run.logged and run.steered and not notes.log_only:
            run.store.look("make_private(exact_log=True)")
        return run

    run = SharedRun(world, RunFolder(Path(out)), begin)
    if world.rank == 0 and run.logged:
        run.folder.log({"kind": "selection", "examples_over_the_cap": collator.left_out})
    return PrivateRun(
        run,
        model=model,
        optimizer=optimizer,
        plan=plan,
        sampler=sampler,
        collator=collator,
        noise=source_for(world, model, plan.noise, unsafe_noise_seed=unsafe_noise_seed),
        loss=loss,
        micro_batch=rows,
        engine=engine,
        world=world,
        tokenizer=opened.tokenizer_path,
        known_weights=KnownWeights(
            run,
            model=model,
            optimizer=optimizer,
            opened_with=opened_with,
            trained=trained,
            frozen=frozen,
        ),
        unsafe_noise_seed=unsafe_noise_seed,
    )


def _require_own_devices(world: World, device: torch.device) -> None:
    """`UseError` if two processes compute on one accelerator: NCCL would wait for ever."""
    if device.type == "cpu":
        return
    places = world.all_gather_object(f"{device} of {platform.node()}")
    shared = next((place for place in places if places.count(place) > 1), None)
    if shared is not None:
        raise UseError(
            f"{places.count(shared)} processes compute on {shared}: each needs a device of its own",
            hint="move the model to the device of LOCAL_RANK in each process",
        )


def shape_digest(model: nn.Module) -> str:
    """SHA-256 of the trainable parameters' names, shapes and dtypes."""
    text = "\n".join(
        f"{name} {tuple(p.shape)} {p.dtype}" for name, p in trainable_parameters(model).items()
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _strategy(name: str) -> Strategy:
    try:
        return Strategy(name)
    except ValueError:
        raise UseError(
            f"there is no selection {name!r}", hint=f"one of: {', '.join(Strategy)}"
        ) from None


def _scores(store: UserStore, strategy: Strategy, path: Path) -> NDArray[np.float32]:
    if not strategy.scored:
        raise UseError(
            f"scores say nothing with the selection {strategy}",
            hint="give --selection highest-perplexity or lowest-perplexity, or leave them out",
        )
    return read_scores(path, store)


def _lineage_of_scores(path: Path) -> Lineage:
    """What chose among the examples; a file that does not say may have learned from anybody."""
    text = lineage_of_scores(path)
    if not text:
        unknown = Condition(kind=ConditionKind.BASE, told="the model of its scores")
        return Lineage(conditions=(unknown,))
    try:
        values = parse(text)
    except ValueError as error:
        raise UseError(f"the lineage in {path} is damaged: {kind_of(error)}") from error
    return lineage_from(values, what=f"the lineage in {path}")
