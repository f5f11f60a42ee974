"""Invariant 7 under Ctrl-C: the step that was charged is finished, applied and in a checkpoint."""

import os
import signal
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import userdp
from tests.plans import uls_plan
from tests.training.test_crash import released_step
from tests.training.toy import CONFIG, attempts, sgd, take, weights
from userdp.claims import claim
from userdp.core.errors import Interrupted
from userdp.core.interrupts import are_held
from userdp.core.stages import NoProgress
from userdp.training import loop
from userdp.training.checkpoints import Checkpoints
from userdp.training.loop import train
from userdp.training.optimizers import WeightAverage

PLAN = uls_plan(steps=6)
RARELY = replace(CONFIG, checkpoint_every=1000, checkpoint_seconds=1e6)


class SignalIn(NoProgress):
    """Sends a signal in the middle of a step: when the gradient of ``step`` is computed."""

    def __init__(self, monkeypatch, step, number=signal.SIGINT):
        self._rate, self._step, self._number = loop.learning_rate, step, number
        monkeypatch.setattr(loop, "learning_rate", self._send)

    def _send(self, config, *, step, steps):
        if step == self._step:
            os.kill(os.getpid(), self._number)
        return self._rate(config, step=step, steps=steps)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_invariant_7_the_charged_step_is_in_a_checkpoint_and_resume_goes_on(
    store, tmp_path, monkeypatch, number
):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        SignalIn(patch, 3, number)
        with pytest.raises(Interrupted, match="interrupted after step 3 of 6; go on") as caught:
            train(store, PLAN, RARELY, out=run)
    assert caught.value.resume
    assert released_step(run) == attempts(run) == 3
    assert not are_held()
    train(store, PLAN, RARELY, out=run, resume=True)
    assert attempts(run) == 6
    assert claim(run).guarantee == PLAN.guarantee() == claim(store.path).guarantee


def test_invariant_7_twin_an_interrupt_that_does_not_wait_loses_the_step(
    store, tmp_path, monkeypatch
):
    """The same signal without the block that holds it back: charged, computed, and thrown away."""
    monkeypatch.setattr(loop.interrupts, "_handled", lambda *arguments: nullcontext())
    SignalIn(monkeypatch, 3)
    with pytest.raises(Interrupted, match="at once"):
        train(store, PLAN, RARELY, out=tmp_path / "run")
    assert attempts(tmp_path / "run") == 3
    assert released_step(tmp_path / "run") < 3


def test_a_loop_of_ones_own_hears_it_between_two_steps_and_saves(begin, tmp_path):
    with begin(PLAN) as private:
        model = private._of.model
        try:
            for step in private:
                if step.number == 2:
                    os.kill(os.getpid(), signal.SIGINT)
                before = weights(model)
                private._of.optimizer.step()
        except userdp.Interrupted as interrupt:
            place, kept = interrupt.place, weights(model)
    assert place == "after step 2 of 6"
    assert not torch.equal(kept, before)
    assert attempts(tmp_path / "run") == 2
    assert not are_held()
    with begin(PLAN, model=model, resume=True) as private:
        take(private)
    assert attempts(tmp_path / "run") == 6


def test_checkpoints_come_by_steps_or_by_the_clock(tmp_path):
    now, model = 0.0, torch.nn.Linear(2, 2)
    average = WeightAverage(model, None)
    times = Checkpoints(tmp_path, "ab12", model, sgd(model), average, clock=lambda: now)
    assert times.due(1)
    times.save(1)
    assert [times.due(step) for step in (2, 50, 51)] == [False, True, False]
    now = 60.0
    assert times.due(52)
    now = 61.0
    times.save(52)
    assert not times.due(53)
    now = 121.0
    assert times.due(55)
