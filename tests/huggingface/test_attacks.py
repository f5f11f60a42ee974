"""What an attack found: weights that nobody priced, by ordinary habits of trainer scripts."""

from __future__ import annotations

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainerCallback

from tests.huggingface.toy import arguments, trainer
from userdp.claims import claim
from userdp.claims.conditions import ConditionKind
from userdp.claims.verify import verify_model, verify_run
from userdp.claims.weights import digest_of
from userdp.errors import FailureError, UseError
from userdp.ledger import StoreLedger

pytestmark = pytest.mark.slow


class StopAt(TrainerCallback):
    """A process that ends after so many steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **options):
        if state.global_step == self.step:
            raise KeyboardInterrupt


def kinds(claimed) -> set[ConditionKind]:
    return {condition.kind for condition in claimed.conditions}


def move(model) -> None:
    """Stands for training without privacy."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)


def stopped(folder, step, **changes):
    one = trainer(folder, callbacks=[StopAt(step)], **changes)
    with pytest.raises(KeyboardInterrupt):
        one.train()
    return one


def test_invariant_13_what_is_saved_is_what_was_released(tmp_path):
    one = trainer(tmp_path)
    one.train()
    released = digest_of(tmp_path / "out" / "model")
    move(one.model)
    for place in (tmp_path / "final", tmp_path / "out"):
        one.save_model(str(place))
        assert digest_of(place) == released
        assert verify_model(place).problems == ()
    assert verify_run(tmp_path / "out").problems == ()


def test_other_weights_beside_the_ledger_are_noticed(tmp_path):
    one = trainer(tmp_path)
    one.train()
    one.save_model()
    move(one.model)
    one.model.save_pretrained(tmp_path / "out")
    assert verify_run(tmp_path / "out").problems
    assert verify_model(tmp_path / "out").problems


def test_invariant_13_weights_that_learned_elsewhere_do_not_resume_without_a_checkpoint(tmp_path):
    one = stopped(tmp_path, 1)
    move(one.model)
    with pytest.raises(UseError, match="optimizer has a state"):
        one.train(resume_from_checkpoint=True)
    fresh = trainer(tmp_path)
    move(fresh.model)
    with pytest.raises(UseError, match="not the one"):
        fresh.train(resume_from_checkpoint=True)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt"])
def test_invariant_13_a_checkpoint_with_bytes_of_others_is_refused(tmp_path, name):
    stopped(tmp_path, 3)
    path = tmp_path / "out" / "checkpoint-2" / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(FailureError, match="not what this run wrote"):
        trainer(tmp_path).train(resume_from_checkpoint=True)


class Look(TrainerCallback):
    def __init__(self) -> None:
        self.trainer = None

    def on_step_end(self, args, state, control, **options):
        self.trainer.evaluate(self.trainer.rows)


def test_exact_losses_steer_no_step(tmp_path):
    look = Look()
    one = trainer(tmp_path, callbacks=[look])
    look.trainer, one.rows = one, [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}]
    with pytest.raises(UseError, match="evaluation is refused now"):
        one.train()


def test_options_that_were_changed_later_are_refused_too(tmp_path):
    one = trainer(tmp_path)
    one.args.eval_strategy = "steps"
    with pytest.raises(UseError, match="steers training"):
        one.train()
    other = trainer(tmp_path)
    other.add_callback(EarlyStoppingCallback(1))
    with pytest.raises(UseError, match="EarlyStopping"):
        other.train()
    assert not StoreLedger(tmp_path / "people").charges()


def test_invariant_13_a_look_between_the_parts_of_a_run_is_a_condition(tmp_path):
    one = stopped(tmp_path, 3)
    one.evaluate([{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}])
    again = trainer(tmp_path, args=arguments(tmp_path, learning_rate=0.5))
    again.train(resume_from_checkpoint=True)
    assert ConditionKind.LOOKS in kinds(claim(tmp_path / "out"))
    assert ConditionKind.LOOKS in kinds(verify_model(tmp_path / "out" / "model").claim)


def test_evaluation_that_is_declared_public_is_a_condition(tmp_path):
    one = trainer(tmp_path, public_eval=True)
    one.train()
    assert ConditionKind.EVALUATION in kinds(claim(tmp_path / "out"))
