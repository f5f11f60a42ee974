"""What fails on made-up rows fails before the charge, in the words of the code that failed."""

from __future__ import annotations

import peft
import pytest
import torch

import userdp
from tests.huggingface.toy import toy_model
from tests.plans import uls_plan
from tests.training.toy import private_run, toy_store
from userdp.ledger import StoreLedger


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return toy_store(tmp_path_factory.mktemp("people"))


def of_another_model(model, input_ids, attention_mask):
    """As a tutorial's class returns it, and this model does not."""
    return model(input_ids=input_ids, attention_mask=attention_mask)["row_losses"]


def of_fixed_rows(model, input_ids, attention_mask):
    logits = model(input_ids=input_ids, attention_mask=attention_mask).logits
    return logits.mean((1, 2)) * torch.ones(3)


def adapted(model, config, **settings):
    settings = {"task_type": "CAUSAL_LM", **settings}
    return peft.get_peft_model(model, config(**settings))


def reentrant(model):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    return model.train()


CASES = {
    "a loss of another model": (lambda model: model, of_another_model, "row_losses"),
    "a loss of three rows": (lambda model: model, of_fixed_rows, "one number per row|size"),
    "prompt tuning": (
        lambda model: adapted(model, peft.PromptTuningConfig, num_virtual_tokens=2),
        None,
        "labels must have the shape",
    ),
    "reentrant checkpointing": (reentrant, None, "use_reentrant=True"),
}


@pytest.mark.parametrize("engine", ["auto", "reference"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_charged_and_the_words_are_told(case, engine, store, tmp_path):
    make, loss, words = CASES[case]
    model = toy_model()
    model.resize_token_embeddings(store.meta.vocab_size)
    model = make(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    options = {} if loss is None else {"loss": loss}
    before = StoreLedger(store.path).history().lines

    def take_all() -> None:
        with private_run(
            model, optimizer, store, uls_plan(), out=tmp_path / "run", engine=engine,
            allow_large_delta=True, **options,
        ) as private:  # fmt: skip
            for _ in private:
                optimizer.step()
            private.save()

    with pytest.raises((userdp.UseError, KeyError, RuntimeError, ValueError), match=words):
        take_all()
    assert StoreLedger(store.path).history().lines == before, "nothing was charged"
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_adapters_that_can_be_merged_are_trained_and_saved(store, tmp_path):
    model = toy_model()
    model.resize_token_embeddings(store.meta.vocab_size)
    model = adapted(model, peft.IA3Config)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with private_run(
        model, optimizer, store, uls_plan(), out=tmp_path / "run", allow_large_delta=True
    ) as private:
        for _ in private:
            optimizer.step()
        private.save()
    assert (tmp_path / "run" / "adapter").is_dir()
