"""Ctrl-C in a Trainer's loop: the step is applied and in a sealed checkpoint; resume goes on."""

import os
import signal

import pytest
from transformers import TrainerCallback

from tests.huggingface.test_crash import charged, updates, whole
from tests.huggingface.toy import trainer
from userdp.core.errors import Interrupted
from userdp.core.interrupts import are_held


class CtrlC(TrainerCallback):
    """Sends the signal in the middle of a step."""

    def __init__(self, step):
        self.step = step

    def on_pre_optimizer_step(self, args, state, control, **others):
        if state.global_step + 1 == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def test_invariant_7_ctrl_c_seals_the_step_that_was_charged(tmp_path):
    output, never = tmp_path / "out", {"save_strategy": "no"}
    with pytest.raises(Interrupted, match="after step 3 of 5; go on") as caught:
        trainer(tmp_path, arguments=never, callbacks=[CtrlC(3)]).train()
    assert caught.value.resume
    assert not are_held()
    assert charged(output) == 3
    assert [updates(path) for path in whole(output).values()] == [3]
    trainer(tmp_path, arguments=never).train(resume_from_checkpoint=True)
    assert charged(output) == 5
