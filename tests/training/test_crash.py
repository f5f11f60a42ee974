"""Invariant 7 under `kill -9`: real `userdp train` processes, killed at random moments."""

import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.plans import uls_plan
from tests.training.processes import start
from tests.training.toy import CONFIG, attempts, lines
from userdp.claims import claim
from userdp.core.errors import FailureError
from userdp.ledger import RunLedger
from userdp.training.checkpoints import Checkpoints
from userdp.training.loop import train

EACH_STEP = replace(CONFIG, checkpoint_every=1)
KILLS = 20
STEPS = 200
_OPTIONS = (
    "--population 100 --cohort-size 4 --group-size 2 --l2-clip-norm 1 --delta 1e-5 --model new "
    "--set plan.noise_multiplier=2 --set learning.layers=1 --set learning.width=16 "
    "--set learning.heads=2 --set learning.checkpoint_every=2"
)
TRAIN = _OPTIONS.split()


def released_step(run: Path) -> int:
    """The step of the last checkpoint: the furthest weights that left memory."""
    found = sorted((run / "checkpoints").glob("step-*"))
    return int(found[-1].stem.removeprefix("step-")) if found else 0


def require_charged(run: Path, plan_steps: int, *, at_least: int) -> int:
    """The checker: what was released was charged before, nothing charged is ever forgotten."""
    charged = attempts(run) if (run / "ledger.jsonl").exists() else 0
    assert released_step(run) <= charged, "released more than was charged"
    assert at_least <= charged <= plan_steps
    return charged


@pytest.mark.slow
def test_invariant_7_twenty_kills_at_random_moments_and_the_run_ends_as_planned(store, tmp_path):
    run = tmp_path / "run"
    command = ["train", str(store.path), "--out", str(run), "--steps", str(STEPS), *TRAIN]
    draw = random.Random()
    start(["--version"]).join()  # what loads torch is not what is measured
    began = time.monotonic()
    process = start(command)
    while not (run / "ledger.jsonl").exists():
        assert process.exitcode in (None, 0)
        time.sleep(0.01)
    startup = time.monotonic() - began
    charged, kills = 0, 0
    while True:
        process.join(draw.uniform(0, startup + 0.3))
        if process.exitcode is not None:
            break
        if kills < KILLS:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
            charged = require_charged(run, STEPS, at_least=charged)
            process = start([*command, "--resume"])
        else:
            process.join()
    assert process.exitcode == 0
    assert kills >= KILLS / 2
    assert require_charged(run, STEPS, at_least=charged) == STEPS
    assert not list(run.rglob(".partial*"))
    found = claim(run / "ledger.jsonl")
    assert found.complete
    plan = uls_plan(steps=STEPS, cohort_size=4, group_size=2, l2_clip_norm=1.0)
    assert found.guarantee == plan.guarantee() == claim(store.path).guarantee
    assert lines(run / "ledger.jsonl")[-1]["kind"] == "finish"


@pytest.mark.parametrize("ledger", ["honest", "late"])
def test_invariant_7_twin_a_ledger_that_lags_behind_the_updates_is_caught(
    store, tmp_path, monkeypatch, ledger
):
    """A crash right after a checkpoint: the honest ledger holds its step, a late one does not."""
    if ledger == "late":
        honest, pending = RunLedger.attempt, []

        def late(self, step):
            if pending:
                honest(self, pending.pop())
            pending.append(step)
            return self.attempts + 1

        monkeypatch.setattr(RunLedger, "attempt", late)
    save = Checkpoints.save

    def save_and_crash(self, step, **options):
        save(self, step, **options)
        if step == plan.steps:  # there is one after the first step, too
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "save", save_and_crash)
    plan, run = uls_plan(), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(store, plan, CONFIG, out=run)
    assert released_step(run) == plan.steps
    if ledger == "honest":
        assert require_charged(run, plan.steps, at_least=1) == plan.steps
    else:
        with pytest.raises(AssertionError, match="released more than was charged"):
            require_charged(run, plan.steps, at_least=1)


def checkpoints_of(store, path, monkeypatch, *, stop):
    """A run that was interrupted right after the checkpoint of step ``stop``."""
    save = Checkpoints.save

    def save_and_crash(self, step, **options):
        save(self, step, **options)
        if step == stop:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_and_crash)
        with pytest.raises(KeyboardInterrupt):
            train(store, uls_plan(), EACH_STEP, out=path)
    return path


def test_invariant_13_a_checkpoint_of_another_run_is_refused(store, tmp_path, monkeypatch):
    """Its weights have a price of their own, of which this run's ledger says nothing."""
    run = checkpoints_of(store, tmp_path / "run", monkeypatch, stop=1)
    other = checkpoints_of(store, tmp_path / "other", monkeypatch, stop=3)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(other / "checkpoints", run / "checkpoints")
    with pytest.raises(FailureError, match="is not of this run"):
        train(store, uls_plan(), EACH_STEP, out=run, resume=True)
    assert released_step(run) == 3, "nothing was taken from it, and nothing removed"


def test_broken_twin_a_checkpoint_that_is_not_asked_whose_it_is_goes_on_in_another_run(
    store, tmp_path, monkeypatch
):
    run = checkpoints_of(store, tmp_path / "run", monkeypatch, stop=1)
    other = checkpoints_of(store, tmp_path / "other", monkeypatch, stop=1)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(other / "checkpoints", run / "checkpoints")
    monkeypatch.setattr(Checkpoints, "_is_ours", lambda *whatever: True)
    train(store, uls_plan(), EACH_STEP, out=run, resume=True)
    assert claim(run).complete
