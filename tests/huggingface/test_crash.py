"""Invariant 7 under `kill -9`: real processes of a Trainer, killed at random moments."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.huggingface.jobs import STEPS, start, warm_up
from tests.huggingface.toy import trainer
from tests.plans import uls_plan
from tests.training.toy import attempts, lines
from userdp.claims import claim
from userdp.errors import FailureError, UseError
from userdp.training.huggingface.checkpoints import sealed
from userdp.training.huggingface.trainer import UserLevelMixin
from userdp.training.private_run import PrivateRun

KILLS = 20


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


def cut_off(output: Path) -> int:
    if not (output / "ledger.jsonl").exists():
        return 0
    return sum(
        line["attempts"] for line in lines(output / "ledger.jsonl") if line["kind"] == "lost"
    )


def require_charged(output: Path, steps: int, *, at_least: int) -> int:
    """The checker: every update in a checkpoint was charged; nothing charged is forgotten."""
    now = charged(output)
    assert at_least <= now <= steps
    for number, path in whole(output).items():
        state = json.loads((path / "trainer_state.json").read_text())
        assert state["global_step"] == number <= now
        assert updates(path) <= number
    return now


@pytest.mark.slow
def test_invariant_7_twenty_kills_of_a_trainer_and_its_run_ends_as_planned(tmp_path):
    output = tmp_path / "out"
    draw = random.Random()
    warm_up()  # what loads torch is not what is measured
    began = time.monotonic()
    process = start(tmp_path)
    while not (output / "ledger.jsonl").exists():
        assert process.exitcode in (None, 0)
        time.sleep(0.01)
    startup = time.monotonic() - began
    now = kills = held = lost = noted = 0
    while process.exitcode is None:
        process.join(draw.uniform(0, startup + 0.5) if kills < KILLS else None)
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
        # Attempts of which the ledger's line was cut off are noted by the process after it.
        lost, noted = lost + cut_off(output) - noted, cut_off(output)
        now = require_charged(output, STEPS, at_least=now)
        there = whole(output)
        assert max(there, default=0) >= held, "a checkpoint that was whole is gone"
        applied = updates(there[max(there)]) if there else 0
        if there and max(there) > held:
            held = max(there)
            assert applied == held - lost, "an update that a checkpoint held was not gone on from"
        lost = now - applied
        if process.exitcode == -signal.SIGKILL:
            process = start(tmp_path)
    assert process.exitcode == 0
    assert kills >= KILLS / 2
    assert now == held == STEPS
    found = claim(output)
    assert found.complete
    assert found.guarantee == uls_plan(steps=STEPS).guarantee()
    assert claim(tmp_path / "people").guarantee == found.guarantee


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
def test_without_a_checkpoint_another_base_model_is_refused(tmp_path):
    from tests.huggingface.toy import toy_model

    with pytest.raises(Stop):
        stopping(tmp_path, at=2, arguments={"save_steps": 4}).train()
    with pytest.raises(UseError, match="base model is not the one"):
        trainer(tmp_path, model=toy_model(seed=1)).train(resume_from_checkpoint=True)


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
