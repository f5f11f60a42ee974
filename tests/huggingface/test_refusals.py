"""Every option that would break the guarantee: refused or overridden by name, never charged."""

import re
from pathlib import Path

import pytest
import torch
from transformers import (
    DataCollatorForLanguageModeling,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
)

from tests.huggingface.toy import arguments, tokenized, toy_model, toy_tokenizer, trainer
from tests.plans import uls_plan
from tests.training.toy import attempts, lines
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.training.huggingface import UserLevelTrainer
from userdp.training.huggingface.refusals import EVALUATION, OVERRIDDEN, REFUSED, required_args

DOCS = Path(__file__).parents[2] / "docs" / "huggingface.md"
ASKED = {
    "fp16": {"fp16": True},
    "auto_find_batch_size": {"auto_find_batch_size": True},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 4},
    "label_smoothing_factor": {"label_smoothing_factor": 0.1},
    "neftune_noise_alpha": {"neftune_noise_alpha": 5.0},
    "use_liger_kernel": {"use_liger_kernel": True},
    "torch_compile": {"torch_compile": True},
    "debug": {"debug": "underflow_overflow"},
    "deepspeed": {"deepspeed": "zero.json"},
    "fsdp": {"fsdp": "full_shard"},
    "parallelism_config": {"parallelism_config": object()},
    "several processes": {"world_size": 2},
    "several GPUs in one process": {"n_gpu": 2},
    "full_determinism": {"full_determinism": True},
    "train_sampling_strategy": {"train_sampling_strategy": "group_by_length"},
    "include_num_input_tokens_seen": {"include_num_input_tokens_seen": "all"},
    "report_to": {"report_to": ["codecarbon"]},
    "WANDB_WATCH, WANDB_LOG_MODEL": {"report_to": ["wandb"]},
    "push_to_hub": {"push_to_hub": True},
    "optim": {"optim": "galore_adamw_layerwise"},
    "reentrant checkpointing": {"activation_checkpointing_kwargs": {"use_reentrant": True}},
    "packing": {"packing": True},
    "padding_free": {"padding_free": True},
    "loss_type": {"loss_type": "dft"},
    "router_aux_loss_coef": {"router_aux_loss_coef": 0.01},
    "activation_offloading": {"activation_offloading": True},
    "truncation_mode": {"truncation_mode": "keep_end"},
}
"""What asks for each of them."""


class Asked:
    """Arguments of a trainer of which some say something else, whether or not the machine could."""

    def __init__(self, plain: TrainingArguments, changes: dict) -> None:
        self._plain, self._changes = plain, changes

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._changes[name] if name in self._changes else getattr(self._plain, name)


def test_the_table_is_whole():
    assert set(ASKED) == {refusal.name for refusal in REFUSED}


@pytest.mark.parametrize("name", ASKED)
def test_an_option_that_would_break_the_guarantee_is_refused_by_its_name(
    tmp_path, name, monkeypatch
):
    monkeypatch.setenv("WANDB_WATCH", "gradients")
    asked = Asked(arguments(tmp_path), ASKED[name])
    with pytest.raises(UseError, match=f"^{re.escape(name)} is refused here") as caught:
        UserLevelTrainer(None, asked, plan=uls_plan(), store=tmp_path / "people")
    assert caught.value.hint
    assert not (tmp_path / "people").exists(), "nothing was prepared, and nothing charged"


def test_plain_arguments_are_not_refused(tmp_path):
    required_args(arguments(tmp_path), uls_plan(), public_eval=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"eval_strategy": "steps"},
        {"eval_on_start": True},
        {"load_best_model_at_end": True},
        {"metric_for_best_model": "loss"},
        {"save_strategy": "best"},
        {"lr_scheduler_type": "reduce_lr_on_plateau"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_evaluation_that_steers_training_is_refused_unless_its_data_is_public(tmp_path, changes):
    asked = Asked(arguments(tmp_path), changes)
    with pytest.raises(UseError, match=f"^{EVALUATION.name} is refused"):
        UserLevelTrainer(None, asked, plan=uls_plan(), store=tmp_path / "people")
    EVALUATION.check(arguments(tmp_path))


@pytest.mark.parametrize("changes", [{"max_steps": 7}, {"num_train_epochs": 2}])
def test_another_number_of_steps_than_the_plans_is_an_error(tmp_path, changes):
    with pytest.raises(UseError, match="and the plan has 5"):
        required_args(arguments(tmp_path, **changes), uls_plan(), public_eval=False)


def test_what_the_plan_decides_is_overridden_in_a_copy(tmp_path):
    given = arguments(tmp_path, max_grad_norm=1.0, num_train_epochs=0.5)
    taken = required_args(given, uls_plan(), public_eval=False)
    assert (taken.max_steps, taken.max_grad_norm) == (5, 0.0)
    assert (given.max_steps, given.max_grad_norm) == (-1, 1.0)


def test_the_page_lists_every_option():
    text = DOCS.read_text()
    for name in [*(refusal.name for refusal in REFUSED), EVALUATION.name, *OVERRIDDEN]:
        assert f"| `{name}` |" in text, name


class OwnLoss(UserLevelTrainer):
    def compute_loss(self, *arguments, **options):
        return torch.zeros(())


def collator(tmp_path, **options):
    return DataCollatorForLanguageModeling(toy_tokenizer(tmp_path / "t"), **options)


def test_arguments_of_the_trainer_that_would_have_no_effect_are_refused(tmp_path):
    options = {"args": arguments(tmp_path), "plan": uls_plan(), "store": tmp_path / "people"}
    cases = [
        (OwnLoss, {}, "OwnLoss overrides compute_loss"),
        (UserLevelTrainer, {"compute_loss_func": print}, "compute_loss_func is refused"),
        (UserLevelTrainer, {"model_init": toy_model}, "model_init is refused"),
        (UserLevelTrainer, {"data_collator": lambda rows: rows}, "collator .* is refused"),
    ]
    for kind, changes, message in cases:
        with pytest.raises(UseError, match=message):
            kind(None, **options, **changes)
    assert not (tmp_path / "people").exists()


def test_a_data_set_with_a_transform_is_refused(tmp_path):
    """As a redaction, which the store of the rows under it would not have."""
    table = tokenized(toy_tokenizer(tmp_path / "t"))
    for data in (
        table.with_transform(lambda rows: {**rows, "text": ["w1"] * len(rows["text"])}),
        table.remove_columns("input_ids").with_transform(lambda rows: rows),
    ):
        with pytest.raises(UseError, match=r"has a transform(.*\n)*.*map\(transform"):
            trainer(tmp_path, train_dataset=data)
    assert not (tmp_path / "people").exists()


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A trainer that was never trained, for what is refused whenever it is called."""
    return trainer(
        tmp_path_factory.mktemp("one"), callbacks=[EarlyStoppingCallback()], eval_dataset=None
    )


def test_calls_that_are_refused(one):
    for call, message in [
        (one.hyperparameter_search, "hyperparameter search"),
        (one.push_to_hub, "push_to_hub uploads"),
        (one.save_model, "planned steps remain"),
        (one.train, "EarlyStoppingCallback is refused"),
        (lambda: one.train(resume_from_checkpoint=True), "EarlyStoppingCallback"),
    ]:
        with pytest.raises(UseError, match=message):
            call()
    assert not StoreLedger(one.store.path).charges()


def test_nothing_to_resume_is_an_error(one):
    one.pop_callback(EarlyStoppingCallback)
    with pytest.raises(UseError, match=r"no private run in .* to resume"):
        one.train(resume_from_checkpoint=True)


def test_the_loop_gets_tickets_and_no_data(one):
    (first, *_) = one.get_train_dataloader()
    assert set(first) == {"private step"}
    assert len(one.get_train_dataloader()) == 10, "population 100 over 10 users a step"
    assert one.train_dataset is None


def public_table(tmp_path):
    return tokenized(toy_tokenizer(tmp_path / "t"), users=3).select_columns(["input_ids"])


@pytest.mark.slow
def test_a_look_at_private_text_is_noted_and_its_numbers_are_not_logged(tmp_path):
    run = trainer(
        tmp_path,
        eval_dataset=public_table(tmp_path),
        data_collator=collator(tmp_path, mlm=False),
    )
    run.train()
    looks = StoreLedger(run.store.path).history().looks
    metrics = run.evaluate()
    run.predict(run.eval_dataset)
    assert metrics["eval_loss"] > 0
    after = StoreLedger(run.store.path).history().looks
    assert [what for _, what in after][len(looks) :] == ["evaluate", "predict"]
    assert not any(name.startswith("eval_") for line in run.state.log_history for name in line)
    assert run.claim.guarantee == uls_plan().guarantee(), "this run's constants are older"


@pytest.mark.slow
def test_public_evaluation_may_steer_training(tmp_path):
    run = trainer(
        tmp_path,
        eval_dataset=public_table(tmp_path),
        data_collator=collator(tmp_path, mlm=False),
        public_eval=True,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=100)],
        arguments={
            "eval_strategy": "steps",
            "eval_steps": 1,
            "save_steps": 1,
            "load_best_model_at_end": True,
            "metric_for_best_model": "loss",
        },
    )
    run.train()
    assert sum("eval_loss" in line for line in run.state.log_history) == 5
    assert not StoreLedger(run.store.path).history().looks
    assert run.state.best_model_checkpoint
    assert run.claim.complete


@pytest.mark.slow
def test_a_callback_that_stops_early_leaves_the_run_charged_and_resumable(tmp_path):
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            control.should_training_stop = state.global_step >= 2
            control.should_save = True

    run = trainer(tmp_path, callbacks=[Stop()])
    assert run.train().global_step == 2
    assert not run.claim.complete
    assert run.claim.guarantee == uls_plan().guarantee()
    with pytest.raises(UseError, match="planned steps remain"):
        run.save_model()
    again = trainer(tmp_path)
    assert again.train(resume_from_checkpoint=True).global_step == 5
    again.save_model(tmp_path / "released")
    assert (tmp_path / "released" / "userdp.json").exists()
    assert not (tmp_path / "released" / "training_args.bin").exists()
    assert lines(tmp_path / "out" / "ledger.jsonl")[-1]["kind"] == "finish"


@pytest.mark.slow
def test_what_a_callback_raises_reaches_its_owner_as_it_is(tmp_path):
    from transformers import TrainerCallback

    class EnoughError(Exception):
        pass

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            raise EnoughError("I have seen enough")

    with pytest.raises(EnoughError, match="I have seen enough"):
        trainer(tmp_path, callbacks=[Stop()]).train()
    assert attempts(tmp_path / "out") == 1, "the step that it stopped at stays charged"
    assert trainer(tmp_path).train(resume_from_checkpoint=True).global_step == 5


def test_it_is_a_trainer():
    assert issubclass(UserLevelTrainer, Trainer)
