"""Of the files beside released weights, settings are kept that their classes know, and no more."""

import json

import peft
import pytest
import transformers

from tests.exports import MARK
from tests.modes import holding
from tests.training.toy import toy_model
from userdp.claims.lineage import Lineage
from userdp.training.released_model import _settings, save_model

KINDS = ["gpt2", "llama", "qwen2", "gemma3", "gemma3_text", "mixtral", "mamba2", "gpt_neox", "phi3"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_loses_none_of_its_settings(kind, tmp_path):
    config = transformers.AutoConfig.for_model(kind)
    config.architectures = ["SomeModel"]
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert _settings(written, config) == written


@pytest.fixture
def saved(store, tmp_path):
    def saved(model, name, **options):
        how = {"tokenizer": store.tokenizer_path, "lineage": Lineage(), **options}
        save_model(model, tmp_path / name, **how)
        return tmp_path / name

    return saved


def test_notes_places_and_code_of_a_base_model_end_at_the_release(store, saved):
    base = saved(toy_model(store), MARK)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        values = json.loads((base / name).read_text())
        planted = {"note": MARK, "auto_map": {"AutoConfig": MARK}, "_name_or_path": MARK}
        (base / name).write_text(json.dumps({**values, **planted}))
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base, padding_side="left")
    out = saved(model, "out", own_tokenizer=tokenizer)
    assert holding(out, MARK) == set()
    again = transformers.AutoTokenizer.from_pretrained(out)
    assert again("w3 w1")["input_ids"] == tokenizer("w3 w1")["input_ids"]
    assert (again.eos_token, again.padding_side) == (tokenizer.eos_token, "left")


def test_of_adapters_no_place_is_kept(store, saved):
    base = saved(toy_model(store), MARK)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    settings = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(model, settings)
    own, known = model.peft_config["default"], None
    for name in ("of a folder", "of the hub"):
        out = saved(model, name)
        assert holding(out, MARK) == set()
        kept = peft.PeftConfig.from_pretrained(str(out))
        assert (kept.r, kept.base_model_name_or_path) == (2, known)
        own.base_model_name_or_path = known = "openai-community/gpt2"
        own.corda_config = peft.tuners.lora.config.CordaConfig(cache_file=f"cache/{MARK}")
        own.tokenizer_name_or_path = str(base)
