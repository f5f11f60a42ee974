"""`make_private`: private steps for a PyTorch loop of your own.

::

    with make_private(model, optimizer, store, plan, out="run") as private:
        for step in private:
            optimizer.step()
            scheduler.step()
        private.save()

The loop owns the model, the optimizer and the schedule. Each turn finds a noisy gradient in
``.grad``, and everything that the loop computes from it is post-processing. `PrivateRun.save`
releases the model.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from userdp.data.user_store import UserStore
from userdp.gradients import Loss, causal_lm_loss
from userdp.plans import Plan
from userdp.plans.proposal import Proposal, as_plan, declared_users
from userdp.training.config import PrivateOptions
from userdp.training.dry_run import dry_run_of
from userdp.training.opening import Training
from userdp.training.private_run import PrivateRun

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
    dry_run: bool = False,
    options: PrivateOptions = _USUAL,
) -> PrivateRun:
    """Reserve ``plan`` in the store's ledger and open a run; iterate over it to train.

    Guarantee: everything computed from the gradients that the run hands out, weights included,
    satisfies ``plan.guarantee()``, whatever the loop does with them, as long as it reads the store
    in no other way. The exact numbers of ``exact_log=True`` are not covered, and the claim says so.

    Where `torch.distributed` has joined several processes, all of them call this with the same
    arguments, and train one model together (`userdp.training.distributed_run`): the first one holds
    the folder. A model sharded by `userdp.gradients.shards.shard` stays sharded.

    The origin of the model's weights is looked up by their digest in the store's ledger, and in the
    folder that ``model.name_or_path`` names. Weights that neither knows, and adapters of `peft`
    that are not new, make the claim conditional.

    Args:
        model: its parameters with ``requires_grad`` are trained; on any device.
        optimizer: over exactly those parameters.
        store: the user store, or where it is; its training split is read.
        plan: sampler, clip, noise, denominator and number of steps; or a proposal of `userdp.plan`,
            or the file of either.
        out: the run's folder; new, unless ``resume``.
        loss: per-row loss that couples no two rows and keeps nothing from pass to pass; over a
            store with a loss mask (conversations) it must take ``targets`` too, see
            `userdp.gradients.MaskedLoss`.
        micro_batch: most rows in one pass; memory, never privacy.
        resume: go on with the interrupted run in ``out``: the steps that its ledger does not hold
            yet, with fresh cohorts and noise. Restoring the weights is the caller's part; attempts
            whose update was lost stay charged.
        dry_run: do all but charge and write: print noise, time, memory and the claims that will
            result. The run that is returned has these as its ``forecast``, takes no step and saves
            nothing, so that the script goes through to its end.
        options: settings that few callers change.

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
    run = PrivateRun(
        Training(
            model=model,
            optimizer=optimizer,
            store=opened(store),
            plan=as_plan(plan),
            out=Path(out),
            loss=loss,
            micro_batch=micro_batch,
            resume=resume,
            options=options,
        ),
        users=declared_users(plan),
    )
    if not dry_run:
        return run.open()
    run.forecast = dry_run_of(run)
    print(run.forecast)
    return run


def opened(store: UserStore | str | os.PathLike[str]) -> UserStore:
    """A store, or the one in that folder; `require_covered` compares its adjacency later."""
    return store if isinstance(store, UserStore) else UserStore.open(Path(store), fixed_graph=True)
