"""TRL's chat templates, masks and completion-only loss, held against TRL itself; its adapters."""

import datasets
import peft
import pytest
import torch

from tests.huggingface.toy import examples, rows, toy_model, toy_tokenizer
from tests.plans import uls_plan
from userdp.claims import claim
from userdp.claims.lineage import Lineage
from userdp.claims.weights import describe, description_of

LORA = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")

pytestmark = pytest.mark.slow  # TRL alone takes seconds to load


def said(**turns):
    return [{"role": role.split("_")[0], "content": text} for role, text in turns.items()]


KINDS = {
    "text": lambda text: {"text": text},
    "prompt and completion": lambda text: {"prompt": text + " ", "completion": "w3 w4"},
    "conversational prompt and completion": lambda text: {
        "prompt": said(user=text),
        "completion": said(assistant="w5 w6 w7"),
    },
    "messages": lambda text: {
        "messages": said(user=text, assistant="w5 w6", user_2="w9", assistant_2="w8")
    },
}
SETTINGS = [
    ("text", {}),
    ("prompt and completion", {}),
    ("prompt and completion", {"completion_only_loss": False}),
    ("conversational prompt and completion", {}),
    ("messages", {}),
    ("messages", {"assistant_only_loss": True}),
]


def table(kind):
    every = [{"author": row["author"], **KINDS[kind](row["text"])} for row in rows(12)]
    return datasets.Dataset.from_list(every)


def config(folder, **changes):
    from trl import SFTConfig

    values = {"max_length": 64, "use_cpu": True, "report_to": "none", "logging_steps": 1}
    return SFTConfig(str(folder / "out"), **{**values, "disable_tqdm": True, **changes})


def private(folder, data, *, model=None, options=None, **changes):
    from userdp.training.huggingface.sft import UserLevelSFTTrainer

    values = {
        "processing_class": toy_tokenizer(folder / "tokenizer"),
        "user_column": "author",
        "plan": uls_plan(),
        "store": folder / "people",
    }
    model = toy_model() if model is None else model
    args = config(folder, **changes)
    return UserLevelSFTTrainer(model, args, data, **{**values, **(options or {})})


@pytest.mark.parametrize(("kind", "settings"), SETTINGS)
def test_tokens_and_labels_are_those_of_trl(tmp_path, kind, settings):
    from trl import SFTTrainer

    data, words = table(kind), toy_tokenizer(tmp_path / "t")
    args = config(tmp_path / "trl", **settings)
    theirs = SFTTrainer(toy_model(), args, train_dataset=data, processing_class=words).train_dataset
    place = {user: number for number, user in enumerate(sorted(set(data["author"])))}
    expected = sorted((place[row["author"]], row["input_ids"], row["labels"]) for row in theirs)
    ours = private(tmp_path, data, **settings).store
    assert sorted(examples(ours)) == expected
    streamed = private(tmp_path / "streamed", data.to_iterable_dataset(), **settings).store
    assert streamed.meta.content_sha256 == ours.meta.content_sha256
    every = [label for _, _, labels in expected for label in labels]
    whole = kind == "text" or settings.get("completion_only_loss") is False
    whole = whole or (kind == "messages" and not settings)
    assert any(label != -100 for label in every)
    assert (-100 not in every) == whole


def test_invariant_10_rows_that_the_loss_counts_nothing_of_are_counted(tmp_path):
    """TRL would filter the second, whose prompt alone fills ``max_length``."""
    texts = [("a", "w1 ", "w3 w4"), ("b", "w1 w2 w3 w5 w6 w7 w8 w9 ", "w3"), (None, "w1 ", "w3")]
    columns = ("author", "prompt", "completion")
    data = datasets.Dataset.from_list([dict(zip(columns, one, strict=True)) for one in texts])
    store = private(tmp_path, data, max_length=4).store
    assert store.meta.totals["records_read"] == 3
    assert store.meta.totals["records_stored"] == 2
    assert sum(store.meta.drops.values()) == 1, "the row of nobody"
    assert {user for user, _, _ in examples(store)} == {0, 1}, "what follows a prompt is there"
    assert all(set(labels) != {-100} for _, _, labels in examples(store))


@pytest.mark.parametrize("adapters", [False, True])
def test_a_whole_run_with_trls_own_defaults(tmp_path, adapters, caplog):
    """bfloat16 and activation checkpointing are TRL's defaults."""
    how = {"options": {"peft_config": LORA} if adapters else None, "assistant_only_loss": True}
    run = private(tmp_path, table("messages"), **how)
    assert run.args.bf16
    assert run.args.activation_checkpointing
    run.train()
    assert run.claim.complete
    assert run.claim.guarantee == claim(tmp_path / "people").guarantee == uls_plan().guarantee()
    assert not run._metrics["train"], "neither entropy nor accuracy nor tokens"
    seen = {name for line in run.state.log_history for name in line}
    assert seen <= {"learning_rate", "grad_norm", "epoch", "epsilon", "delta", "step"}
    assert "slower reference engine" not in caplog.text
    released = tmp_path / "out" / ("adapter" if adapters else "model")
    assert (released / "userdp.json").exists()
    assert (released / "chat_template.jinja").exists()


@pytest.fixture
def base(tmp_path):
    """A model that learned from nobody."""
    toy_model().save_pretrained(tmp_path / "base")
    describe(tmp_path / "base", Lineage())
    return type(toy_model()).from_pretrained(tmp_path / "base")


def test_invariant_13_the_claim_is_of_the_adapters_that_training_begins_with(base, tmp_path):
    """`SFTTrainer(peft_config=…)` makes new ones; others may take their place before `train()`."""
    how = {"model": base, "options": {"peft_config": LORA}}
    run = private(tmp_path / "run", table("text"), **how)
    with torch.no_grad():  # stands for a loop without privacy over the same people
        for parameter in run.model.parameters():
            parameter.add_(0.1 * parameter.requires_grad)
    run.train()
    told = [(str(one.kind), one.told) for one in run.claim.conditions]
    assert ("adapters-of-unknown-origin", "no ledger knows them") in told
    released = description_of(tmp_path / "run" / "out" / "adapter")
    assert released.lineage.conditions == run.claim.conditions
