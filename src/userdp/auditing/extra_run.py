"""One more run of a plan, on a copy of the store with canaries, watched at every step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from userdp.auditing.canaries import copy_with, make_canaries
from userdp.auditing.copies import scratch
from userdp.auditing.guesses import CanaryBound, canary_bound
from userdp.auditing.observer import Directions, clipped_gradients, watch
from userdp.auditing.scores import white_box_scores
from userdp.auditing.steps import StepAudit, audit_steps
from userdp.data.progress import NoProgress, Progress
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.data.strategy import Strategy
from userdp.gradients import Units, causal_lm_loss, trainable_parameters
from userdp.plans import Plan
from userdp.training.averaging import build_average
from userdp.training.config import PrivateOptions, TrainConfig
from userdp.training.devices import AUTO, choose_device
from userdp.training.losses import build_loss
from userdp.training.models import load_model
from userdp.training.optimizers import build_optimizer, learning_rate, set_learning_rate
from userdp.training.private import make_private
from userdp.training.private_run import PrivateRun
from userdp.training.run_models import model_to_train

Sabotage = Callable[[PrivateRun], None]
"""FOR TESTS: breaks a run that has not begun, below what the observer sees."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtraRun:
    """What one watched run showed. Operator-only.

    Args:
        bound: of the canaries.
        steps: the white-box checks.
        canaries: how many; ``included`` of them in, ``natural`` of them of natural text.
        included: how many were in.
        natural: how many are text canaries.
        users_left_out: training users who made room for them.
        gradients: per-unit gradients computed, all in all.
        planned_gradients: what the plan's own run computes, in expectation.
        energy: the part of the canaries' gradients that the white-box score reads.
        seconds: of the extra run, copy and scores included.
        false_alarm: at most the probability that a right run's claim is contradicted by any of
            this: a union bound over the step checks, the bound that the steps prove, and the
            canaries'.
    """

    bound: CanaryBound
    steps: StepAudit
    canaries: int
    included: int
    natural: int
    users_left_out: int
    gradients: int
    planned_gradients: float
    energy: float
    seconds: float
    false_alarm: float


def extra_run(
    store: UserStore,
    plan: Plan,
    config: TrainConfig,
    *,
    place: Path,
    canaries: int = 128,
    confidence: float = 0.95,
    most_bytes: int = 1 << 28,
    device: str = AUTO,
    progress: Progress | None = None,
    sabotage: Sabotage | None = None,
    unsafe_seed: int | None = None,
) -> ExtraRun:
    """Train once more by ``plan`` with canaries among the users, and judge what was seen.

    The run is a real one (`make_private`: ledger, sampler, engine, noise), on a copy of the store
    in ``place``, which is removed at the end with the run's model. It is not charged to ``store``:
    nothing of it is released, and what this returns is operator-only.

    Args:
        store: whose people trained.
        plan: the run's.
        config: the run's; selections by perplexity are replaced by ``random``, since the scores are
            another store's.
        place: a folder for the operator alone, in which the run has one of its own for a while.
        canaries: how many are made up.
        confidence: of the canaries' bound.
        most_bytes: memory for the canaries' directions.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: is told how many steps are done.
        sabotage: FOR TESTS.
        unsafe_seed: FOR TESTS: of coins and canaries (never of the run's sampler or noise).

    Raises:
        UseError: the store is too small for so many canaries, or training refuses.

    Source: Steinke et al. 2023, Algorithm 1, with users in place of examples.
    """
    begin, computes = time.monotonic(), choose_device(device)
    shown = progress or NoProgress()
    made = make_canaries(store, plan, count=canaries, unsafe_seed=unsafe_seed)
    with scratch(place) as work:
        copy, left_out = copy_with(store, made, work / "store", plan, unsafe_seed=unsafe_seed)
        model = model_to_train(load_model(config, copy), config).to(computes)
        optimizer, average = build_optimizer(model, config), build_average(model, config)
        units = made.units()
        before = _losses(model, units)
        shown.stage("audit", plan.steps, unit="step")
        with make_private(
            model,
            optimizer,
            copy,
            plan,
            out=work / "run",
            loss=build_loss(config, model),
            micro_batch=config.micro_batch,
            options=PrivateOptions(
                engine=config.engine,
                selection=Strategy.RANDOM if config.selection.scored else config.selection,
                allow_large_delta=True,  # the audited run's own affair
            ),
        ) as run:
            if sabotage is not None:
                sabotage(run)
            directions = Directions(
                clipped_gradients(run, units), count=canaries, most_bytes=most_bytes
            )
            worst_move = float(directions.norms.max()) / plan.clip.l2_norm
            seen = watch(run, directions)
            for step in run:
                rate = learning_rate(config, step=step.number, steps=plan.steps)
                set_learning_rate(optimizer, rate)
                optimizer.step()
                if average is not None:
                    average.update()
                shown.at(step.number)
        if average is not None:
            average.apply()
        ratios, sums = white_box_scores(np.stack(seen.answers), directions.gram(), plan)
        learned = _no_score_is_lowest(before - _losses(model, units))
        ratios = _no_score_is_lowest(ratios)
    natural, drawn = made.natural, sum(len(cohort) for cohort in seen.cohorts)
    bound = canary_bound(
        {
            "white box": ratios,
            "white box, gradient canaries": np.where(natural, np.nan, ratios),
            "black box": learned,
        },
        made.included,
        sums={
            "white box": np.where(natural, np.nan, sums),
            "black box": np.where(natural, np.nan, learned),
        },
        delta=plan.budget.target_delta,
        confidence=confidence,
    )
    total = plan.sampling.total_units(store.split(Split.TRAIN).counts)
    steps = audit_steps(seen, plan, worst_move=worst_move)
    return ExtraRun(
        bound=bound,
        steps=steps,
        canaries=canaries,
        included=int(made.included.sum()),
        natural=int(natural.sum()),
        users_left_out=left_out,
        gradients=drawn + canaries + 8 * len(seen.moves),  # of a look: four units, then three
        planned_gradients=plan.steps * plan.sampling.chance(total) * total,
        energy=directions.energy,
        seconds=time.monotonic() - begin,
        false_alarm=min(1.0, steps.false_alarm + (1 - confidence)),
    )


def _no_score_is_lowest(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace a score that is not a number (the run diverged) by the lowest one: guessed "out".

    The bound needs a number of guesses that was fixed before the run, so no canary is left out.
    """
    return np.nan_to_num(scores, nan=np.finfo(np.float64).min)


@torch.no_grad()
def _losses(model: nn.Module, units: Units) -> NDArray[np.float64]:
    """float64 (canaries,): each canary's loss; the model in evaluation mode."""
    device = next(iter(trainable_parameters(model).values())).device
    was_training = model.training
    model.eval()
    try:
        parts = [
            causal_lm_loss(model, part.input_ids, part.lengths).double().cpu()
            for part in (
                units.select(begin, min(begin + 32, len(units))).to(device)
                for begin in range(0, len(units), 32)
            )
        ]
    finally:
        model.train(was_training)
    losses: NDArray[np.float64] = torch.cat(parts).numpy()
    return losses
