"""What a trainer evaluates: looks at private text, and public data that may steer training."""

import pytest
from transformers import DataCollatorForLanguageModeling, EarlyStoppingCallback, TrainerCallback

from tests.huggingface.toy import tokenized, toy_tokenizer, trainer
from tests.plans import uls_plan
from userdp.claims.lineage import ConditionKind
from userdp.core.errors import UseError
from userdp.ledger import StoreLedger

pytestmark = pytest.mark.slow

ROWS = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}]


def evaluating(tmp_path, **changes):
    """A trainer that has something to evaluate on."""
    words = toy_tokenizer(tmp_path / "t")
    data = tokenized(words, users=3).select_columns(["input_ids"])
    collator = DataCollatorForLanguageModeling(words, mlm=False)
    return trainer(tmp_path, eval_dataset=data, data_collator=collator, **changes)


def test_a_look_at_private_text_is_noted_and_its_numbers_are_not_logged(tmp_path):
    run = evaluating(tmp_path)
    run.train()
    looks = StoreLedger(run.store.path).history().looks
    metrics = run.evaluate()
    run.predict(run.eval_dataset)
    run.save_metrics("eval", metrics)
    assert metrics["eval_loss"] > 0
    after = StoreLedger(run.store.path).history().looks
    assert [what for _, what in after][len(looks) :] == ["evaluate", "evaluate"]
    assert not any(name.startswith("eval_") for line in run.state.log_history for name in line)
    assert (tmp_path / "out" / "eval_results.json").stat().st_mode & 0o77 == 0
    assert run.claim.guarantee == uls_plan().guarantee(), "this run's constants are older"


def test_public_evaluation_may_steer_training_and_is_a_condition(tmp_path):
    steers = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1}
    steers |= {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
    patient = [EarlyStoppingCallback(early_stopping_patience=100)]
    run = evaluating(tmp_path, public_eval=True, callbacks=patient, arguments=steers)
    run.train()
    assert sum("eval_loss" in line for line in run.state.log_history) == 5
    assert not StoreLedger(run.store.path).history().looks
    assert run.state.best_model_checkpoint
    assert run.claim.complete
    assert ConditionKind.EVALUATION in {one.kind for one in run.claim.conditions}


def test_invariant_13_who_resumes_evaluates_on_public_data_as_before_or_not(tmp_path):
    trainer(tmp_path, callbacks=[Stop()]).train()
    with pytest.raises(UseError, match="public evaluation"):
        evaluating(tmp_path, public_eval=True).train(resume_from_checkpoint=True)


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **others):
        control.should_training_stop = state.global_step >= 2
        control.should_save = True


def test_invariant_13_a_look_between_the_parts_of_a_run_is_a_condition(tmp_path):
    run = trainer(tmp_path, callbacks=[Stop()])
    run.train()
    run.evaluate(ROWS)
    again = trainer(tmp_path)
    again.train(resume_from_checkpoint=True)
    assert ConditionKind.LOOKS in {one.kind for one in again.claim.conditions}
