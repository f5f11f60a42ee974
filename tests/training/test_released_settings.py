"""Of the files beside released weights, settings are kept that their classes know, and no more."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import transformers

from tests.exports import MARK, holding
from tests.training.toy import toy_model
from userdp.claims.lineage import Lineage
from userdp.claims.released import copy_bound
from userdp.core.errors import UseError
from userdp.training.releasing import _settings, save_model

KINDS = ["gpt2", "llama", "qwen2", "gemma3", "gemma3_text", "mixtral", "mamba2", "gpt_neox", "phi3"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_loses_none_of_its_settings(kind, tmp_path):
    config = transformers.AutoConfig.for_model(kind)
    config.architectures = ["SomeModel"]
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert _settings(written, config) == written


def saved(model, store, folder, **options) -> Path:
    save_model(model, folder, tokenizer=store.tokenizer_path, lineage=Lineage(), **options)
    return folder


def test_notes_places_and_code_of_a_base_model_end_at_the_release(store, tmp_path):
    base = saved(toy_model(store), store, tmp_path / MARK)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        values = json.loads((base / name).read_text())
        planted = {"note": MARK, "auto_map": {"AutoConfig": MARK}, "_name_or_path": MARK}
        (base / name).write_text(json.dumps({**values, **planted}))
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base, padding_side="left")
    out = saved(model, store, tmp_path / "out", own_tokenizer=tokenizer)
    assert holding(out, MARK) == []
    again = transformers.AutoTokenizer.from_pretrained(out)
    assert again("w3 w1")["input_ids"] == tokenizer("w3 w1")["input_ids"]
    assert (again.eos_token, again.padding_side) == (tokenizer.eos_token, "left")


def test_of_adapters_no_place_is_kept(store, tmp_path):
    peft = pytest.importorskip("peft", reason="the extra lora is not installed")
    base = saved(toy_model(store), store, tmp_path / MARK)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    settings = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(model, settings)
    out = saved(model, store, tmp_path / "out")
    assert holding(out, MARK) == []
    settings = peft.PeftConfig.from_pretrained(str(out))
    assert (settings.r, settings.base_model_name_or_path) == (2, None)
    own = model.peft_config["default"]
    own.base_model_name_or_path = "openai-community/gpt2"
    own.corda_config = peft.tuners.lora.config.CordaConfig(cache_file=f"cache/{MARK}")
    own.tokenizer_name_or_path = str(base)
    assert holding(saved(model, store, tmp_path / "hub"), MARK) == []
    settings = peft.PeftConfig.from_pretrained(str(tmp_path / "hub"))
    assert settings.base_model_name_or_path == "openai-community/gpt2"


def bound_of(folder: Path) -> dict[str, str]:
    """What a finishing line says of a folder without weights."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture
def places(tmp_path) -> tuple[Path, Path]:
    for name in ("model", "out"):
        (tmp_path / name).mkdir()
    return tmp_path / "model", tmp_path / "out"


@pytest.mark.parametrize("bound", [True, False])
def test_a_file_leaves_only_if_the_ledger_binds_it(places, bound):
    model, out = places
    (model / "chat_template.jinja").write_text("{{ messages }}")
    copy_bound(model, out, ["chat_template.jinja"], bound=bound_of(model) if bound else {})
    assert (out / "chat_template.jinja").exists() == bound


@pytest.mark.parametrize("how", ["changed", "missing", "a link"])
def test_another_file_than_the_bound_one_is_refused(places, how):
    model, out = places
    path = model / "chat_template.jinja"
    path.write_text("{{ messages }}")
    bound = bound_of(model)
    path.unlink()
    if how == "changed":
        path.write_text(MARK)
    elif how == "a link":
        (model / "elsewhere").write_text("{{ messages }}")
        path.symlink_to(model / "elsewhere")
    with pytest.raises(UseError, match="chat_template"):
        copy_bound(model, out, ["chat_template.jinja"], bound=bound)
