"""The command line's trainer: `make_private`, an optimizer, and what a long run needs around it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from userdp import files, interrupts
from userdp.codec import encode
from userdp.data.progress import NoProgress, Note, Progress
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.data.strategy import Strategy
from userdp.errors import UseError
from userdp.gradients.shards import reshard, shard
from userdp.ledger import RunFolder, StoreLedger
from userdp.plans import Plan
from userdp.plans.spent import Spent
from userdp.training.averaging import build_average
from userdp.training.base_facts import base_facts
from userdp.training.checkpoint_times import CheckpointTimes
from userdp.training.checkpoints import Position, read_checkpoint, restore, save_checkpoint
from userdp.training.config import PlainPlan, PrivateOptions, TrainConfig, UnsafeSeeds
from userdp.training.devices import AUTO, choose_device, machine_facts
from userdp.training.distributed import World, current_world
from userdp.training.lora import add_adapters
from userdp.training.losses import build_loss, evaluate
from userdp.training.models import NEW, enable_checkpointing, load_model, say_what_is_widened
from userdp.training.opened import settle_finished
from userdp.training.optimizers import build_optimizer, learning_rate, set_learning_rate
from userdp.training.origin import (
    digest_of_weights,
    lineage_of_model,
    made_with,
    of_others,
    require_made_for,
)
from userdp.training.plain import PlainRun
from userdp.training.private import open_private
from userdp.training.private_run import PrivateRun
from userdp.training.runs import TrainerNotes
from userdp.training.steps import Step
from userdp.training.store_facts import store_facts

_SECRET = UnsafeSeeds()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """What came of a training run.

    Args:
        run: its folder.
        steps: planned, all of them spent.
        seconds: of this process.
    """

    run: Path
    steps: int
    seconds: float


def train(
    store: UserStore,
    plan: Plan | PlainPlan,
    config: TrainConfig,
    *,
    out: Path,
    scores: Path | None = None,
    resume: bool = False,
    sharded: bool = False,
    device: str = AUTO,
    progress: Progress | None = None,
    tensorboard: bool = True,
    base_of_others: bool = False,
    charge_again: bool = False,
    slot: str | None = None,
    allow_large_delta: bool = False,
    unsafe_seeds: UnsafeSeeds = _SECRET,
) -> TrainResult:
    """Train a model on a store's training split and release it in ``out``.

    Guarantee: with a `Plan`, what lies in ``out/model`` and in the shareable files satisfies
    ``plan.guarantee()``. The weights released are those after the last step (or their average),
    never those that did best on held-out people. Where several processes have joined
    (`userdp.training.distributed`), all of them call this with the same arguments, and rank 0
    writes.

    Args:
        store: the users.
        plan: a private plan, or a `PlainPlan` for a run without privacy.
        config: everything that privacy does not depend on.
        out: the run's folder; new, unless ``resume``.
        scores: of the examples, for selection by perplexity; see `userdp.training.scores`.
        resume: continue an interrupted run: its remaining steps, from its last checkpoint; or only
            settle it, where a kill came when all else was done.
        sharded: each process of torchrun holds a part of the model, see
            `userdp.gradients.shards.shard`; a run may resume with or without.
        device: see `userdp.training.devices`; a run may resume on another one.
        progress: is told how many steps are done.
        tensorboard: also write operator-only curves for TensorBoard, where it is installed.
        base_of_others: nobody whose text the base model learned from is in this store: its price is
            none of theirs, and the claim says so as a condition.
        charge_again: see `PrivateOptions`.
        slot: see `userdp.training.runs.TrainerNotes`.
        allow_large_delta: see `PrivateOptions`.
        unsafe_seeds: FOR TESTS ONLY.

    Raises:
        UseError, FailureError: as `make_private`.
        Interrupted: Ctrl-C or SIGTERM came. The step that had been charged was finished, applied
            and written to a checkpoint, unless a second signal did not leave it the time.
    """
    begin, folder = time.monotonic(), RunFolder(out)
    run: PrivateRun | PlainRun | None = None

    def place() -> str:
        if not folder.begun:
            return "before anything was charged"
        if run is None:
            return "before the next step"
        return "at once: updates since the last checkpoint are lost, and their steps stay charged"

    with interrupts.told(place, resume=lambda: folder.begun):
        world = current_world()
        if resume and world.on_rank_zero(lambda: settle_finished(folder, StoreLedger(store.path))):
            # All that a kill left to do: the model is released, and the store knows it now.
            return TrainResult(run=out, steps=plan.steps, seconds=time.monotonic() - begin)
        chosen = choose_device(device, processes=world.size)
        model = load_model(config, store)
        if config.model != NEW and config.lora_rank is None and not resume and world.rank == 0:
            say_what_is_widened(config.model)
        # Before adapters: their initial weights follow the configuration, which has a digest too.
        weights = digest_of_weights(model)
        identity = {"model": weights, "configuration": config.digest}
        began_from = base_facts(model, weights=weights, loaded_from=config.model)
        # Of a resumed run too: a kill may have come before the ledger had its first line.
        base = lineage_of_model(model, config, store)
        if base_of_others:
            base = of_others(base, config.model, store)
        if isinstance(plan, Plan):
            require_made_for(plan, store, made_with(model, config))
        model = add_adapters(model, config).to(chosen)
        if config.activation_checkpointing:
            enable_checkpointing(model)
        if sharded:
            shard(model)
        # Adapters, the device and sharding all replace tensors, so the optimizer comes after them.
        optimizer = build_optimizer(model, config)
        loss = build_loss(config, model)
        said = TrainerNotes(
            identity=identity,
            facts={
                "seq_len": store.meta.seq_len,
                "store_facts": store_facts(store),
                "base_model": began_from,
            },
            train={"device": device, **encode(config)},
            base=base,
            slot=slot,
        )
        with interrupts.held() as signals:
            if isinstance(plan, PlainPlan):
                _require_plain(config, processes=world.size, scores=scores)
                run = PlainRun(
                    model,
                    optimizer,
                    store,
                    plan,
                    seed=config.seed,
                    out=out,
                    loss=loss,
                    micro_batch=config.micro_batch,
                    resume=resume,
                    notes=said,
                )
            else:
                run = open_private(
                    model,
                    optimizer,
                    store,
                    plan,
                    out=out,
                    loss=loss,
                    micro_batch=config.micro_batch,
                    resume=resume,
                    options=PrivateOptions(
                        engine=config.engine,
                        selection=config.selection,
                        scores=scores,
                        exact_log=not config.no_exact_log,
                        allow_large_delta=allow_large_delta,
                        charge_again=charge_again,
                        unsafe_seeds=unsafe_seeds,
                    ),
                    notes=said,
                )
            with run:
                _take_steps(
                    run,
                    model,
                    optimizer,
                    store,
                    config,
                    # Saving and evaluating a sharded model takes all processes; any other rank 0.
                    takes_part=sharded or world.rank == 0,
                    world=world,
                    notes=_Notes(folder, writes=world.rank == 0, curves=tensorboard),
                    progress=progress or NoProgress(),
                    note=None if slot is not None else _spent(plan, run),
                    signals=signals,
                )
                run.save()
            signals.finished()
    return TrainResult(run=out, steps=plan.steps, seconds=time.monotonic() - begin)


def _require_plain(config: TrainConfig, *, processes: int, scores: Path | None) -> None:
    """`UseError` where a run without privacy is asked for what only a private one does."""
    if processes > 1:
        raise UseError(
            "a run without privacy trains in one process: it is there to compare with",
            hint="start it without torchrun",
        )
    if config.selection is not Strategy.RANDOM or scores is not None:
        raise UseError(
            "a run without privacy trains on all examples: there is none to select",
            hint="leave --selection and --scores out",
        )


def _spent(plan: Plan | PlainPlan, run: PrivateRun | PlainRun) -> Note | None:
    """What is shown of ε beside the steps; nothing where no ε is claimed."""
    if isinstance(plan, PlainPlan) or isinstance(run, PlainRun):
        return None
    return Spent(plan).words if plan.sampling.covered and not run.unsafe else None


def _take_steps(
    run: PrivateRun | PlainRun,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    store: UserStore,
    config: TrainConfig,
    *,
    takes_part: bool,
    world: World,
    notes: _Notes,
    progress: Progress,
    note: Note | None,
    signals: interrupts.Held,
) -> None:
    """The steps that remain, with their checkpoints and evaluations; then the average, if any.

    Raises:
        Interrupted: after a step that was applied and written to a checkpoint. All processes
            agree on it before the next step is charged.
    """
    steps, average = run.plan.steps, build_average(model, config)
    checkpoint = world.on_rank_zero(
        lambda: read_checkpoint(
            run.folder.checkpoints,
            run_id=run.folder.run_id,
            most_steps=run.done if isinstance(run, PrivateRun) else None,
        )
    )
    if checkpoint is not None:
        position = restore(checkpoint, model=model, optimizer=optimizer, average=average)
        if isinstance(run, PlainRun):
            run.done = position.step
    notes.write("machine", machine_facts(next(model.parameters()).device))
    evaluated = takes_part and len(store.split(Split.HELD_OUT_USERS).counts) > 0

    def evaluate_now(step: int) -> None:
        """Note the loss on held-out users of the weights that would be released now."""
        with nullcontext() if average is None else average.applied():
            evaluation, _ = evaluate(
                model,
                store,
                Split.HELD_OUT_USERS,
                loss=build_loss(config, model),
                batch=config.micro_batch,
                most_users=config.evaluate_users,
            )
            reshard(model)
        notes.write("evaluation", {"step": step, **evaluation})
        notes.draw({"held-out users/loss": evaluation["loss"]}, step)

    progress.stage("train", steps, unit="step", note=note)
    progress.at(run.done)
    if evaluated and config.evaluate_every and not run.done:
        evaluate_now(0)
    if world.any(signals.heard) and run.remaining:
        raise signals.interrupted(f"before step {run.done + 1} of {steps}", resume=True)
    times = CheckpointTimes(steps=config.checkpoint_every, seconds=config.checkpoint_seconds)
    for step in run:
        # By attempts charged: a resumed run does not repeat the rates of steps that were lost.
        rate = learning_rate(config, step=step.number, steps=steps)
        set_learning_rate(optimizer, rate)
        optimizer.step()
        if average is not None:
            average.update()
        notes.step(step, rate=rate)
        last = step.number == steps
        # A collective: before the next step is charged all processes agree whether there is one.
        # It is time when it is on rank 0's clock.
        told = world.all_gather_object((signals.heard, times.due(step.number)))
        stops = any(heard for heard, _ in told) and not last
        if takes_part and (last or stops or told[0][1]):
            with times.writing():
                save_checkpoint(
                    run.folder.checkpoints,
                    Position(step=step.number, run_id=run.folder.run_id),
                    model=model,
                    optimizer=optimizer,
                    average=average,
                    writes=world.rank == 0,
                )
        progress.at(step.number)
        if stops:
            raise signals.interrupted(f"after step {step.number} of {steps}", resume=True)
        if (
            evaluated
            and config.evaluate_every
            and (last or step.number % config.evaluate_every == 0)
        ):
            evaluate_now(step.number)
    notes.close()
    if average is not None:
        average.apply()


class _Notes:
    """What only the operator may see: operator.jsonl, and curves where TensorBoard is installed.

    Args:
        folder: of the run.
        writes: only rank 0 does; with False everything here does nothing.
        curves: also write curves for TensorBoard (mode 0700).
    """

    def __init__(self, folder: RunFolder, *, writes: bool, curves: bool) -> None:
        self._folder = folder if writes else None
        self._curves: Any = None
        if writes and curves:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return
            files.operator_folder(folder.tensorboard)
            self._curves = SummaryWriter(str(folder.tensorboard))
            files.close_folder(folder.tensorboard)

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append one line."""
        if self._folder is not None:
            self._folder.log({"kind": kind, **values})

    def step(self, step: Step, *, rate: float) -> None:
        """The step's exact numbers; nothing of a run that keeps none."""
        if not step.operator:
            return
        self.write("step", {"step": step.number, **step.operator, "learning_rate": rate})
        names = ("loss", "units", "clipped_fraction", "seconds")
        numbers = {f"train/{name}": step.operator.get(name) for name in names}
        self.draw({"learning rate": rate, **numbers}, step.number)

    def draw(self, numbers: Mapping[str, float | None], step: int) -> None:
        """Add a point to each curve of which there is a number."""
        for name, number in numbers.items():
            if self._curves is not None and number is not None:
                self._curves.add_scalar(name, float(number), step)

    def close(self) -> None:
        """Write what is pending."""
        if self._curves is not None:
            self._curves.close()
