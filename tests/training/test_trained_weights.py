"""Which weights of a pre-trained model learn where nothing else is asked for."""

import dataclasses

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.plans import uls_plan
from tests.training.toy import CONFIG
from userdp.training.config import PlainPlan
from userdp.training.loop import train
from userdp.training.lora import freeze

TINY = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 64}
STILL = {
    "gpt2": ["attn.c_attn.bias", "attn.c_attn.weight", "wpe.weight"],
    "llama": ["self_attn.k_proj.weight", "self_attn.q_proj.weight", "self_attn.v_proj.weight"],
    "gpt_neox": ["attention.query_key_value.bias", "attention.query_key_value.weight"],
}


@pytest.mark.parametrize("family", STILL)
def test_positions_queries_keys_and_values_stay_still_and_nothing_else(family):
    shape = transformers.AutoConfig.for_model(family, **TINY)
    model = transformers.AutoModelForCausalLM.from_config(shape)
    freeze(model)
    still = [name for name, one in model.named_parameters() if not one.requires_grad]
    assert (
        sorted(name.split(".0.")[-1].removeprefix("transformer.") for name in still)
        == STILL[family]
    )


@pytest.mark.parametrize(
    ("plan", "all_of_them"),
    [
        (uls_plan(steps=1), False),
        (uls_plan(steps=1), True),
        (PlainPlan(steps=1, batch_size=8), True),
    ],
    ids=["by default", "all", "without privacy"],
)
def test_what_is_released_has_moved_from_the_base_in_what_trains(
    store, base, tmp_path, plan, all_of_them
):
    config = dataclasses.replace(CONFIG, model=str(base), train_all=all_of_them)
    train(store, plan, config, out=tmp_path / "run")
    before = load_file(base / "model.safetensors")
    after = load_file(tmp_path / "run" / "model" / "model.safetensors")
    still = {name for name, one in after.items() if torch.equal(one, before[name])}
    places = {name for name in after if "c_attn" in name or "wpe" in name}
    assert still == (set() if all_of_them else places)
