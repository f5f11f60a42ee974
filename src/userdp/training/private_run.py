"""The steps of a private run: charge, draw, clip, add noise, hand out; see `PrivateRun`."""

from __future__ import annotations

import hashlib
import os
import platform
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from userdp import interrupts
from userdp.claims.lineage import Lineage
from userdp.codec import encode
from userdp.data.store import UserStore
from userdp.errors import FailureError, UseError, warn
from userdp.gradients import (
    ClippedSum,
    Loss,
    Units,
    require_masked,
    require_uncoupled,
    trainable_parameters,
)
from userdp.gradients.model_randomness import secret_randomness
from userdp.gradients.noise import noisy_count
from userdp.gradients.precision import require_no_autocast
from userdp.gradients.shards import is_sharded, reshard, sharded_parts
from userdp.ledger import RunFolder, StoreLedger
from userdp.plans import Plan, StepRecord
from userdp.plans.small_delta import plan_with_small_delta
from userdp.sampling.coins import secret_generator
from userdp.training.checkpoints import keep_noise, read_noise
from userdp.training.collate import PASSES_AHEAD, Collator, gathered, rows_for
from userdp.training.config import PrivateOptions
from userdp.training.devices import machine_facts
from userdp.training.distributed import World, current_world
from userdp.training.distributed_run import Dealing, shared_secret, source_for
from userdp.training.models import require_finite
from userdp.training.opened import OpenRun
from userdp.training.opening import TrainerNotes, open_run
from userdp.training.optimizers import (
    MovementCheck,
    require_same_parameters,
    require_unstepped,
    rounded_away,
    set_noise_std,
)
from userdp.training.origin import (
    base_facts,
    digest_of_adapters,
    digest_of_frozen,
    digest_of_weights,
    lineage_of_scores,
    lineage_of_text,
    lineage_of_weights,
)
from userdp.training.questions import device_of, engine_of, require_fit_for_steps, rule_of
from userdp.training.recipe import own_loop
from userdp.training.releasing import release, unsharded
from userdp.training.steps import NoExactLog, Step, operator_facts, set_gradients
from userdp.training.store_facts import require_covered, store_facts
from userdp.training.stray_gradients import HeldModel, StrayGradients, require_free
from userdp.vocabulary import require_count
from userdp.waiting import warn_of_spinning


class PrivateRun:
    """The steps of a private run that remain; made by `userdp.make_private`.

    Guarantee (invariant 7): a step is in the ledger, on the disk, before its data is read, so
    whatever ends it early leaves it charged, and the crash of a step cannot be undone by drawing
    another cohort in its place for free.

    Guarantee (invariant 13): it releases only what its own steps have learned and what the model
    that it was opened with descends from.

    Use it as a context manager, and call `save` after the last step. Leaving the block after the
    last step without it settles with the store all the same; leaving it earlier leaves the whole
    plan reserved, and the run can be resumed.

    In the block Ctrl-C and SIGTERM wait until the loop has applied the step that was charged: then,
    before the next one is charged, iterating raises `userdp.Interrupted`, on all processes. A loop
    that wants to go on later saves its weights and its optimizer where it catches that. A second
    signal ends the process at once, as usual.

    While the run is open, no backward pass but its own may reach the parameters that it trains
    (`userdp.training.stray_gradients`).

    To make one asks all that can refuse a run, of the model on made-up rows, and neither charges
    nor writes anything: `open` does. The arguments are those of `userdp.make_private`.

    Args:
        notes: of a trainer of this package.
        users: that were declared beside the plan, if it does not say it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        store: UserStore | str | os.PathLike[str],
        plan: Plan,
        *,
        out: str | os.PathLike[str],
        loss: Loss,
        micro_batch: int,
        resume: bool,
        options: PrivateOptions,
        notes: TrainerNotes,
        users: int | None = None,
    ) -> None:
        self.plan = plan
        self.folder = RunFolder(Path(out))
        self._model, self._optimizer, self._loss = model, optimizer, loss
        self._resumes, self._options, self._notes = resume, options, notes
        reshard(model)  # an earlier evaluation, say, leaves layers gathered, under other parameters
        self._device = device_of(model)
        if self._device.type == "cpu":
            warn_of_spinning(torch.get_num_threads())
        require_same_parameters(model, optimizer)
        require_free(model)
        require_uncoupled(model)
        if not resume:  # a run that diverged may go on, to be settled
            require_finite(str(getattr(model, "name_or_path", "")), model)
            warn(rounded_away(optimizer))
            require_unstepped(optimizer)
        require_count("micro_batch", micro_batch)
        if not isinstance(store, UserStore):
            store = UserStore.open(Path(store), fixed_graph=True)
        self._store = store
        require_covered(store, self.plan)
        if not (resume or options.allow_large_delta):
            total = StoreLedger(store.path).history().total_delta
            warn(plan_with_small_delta(self.plan, users=users, total_delta=total))
        if store.meta.loss_mask:
            require_masked(loss)
        self._world = current_world()
        self._draw_from(store)
        self._same = {
            "model": shape_digest(model),
            "kind of seeds": "unsafe" if options.unsafe_seeds else "secret",
            "selection": self._collator.told,
            **notes.identity,
        }
        self._require_same_processes()
        self._world.broadcast_model(model)
        self._micro_batch = rows_for(self.plan, micro_batch, processes=self._world.size)
        require_fit_for_steps(
            model,
            loss,
            self.plan,
            engine=options.engine,
            micro_batch=self._micro_batch,
            seq_len=store.meta.seq_len,
            masked=store.meta.loss_mask,
        )
        self._engine, self._rule = engine_of(model, options.engine), rule_of(self.plan)
        self._parts = self._world.size  # the engine adds up so many sums, of all processes
        self._sharded = bool(sharded_parts(model))
        self._scattered = any(map(is_sharded, trainable_parameters(model).values()))
        # What the run begins with; a process holds only a part of a sharded model.
        self._trained = frozenset(trainable_parameters(model))
        self._frozen = None if self._sharded else digest_of_frozen(model, self._trained)
        if notes.train is None and self._frozen is not None:  # `userdp train` compares the base
            self._same["frozen weights"] = self._frozen
        self._opened_with = None if resume else digest_of_weights(model)
        self._l2_clip_norm = self.plan.clip.l2_norm
        self._count_noise_std = self.plan.count_noise_std
        self._known = False  # whether the weights of the first step were looked at
        self._moved = False
        self.forecast: object = None  # of a dry run, which takes no step
        self.done = 0
        self._finished, self._closed = False, True
        self._settled: str | None = None  # the digest of the weights, once the run is finished
        self._run: OpenRun | None = None  # only rank 0 holds it
        # Of the block; None outside of one, and where the caller holds them for more than this.
        self._signals: interrupts.Held | None = None
        self._holding = ExitStack()

    def _draw_from(self, store: UserStore) -> None:
        """What draws cohorts, gathers their rows and draws noise, by the plan alone."""
        world, seeds = self._world, self._options.unsafe_seeds
        self._collator = Collator(store, self.plan, self._options)
        try:
            self.plan.sampling.require_store(self._collator.counts)
        except UseError:  # whether it is refused is an exact fact about people's text
            world.on_rank_zero(lambda: StoreLedger(store.path).look("train"))
            raise
        secret = shared_secret(world) if seeds.draws is None else seeds.draws
        self._sampler = self.plan.sampling.sampler(self._collator.counts, secret_generator(secret))
        self._dealing = Dealing(world, self._collator.tokens)
        self._noise = source_for(world, self._model, self.plan.noise, unsafe_noise_seed=seeds.noise)

    def _require_same_processes(self) -> None:
        """`UseError` unless all processes are about to do the same, each on a device of its own."""
        machine = machine_facts(self._device)
        self._world.require_same(
            {
                **self._same,
                "store": self._store.meta.content_sha256,
                "plan": self.plan.digest,
                # A unit's gradient must not depend on who computes it, to the last bit.
                "kind of processor": f"{machine['device']}, torch {machine['torch']}",
                "number of threads": str(machine["threads"]),
            }
        )
        require_own_devices(self._world, self._device)

    def open(self) -> Self:
        """Reserve the plan in the store's ledger, and begin or resume the folder."""

        def begin() -> tuple[int, float | None, bool, str | None]:
            run = self._run = open_run(
                self.folder.path,
                self._store,
                self.plan,
                options=self._options,
                notes=self._all_notes(),
                resume=self._resumes,
            )
            if run.logged:
                if run.steered and not self._notes.log_only:
                    run.store.look("make_private(exact_log=True)")
                over = self._collator.left_out
                self.folder.log({"kind": "selection", "examples_over_the_cap": over})
            attempts, clip_norm = run.ledger.attempts, run.ledger.last_clip_norm
            return attempts, clip_norm, run.logged, run.began_with

        self.done, last_clip_norm, self._logged, began = self._world.on_rank_zero(begin)
        if not self.done and self._notes.base is None and not self._sharded:
            # What the weights of the opening descend from is in the ledger: no step has any others.
            self._opened_with = self._opened_with or began
        self._closed = False
        if self.plan.clip.adaptation is not None and last_clip_norm is not None:
            self._l2_clip_norm = last_clip_norm
        self._noise_std = self.plan.noise_std_at(self._l2_clip_norm)
        self._stray, self._held = StrayGradients(self._model), HeldModel(self._model)
        for watch in (self._stray, self._held):  # a loop may forget its run without closing it
            weakref.finalize(self, watch.close)
        if self.plan.noise.memory and self.done:
            try:
                self._world.on_rank_zero(self._go_on_with_noise)
            except BaseException:
                self.close()
                raise
        return self

    def _all_notes(self) -> TrainerNotes:
        """What the trainer says of the run, and what is known here."""
        model, notes, options = self._model, self._notes, self._options
        base = lineage_of_weights(model, self._store) if notes.base is None else notes.base
        base += lineage_of_text(self._store)
        if options.scores is not None:
            base += lineage_of_scores(options.scores)
        loop = None
        if self._opened_with is not None and notes.train is None:  # else train.toml says it
            loop = encode(own_loop(model, self._optimizer, self._loss, options, self._micro_batch))
        facts = {
            "selection": str(options.selection),
            "store_facts": store_facts(self._store),
            "base_model": base_facts(model, weights=self._opened_with),
            **notes.facts,
        }
        return replace(
            notes, identity=self._same, facts=facts, base=base, loop=loop, weights=self._opened_with
        )

    @property
    def remaining(self) -> int:
        """Steps that may still be attempted; ``done`` were charged, by earlier processes too."""
        return 0 if self.forecast is not None else self.plan.steps - self.done

    def __len__(self) -> int:
        return self.remaining

    @property
    def unsafe(self) -> bool:
        """Whether the noise comes from a known seed, so that no privacy may be claimed."""
        return self._noise.unsafe

    @property
    def lineage(self) -> Lineage:
        """What the model that this run trains descends from, itself included; only on rank 0."""
        assert self._run is not None
        return self._run.lineage

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
        self._require_known_weights()
        require_no_autocast(self._device)
        self._charge(
            StepRecord(
                sampling=self._sampler.sampling,
                l2_clip_norm=self._l2_clip_norm,
                noise_std=self._noise_std,
                noise_sampler=self._noise.sampler_on(self._device),
                count_noise_std=self._count_noise_std,
            )
        )
        mine = self._dealing.mine(self._sampler.draw())
        # Processes that hold one model together clip in one go, in step.
        most = None if self._sharded else PASSES_AHEAD * self._micro_batch
        parts = self._collator.microbatches(mine, rows=most)
        self._parts = len(parts) * self._world.size
        summed: ClippedSum | None = None
        rows = 0
        # Dropout masks are nobody's business, and this process's alone; the caller's generators
        # are afterwards as if the step had not been.
        seed = self._options.unsafe_seeds.noise
        key = None if seed is None else f"{seed}/process {self._world.rank}/step {self.done}"
        with secret_randomness(key):
            for units in gathered(parts, self._collator):
                rows += len(units.lengths)
                if summed is None:
                    summed = self._clip(units)
                else:
                    summed.append(self._clip(units))
        assert summed is not None
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
        return Step(number=self.done, operator=facts if self._logged else NoExactLog())

    def _charge(self, step: StepRecord) -> None:
        """Charge one step for all processes; none goes on before rank 0 has (invariant 7).

        Raises:
            FailureError: as `userdp.ledger.RunLedger.attempt`, or the processes are not about to
                take the same step.
        """
        steps = self._world.all_gather_object(step)

        def charge() -> int:
            for rank, other in enumerate(steps):
                if other != step:
                    raise FailureError(
                        f"ledger and sampler disagree: process {rank} is about to do {other}, "
                        f"process 0 {step}; training stopped before this update"
                    )
            assert self._run is not None
            return self._run.ledger.attempt(step)

        self.done = self._world.on_rank_zero(charge)

    def _require_known_weights(self) -> None:
        """`UseError` where this process's first step would begin at weights of another origin.

        What those of the opening descend from is in the ledger. What came later nobody was asked
        about; and whoever resumes loads a checkpoint, which may be no other run's model.
        """
        if self._known:
            return
        weights = digest_of_weights(self._model)
        if self._opened_with is not None:
            if weights != self._opened_with and self._resumes:
                raise UseError(
                    "these are not the weights that the run was begun with, and it has taken no "
                    "step: its claim says what those descend from",
                    hint="load the weights that it was begun with, or begin a new run",
                )
            if weights != self._opened_with:
                raise UseError(
                    "the model's weights changed between make_private() and the first step: the "
                    "claim would say nothing of what they had learned before",
                    hint="load the weights first, and then call make_private()",
                )
            require_unstepped(self._optimizer)
        elif self._world.on_rank_zero(lambda: self._released_elsewhere(weights)):
            raise UseError(
                "these weights were released by another run over the same people: going on from "
                "them would release what that run has learned, at the price of this one",
                hint="load this run's own checkpoint, or begin a new run from that model",
            )
        self._known = True  # not before: a loop that catches the error must not get by with it

    def _released_elsewhere(self, weights: str) -> bool:
        run, adapters = self._run, digest_of_adapters(self._model)
        assert run is not None
        return any(run.released_elsewhere(one) for one in (weights, adapters) if one is not None)

    def _clip(self, units: Units) -> ClippedSum:
        """The clipped sum of some units, by the engine of the run."""
        return self._engine(
            self._model,
            self._loss,
            units.to(self._device),
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
        if self.forecast is not None:
            return self.folder.released
        self._require_complete()
        if self._closed and not self._finished:
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
                tokenizer=self._store.tokenizer_path,
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
        if self.forecast is not None:
            return
        self._require_complete()
        if weights is None and not self._sharded:
            weights = digest_of_weights(self._model)

        def end() -> None:
            assert self._run is not None
            self._run.finish(weights)

        self._world.on_rank_zero(end)
        self._finished, self._settled = True, weights
        self.close()

    def _require_complete(self) -> None:
        if self.remaining:
            raise UseError(
                f"{self.remaining} planned steps have not run: a run that stops early stays "
                "charged in full",
                hint="iterate to the end, or call close() and resume later",
            )
        if self._finished:
            return
        self._require_known_weights()
        if self._frozen not in (None, digest_of_frozen(self._model, self._trained)):
            raise UseError(
                "weights or buffers that this run does not train have changed since it was opened: "
                "the claim would say nothing of what they have learned",
                hint="put them back, or train them by the run's own steps",
            )

    def share_model(self) -> None:
        """Let other runs of this process train the model too, from now on.

        For whoever puts weights into it before each step, of which another claim tells all that
        they have learned: the silos of a federation (`userdp.federated`).
        """
        self._held.close()

    def close(self) -> None:
        """Let go of the folder without settling: the plan stays reserved, the run resumable."""
        if self._closed:
            return
        self._closed = True
        self._stray.close()
        self._held.close()
        if self._run is not None:
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
                if kind is None and not self.remaining and not self._closed:
                    self.finish()
            finally:  # whoever gets an error of the end resumes the run, which needs its folder
                self.close()


def require_own_devices(world: World, device: torch.device) -> None:
    """`UseError` if two processes compute on one accelerator: NCCL would wait for ever."""
    places = world.all_gather_object(f"{device} of {platform.node()}")
    shared = [place for place in places if places.count(place) > 1]
    if shared and device.type != "cpu":
        raise UseError(
            f"{len(shared)} processes compute on {shared[0]}: each needs a device of its own",
            hint="move the model to the device of LOCAL_RANK in each process",
        )


def shape_digest(model: nn.Module) -> str:
    """SHA-256 of the trainable parameters' names, shapes and dtypes."""
    text = "\n".join(
        f"{name} {tuple(p.shape)} {p.dtype}" for name, p in trainable_parameters(model).items()
    )
    return hashlib.sha256(text.encode()).hexdigest()
