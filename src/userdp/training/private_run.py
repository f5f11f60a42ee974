"""The steps of a private run: charge, draw, clip, add noise, hand out; see `PrivateRun`."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from userdp import interrupts
from userdp.claims.lineage import Lineage
from userdp.errors import FailureError, UseError
from userdp.gradients import (
    ClippedSum,
    Loss,
    Units,
    trainable_parameters,
)
from userdp.gradients.model_randomness import secret_randomness
from userdp.gradients.noise import Noise, noisy_count
from userdp.gradients.precision import require_no_autocast
from userdp.gradients.shards import is_sharded, sharded_parts
from userdp.ledger import RunFolder
from userdp.plans import Plan, StepRecord
from userdp.sampling.cohort import Sampler
from userdp.training.checkpoints import keep_noise, read_noise
from userdp.training.collate import Collator
from userdp.training.distributed import World
from userdp.training.distributed_run import (
    Dealing,
    SharedRun,
)
from userdp.training.known_weights import HeldModel, KnownWeights
from userdp.training.microbatches import PASSES_AHEAD, sum_of_microbatches
from userdp.training.optimizers import MovementCheck, set_noise_std
from userdp.training.origin import digest_of_weights
from userdp.training.questions import device_of, engine_of, rule_of
from userdp.training.releasing import release, unsharded
from userdp.training.steps import NoExactLog, Step, operator_facts, set_gradients
from userdp.training.stray_gradients import StrayGradients


class PrivateRun:
    """The steps of a private run that remain; made by `make_private`.

    Guarantee (invariant 7): a step is in the ledger, on the disk, before its data is read, so
    whatever ends it early leaves it charged, and the crash of a step cannot be undone by drawing
    another cohort in its place for free.

    Use it as a context manager, and call `save` after the last step. Leaving the block after the
    last step without it settles with the store all the same; leaving it earlier leaves the whole
    plan reserved, and the run can be resumed.

    In the block Ctrl-C and SIGTERM wait until the loop has applied the step that was charged: then,
    before the next one is charged, iterating raises `userdp.Interrupted`, on all processes. A loop
    that wants to go on later saves its weights and its optimizer where it catches that. A second
    signal ends the process at once, as usual.

    While the run is open, no backward pass but its own may reach the parameters that it trains
    (`userdp.training.stray_gradients`).
    """

    def __init__(
        self,
        run: SharedRun,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        sampler: Sampler,
        collator: Collator,
        noise: Noise,
        loss: Loss,
        micro_batch: int,
        engine: str,
        world: World,
        tokenizer: Path,
        known_weights: KnownWeights,
        unsafe_noise_seed: int | None = None,
    ) -> None:
        self.plan = plan
        self._run = run
        self._model = model
        self._optimizer = optimizer
        self._sampler = sampler
        self._collator = collator
        self._cut = collator.microbatches
        self._world = world
        self._tokenizer = tokenizer
        self._finished = False
        self._settled: str | None = None  # the digest of the weights, once the run is finished
        self._dealing = Dealing(world, collator.tokens)
        self._sharded = bool(sharded_parts(model))
        self._scattered = any(map(is_sharded, trainable_parameters(model).values()))
        self._noise = noise
        self._rule = rule_of(plan)
        self._l2_clip_norm = plan.clip.l2_norm
        if plan.clip.adaptation is not None and run.last_clip_norm is not None:
            self._l2_clip_norm = run.last_clip_norm
        self._noise_std = plan.noise_std_at(self._l2_clip_norm)
        self._count_noise_std = plan.count_noise_std
        self._loss = loss
        self._micro_batch = micro_batch
        self._parts = world.size
        self._engine = engine_of(model, engine)
        self._unsafe_masks = (
            None if unsafe_noise_seed is None else f"{unsafe_noise_seed}/process {world.rank}"
        )
        self._moved = False
        self._known_weights = known_weights
        self._stray = StrayGradients(model, optimizer)
        self._held = HeldModel(model)
        # Of the block; None outside of one, and where the caller holds them for more than this.
        self._signals: interrupts.Held | None = None
        self._holding = ExitStack()
        for watch in (self._stray, self._held):  # a loop may forget its run without closing it
            weakref.finalize(self, watch.close)
        if plan.noise.memory and self.done:
            try:
                self._world.on_rank_zero(self._go_on_with_noise)
            except BaseException:
                self.close()
                raise

    @property
    def folder(self) -> RunFolder:
        """Where the run lies."""
        return self._run.folder

    @property
    def done(self) -> int:
        """Attempts charged so far, those of earlier processes included."""
        return self._run.attempts

    @property
    def remaining(self) -> int:
        """Steps that may still be attempted."""
        return self._run.remaining

    @property
    def unsafe(self) -> bool:
        """Whether the noise comes from a known seed, so that no privacy may be claimed."""
        return self._noise.unsafe

    def __iter__(self) -> Iterator[Step]:
        """Each remaining step, with its noisy gradient in ``.grad``.

        Raises:
            Interrupted: see the class; every step that was handed out is applied.
        """
        while self.remaining:
            self._stop_if_asked()
            watched = None if self._moved else MovementCheck(self._model, self._optimizer)
            with self._stray.own_passes():
                step = self._step()
            yield step
            if watched is not None:
                self._moved = watched.require_moved()

    def _stop_if_asked(self) -> None:
        """`Interrupted` on all processes, if one of them heard a signal that this run answers."""
        signals = self._signals
        if signals is not None and self._world.any(signals.heard):
            place = f"after step {self.done}" if self.done else "before step 1"
            raise signals.interrupted(f"{place} of {self.plan.steps}", resume=True)

    def _step(self) -> Step:
        """One step: charge, draw, clip, add noise, divide by the public denominator."""
        begin = time.monotonic()
        self._known_weights.require_known()
        require_no_autocast(device_of(self._model))
        number = self._run.attempt(
            StepRecord(
                sampling=self._sampler.sampling,
                l2_clip_norm=self._l2_clip_norm,
                noise_std=self._noise_std,
                noise_sampler=self._noise.sampler_on(device_of(self._model)),
                count_noise_std=self._count_noise_std,
            )
        )
        cohort = self._sampler.draw()
        mine = self._dealing.mine(cohort)
        # Processes that hold one model together clip in one go, in step.
        parts = [mine] if self._sharded else self._cut(mine, rows=PASSES_AHEAD * self._micro_batch)
        self._parts = len(parts) * self._world.size
        # Dropout masks are nobody's business, and this process's alone; the caller's generators
        # are afterwards as if the step had not been.
        key = None if self._unsafe_masks is None else f"{self._unsafe_masks}/step {number}"
        with secret_randomness(key):
            summed, rows = sum_of_microbatches(parts, self._collator, self._clip)
        summed, rows = self._dealing.together(summed, rows, scattered=self._scattered)
        self._require_sensitivity(summed)
        self._noise.add_(summed.value, self._noise_std)
        if self.plan.noise.memory:
            self._world.on_rank_zero(self._keep_noise)
        denominator = self.plan.denominator
        if self.plan.clip.divided:
            denominator *= self._l2_clip_norm
        set_gradients(self._model, summed.value, denominator=denominator)
        set_noise_std(self._optimizer, self._noise_std / denominator)
        facts = operator_facts(
            summed,
            rows=rows,
            l2_clip_norm=self._l2_clip_norm,
            seconds=time.monotonic() - begin,
        )
        self._adapt(summed)
        return Step(number=number, operator=facts if self._run.logged else NoExactLog())

    def _clip(self, units: Units) -> ClippedSum:
        """The clipped sum of some units, by the engine of the run."""
        return self._engine(
            self._model,
            self._loss,
            units.to(device_of(self._model)),
            l2_clip_norm=self._l2_clip_norm,
            item_clip_norm=self.plan.clip.item_norm,
            micro_batch=self._micro_batch,
            rule=self._rule,
            parts=self._parts,
        )

    def _keep_noise(self) -> None:
        """Write down what later noise needs, before this step's noise is handed out.

        Were it written later, a crash could leave a state of before this step, and the noise that
        this step was released with would be used again for other data (invariant 5).
        """
        keep_noise(self.folder.checkpoints, step=self.done, state=self._noise.state())

    def _go_on_with_noise(self) -> None:
        """Restore the noise of the last step that may have been released.

        A step that was charged and ended before `_keep_noise` handed out nothing, so the state may
        be one step older than the ledger, and noise goes on from there. An older one was put back.
        """
        state = read_noise(self.folder.checkpoints, least_step=self.done - 1)
        self._noise.restore(state)
        self._keep_noise()  # as of this attempt, so that the next one may end early too

    def _adapt(self, summed: ClippedSum) -> None:
        """Release the count of unclipped units, and set the next step's clip norm by it."""
        if self.plan.clip.adaptation is None:
            return
        assert self._count_noise_std is not None
        count = noisy_count(
            summed.norms,
            l2_clip_norm=self._l2_clip_norm,
            count_noise_std=self._count_noise_std,
            noise=self._noise,
        )
        self._l2_clip_norm = self.plan.clip.adaptation.next_clip_norm(
            l2_clip_norm=self._l2_clip_norm,
            noisy_count=count,
            denominator=self.plan.denominator,
            start=self.plan.clip.l2_norm,
        )
        self._noise_std = self.plan.noise_std_at(self._l2_clip_norm)

    def _require_sensitivity(self, summed: ClippedSum) -> None:
        if not summed.sensitivity <= self._l2_clip_norm:
            raise FailureError(
                f"the gradient engine states a sensitivity of {summed.sensitivity}, the step's "
                f"l2_clip_norm is {self._l2_clip_norm}: the noise would be too small, so "
                "training stopped before this update"
            )

    @property
    def lineage(self) -> Lineage:
        """What the model that this run trains descends from, the run itself included."""
        return self._run.lineage

    def save(self, *, tokenizer: Any = None, chat_template: str | None = None) -> Path:
        """Release the model as it stands: write it to the run's folder, and settle with the store.

        A model of `transformers` becomes RUN/model, with the store's tokenizer, in the layout that
        ``from_pretrained`` reads. A model with adapters of `peft` becomes RUN/adapter, and
        RUN/model with the adapters merged in; where no merged model computes what the adapters do,
        RUN/adapter alone, with a warning. Of any other module RUN/model holds the weights. What
        the weights descend from stands in ``userdp.json`` and in their metadata. The model itself
        stays as it is. Where several processes train, all of them call this, and the first writes.

        The ledger binds every file that this writes; whatever is put beside them later is bound by
        nobody, and `userdp export` leaves it behind. After the run has settled, by leaving its
        block or by an earlier call, the same weights are written (again), and no others.

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
        self._require_complete()
        if self._run.closed and not self._finished:
            raise UseError(
                f"the run at {self.folder.path} was closed before it settled: nothing is released "
                "of it",
                hint="open it again with make_private(…, resume=True), load its last weights, and "
                "call save()",
            )
        if self._finished and self._settled is None:
            raise UseError(
                "the run settled without knowing its weights, since the model is sharded: no "
                "weights can be told to be those",
                hint="call private.save() within the block of the run",
            )
        model = unsharded(self._model) if self._sharded else self._model
        weights = self._world.on_rank_zero(
            lambda: release(
                model,
                self.folder,
                tokenizer=self._tokenizer,
                lineage=self.lineage,
                settled=self._settled,
                own_tokenizer=tokenizer,
                template=chat_template,
            )
        )
        # The model is written before the run is finished: a run that is killed in between can be
        # resumed, and resuming releases the same weights from the last checkpoint.
        if not self._finished:
            self.finish(weights)
        return self.folder.released

    def finish(self, weights: str | None = None) -> None:
        """Note the end of the run and settle with the store, for a model that is saved elsewhere.

        Args:
            weights: the digest of the weights that were released (`userdp.claims.weights`); by
                default that of the model as it stands.

        Raises:
            UseError: planned steps remain. When to stop early may have been decided on private
                results, so a run that stops early stays charged in full: use `close`.
        """
        self._require_complete()
        if weights is None and not self._sharded:
            weights = digest_of_weights(self._model)
        self._run.finish(weights)
        self._finished, self._settled = True, weights
        if self._world.rank == 0:
            self.folder.forget_noise()
        self.close()

    def _require_complete(self) -> None:
        if self.remaining:
            raise UseError(
                f"{self.remaining} planned steps have not run: a run that stops early stays "
                "charged in full",
                hint="iterate to the end, or call close() and resume later",
            )
        if not self._finished:
            self._known_weights.require_known()
            self._known_weights.require_frozen()

    def share_model(self) -> None:
        """Let other runs of this process train the model too, from now on.

        For whoever puts weights into it before each step, of which another claim tells all that
        they have learned: the silos of a federation (`userdp.federated`).
        """
        self._held.close()

    def close(self) -> None:
        """Let go of the folder without settling: the plan stays reserved, the run resumable."""
        self._stray.close()
        self._held.close()
        self._run.close()

    def __enter__(self) -> Self:
        if not interrupts.are_held():
            self._signals = self._holding.enter_context(interrupts.held())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._holding:  # a signal that nobody answered comes when all of this is done
            try:
                if kind is None and not self.remaining and not self._run.closed:
                    self.finish()
            finally:  # whoever gets an error of the end resumes the run, which needs its folder
                self.close()
