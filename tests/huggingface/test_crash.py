"""Invariant 7 where a Trainer's process ends: what was charged stays charged."""

import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.huggingface.toy import trainer
from tests.plans import uls_plan
from tests.training.toy import attempts
from userdp.core.errors import FailureError
from userdp.training.huggingface.checkpoints import sealed
from userdp.training.huggingface.trainer import UserLevelMixin
from userdp.training.private_run import PrivateRun


def charged(output: Path) -> int:
    return attempts(output) if (output / "ledger.jsonl").exists() else 0


def whole(output: Path) -> dict[int, Path]:
    """Sealed checkpoints by the attempts at which they were written; read by name."""
    return {
        int(path.name.split("-")[1]): path for path in output.glob("checkpoint-*") if sealed(path)
    }


def updates(checkpoint: Path) -> int:
    """How often the optimizer has updated these weights: its own count, not the ledger's."""
    state = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    (steps,) = {int(one["step"]) for one in state.values()}
    return steps


class Stop(Exception):
    pass


def stopping(folder, *, at, **changes):
    """A trainer that crashes after attempt ``at`` was charged and before its update."""
    run = trainer(folder, **changes)
    step = run.training_step

    def crash(*arguments):
        loss = step(*arguments)
        if run.state.global_step + 1 == at:
            raise Stop
        return loss

    run.training_step = crash
    return run


@pytest.mark.slow
def test_invariant_7_a_lost_attempt_stays_charged_and_global_step_counts_it(tmp_path):
    with pytest.raises(Stop):
        stopping(tmp_path, at=4, arguments={"save_steps": 1}).train()
    output = tmp_path / "out"
    assert attempts(output) == 4
    assert max(whole(output)) == 3
    run = trainer(tmp_path, arguments={"save_steps": 1})
    assert run.train(resume_from_checkpoint=True).global_step == 5
    assert attempts(output) == 5
    assert sorted(whole(output)) == [1, 2, 3, 5]
    assert updates(whole(output)[5]) == 4
    rates = [line["learning_rate"] for line in run.state.log_history if "learning_rate" in line]
    assert rates == pytest.approx([0.01, 0.008, 0.006, 0.002]), "the lost step's rate is skipped"
    assert run.claim.guarantee == uls_plan().guarantee()
    assert run.claim.complete


@pytest.mark.slow
def test_invariant_13_a_checkpoint_of_another_run_is_refused(tmp_path):
    for name in ("one", "two"):
        with pytest.raises(Stop):
            stopping(tmp_path / name, at=4).train()
    ours = tmp_path / "one" / "out" / "checkpoint-2"
    shutil.rmtree(ours)
    shutil.copytree(tmp_path / "two" / "out" / "checkpoint-2", ours)
    with pytest.raises(FailureError, match="not what this run wrote"):
        trainer(tmp_path / "one").train(resume_from_checkpoint=True)
    assert attempts(tmp_path / "one" / "out") == 4


@pytest.mark.slow
def test_a_kill_between_the_last_step_and_the_release_loses_nothing(tmp_path, monkeypatch):
    def killed(*whatever, **more):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(PrivateRun, "save", killed)
        with pytest.raises(Stop):
            trainer(tmp_path).train()
    assert not (tmp_path / "out" / "model").exists()
    run = trainer(tmp_path)
    assert run.train(resume_from_checkpoint=True).global_step == 5
    assert attempts(tmp_path / "out") == 5
    last = safetensors.torch.load_file(whole(tmp_path / "out")[5] / "model.safetensors")
    released = safetensors.torch.load_file(tmp_path / "out" / "model" / "model.safetensors")
    assert all(torch.equal(last[name], released[name]) for name in released)
    assert run.claim.complete


@pytest.mark.slow
def test_invariant_7_twin_a_resumed_run_that_counts_its_updates_alone_would_ask_for_too_many(
    tmp_path, monkeypatch
):
    """Were global_step that of the checkpoint, the loop would want a sixth attempt of five."""
    with pytest.raises(Stop):
        stopping(tmp_path, at=4, arguments={"save_steps": 1}).train()
    run = trainer(tmp_path, arguments={"save_steps": 1})
    prepare = UserLevelMixin._prepare_for_training

    def forgetful(self, *arguments):
        before = self.state.global_step
        prepared = prepare(self, *arguments)
        self.state.global_step = before
        return prepared

    monkeypatch.setattr(UserLevelMixin, "_prepare_for_training", forgetful)
    output = run.train(resume_from_checkpoint=True)
    assert output.global_step == 4, "the ledger refuses the attempt, and the count is wrong"
    assert attempts(tmp_path / "out") == 5
