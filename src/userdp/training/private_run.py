"""`make_private` and `PrivateRun`: private steps for a PyTorch loop of your own.

::

    with make_private(model, optimizer, store, plan, out="run") as private:
        for step in private:
            optimizer.step()
            scheduler.step()
        private.save()

The loop owns the model, the optimizer and the schedule. Each turn finds a noisy gradient in
``.grad``, and everything that the loop computes from it is post-processing. `PrivateRun.save`
releases the model.

Each step is charged in the ledger, taken by the `StepMechanism` (draw, clip, add noise), and handed
to the loop with its noisy gradient in ``.grad``. Before and between steps the run makes sure that
its claim stays true: the model is the one whose origin is known, nothing else trains it, and the
optimizer moves it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from userdp.claims.claim_sentences import dry_run_in_words
from userdp.claims.lineage import Lineage
from userdp.claims.released_files import bound_files
from userdp.core import interrupts
from userdp.core.codec import canonical
from userdp.core.environment import warn_of_spinning
from userdp.core.errors import FailureError, Interrupted, UseError, warn
from userdp.data.user_store import UserStore
from userdp.gradients import Loss, causal_lm_loss, require_masked, require_uncoupled
from userdp.gradients.precision import require_no_autocast
from userdp.gradients.shards import reshard
from userdp.ledger import RunFolder, StoreLedger
from userdp.ledger.run_ledger import append_saved
from userdp.plans import Plan
from userdp.plans.proposal import Proposal, as_plan, declared_users
from userdp.plans.small_delta import plan_with_small_delta
from userdp.training.causal_models import require_finite
from userdp.training.checks_before_charge import dry_run_of, require_covered, require_fit_for_steps
from userdp.training.config import PrivateOptions
from userdp.training.devices import require_computable
from userdp.training.lora import require_known_adapters
from userdp.training.model_origin import (
    base_facts,
    digests_of,
    lineage_of_model,
    lineage_of_scores,
    lineage_of_text,
    noted_place,
)
from userdp.training.open_run import OpenRun, Training, open_run
from userdp.training.optimizer_guards import (
    HeldModel,
    KnownWeights,
    movement_since,
    require_free,
    require_same_parameters,
    require_unstepped,
    warning_of_half_precision,
)
from userdp.training.released_model import (
    began_with,
    release,
    require_saveable,
    save_model,
    unsharded,
)
from userdp.training.step_mechanism import NoExactLog, Step, StepMechanism, device_of

_USUAL, _RESUMED = PrivateOptions(), "PrivateOptions(resume=True)"


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    store: UserStore | str | os.PathLike[str],
    plan: Plan | Proposal | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    loss: Loss = causal_lm_loss,
    options: PrivateOptions = _USUAL,
) -> PrivateRun:
    """Reserve ``plan`` in the store's ledger and open a run; iterate over it to train.

    Guarantee: everything computed from the gradients that the run hands out, weights included,
    satisfies ``plan.guarantee()``, whatever the loop does with them, as long as it reads the store
    in no other way. The exact numbers of ``exact_log=True`` are not covered, and the claim says so.

    Where `torch.distributed` has joined several processes, all of them call this with the same
    arguments, and train one model together (`userdp.training.distributed`): the first one holds
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
        out: the run's folder; new, unless the run is resumed.
        loss: per-row loss that couples no two rows and keeps nothing from pass to pass; over a
            store with a loss mask (conversations) it must take ``targets`` too, see
            `userdp.gradients.MaskedLoss`.
        options: the size of a pass, whether the run is resumed or only foretold, and choices that
            few callers make.

    Raises:
        UseError: δ is 1 over the declared population or more, the plan's adjacency is not the
            store's (`userdp.training.checks_before_charge`), the optimizer holds other parameters,
            the model or the loss couples users, or the model draws random numbers out of reach
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
            options=options,
        ),
        users=declared_users(plan),
    )
    if not options.dry_run:
        return run.open()
    run.forecast = dry_run_of(run.described(), run.mechanism)
    print(dry_run_in_words(run.forecast))
    return run


def opened(store: UserStore | str | os.PathLike[str]) -> UserStore:
    """A store, or the one in that folder; `require_covered` compares its adjacency later."""
    return store if isinstance(store, UserStore) else UserStore.open(Path(store), fixed_graph=True)


class PrivateRun:
    """The steps of a private run that remain; made by `userdp.make_private`.

    Guarantee (invariant 7): a step is in the ledger, on the disk, before its data is read. Whatever
    ends the step early leaves it charged: no other cohort is drawn in its place for free.

    Guarantee (invariant 13): the run releases only what its own steps have learned, and what its
    first weights had learned before.

    Use it as a context manager, and call `save` after the last step. Leaving the block after the
    last step without `save` settles with the store all the same. Leaving it earlier keeps the whole
    plan reserved, and the run can be resumed.

    In the block Ctrl-C and SIGTERM wait until the loop has applied the step that was charged. Then,
    before the next step is charged, iterating raises `userdp.Interrupted`, on all processes. A loop
    that wants to go on later saves its weights and its optimizer where it catches that. A second
    signal ends the process at once, as usual.

    The constructor checks everything that can refuse the run, the model on made-up rows included,
    and neither charges nor writes anything. `open` charges and writes.

    Args:
        of: the training, by a plan with privacy.
        users: the number of users that was declared beside the plan, if the plan does not hold it.
    """

    def __fspath__(self) -> str:
        return str(self.folder.path)

    def __init__(self, of: Training, *, users: int | None = None) -> None:
        assert isinstance(of.plan, Plan)
        model, optimizer, store, plan = of.model, of.optimizer, of.store, of.plan
        self._of, self.plan, self.folder = of, plan, RunFolder(of.out)

        # Does the model train, and does nothing else train it?
        require_computable(model)
        require_known_adapters(model)
        reshard(model)  # an earlier evaluation, say, leaves layers gathered, under other parameters
        if device_of(model).type == "cpu":
            warn_of_spinning(torch.get_num_threads())
        require_same_parameters(model, optimizer)
        require_free(model)
        require_uncoupled(model)
        if not of.options.resume:  # a run that diverged may go on, to be settled
            require_finite(noted_place(model), model)
            require_saveable(model)
            warn(warning_of_half_precision(model))
            require_unstepped(optimizer)

        # Is the plan one for this store?
        require_covered(store, plan)
        if not (of.options.resume or of.options.allow_large_delta):
            budget = StoreLedger(store.path).history().budget
            total = budget.filter.delta if budget else 0.0
            warn(plan_with_small_delta(plan, users=users, total_delta=total))
        if store.meta.loss_mask:
            require_masked(of.loss)

        # Do all processes agree, and can the model take the plan's steps?
        self.mechanism = mechanism = StepMechanism(of, plan)
        self._world = mechanism.world
        self._identity = {**mechanism.identity, **of.identity}
        mechanism.require_same_processes(
            {**self._identity, "store": store.meta.content_sha256, "plan": plan.digest}
        )
        self._world.broadcast_model(model)
        require_fit_for_steps(of, mechanism)

        self._weights = KnownWeights(model, resumes=of.options.resume)
        if of.train is None and self._weights.frozen is not None:
            self._identity["frozen weights"] = self._weights.frozen  # `userdp train` compares it
        self.forecast: dict[str, Any] | None = None  # of a dry run, which takes no step
        self.done = 0
        self._moved, self._finished, self._closed = False, False, True
        self._settled: str | None = None  # the digest of the weights, once the run is finished
        self._run: OpenRun  # only rank 0 holds it
        # Of the block; None outside of one, and where the caller holds them for more than this.
        self._signals: interrupts.Held | None = None
        self._holding = ExitStack()

    def open(self) -> Self:
        """Reserve the plan in the store's ledger, and begin or resume the folder."""

        def begin() -> tuple[int, float | None, bool, str | None]:
            run = self._run = open_run(self.described())
            if run.logged:
                if run.steered and not self._of.log_only:
                    run.store.look("make_private(exact_log=True)")
                over = self.mechanism.collator.left_out
                self.folder.log({"kind": "selection", "examples_over_the_cap": over})
            ledger = run.ledger
            return ledger.attempts, ledger.last_clip_norm, run.logged, run.kept.began.get("weights")

        self.done, clip_norm, self._logged, began = self._world.on_rank_zero(begin)
        if not self.done and self._of.base is None and not self.mechanism.sharded:
            # The ledger knows the origin of these weights only, so the first step starts at them.
            self._weights.first = self._weights.first or began
        self._closed = False
        self._held = HeldModel(self._of.model)
        weakref.finalize(self, self._held.close)  # a run may be dropped without being closed
        if self.plan.clip.adaptation is not None and clip_norm is not None:
            self.mechanism.clip_at(clip_norm)  # the norm after the last step that was charged
        return self

    def described(self) -> Training:
        """The training as it is written down: with its base's lineage and its public facts."""
        of, first = self._of, self._weights.first
        base = of.base or lineage_of_model(of.store, of.model, digests=self._weights.opened)
        base += lineage_of_text(of.store)
        if of.options.scores is not None:
            base += lineage_of_scores(of.options.scores)
        facts = {
            "selection": of.options.selection,
            "base_model": base_facts(of.model, weights=first),
            **of.facts,
        }
        began = {"weights": first, **began_with(of.model, self._weights.opened)}
        return replace(of, identity=self._identity, facts=facts, base=base, began=began)

    @property
    def remaining(self) -> int:
        """Steps that may still be attempted: ``done`` of the plan's are charged already."""
        return 0 if self.forecast is not None else self.plan.steps - self.done

    def __len__(self) -> int:
        return self.remaining

    @property
    def lineage(self) -> Lineage:
        """What the trained model descends from, this run included; only on rank 0.

        Of a dry run nothing: it trains none.
        """
        return self._run.lineage if self.forecast is None else Lineage()

    def __iter__(self) -> Iterator[Step]:
        """Each remaining step, with its noisy gradient in ``.grad``.

        Raises:
            Interrupted: see the class; every step that was handed out is applied.
        """
        while self.remaining:
            signals = self._signals
            if signals is not None and self._world.any(signals.heard):
                place = f"after step {self.done}" if self.done else "before step 1"
                signals.heard = False
                raise Interrupted(f"{place} of {self.plan.steps}", resume=_RESUMED)
            moved = None if self._moved else movement_since(self._of.model, self._of.optimizer)
            with self._held.own_passes():
                step = self._step()
            yield step
            if moved is not None:
                self._moved = moved()

    def _step(self) -> Step:
        """One step: charged first, and then taken."""
        self._weights.require_known(self._of.optimizer, self._released_elsewhere)
        require_no_autocast(self.mechanism.device)
        self._charge()
        step = self.mechanism.take(self.done)
        return step if self._logged else replace(step, operator=NoExactLog())

    def _charge(self) -> None:
        """Charge one step for all processes; none goes on before rank 0 has (invariant 7).

        Raises:
            UseError: the processes are not about to take the same step.
            FailureError: as `userdp.ledger.RunLedger.attempt`.
        """
        step = self.mechanism.record()
        self._world.require_same({"next step": canonical(step)})
        self.done = self._world.on_rank_zero(lambda: self._run.ledger.attempt(step))

    def _released_elsewhere(self, digests: Collection[str]) -> bool:
        return self._world.on_rank_zero(lambda: self._run.released_elsewhere(digests))

    def save(self, *, tokenizer: Any = None, chat_template: str | None = None) -> Path:
        """Release the model as it stands: write it to the run's folder, and settle with the store.

        A model of `transformers` becomes RUN/model, with the store's tokenizer, in the layout that
        ``from_pretrained`` reads. A model with adapters of `peft` becomes RUN/adapter, and
        RUN/model with the adapters merged in; where no merged model computes what the adapters do,
        RUN/adapter alone, with a warning. Of any other module RUN/model holds the weights. What
        the weights descend from stands in ``userdp.json``. The model itself
        stays as it is. Where several processes train, all of them call this, and the first writes.

        The ledger binds every file that this writes; `userdp export` leaves others behind. After
        the run has settled the same weights are written (again), and no others; a line binds them.

        Args:
            tokenizer: one of `transformers`, whose files are written in place of the store's.
            chat_template: Jinja text that is written beside the tokenizer.

        Returns:
            RUN/model, or RUN/adapter where the adapters are released alone.

        Raises:
            UseError: planned steps remain, the run was closed before it settled, or the weights
                are not those that it settled with.
            FailureError: the disk refused. The run is not settled then, and this may be repeated.
        """
        if self.forecast is not None:
            return self.folder.released
        self._require_complete()
        if self._closed and self._settled is None:  # nor is a sharded model's digest known
            raise UseError(
                f"the run at {self.folder.path} was closed before its weights were known",
                hint="call save() within its block; one that has not settled may be resumed",
            )
        model = unsharded(self._of.model) if self.mechanism.sharded else self._of.model

        def write() -> str:
            lineage = self._run.lineage_to_write()
            how = partial(save_model, tokenizer=self._of.store.tokenizer_path, lineage=lineage)
            own = partial(how, own_tokenizer=tokenizer, template=chat_template)
            weights = release(model, self.folder, own, settled=self._settled)
            if self._finished:
                append_saved(self.folder, bound_files(self.folder))
            return weights

        weights = self._world.on_rank_zero(write)
        # The model is written before the run is finished: a run that is killed in between can be
        # resumed, and resuming releases the same weights from the last checkpoint.
        if not self._finished:
            self.finish(weights)
        return self.folder.released

    def finish(self, weights: str | None = None) -> None:
        """End the run in its ledger and settle with the store, for a model that is saved elsewhere.

        Args:
            weights: the digest of the weights that were released (`userdp.claims.weights`); by
                default that of the model as it stands.

        Raises:
            UseError: planned steps remain. Private results may have decided when to stop, so a
                run that stops early stays charged in full: use `close`.
        """
        if self.forecast is not None:
            return
        self._require_complete()
        if weights is None and not self.mechanism.sharded:
            weights = digests_of(self._of.model).whole
        self._world.on_rank_zero(lambda: self._run.finish(weights))
        self._finished, self._settled = True, weights
        self.close()

    def _require_complete(self) -> None:
        if self.remaining:
            raise UseError(
                f"{self.remaining} planned steps have not run, and all of them are charged",
                hint="iterate to the end, or call close() and resume later",
            )
        if self._finished:
            return
        self._weights.require_known(self._of.optimizer, self._released_elsewhere)
        self._weights.require_frozen()

    def require_checkpoint(self, restored: object) -> None:
        """`FailureError` where every step is charged and nothing that they taught is left.

        Args:
            restored: the checkpoint that the model was restored from; None if there was none.
        """
        if restored is None and not self.remaining:
            raise FailureError(
                "every planned step was charged, and no checkpoint is left of what was learned",
                hint="train again in another folder, with a plan and a budget of its own",
            )

    def share_model(self) -> None:
        """Let other runs of this process train the model too: the silos of a federation, whose
        weights before each round are the federation's, with a claim of their own.
        """
        self._held.share()

    def close(self) -> None:
        """Let go of the folder without settling: the plan stays reserved, the run resumable."""
        if self._closed:
            return
        self._closed = True
        self._held.close()
        if self._world.rank == 0:
            self._run.close()

    def __enter__(self) -> Self:
        if not interrupts.are_held():
            self._signals = self._holding.enter_context(interrupts.held())
        return self

    def __exit__(self, *error: object) -> None:
        with self._holding:  # a signal that is still held back arrives after all of this
            try:
                if error[0] is None and not self.remaining and not self._closed:
                    self.finish()
            finally:  # after an error the run is resumed, which needs its folder
                self.close()
