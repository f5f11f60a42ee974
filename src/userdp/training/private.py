"""`make_private`: the private steps of a PyTorch loop that is somebody else's.

::

    with make_private(model, optimizer, store, plan, out="run") as private:
        for step in private:
            optimizer.step()
            scheduler.step()

The loop owns the model, the optimizer and the schedule; each turn finds a noisy gradient in
``.grad``. Everything the loop does with it is post-processing.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.claim.lineage import Condition, ConditionKind, Lineage, lineage_from
from userdp.data.scores import lineage_of_scores, read_scores
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.data.strategy import Strategy
from userdp.errors import FailureError, UseError
from userdp.gradients import (
    ClippedSum,
    Loss,
    Units,
    causal_lm_loss,
    get_engine,
    require_masked,
    require_uncoupled,
    trainable_parameters,
)
from userdp.gradients.counts import noisy_count
from userdp.gradients.engines import two_pass
from userdp.gradients.model_randomness import secret_randomness
from userdp.gradients.noise import Noise, source_of
from userdp.gradients.shards import is_sharded, like, reshard, sharded_parts
from userdp.ledger import RunFolder, StoreLedger
from userdp.noise import NoiseLaw
from userdp.plan import Plan, StepRecord
from userdp.plan.small_delta import plan_with_small_delta
from userdp.sampling.cohort import Sampler
from userdp.sampling.coins import secret_generator
from userdp.training.checkpoints import forget_noise, keep_noise, read_noise
from userdp.training.collate import Collator
from userdp.training.devices import machine_facts
from userdp.training.distributed import World, current_world
from userdp.training.distributed_run import (
    Dealing,
    RankZeroNoise,
    ScatteredNoise,
    SharedRun,
    shared_secret,
)
from userdp.training.microbatches import PASSES_AHEAD, sum_of_microbatches
from userdp.training.optimizers import MovementCheck, require_same_parameters, set_noise_std
from userdp.training.origin import digest_of_weights, lineage_of_text, lineage_of_weights
from userdp.training.questions import device_of, require_fit_for_steps, rule_of
from userdp.training.runs import OpenRun, open_run
from userdp.training.steps import Step, operator_facts
from userdp.training.store_facts import require_covered, store_facts
from userdp.vocabulary import require_count
from userdp.waiting import warn_of_spinning


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    store: UserStore | str | os.PathLike[str],
    plan: Plan,
    *,
    out: str | os.PathLike[str],
    loss: Loss = causal_lm_loss,
    micro_batch: int = 32,
    engine: str = "auto",
    selection: str = Strategy.RANDOM,
    scores: Path | None = None,
    resume: bool = False,
    identity: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
    base: Lineage | None = None,
    charge_again: bool = False,
    slot: str | None = None,
    allow_large_delta: bool = False,
    unsafe_seed: int | None = None,
    unsafe_noise_seed: int | None = None,
) -> PrivateRun:
    """Reserve ``plan`` in the store's ledger and open a run; iterate over it to train.

    Guarantee: everything computed from the gradients that the run hands out, weights included,
    satisfies ``plan.guarantee()``, whatever the loop does with them, as long as it reads the store
    in no other way. The exact numbers in `Step.operator` are not covered.

    Where `torch.distributed` has joined several processes, all of them call this with the same
    arguments, and train one model together (`userdp.training.distributed_run`): the first one holds
    the folder. A model sharded by `userdp.gradients.shards.shard` stays sharded.

    Args:
        model: its parameters with ``requires_grad`` are trained; on any device.
        optimizer: over exactly those parameters.
        store: the user store, or where it is; its training split is read.
        plan: sampler, clip, noise, denominator and number of steps.
        out: the run's folder; new, unless ``resume``.
        loss: per-row loss that couples no two rows and keeps nothing from pass to pass; over a
            store with a loss mask (conversations) it must take ``targets`` too, see
            `userdp.gradients.MaskedLoss`.
        micro_batch: most rows in one pass; memory, never privacy.
        engine: how gradients are clipped, see `userdp.gradients.get_engine`; time, never privacy.
        selection: which of a user's examples train, see `userdp.data.selections`; fixed once for
            ELS, anew per step for ULS where it draws. A resumed run must share it.
        scores: the file of `userdp.training.scores`, for the perplexity selections alone.
        resume: go on with the interrupted run in ``out``: the steps that its ledger does not hold
            yet, with fresh cohorts and noise. Restoring the weights is the caller's part; attempts
            whose update was lost stay charged.
        identity: digests of anything else that a resumed run must share.
        facts: public constants to note in the ledger's first line.
        train: options of ``userdp train`` to note in train.toml.
        base: what the model's weights descend from. By default that is looked up: by the weights
            themselves in the store's ledger, and in the folder that ``model.name_or_path`` names.
            Weights that neither knows make the claim conditional.
        charge_again: with ``resume``, in a folder that is not the one that was opened last (a copy,
            or one that was put back): charge the whole plan once more.
        slot: of a private selection in the store's ledger, which pays for this run; the run then
            claims nothing by itself (`userdp.sweeping.sweep`).
        allow_large_delta: begin a plan whose δ is not below 1 over its declared population, and do
            not warn of one above n^-1.1 (`userdp.plan.small_delta`); for toys, and for callers who
            know a smaller number of users. To resume needs no leave.
        unsafe_seed: FOR TESTS ONLY: fixes the cohorts, which voids the amplification.
        unsafe_noise_seed: FOR TESTS ONLY: fixes the noise and the dropout masks, which voids all
            privacy.

    Raises:
        UseError: δ is 1 over the declared population or more, the plan's adjacency is not the
            store's (`userdp.training.store_facts`), the optimizer holds other parameters, the model
            or the loss couples users, or the model draws random numbers out of reach
            (`userdp.gradients.models.require_uncoupled`), the folder is not new (or, to resume,
            something changed), or a value is out of range. Nothing has been charged then.
        FailureError: another process holds the folder, or the disk refused.
    """
    if not (resume or allow_large_delta):
        warning = plan_with_small_delta(plan)
        if warning is not None:
            warnings.warn(warning, stacklevel=2)
    reshard(model)  # an earlier evaluation, say, leaves layers gathered, under other parameters
    if device_of(model).type == "cpu":
        warn_of_spinning(torch.get_num_threads())
    require_same_parameters(model, optimizer)
    require_uncoupled(model)
    require_count("micro_batch", micro_batch)
    get_engine(engine)
    opened = (
        store if isinstance(store, UserStore) else UserStore.open(Path(store), fixed_graph=True)
    )
    require_covered(opened, plan)
    if opened.meta.loss_mask:
        require_masked(loss)
    world = current_world()
    split = opened.split(Split.TRAIN)
    strategy = _strategy(selection)
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
    unsafe = unsafe_seed is not None or unsafe_noise_seed is not None
    same = {
        "model": shape_digest(model),
        "kind of seeds": "unsafe" if unsafe else "secret",
        "selection": str(strategy) if scores is None else f"{strategy} {_digest(scores)}",
        **(identity or {}),
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
    world.broadcast_model(model)
    require_fit_for_steps(
        model,
        loss,
        plan,
        engine=engine,
        micro_batch=micro_batch,
        seq_len=opened.meta.seq_len,
        masked=opened.meta.loss_mask,
    )

    def origin() -> Lineage:
        known = lineage_of_weights(model, opened) if base is None else base
        known += lineage_of_text(opened)
        return known if scores is None else known + _lineage_of_scores(scores)

    def begin() -> OpenRun:
        return open_run(
            Path(out),
            opened,
            plan,
            identity=same,
            facts={
                "selection": str(strategy),
                "store_facts": store_facts(opened),
                **(facts or {}),
            },
            train=train,
            base=origin(),
            unsafe_seeds=unsafe,
            resume=resume,
            charge_again=charge_again,
            slot=slot,
            scores=scores,
        )

    run = SharedRun(world, RunFolder(Path(out)), begin)
    return PrivateRun(
        run,
        model=model,
        optimizer=optimizer,
        plan=plan,
        sampler=sampler,
        collator=collator,
        noise=_noise(world, model, plan.noise, unsafe_noise_seed),
        loss=loss,
        micro_batch=micro_batch,
        engine=engine,
        world=world,
        unsafe_noise_seed=unsafe_noise_seed,
        opened_with=None if resume else digest_of_weights(model),
    )


class PrivateRun:
    """The steps of a private run that remain; made by `make_private`.

    Guarantee (invariant 7): a step is in the ledger, on the disk, before its data is read, so
    whatever ends it early leaves it charged, and the crash of a step cannot be undone by drawing
    another cohort in its place for free.

    Use it as a context manager: leaving it after the last step settles with the store; leaving it
    earlier leaves the whole plan reserved, and the run can be resumed.
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
        unsafe_noise_seed: int | None = None,
        opened_with: str | None = None,
    ) -> None:
        self.plan = plan
        self._run = run
        self._model = model
        self._optimizer = optimizer
        self._sampler = sampler
        self._collator = collator
        self._cut = collator.microbatches
        self._world = world
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
        self._engine = two_pass.clipped_sum if self._sharded else get_engine(engine)
        self._unsafe_masks = (
            None if unsafe_noise_seed is None else f"{unsafe_noise_seed}/process {world.rank}"
        )
        self._moved = False
        self._opened_with = opened_with  # None of a resumed run, whose caller loads a checkpoint
        self._known = False  # whether the weights of the first step were looked at
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

    def __iter__(self) -> Iterator[Step]:
        """Each remaining step, with its noisy gradient in ``.grad``."""
        while self.remaining:
            watched = None if self._moved else MovementCheck(self._model, self._optimizer)
            yield self._step()
            if watched is not None:
                self._moved = watched.require_moved()

    def _step(self) -> Step:
        """One step: charge, draw, clip, add noise, divide by the public denominator."""
        begin = time.monotonic()
        self._require_known_weights()
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
        if self.plan.clip.form.divided:
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
        return Step(number=number, operator=facts)

    def _require_known_weights(self) -> None:
        """`UseError` where this process's first step would begin at weights of another origin.

        What those of the opening descend from is in the ledger. What came later nobody was asked
        about; and whoever resumes loads a checkpoint, which may be no other run's model.
        """
        if self._known:
            return
        self._known = True
        weights = digest_of_weights(self._model)
        if self._opened_with is not None:
            if weights != self._opened_with:
                raise UseError(
                    "the model's weights changed between make_private() and the first step: the "
                    "claim would say nothing of what they had learned before",
                    hint="load the weights first, and then call make_private()",
                )
            if self._optimizer.state:
                raise UseError(
                    "the optimizer has a state of earlier steps, which may have been taken on "
                    "anybody's text: the claim would say nothing of it",
                    hint="make a new optimizer for a new run",
                )
        elif self._run.released_elsewhere(weights):
            raise UseError(
                "these weights were released by another run over the same people: going on from "
                "them would release what that run has learned, at the price of this one",
                hint="load this run's own checkpoint, or begin a new run from that model",
            )

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

    def finish(self, weights: str | None = None) -> None:
        """Note the end of the run and settle with the store.

        Args:
            weights: the digest of the weights that were released (`userdp.claim.weights`); by
                default that of the model as it stands.

        Raises:
            UseError: planned steps remain. When to stop early may have been decided on private
                results, so a run that stops early stays charged in full: use `close`.
        """
        if self.remaining:
            raise UseError(
                f"{self.remaining} planned steps have not run: a run that stops early stays "
                "charged in full",
                hint="iterate to the end, or call close() and resume later",
            )
        if weights is None and not self._sharded:
            weights = digest_of_weights(self._model)
        self._run.finish(weights)
        if self._world.rank == 0:
            forget_noise(self.folder.checkpoints)
        self._run.close()

    def close(self) -> None:
        """Let go of the folder without settling: the plan stays reserved, the run resumable."""
        self._run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self.remaining and not self._run.closed:
            self.finish()
        self.close()


def set_gradients(model: nn.Module, value: Mapping[str, Tensor], *, denominator: float) -> None:
    """Put ``value / denominator`` into each trainable parameter's ``.grad``, in its dtype.

    Args:
        model: whose gradients are set.
        value: the noisy sum by parameter name.
        denominator: a public constant (invariant 4).
    """
    for name, parameter in trainable_parameters(model).items():
        parameter.grad = like(parameter, (value[name] / denominator).to(parameter.dtype))


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
    return lineage_from(json.loads(text), what=f"the lineage in {path}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _noise(world: World, model: nn.Module, law: NoiseLaw, unsafe_noise_seed: int | None) -> Noise:
    """The one source of noise of each coordinate."""
    if any(is_sharded(p) for p in trainable_parameters(model).values()):
        return ScatteredNoise(world, law, model, unsafe_noise_seed=unsafe_noise_seed)
    if world.size > 1:
        return RankZeroNoise(world, law, unsafe_noise_seed=unsafe_noise_seed)
    return source_of(law, unsafe_noise_seed=unsafe_noise_seed)
