"""Adapters that a trainer began with, and what its claim says that they descend from."""

import peft
import pytest
import torch
from safetensors.torch import load_file

from tests.huggingface.test_sft import private, table
from tests.huggingface.toy import toy_model, toy_tokenizer
from userdp.claims.lineage import Lineage
from userdp.claims.weights import describe, description_of

pytestmark = pytest.mark.slow  # TRL alone takes seconds to load

LORA = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")


@pytest.fixture
def base(tmp_path):
    """Loads a model that learned from nobody."""
    toy_model().save_pretrained(tmp_path / "base")
    describe(tmp_path / "base", Lineage())
    return lambda: type(toy_model()).from_pretrained(tmp_path / "base")


def yesterday(base, data, tmp_path):
    """Adapters that a loop without privacy trained on the same people."""
    model, tokenizer = peft.get_peft_model(base(), LORA), toy_tokenizer(tmp_path)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for row in data.select(range(8)):
        ids = torch.tensor([tokenizer(row["text"])["input_ids"]])
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(tmp_path / "yesterday")
    return tmp_path / "yesterday"


def test_invariant_13_the_claim_is_of_the_adapters_that_training_begins_with(base, tmp_path):
    """`SFTTrainer(peft_config=…)` makes new ones; others may take their place before `train()`."""
    data = table("text")
    run = private(tmp_path / "run", data, model=base(), options={"peft_config": LORA})
    adapter = yesterday(base, data, tmp_path)
    peft.set_peft_model_state_dict(run.model, load_file(adapter / "adapter_model.safetensors"))
    run.train()
    told = [(str(one.kind), one.told) for one in run.claim.conditions]
    assert ("adapters-of-unknown-origin", "no ledger knows them") in told
    released = description_of(tmp_path / "run" / "out" / "adapter")
    assert released.lineage.conditions == run.claim.conditions
