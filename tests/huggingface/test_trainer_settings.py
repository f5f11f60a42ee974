"""Every setting that would break the guarantee is refused by name, and nothing is charged."""

from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainingArguments

from tests.huggingface.toy import arguments, toy_model, trainer
from tests.plans import uls_plan
from userdp.core.errors import UseError
from userdp.ledger import StoreLedger
from userdp.training.config import PrivateOptions
from userdp.training.huggingface.trainer import UserLevelMixin, UserLevelTrainer
from userdp.training.huggingface.trainer_settings import SETTINGS, Setting, private_args

DOCS = Path(__file__).parents[2] / "docs" / "huggingface.md"
ON = ["fp16", "packing", "padding_free", "activation_offloading"]
ON += ["use_liger_kernel", "eval_on_start"]
ASKED = dict.fromkeys([*ON, "auto_find_batch_size", "push_to_hub"], True)
ASKED |= {"mixed_precision": "fp16", "loss_type": "dft", "fsdp": "full_shard"}
ASKED |= {"deepspeed": "zero.json", "deepspeed_plugin": object(), "parallelism_config": object()}
ASKED |= {"label_smoothing_factor": 0.1, "router_aux_loss_coef": 0.01, "neftune_noise_alpha": 5.0}
ASKED |= {"gradient_accumulation_steps": 4, "world_size": 2, "n_gpu": 2}
ASKED |= {"eval_strategy": "steps"}
"""What asks for each setting of `TrainingArguments` or `SFTConfig`."""

GIVEN = {"compute_loss_func": print, "model_init": toy_model, "data_collator": lambda rows: rows}
"""What asks for each argument of the trainer."""


class Asked:
    """Arguments of a trainer of which some say something else, whether or not the machine could."""

    def __init__(self, plain: TrainingArguments, **changes: object) -> None:
        self._plain, self._changes = plain, changes

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._changes[name] if name in self._changes else getattr(self._plain, name)


def taken(args, plan=None, *, public_eval=False, **options):
    return private_args(args, options, plan or uls_plan(), public_eval=public_eval)


def test_the_cases_are_the_table():
    named = {name for setting in SETTINGS for name in setting.names}
    assert {*ASKED, *GIVEN, "compute_loss", "WANDB_WATCH"} == named


@pytest.mark.parametrize("name", [*ASKED, *GIVEN])
def test_a_setting_of_the_table_is_refused_by_its_name(tmp_path, name):
    asked = Asked(arguments(tmp_path), **{name: ASKED[name]} if name in ASKED else {})
    options = {name: GIVEN[name]} if name in GIVEN else {}
    with pytest.raises(UseError, match=f"^{name} is refused here: ") as caught:
        UserLevelTrainer(None, asked, plan=uls_plan(), store=tmp_path / "people", **options)
    assert caught.value.hint
    assert not (tmp_path / "people").exists(), "nothing was prepared, and nothing charged"


def test_wandb_may_not_watch_gradients(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_WATCH", "parameters")
    taken(arguments(tmp_path))
    monkeypatch.setenv("WANDB_WATCH", "gradients")
    with pytest.raises(UseError, match="WANDB_WATCH is refused"):
        taken(arguments(tmp_path))


def test_the_steps_are_the_plans(tmp_path):
    given = arguments(tmp_path, num_train_epochs=2)
    assert (taken(given).max_steps, taken(given).max_grad_norm) == (5, 0)
    assert (given.max_steps, given.max_grad_norm) == (-1, 1.0), "the caller's own are left alone"
    with pytest.raises(UseError, match=r"ask for 7 steps .* and the plan has 5"):
        taken(arguments(tmp_path, max_steps=7))


@pytest.mark.parametrize("own", [{"micro_batch": 8}, {"resume": True}, {"dry_run": True}], ids=str)
def test_memory_and_resuming_are_said_as_transformers_says_them(own):
    with pytest.raises(UseError, match="in place of resume"):
        UserLevelTrainer(None, None, plan=None, store=None, options=PrivateOptions(**own))


class OwnLoss(Trainer):
    def compute_loss(self, *arguments, **options):
        return torch.zeros(())


class PrivateOwnLoss(UserLevelMixin, OwnLoss):
    pass


def test_an_overridden_loss_would_have_no_effect(tmp_path):
    with pytest.raises(UseError, match="compute_loss is refused"):
        PrivateOwnLoss(None, arguments(tmp_path), plan=uls_plan(), store=tmp_path / "people")


def shown(setting: Setting) -> str:
    """A row of the page's table."""
    names = ", ".join(f"`{name}`" for name in setting.names)
    values = ", ".join(["off", *(f"`{value}`" for value in setting.taken)])
    why, instead = (f"{text[0].upper()}{text[1:]}." for text in (setting.why, setting.instead))
    return f"| {names} | {values} | {why} | {instead} |"


def test_the_page_shows_the_table():
    rows = "\n".join(map(shown, SETTINGS))
    assert rows in DOCS.read_text(), f"put this into {DOCS.name}:\n{rows}"


def test_a_setting_that_was_changed_before_training_is_refused_and_nobody_charged(tmp_path):
    one = trainer(tmp_path)
    for name, value, told in (
        ("max_steps", 3, "ask for 3 steps"),
        ("gradient_accumulation_steps", 2, "gradient_accumulation_steps is refused"),
        ("eval_strategy", "steps", "eval_strategy is refused"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(one.args, name, value)
            with pytest.raises(UseError, match=told):
                one.train()
    assert not StoreLedger(one.store.path).history().charges
