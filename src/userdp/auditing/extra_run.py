"""One more run of a plan, on a copy of the store with canaries, watched at every step."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from userdp.auditing.canaries import Repetition, copy_with, make_canaries, scratch
from userdp.auditing.guesses import CanaryBound, canary_bound, white_box_scores
from userdp.auditing.observer import Directions, clipped_gradients, watch
from userdp.auditing.steps import StepAudit, audit_steps
from userdp.gradients import Units, causal_lm_loss
from userdp.plans import Plan
from userdp.training.averaging import build_average
from userdp.training.config import PrivateOptions
from userdp.training.devices import choose_device
from userdp.training.losses import build_loss
from userdp.training.models import load_model, model_to_train
from userdp.training.optimizers import build_optimizer, learning_rate, set_learning_rate
from userdp.training.private import make_private

_MOST_BYTES = 1 << 28  # of memory for the canaries' directions


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtraRun:
    """What one watched run showed. Operator-only.

    Args:
        bound: of the canaries.
        steps: the white-box checks.
        canaries: how many were made up.
        included: how many of them were in.
        seconds: of the extra run, copy and scores included.
        false_alarm: at most the probability that a right run's claim is contradicted by any of
            this: a union bound over the step checks, the bound that the steps prove, and the
            canaries'.
    """

    bound: CanaryBound
    steps: StepAudit
    canaries: int
    included: int
    seconds: float
    false_alarm: float

    @property
    def epsilon_lower(self) -> float:
        """The greater of the two bounds."""
        return max(self.bound.epsilon_lower, self.steps.epsilon_lower)


def extra_run(
    of: Repetition, plan: Plan, *, canaries: int = 128, confidence: float = 0.95
) -> ExtraRun:
    """Train once more by ``plan`` with canaries among the users, and judge what was seen.

    The run is a real one (`make_private`: ledger, sampler, engine, noise), on a copy of the store,
    which is removed at the end with the run's model. It is not charged to the store: nothing of it
    is released, and what this returns is operator-only.

    Args:
        of: the audited run.
        plan: of ``of``.
        canaries: how many are made up.
        confidence: of the canaries' bound.

    Raises:
        UseError: the store is too small for so many canaries, or training refuses.

    Source: Steinke et al. 2023, Algorithm 1, with users in place of examples.
    """
    begin, config = time.monotonic(), of.config
    made = make_canaries(of.store, canaries)
    units = made.units()
    with scratch(of.place) as work:
        copy = copy_with(of.store, made, work / "store", items=plan.sampling.items)
        model = model_to_train(load_model(config, copy), config).to(choose_device(of.device))
        optimizer, average = build_optimizer(model, config), build_average(model, config)
        before = _losses(model, units)
        of.progress.stage("audit", plan.steps, unit="step")
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
                selection=config.selection,
                allow_large_delta=True,  # the audited run's own affair
            ),
        ) as run:
            gradients = clipped_gradients(run, units)
            directions = Directions(gradients, count=canaries, most_bytes=_MOST_BYTES)
            seen = watch(run, directions)
            for step in run:
                rate = learning_rate(config, step=step.number, steps=plan.steps)
                set_learning_rate(optimizer, rate)
                optimizer.step()
                if average is not None:
                    average.update()
                of.progress.at(step.number)
        if average is not None:
            average.apply()
        scores = {
            "white box": white_box_scores(np.stack(seen.answers), directions.gram(), plan),
            "black box": before - _losses(model, units),
        }
    delta, worst = plan.budget.target_delta, float(directions.norms.max())
    steps = audit_steps(seen, plan, worst_move=worst / plan.clip.l2_norm)
    return ExtraRun(
        bound=canary_bound(scores, made.included, delta=delta, confidence=confidence),
        steps=steps,
        canaries=canaries,
        included=int(made.included.sum()),
        seconds=time.monotonic() - begin,
        false_alarm=min(1.0, steps.false_alarm + (1 - confidence)),
    )


@torch.no_grad()
def _losses(model: nn.Module, units: Units) -> NDArray[np.float64]:
    """float64 (canaries,): each canary's loss; the model in evaluation mode."""
    device, was_training = next(model.parameters()).device, model.training
    model.eval()
    losses = []
    for begin in range(0, len(units), 32):
        batch = units.select(begin, min(begin + 32, len(units))).to(device)
        losses.append(causal_lm_loss(model, batch.input_ids, batch.lengths))
    model.train(was_training)
    return np.asarray(torch.cat(losses).double().cpu().numpy())
