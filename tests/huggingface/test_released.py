"""What a trainer saves is what it released, and a run goes on from nothing else."""

from __future__ import annotations

import pytest
import torch
from transformers import TrainerCallback

import userdp
from tests.huggingface.toy import TEMPLATE, trainer
from userdp.claims.subject import digest_of
from userdp.claims.verify import verify
from userdp.core.errors import FailureError, UseError

pytestmark = pytest.mark.slow


class StopAt(TrainerCallback):
    """A process that ends after so many steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **options):
        if state.global_step == self.step:
            raise KeyboardInterrupt


def move(model) -> None:
    """Stands for training without privacy."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)


def stopped(folder, step):
    one = trainer(folder, callbacks=[StopAt(step)])
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
        assert verify(place).problems == ()
    assert verify(tmp_path / "out").problems == ()
    one.model.save_pretrained(tmp_path / "out")
    assert verify(tmp_path / "out").problems, "other weights beside the ledger are noticed"
    assert verify(tmp_path / "out").problems


def test_a_trainers_run_leaves_with_the_template_that_it_released(tmp_path):
    trainer(tmp_path).train()
    run = tmp_path / "out"
    assert verify(run).problems == ()
    exported = userdp.export(run, out=tmp_path / "shared")
    assert exported.claim.guarantee.epsilon == userdp.claim(run).guarantee.epsilon
    assert (tmp_path / "shared" / "chat_template.jinja").read_text() == TEMPLATE
    assert not [note for note in exported.notes if "template" in note]
    assert not (tmp_path / "shared" / "training_args.bin").exists()


def test_invariant_13_weights_that_learned_elsewhere_do_not_resume_without_a_checkpoint(tmp_path):
    one = stopped(tmp_path, 1)
    move(one.model)
    with pytest.raises(UseError, match="not the one"):
        one.train(resume_from_checkpoint=True)


def test_invariant_13_a_checkpoint_with_other_weights_is_refused(tmp_path):
    stopped(tmp_path, 3)
    path = tmp_path / "out" / "checkpoint-2" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(FailureError, match="not what this run wrote"):
        trainer(tmp_path).train(resume_from_checkpoint=True)
