"""Invariant 7 where a run's process ends: kills, a lost store's line, checkpoints of others."""

import os
import random
import shutil
import signal
import time
from dataclasses import replace

import pytest

from tests.ledgers import unwritten
from tests.plans import uls_plan
from tests.training.processes import start
from tests.training.toy import CONFIG, attempts, lines
from userdp.claims import claim
from userdp.claims.weights import digest_of
from userdp.core import files
from userdp.core.errors import FailureError, UseError
from userdp.ledger import RunFolder, StoreLedger, admission
from userdp.ledger.lines import Settle
from userdp.training.checkpoints import Checkpoints
from userdp.training.loop import train

PLAN, EACH_STEP = uls_plan(), replace(CONFIG, checkpoint_every=1)
KILLS, STEPS = 20, 200
_OPTIONS = (
    "--population 100 --cohort-size 4 --group-size 2 --l2-clip-norm 1 --delta 1e-5 --model new "
    "--set plan.noise_multiplier=2 --set learning.layers=1 --set learning.width=16 "
    "--set learning.heads=2 --set learning.checkpoint_every=2"
)
TRAIN = _OPTIONS.split()


class Killed(BaseException):
    """Stands for a process that is no more."""


def killed(*arguments, **options):
    raise Killed


def released_step(run):
    """The step of the last checkpoint: the furthest weights that left memory."""
    found = sorted((run / "checkpoints").glob("step-*"))
    return int(found[-1].stem.removeprefix("step-")) if found else 0


def require_charged(run, plan_steps, *, at_least):
    """The checker: what was released was charged before, nothing charged is ever forgotten."""
    charged = attempts(run) if (run / "ledger.jsonl").exists() else 0
    assert released_step(run) <= charged, "released more than was charged"
    assert at_least <= charged <= plan_steps
    return charged


@pytest.mark.slow
def test_invariant_7_twenty_kills_at_random_moments_and_the_run_ends_as_planned(store, tmp_path):
    run = tmp_path / "run"
    command = ["train", str(store.path), "--out", str(run), "--steps", str(STEPS), *TRAIN]
    start(["--version"]).join()  # what loads torch is not what is measured
    began = time.monotonic()
    process = start(command)
    while not (run / "ledger.jsonl").exists():
        assert process.exitcode in (None, 0)
        time.sleep(0.01)
    startup = time.monotonic() - began
    charged = kills = 0
    while process.exitcode is None:
        process.join(random.uniform(0, startup + 0.3) if kills < KILLS else None)
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
            charged = require_charged(run, STEPS, at_least=charged)
            process = start([*command, "--resume"])
    assert process.exitcode == 0
    assert kills >= KILLS / 2
    assert require_charged(run, STEPS, at_least=charged) == STEPS
    assert not list(run.rglob(".partial*"))
    plan = uls_plan(steps=STEPS, cohort_size=4, group_size=2, l2_clip_norm=1.0)
    found = claim(run / "ledger.jsonl")
    assert found.complete
    assert found.guarantee == plan.guarantee() == claim(store.path).guarantee
    assert lines(run / "ledger.jsonl")[-1]["kind"] == "finish"


@pytest.fixture
def stopped(store, tmp_path, monkeypatch):
    """The folder of a run that was killed right after the checkpoint of step ``at``."""

    def stopped(at, name="run"):
        save = Checkpoints.save

        def save_and_crash(self, step, **options):
            save(self, step, **options)
            if step == at:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "save", save_and_crash)
            with pytest.raises(Killed):
                train(store, PLAN, EACH_STEP, out=tmp_path / name)
        return tmp_path / name

    return stopped


@pytest.mark.parametrize("twin", [False, True], ids=["honest", "twin that does not ask whose"])
def test_invariant_13_a_checkpoint_of_another_run_is_refused(store, stopped, monkeypatch, twin):
    """Its weights have a price of their own, of which this run's ledger says nothing."""
    run, other = stopped(1), stopped(3, "other")
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(other / "checkpoints", run / "checkpoints")
    if twin:
        monkeypatch.setattr(Checkpoints, "_is_ours", lambda *whatever: True)
        train(store, PLAN, EACH_STEP, out=run, resume=True)
        assert claim(run).complete
        return
    with pytest.raises(FailureError, match="is not of this run"):
        train(store, PLAN, EACH_STEP, out=run, resume=True)
    assert released_step(run) == 3, "nothing was taken from it, and nothing removed"


# The beginning and the end.


def test_a_kill_before_the_store_was_told_of_the_end_is_mended_by_resuming(
    store, tmp_path, monkeypatch
):
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(admission, "is_new", unwritten(Settle, then=killed))
        with pytest.raises(Killed):
            train(store, PLAN, CONFIG, out=folder.path)
    history = StoreLedger(store.path).history()
    assert folder.finished
    assert (set(history.settled), history.released) == (set(), [])
    before = folder.ledger.read_bytes()
    assert train(store, PLAN, CONFIG, out=folder.path, resume=True) is None
    assert folder.ledger.read_bytes() == before, "no step was taken"
    history = StoreLedger(store.path).history()
    (released,) = history.released
    assert set(history.settled) == {folder.run_id}
    assert released.weights == digest_of(folder.model)
    assert released.lineage == claim(folder.path).lineage.plain
    with pytest.raises(UseError, match="finished"):
        train(store, PLAN, CONFIG, out=folder.path, resume=True)
    assert StoreLedger(store.path).history().lines == history.lines
    assert claim(store.path).complete


def test_a_run_that_cannot_begin_leaves_no_folder(store, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_json", full)
    with pytest.raises(OSError, match="No space"):
        train(store, PLAN, CONFIG, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert StoreLedger(store.path).charges() == []
