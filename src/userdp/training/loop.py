"""The command line's trainer: a private run, an optimizer, and what a long run needs around it.

`train` builds the model and opens the run, and `_take_steps` takes its steps. `OperatorLog` writes
down what only the operator may see of them: operator.jsonl, and the curves of trackers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from userdp.core import files, interrupts
from userdp.core.codec import digest, encode
from userdp.core.errors import Interrupted, UseError, warn
from userdp.core.stages import Progress
from userdp.data.splits import Split
from userdp.data.user_store import UserStore
from userdp.gradients.shards import reshard, shard
from userdp.ledger import RunFolder, RunRecord, StoreLedger
from userdp.plans import Plan
from userdp.training.causal_models import enable_checkpointing, load_model
from userdp.training.checkpoints import Checkpoints
from userdp.training.checks_before_charge import dry_run_of
from userdp.training.config import (
    PlainPlan,
    PrivateOptions,
    RunOptions,
    Schedule,
    TrainConfig,
    UnsafeSeeds,
)
from userdp.training.devices import choose_device, machine_facts
from userdp.training.distributed import World
from userdp.training.lora import choose_trained
from userdp.training.model_origin import (
    base_facts,
    digests_of,
    lineage_of_model,
    made_with,
    require_made_for,
)
from userdp.training.open_run import Training, settle_finished
from userdp.training.optimizers import (
    build_average,
    build_optimizer,
    following_factor,
    learning_rate,
    set_learning_rate,
)
from userdp.training.private_run import PrivateRun
from userdp.training.step_mechanism import Step
from userdp.training.store_losses import build_loss, evaluate
from userdp.training.without_privacy import PlainRun

_SECRET, _USUAL = UnsafeSeeds(), RunOptions()
Watched = Callable[[PrivateRun, nn.Module], object]
_ANY: dict[str, Any] = {"micro_batch": 1}
"""What a resumed run may have otherwise, and its configuration is compared with."""
_AT_ONCE = "at once: updates since the last checkpoint are lost, and their steps stay charged"
_SOON = 5
"""Steps after which the mean cohort is held against the expected one."""
_CURVES = ("loss", "units", "clipped_fraction", "seconds", "learning_rate")


def train(
    store: UserStore,
    plan: Plan | PlainPlan,
    config: TrainConfig,
    *,
    out: Path,
    options: RunOptions = _USUAL,
    users: int | None = None,
    progress: Progress | None = None,
    unsafe_seeds: UnsafeSeeds = _SECRET,
    watched: Watched | None = None,
    optimizer: Callable[[nn.Module, TrainConfig], torch.optim.Optimizer] = build_optimizer,
) -> dict[str, Any] | None:
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
        out: the run's folder; new, unless it is resumed.
        options: how this call carries it out.
        users: that were declared beside the plan, if it does not say it.
        progress: shows how many steps are done.
        unsafe_seeds: FOR TESTS ONLY.
        watched: is given a private run and its model, when the run is open and before its steps.
        optimizer: builds the optimizer, of studies that compare others.

    Returns:
        What a dry run would cost and claim; None of a run that was made.

    Raises:
        UseError, FailureError: as `userdp.make_private`.
        Interrupted: Ctrl-C or SIGTERM came. The step that had been charged was finished, applied
            and written to a checkpoint, unless a second signal did not leave it the time.
    """
    folder, world = RunFolder(out), World()
    stopped = Interrupted("before anything was charged")
    if folder.begun:
        stopped = Interrupted("before the next step", resume=True)
    with interrupts.on_interrupt(stopped):
        ended = options.resume and not options.dry_run
        if ended and world.on_rank_zero(lambda: settle_finished(folder, StoreLedger(store.path))):
            return None  # all that a kill left to do

        # The model, and what the claim has to know of it.
        computes = choose_device(options.device, processes=world.size)
        model = load_model(config, store)
        # Before adapters: their initial weights follow the configuration, which has a digest too.
        digests = digests_of(model)
        facts = base_facts(model, weights=digests.whole, loaded_from=config.model)
        # Of a resumed run too: a kill may have come before the ledger had its first line.
        base = lineage_of_model(store, model, name=config.model, digests=digests)
        if isinstance(plan, Plan) and plan.made_for is not None:
            require_made_for(plan.made_for, store, made_with(config, weights=digests.whole))
        trains = config if isinstance(plan, Plan) else replace(config, train_all=True)
        model = choose_trained(model, trains)
        if config.activation_checkpointing:
            enable_checkpointing(model)
        model = model.to(computes)
        if options.sharded:
            shard(model)

        training = Training(
            model=model,
            # Adapters, the device and sharding replace tensors: the optimizer comes last.
            optimizer=optimizer(model, config),
            store=store,
            plan=plan,
            out=out,
            loss=build_loss(config, model),
            options=PrivateOptions(
                micro_batch=config.micro_batch,
                resume=options.resume,
                engine=config.engine,
                selection=config.selection,
                scores=options.scores,
                exact_log=not config.no_exact_log,
                allow_large_delta=options.allow_large_delta,
                unsafe_seeds=unsafe_seeds,
            ),
            # A run that ran out of memory may go on in smaller passes.
            identity={"model": digests.whole, "configuration": digest(replace(config, **_ANY))},
            facts={"base_model": facts},
            train={"learning": encode(config), "run": {"device": options.device}},
            base=base,
            slot=options.slot,
        )
        private = isinstance(plan, Plan)
        run = PrivateRun(training, users=users) if private else PlainRun(training, seed=config.seed)
        if options.dry_run:
            if isinstance(run, PlainRun):
                raise UseError("a run without privacy has no claim to foretell by --dry-run")
            return dry_run_of(run.described(), run.mechanism)
        with interrupts.held() as signals:
            stopped.place, stopped.resume = _AT_ONCE, True
            with run.open():
                if watched is not None and isinstance(run, PrivateRun):
                    watched(run, model)
                _take_steps(run, training, config, options, signals, progress or Progress())
    return None


def _take_steps(
    run: PrivateRun | PlainRun,
    of: Training,
    config: TrainConfig,
    options: RunOptions,
    signals: interrupts.Held,
    shown: Progress,
) -> None:
    """The steps that remain, with checkpoints, evaluations and notes between; then the release."""
    model, optimizer, plan = of.model, of.optimizer, of.plan
    folder, world, average = run.folder, World(), build_average(model, config, plan)

    # Where an interrupted run goes on.
    run_id = world.on_rank_zero(lambda: RunRecord.read(folder.path).run_id)
    checkpoints = Checkpoints(folder.checkpoints, run_id, model, optimizer, average, config)
    if isinstance(run, PlainRun):
        run.done = checkpoints.restore(most_steps=plan.steps) or 0
    else:
        run.require_checkpoint(checkpoints.restore(most_steps=run.done))

    # What the operator sees. Saving and evaluating a sharded model takes all processes; any other
    # rank 0.
    log = OperatorLog(folder, plan, writes=world.rank == 0, report_to=options.report_to)
    log.write("machine", machine_facts(next(model.parameters()).device))
    takes_part = options.sharded or world.rank == 0
    held_out = len(of.store.split(Split.HELD_OUT_USERS).counts) > 0
    evaluates = bool(takes_part and held_out and config.evaluate_every)

    def evaluate_now(step: int) -> None:
        """Note the loss on held-out users of the weights that would be released now."""
        part, batch, most = Split.HELD_OUT_USERS, config.micro_batch, config.evaluate_users
        with average.applied():
            found, _ = evaluate(model, of.store, part, loss=of.loss, batch=batch, most_users=most)
            reshard(model)
        log.write("evaluation", {"step": step, **found})

    shown.stage("train", plan.steps, unit="step")
    shown.at(run.done)
    if evaluates and not run.done:
        evaluate_now(0)
    if world.any(signals.heard) and run.remaining:
        raise Interrupted(f"before step {run.done + 1} of {plan.steps}", resume=True)

    follows = config.schedule is Schedule.FOLLOWING and isinstance(plan, Plan)
    for step in run:
        # By attempts charged: a resumed run does not repeat the rates of lost steps.
        rate = learning_rate(config, step=step.number, steps=plan.steps)
        if follows:
            rate *= following_factor(optimizer, noise_std=step.noise_std, l2_norm=step.l2_norm)
        set_learning_rate(optimizer, rate)
        optimizer.step()
        average.update()
        log.step(step, rate=rate)

        # A collective: before the next step is charged all processes agree whether there is one.
        # It is time for a checkpoint when it is on rank 0's clock.
        each = world.all_gather_object((signals.heard, checkpoints.due(step.number)))
        last = step.number == plan.steps
        stops = any(heard for heard, _ in each) and not last
        if takes_part and (last or stops or each[0][1]):
            checkpoints.save(step.number, writes=world.rank == 0)
        shown.at(step.number)
        if stops:
            raise Interrupted(f"after step {step.number} of {plan.steps}", resume=True)
        if evaluates and (last or step.number % config.evaluate_every == 0):
            evaluate_now(step.number)

    log.close()
    average.apply()
    run.save()
    signals.heard = False  # nothing is left to stop


class OperatorLog:
    """Writes operator.jsonl, and the curves of the trackers that `transformers` knows.

    Args:
        folder: of the run.
        plan: whose expected cohort is held against what is drawn, after a few steps.
        writes: only rank 0 does; with False everything here does nothing.
        report_to: integrations of `transformers` that draw curves, by name. What they write lies in
            a folder of its own (mode 0700), or where the operator sends it.
    """

    def __init__(
        self, folder: RunFolder, plan: Plan | PlainPlan, *, writes: bool, report_to: tuple[str, ...]
    ) -> None:
        self._folder = folder if writes else None
        self._expected = plan.denominator if writes and isinstance(plan, Plan) else None
        self._units = "users" if isinstance(plan, Plan) and plan.sampling.by_user else "examples"
        self._drawn: list[float] = []
        self._callbacks: list[Any] = []
        if writes and report_to:
            from transformers import TrainerControl, TrainerState, TrainingArguments
            from transformers.integrations import get_reporting_integration_callbacks

            files.operator_folder(folder.curves)
            self._state = TrainerState()
            self._told = TrainingArguments(str(folder.curves)), self._state, TrainerControl()
            self._callbacks = [kind() for kind in get_reporting_integration_callbacks(report_to)]
            for callback in self._callbacks:
                callback.on_train_begin(*self._told)

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append one line, and a point to each curve of which there is a number."""
        if self._folder is not None:
            self._folder.log({"kind": kind, **values})
        what = "eval_" if kind == "evaluation" else ""
        drawn = {f"{what}{n}": values[n] for n in _CURVES if values.get(n) is not None}
        for callback in self._callbacks if drawn else ():
            self._state.global_step = values["step"]
            callback.on_log(*self._told, logs=drawn)

    def step(self, step: Step, *, rate: float) -> None:
        """The step's exact numbers; nothing of a run that keeps none."""
        if not step.operator:
            return
        self.write("step", {"step": step.number, **step.operator, "learning_rate": rate})
        self._drawn.append(float(step.operator.get("units", 0)))
        expected = self._expected
        if expected is not None and len(self._drawn) == _SOON:
            mean = fmean(self._drawn)
            if abs(mean - expected) > max(expected / 2, 4 * math.sqrt(expected / _SOON)):
                warn(
                    f"{mean:.4g} {self._units} were drawn a step, and {expected:.4g} are expected "
                    "of the declared population: the claim holds, and the noise is made for the "
                    "declared number. For the operator alone; a population may not follow it."
                )

    def close(self) -> None:
        """Write what is pending."""
        for callback in self._callbacks:
            callback.on_train_end(*self._told)
