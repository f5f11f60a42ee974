"""The command line's trainer: `make_private`, an optimizer, and what a long run needs around it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from userdp.codec import encode
from userdp.data.progress import NoProgress, Progress
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.data.strategy import Strategy
from userdp.errors import UseError
from userdp.gradients.shards import reshard, shard, whole
from userdp.ledger import RunFolder
from userdp.plan import Plan
from userdp.training.averaging import WeightAverage, build_average
from userdp.training.checkpoints import Position, read_checkpoint, restore, save_checkpoint
from userdp.training.config import PlainPlan, TrainConfig
from userdp.training.devices import require_device
from userdp.training.distributed import current_world
from userdp.training.evaluation import evaluate
from userdp.training.lora import add_adapters, merged, save_adapter
from userdp.training.losses import build_loss
from userdp.training.machine import machine_facts
from userdp.training.models import (
    enable_checkpointing,
    load_model,
    save_model,
    weights_digest,
)
from userdp.training.optimizers import build_optimizer, set_learning_rate
from userdp.training.plain import PlainRun, make_plain
from userdp.training.private import PrivateRun, make_private
from userdp.training.schedules import learning_rate
from userdp.training.steps import Step
from userdp.training.store_facts import store_facts
from userdp.training.tracking import Tracker, open_tracker


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
    device: str = "cpu",
    progress: Progress | None = None,
    tensorboard: bool = True,
    trial_of: str | None = None,
    allow_large_delta: bool = False,
    unsafe_seed: int | None = None,
    unsafe_noise_seed: int | None = None,
) -> TrainResult:
    """Train a model on a store's training split and release it in ``out``.

    Guarantee: with a `Plan`, what lies in ``out/model`` and in the shareable files satisfies
    ``plan.guarantee()``. The weights released are those after the last step (or their average),
    never the best on held-out people. Where several processes have joined
    (`userdp.training.distributed`), all call this alike, and the first one writes.

    Args:
        store: the users.
        plan: a private plan, or a `PlainPlan` for a run without privacy.
        config: everything that privacy does not depend on.
        out: the run's folder; new, unless ``resume``.
        scores: of the examples, for selection by perplexity; see `userdp.training.scores`.
        resume: go on with an interrupted run: its remaining steps, from its last checkpoint.
        sharded: take the model apart over the processes of torchrun, see
            `userdp.gradients.shards.shard`; a run may go on with or without.
        device: see `userdp.training.devices`; a run may go on on another one.
        progress: is told how many steps are done.
        tensorboard: also write operator-only curves for TensorBoard, where it is installed.
        trial_of: see `make_private`.
        allow_large_delta: see `make_private`.
        unsafe_seed: FOR TESTS ONLY, see `make_private`.
        unsafe_noise_seed: FOR TESTS ONLY, see `make_private`.

    Raises:
        UseError, FailureError: as `make_private`.
    """
    begin = time.monotonic()
    world = current_world()
    place = require_device(device, processes=world.size)
    progress = progress or NoProgress()
    model = load_model(config, store)
    identity = {"model": weights_digest(model), "configuration": config.digest}
    model = add_adapters(model, config).to(place)
    if config.activation_checkpointing:
        enable_checkpointing(model)
    if sharded:
        shard(model)
    takes_part = world.leads or sharded
    optimizer = build_optimizer(model, config)
    average = build_average(model, config)
    with _open(
        model,
        optimizer,
        store,
        plan,
        config,
        out=out,
        scores=scores,
        resume=resume,
        identity=identity,
        trial_of=trial_of,
        allow_large_delta=allow_large_delta,
        unsafe_seed=unsafe_seed,
        unsafe_noise_seed=unsafe_noise_seed,
    ) as run:
        found = world.tell(read_checkpoint(run.folder.checkpoints) if world.leads else None)
        restored = (
            restore(found, model=model, optimizer=optimizer, average=average) if found else None
        )
        if restored and isinstance(run, PlainRun):
            run.done = restored.step
        run.folder.log({"kind": "machine", **machine_facts(next(model.parameters()).device)})
        tracker = open_tracker(run.folder.tensorboard, wanted=tensorboard and world.leads)
        progress.stage("train", plan.steps)
        progress.at(run.done)
        if takes_part and config.evaluate_every and not run.done:
            _evaluate(model, average, store, config, run.folder, tracker, step=0)
        for step in run:
            rate = learning_rate(config, step=step.number, steps=plan.steps)
            set_learning_rate(optimizer, rate)
            optimizer.step()
            if average is not None:
                average.update()
            _note(run.folder, tracker, step, rate=rate)
            last = step.number == plan.steps
            if takes_part and (last or step.number % config.checkpoint_every == 0):
                save_checkpoint(
                    run.folder.checkpoints,
                    Position(step=step.number),
                    model=model,
                    optimizer=optimizer,
                    average=average,
                    writes=world.leads,
                )
            due = config.evaluate_every and (last or step.number % config.evaluate_every == 0)
            if due and takes_part:
                _evaluate(model, average, store, config, run.folder, tracker, step=step.number)
            progress.at(step.number)
        tracker.close()
        if average is not None:
            average.apply()
        if sharded:
            model = _whole_model(model, config, store)
        if world.leads:
            _release(model, store, run.folder, lora=config.lora_rank is not None)
        run.finish()
    return TrainResult(run=out, steps=plan.steps, seconds=time.monotonic() - begin)


def _open(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    store: UserStore,
    plan: Plan | PlainPlan,
    config: TrainConfig,
    *,
    out: Path,
    scores: Path | None,
    resume: bool,
    identity: Mapping[str, str],
    trial_of: str | None,
    allow_large_delta: bool,
    unsafe_seed: int | None,
    unsafe_noise_seed: int | None,
) -> PrivateRun | PlainRun:
    public: dict[str, Any] = {
        "seq_len": store.meta.seq_len,
        "store_facts": store_facts(store, base_model=config.model),
    }
    if isinstance(plan, PlainPlan):
        if current_world().size > 1:
            raise UseError(
                "a run without privacy trains in one process: it is there to compare with",
                hint="start it without torchrun",
            )
        if config.selection is not Strategy.RANDOM or scores is not None:
            raise UseError(
                "a run without privacy trains on all examples: there is none to select",
                hint="leave --selection and --scores out",
            )
        return make_plain(
            model,
            optimizer,
            store,
            plan,
            out=out,
            seed=config.seed,
            loss=build_loss(config, model),
            micro_batch=config.micro_batch,
            resume=resume,
            identity=identity,
            public=public,
            train=encode(config),
        )
    return make_private(
        model,
        optimizer,
        store,
        plan,
        out=out,
        loss=build_loss(config, model),
        micro_batch=config.micro_batch,
        engine=config.engine,
        selection=config.selection,
        scores=scores,
        resume=resume,
        identity=identity,
        public=public,
        train=encode(config),
        trial_of=trial_of,
        allow_large_delta=allow_large_delta,
        unsafe_seed=unsafe_seed,
        unsafe_noise_seed=unsafe_noise_seed,
    )


def _note(folder: RunFolder, tracker: Tracker, step: Step, *, rate: float) -> None:
    """The step's exact numbers, for the operator alone."""
    folder.log({"kind": "step", "step": step.number, **step.operator, "learning_rate": rate})
    tracker.scalar("learning rate", rate, step.number)
    for name in ("loss", "units", "clipped_fraction", "seconds"):
        value = step.operator.get(name)
        if value is not None:
            tracker.scalar(f"train/{name}", float(value), step.number)


def _evaluate(
    model: nn.Module,
    average: WeightAverage | None,
    store: UserStore,
    config: TrainConfig,
    folder: RunFolder,
    tracker: Tracker,
    *,
    step: int,
) -> None:
    """Held-out loss of the weights that would be released now, for the operator alone."""
    if not len(store.split(Split.HELD_OUT_USERS).counts):
        return

    def measure() -> None:
        found = evaluate(
            model,
            store,
            Split.HELD_OUT_USERS,
            loss=build_loss(config, model),
            batch=config.micro_batch,
            most_users=config.evaluate_users,
        )
        reshard(model)
        folder.log({"kind": "evaluation", "step": step, **found.to_dict()})
        tracker.scalar("held-out users/loss", found.loss, step)

    if average is None:
        measure()
    else:
        with average.applied():
            measure()


def _whole_model(model: nn.Module, config: TrainConfig, store: UserStore) -> nn.Module:
    """A sharded model's weights in one that is not, for the leader; a collective."""
    weights = {name: whole(tensor) for name, tensor in model.state_dict().items()}
    if not current_world().leads:
        return model
    plain = add_adapters(load_model(config, store), config)
    plain.load_state_dict(weights)
    return plain


def _release(
    model: nn.Module,
    store: UserStore,
    folder: RunFolder,
    *,
    lora: bool,
) -> None:
    """Write the released weights: shareable."""
    if lora:
        save_adapter(model, folder.adapter)
        model = merged(model)
    save_model(model, folder.model, tokenizer=store.tokenizer_path)
