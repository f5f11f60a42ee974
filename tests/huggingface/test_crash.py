"""Invariant 7 where a Trainer's process ends: what was charged stays charged."""

import os
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from tests.huggingface.toy import trainer
from tests.plans import uls_plan
from tests.training.toy import attempts
from userdp.core.errors import FailureError, Interrupted, UseError
from userdp.core.interrupts import are_held
from userdp.training.huggingface.trainer import sealed
from userdp.training.private_run import PrivateRun

EACH = {"save_steps": 1}


def whole(output):
    """Sealed checkpoints by the attempts at which they were written; read by name."""
    paths = [path for path in output.glob("checkpoint-*") if sealed(path)]
    return {int(path.name.split("-")[1]): path for path in paths}


def updates(checkpoint):
    """How often the optimizer has updated these weights: its own count, not the ledger's."""
    state = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    (steps,) = {int(one["step"]) for one in state.values()}
    return steps


class Stop(Exception):
    pass


class CrashAt(TrainerCallback):
    """Crashes after attempt ``at`` was charged and before its update; or only hears Ctrl-C."""

    def __init__(self, at, *, ctrl_c=False):
        self.at, self.ctrl_c = at, ctrl_c

    def on_pre_optimizer_step(self, args, state, control, **others):
        if state.global_step + 1 == self.at:
            if not self.ctrl_c:
                raise Stop
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def crashed(tmp_path):
    """The output of a run whose fourth attempt was lost, in ``tmp_path / name``."""

    def crashed(name=".", **arguments):
        run = trainer(tmp_path / name, callbacks=[CrashAt(4)], arguments=arguments)
        with pytest.raises(Stop):
            run.train()
        assert attempts(tmp_path / name / "out") == 4
        return tmp_path / name / "out"

    return crashed


@pytest.mark.slow
def test_invariant_7_a_lost_attempt_stays_charged_and_global_step_counts_it(crashed, tmp_path):
    output = crashed(**EACH)
    assert max(whole(output)) == 3
    run = trainer(tmp_path, arguments=EACH)
    assert run.train(resume_from_checkpoint=True).global_step == 5
    assert attempts(output) == 5
    assert sorted(whole(output)) == [1, 2, 3, 5]
    assert updates(whole(output)[5]) == 4
    rates = [line["learning_rate"] for line in run.state.log_history if "learning_rate" in line]
    assert rates == pytest.approx([0.01, 0.008, 0.006, 0.002]), "the lost step's rate is skipped"
    assert run.claim.guarantee == uls_plan().guarantee()
    assert run.claim.complete


@pytest.mark.slow
@pytest.mark.parametrize("how", ["of another run", "with other weights"])
def test_invariant_13_a_checkpoint_that_this_run_did_not_write_is_refused(crashed, tmp_path, how):
    ours = crashed("one") / "checkpoint-2"
    if how == "of another run":
        shutil.rmtree(ours)
        shutil.copytree(crashed("two") / "checkpoint-2", ours)
    else:
        path = ours / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(FailureError, match="not what this run wrote"):
        trainer(tmp_path / "one").train(resume_from_checkpoint=True)
    assert attempts(tmp_path / "one" / "out") == 4


@pytest.mark.slow
def test_invariant_13_weights_that_learned_elsewhere_do_not_resume_without_a_checkpoint(tmp_path):
    run = trainer(tmp_path, callbacks=[CrashAt(1)])
    with pytest.raises(Stop):
        run.train()
    next(run.model.parameters()).data += 1
    with pytest.raises(UseError, match="not the one"):
        run.train(resume_from_checkpoint=True)


@pytest.mark.slow
def test_a_kill_between_the_last_step_and_the_release_loses_nothing(tmp_path, monkeypatch):
    def killed(*whatever, **more):
        raise Stop

    output = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(PrivateRun, "save", killed)
        with pytest.raises(Stop):
            trainer(tmp_path).train()
    assert not (output / "model").exists()
    run = trainer(tmp_path)
    assert run.train(resume_from_checkpoint=True).global_step == 5
    assert attempts(output) == 5
    last, released = (
        load_file(folder / "model.safetensors") for folder in (whole(output)[5], output / "model")
    )
    assert all(torch.equal(last[name], released[name]) for name in released)
    assert run.claim.complete


def test_invariant_7_ctrl_c_seals_the_step_that_was_charged(tmp_path):
    output, never = tmp_path / "out", {"save_strategy": "no"}
    run = trainer(tmp_path, arguments=never, callbacks=[CrashAt(3, ctrl_c=True)])
    with pytest.raises(Interrupted, match=r"after step 3 of 5; go on .* resume_from_") as caught:
        run.train()
    assert caught.value.resume
    assert not are_held()
    assert attempts(output) == 3
    assert {updates(path) for path in whole(output).values()} == {1, 3}
    trainer(tmp_path, arguments=never).train(resume_from_checkpoint=True)
    assert attempts(output) == max(whole(output)) == 5, "also the last step is sealed"


class StopAt(TrainerCallback):
    """Ends training early, as `EarlyStoppingCallback` does."""

    def on_step_end(self, args, state, control, **others):
        control.should_training_stop = state.global_step == 2


def test_who_stops_early_is_told_that_nothing_is_released(tmp_path):
    with pytest.warns(UserWarning, match="after step 2 of 5: nothing is released"):
        trainer(tmp_path, callbacks=[StopAt()]).train()
    assert not (tmp_path / "out" / "model").exists()
