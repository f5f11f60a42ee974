"""Adapters that a trainer began with, and what its claim says that they descend from."""

import peft
import pytest
import torch
from safetensors.torch import load_file

from tests.huggingface.test_sft import private, table
from tests.huggingface.toy import toy_model, toy_tokenizer
from tests.plans import uls_plan
from userdp.claims.lineage import Lineage
from userdp.claims.subject import describe, description_of

FROM = "adapters-of-unknown-origin"


@pytest.fixture
def base(tmp_path):
    """A folder with a model that learned from nobody."""
    toy_model().save_pretrained(tmp_path / "base")
    describe(tmp_path / "base", Lineage())
    return tmp_path / "base"


def loaded(base):
    return type(toy_model()).from_pretrained(base)


def lora(**settings):
    return peft.LoraConfig(
        r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM", **settings
    )


def yesterday(base, data, tmp_path):
    """Adapters that a loop without privacy trained on the same people."""
    model, tokenizer = peft.get_peft_model(loaded(base), lora()), toy_tokenizer(tmp_path / "words")
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for row in data.select(range(8)):
        ids = torch.tensor([tokenizer(row["text"])["input_ids"]])
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(tmp_path / "yesterday")
    return tmp_path / "yesterday"


def told(claimed):
    return [(str(one.kind), one.told) for one in claimed.conditions]


def test_invariant_13_adapters_loaded_after_the_trainer_made_its_own_are_a_condition(
    base, tmp_path
):
    """`SFTTrainer(peft_config=…)` makes new adapters; these took their place before `train()`."""
    data = table("text")
    run = private(tmp_path, data, model=loaded(base), options={"peft_config": lora()})
    weights = load_file(yesterday(base, data, tmp_path) / "adapter_model.safetensors")
    peft.set_peft_model_state_dict(run.model, weights)
    run.train()
    assert told(run.claim) == [(FROM, "no ledger knows them")]
    assert "provided that the adapters that it began with" in run.claim.headline
    released = description_of(tmp_path / "out" / "adapter")
    assert released.lineage.conditions == run.claim.conditions


@pytest.mark.slow
@pytest.mark.parametrize("how", ["from_pretrained", "set_peft_model_state_dict"])
def test_invariant_13_adapters_of_an_earlier_run_bring_its_price(base, tmp_path, how):
    data = table("text")
    first = private(tmp_path / "first", data, model=loaded(base), options={"peft_config": lora()})
    first.train()
    options, adapter = {"store": first.store}, tmp_path / "first" / "out" / "adapter"
    if how == "from_pretrained":
        model = peft.PeftModel.from_pretrained(loaded(base), adapter, is_trainable=True)
        run = private(tmp_path / "second", data, model=model, options=options)
    else:
        options["peft_config"] = lora()
        run = private(tmp_path / "second", data, model=loaded(base), options=options)
        weights = load_file(adapter / "adapter_model.safetensors")
        peft.set_peft_model_state_dict(run.model, weights)
    run.train()
    assert run.claim.guarantee.epsilon == pytest.approx(2 * uls_plan().guarantee().epsilon)
    assert not [one for one in told(run.claim) if one[0].endswith("origin")]


@pytest.mark.slow
def test_invariant_13_adapters_that_were_there_before_are_a_condition(base, tmp_path):
    data = table("text")
    adapter = yesterday(base, data, tmp_path)
    model = peft.PeftModel.from_pretrained(loaded(base), adapter, is_trainable=True)
    run = private(tmp_path, data, model=model)
    run.train()
    assert told(run.claim) == [(FROM, "no ledger knows them")]
