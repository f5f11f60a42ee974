"""TRL's chat templates, assistant masks and completion-only loss, held against TRL itself."""

import datasets
import numpy as np
import peft
import pytest

from tests.huggingface.toy import rows, toy_model, toy_tokenizer
from tests.plans import uls_plan
from userdp.claims import claim
from userdp.claims.lineage import Lineage
from userdp.claims.subject import describe
from userdp.data.splits import Split

pytestmark = pytest.mark.slow  # TRL alone takes seconds to load


def said(role, text):
    return {"role": role, "content": text}


KINDS = {
    "text": lambda text: {"text": text},
    "prompt and completion": lambda text: {"prompt": text + " ", "completion": "w3 w4"},
    "conversational prompt and completion": lambda text: {
        "prompt": [said("user", text)],
        "completion": [said("assistant", "w5 w6 w7")],
    },
    "messages": lambda text: {
        "messages": [
            said("user", text),
            said("assistant", "w5 w6"),
            said("user", "w9"),
            said("assistant", "w8"),
        ]
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


def table(kind, users=12):
    return datasets.Dataset.from_list(
        [{"author": row["author"], **KINDS[kind](row["text"])} for row in rows(users)]
    )


def config(folder, **changes):
    from trl import SFTConfig

    values = {"max_length": 64, "use_cpu": True, "report_to": "none", "logging_steps": 1}
    return SFTConfig(str(folder / "out"), **{**values, "disable_tqdm": True, **changes})


def private(folder, data, *, model=None, options=None, **changes):
    from userdp.training.huggingface.sft import UserLevelSFTTrainer

    return UserLevelSFTTrainer(
        toy_model() if model is None else model,
        config(folder, **changes),
        data,
        **{
            "processing_class": toy_tokenizer(folder / "tokenizer"),
            "user_column": "author",
            "plan": uls_plan(),
            "store": folder / "people",
            **(options or {}),
        },
    )


def examples(store):
    """(tokens, labels) of each training example, by its user's place."""
    split = store.split(Split.TRAIN)
    found = []
    for user, count in enumerate(split.counts.tolist()):
        rows = split.gather(np.full(count, user), np.arange(count))
        for begin, end in zip(rows.offsets[:-1], rows.offsets[1:], strict=True):
            ids = rows.tokens[begin:end].tolist()
            marks = rows.targets[begin:end].tolist()
            labels = [i if mark else -100 for i, mark in zip(ids, marks, strict=True)]
            found.append((user, ids, labels))
    return found


@pytest.mark.parametrize(("kind", "settings"), SETTINGS)
def test_tokens_and_labels_are_those_of_trl(tmp_path, kind, settings):
    from trl import SFTTrainer

    data = table(kind)
    theirs = SFTTrainer(
        toy_model(),
        config(tmp_path / "trl", **settings),
        train_dataset=data,
        processing_class=toy_tokenizer(tmp_path / "t"),
    ).train_dataset
    ours = private(tmp_path, data, **settings)
    place = {user: number for number, user in enumerate(sorted(set(data["author"])))}
    expected = sorted((place[row["author"]], row["input_ids"], row["labels"]) for row in theirs)
    assert sorted(examples(ours.store)) == expected
    streamed = private(tmp_path / "streamed", data.to_iterable_dataset(), **settings)
    assert streamed.store.meta.content_sha256 == ours.store.meta.content_sha256
    counted = sum(label != -100 for _, _, labels in expected for label in labels)
    assert counted > 0
    whole = kind == "text" or settings.get("completion_only_loss") is False
    if whole or (kind == "messages" and not settings):
        assert counted == sum(len(ids) for _, ids, _ in expected)


def test_invariant_10_rows_that_the_loss_counts_nothing_of_are_counted(tmp_path):
    """TRL would filter the second, whose prompt alone fills ``max_length``."""
    data = datasets.Dataset.from_list(
        [
            {"author": "a", "prompt": "w1 ", "completion": "w3 w4"},
            {"author": "b", "prompt": "w1 w2 w3 w5 w6 w7 w8 w9 ", "completion": "w3"},
            {"author": None, "prompt": "w1 ", "completion": "w3"},
        ]
    )
    store = private(tmp_path, data, max_length=4).store
    assert store.meta.totals["records_read"] == 3
    assert store.meta.totals["records_stored"] == 2
    assert sum(store.meta.drops.values()) == 1, "the row of nobody"
    assert {user for user, _, _ in examples(store)} == {0, 1}, "what follows a prompt is there"
    assert all(set(labels) != {-100} for _, _, labels in examples(store))


@pytest.mark.parametrize("adapters", [False, True])
def test_a_whole_run_with_trls_own_defaults(tmp_path, adapters, caplog):
    """bfloat16 and activation checkpointing are TRL's defaults."""
    lora = peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM")
    run = private(
        tmp_path,
        table("messages"),
        options={"peft_config": lora} if adapters else None,
        assistant_only_loss=True,
    )
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


def test_invariant_13_new_adapters_descend_from_their_base_alone(tmp_path):
    """The base's weights are known by their digest, though the adapters' are not."""
    base = tmp_path / "base"
    toy_model().save_pretrained(base)
    describe(base, Lineage())
    lora = peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM")
    model = type(toy_model()).from_pretrained(base)
    run = private(tmp_path, table("messages"), model=model, options={"peft_config": lora})
    run.train()
    assert not run.claim.conditions
