"""Settings that are written anew are all that the model's own class needs; bound ones leave."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import transformers

from benchmarks.words import write_tokenizer
from tests.exports import MARK
from userdp.claims.bound import MODEL_FILES
from userdp.errors import UseError
from userdp.training.published import publish, tidy

KINDS = ["gpt2", "llama", "qwen2", "gemma3_text", "mixtral", "mamba2", "gpt_neox", "phi3"]


@pytest.fixture
def places(tmp_path) -> tuple[Path, Path]:
    (tmp_path / "model").mkdir()
    (tmp_path / "out").mkdir()
    return tmp_path / "model", tmp_path / "out"


def bound_of(folder: Path) -> dict[str, str]:
    """What a finishing line says of a folder without weights."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_loses_none_of_its_settings(places, kind):
    """Labels apart, which a language model has none of."""
    model, out = places
    config = transformers.AutoConfig.for_model(kind)
    config.architectures = ["SomeModel"]
    config.save_pretrained(model)
    first = json.loads((model / "config.json").read_text())
    tidy(model)
    publish(model, out, MODEL_FILES, bound=bound_of(model))
    assert (out / "config.json").read_bytes() == (model / "config.json").read_bytes()
    second = json.loads((out / "config.json").read_text())
    assert second == {key: value for key, value in first.items() if key not in {"_name_or_path"}}
    assert isinstance(transformers.AutoConfig.from_pretrained(out), type(config))


def test_a_config_within_a_config_is_held_to_its_own_class(places):
    model, _ = places
    transformers.AutoConfig.for_model("gemma3").save_pretrained(model)
    values = json.loads((model / "config.json").read_text())
    values["text_config"]["note"] = values["note"] = MARK
    values["vision_config"]["auto_map"] = {"AutoConfig": MARK}
    (model / "config.json").write_text(json.dumps(values))
    tidy(model)
    assert MARK not in (model / "config.json").read_text()
    kept = transformers.AutoConfig.from_pretrained(model)
    assert kept.text_config.hidden_size == values["text_config"]["hidden_size"]


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("config.json", {"model_type": "of-my-own", "auto_map": {}}, "does not know by itself"),
        ("config.json", {"model_type": "gpt2", "activation_function": "a sentence"}, "no setting"),
        ("config.json", {"model_type": "gpt2", "activation_function": "/home/me"}, "no setting"),
        ("generation_config.json", {"cache_implementation": ["a b"]}, "no setting"),
        ("adapter_config.json", {"peft_type": "of-my-own"}, "does not know"),
    ],
)
def test_what_cannot_be_judged_stays_in_the_run_and_never_leaves(places, name, values, why):
    """A paid training must not fail when its model is saved: the refusal comes at the export."""
    model, out = places
    text = json.dumps(values)
    (model / name).write_text(text)
    tidy(model)
    assert (model / name).read_text() == text
    with pytest.raises(UseError, match=why):
        publish(model, out, [name], bound=bound_of(model))
    assert list(out.iterdir()) == []


def test_a_file_that_is_no_tokenizer_stays_and_never_leaves(places):
    model, out = places
    write_tokenizer(model / "tokenizer.json")
    values = json.loads((model / "tokenizer.json").read_text())
    (model / "tokenizer.json").write_text(json.dumps({**values, "note": MARK}))
    tidy(model)
    with pytest.raises(UseError, match="is not a tokenizer"):
        publish(model, out, MODEL_FILES, bound=bound_of(model))


def test_of_adapters_neither_a_place_nor_foreign_words_are_kept(places):
    peft = pytest.importorskip("peft", reason="the extra lora is not installed")
    model, _ = places
    peft.LoraConfig(r=2, target_modules=["c_attn"], revision=MARK).save_pretrained(model)
    path = model / "adapter_config.json"
    mapping = {"base_model_class": MARK}
    for base, kept in ((f"/x/{MARK}", None), ("openai-community/gpt2", "openai-community/gpt2")):
        values = {**json.loads(path.read_text()), "auto_mapping": mapping, "note": MARK}
        path.write_text(json.dumps({**values, "base_model_name_or_path": base}))
        tidy(model)
        assert MARK not in path.read_text()
        settings = peft.PeftConfig.from_pretrained(str(model))
        assert (settings.r, settings.base_model_name_or_path) == (2, kept)


def test_a_module_without_config_has_none(places):
    tidy(places[0])
    publish(*places, MODEL_FILES, bound={})
    assert list(places[1].iterdir()) == []


@pytest.mark.parametrize("bound", [True, False])
def test_a_file_leaves_only_if_the_ledger_binds_it(places, bound):
    model, out = places
    (model / "chat_template.jinja").write_text("{{ messages }}")
    publish(model, out, MODEL_FILES, bound=bound_of(model) if bound else {})
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
        publish(model, out, MODEL_FILES, bound=bound)
