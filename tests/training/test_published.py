"""Settings that are written anew are all that the model's own class needs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import transformers

from tests.exports import MARK
from tests.training.toy import write_tokenizer
from userdp.errors import UseError
from userdp.training.published import publish_config, publish_tokenizer

KINDS = ["gpt2", "llama", "qwen2", "gemma3_text", "mixtral", "mamba2", "gpt_neox", "phi3"]


@pytest.fixture
def places(tmp_path) -> tuple[Path, Path]:
    (tmp_path / "model").mkdir()
    (tmp_path / "out").mkdir()
    return tmp_path / "model", tmp_path / "out"


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_loses_none_of_its_settings(places, kind):
    """Labels apart, which a language model has none of."""
    model, out = places
    config = transformers.AutoConfig.for_model(kind)
    config.architectures = ["SomeModel"]
    config.save_pretrained(model)
    assert publish_config(model, out)
    first, second = (json.loads((place / "config.json").read_text()) for place in places)
    assert second == {key: value for key, value in first.items() if key not in {"_name_or_path"}}
    assert isinstance(transformers.AutoConfig.from_pretrained(out), type(config))


def test_a_config_within_a_config_is_held_to_its_own_class(places):
    model, out = places
    transformers.AutoConfig.for_model("gemma3").save_pretrained(model)
    values = json.loads((model / "config.json").read_text())
    values["text_config"]["note"] = values["note"] = MARK
    values["vision_config"]["auto_map"] = {"AutoConfig": MARK}
    (model / "config.json").write_text(json.dumps(values))
    publish_config(model, out)
    assert MARK not in (out / "config.json").read_text()
    kept = transformers.AutoConfig.from_pretrained(out)
    assert kept.text_config.hidden_size == values["text_config"]["hidden_size"]


def test_a_model_whose_code_would_come_along_is_refused(places):
    model, out = places
    (model / "config.json").write_text(json.dumps({"model_type": "of-my-own", "auto_map": {}}))
    with pytest.raises(UseError, match="does not know by itself"):
        publish_config(model, out)


def test_a_module_without_config_has_none(places):
    assert not publish_config(*places)


@pytest.mark.parametrize("bound", [True, False])
def test_a_chat_template_leaves_only_if_the_ledger_binds_it(places, bound):
    model, out = places
    write_tokenizer(model / "tokenizer.json")
    (model / "chat_template.jinja").write_text("{{ messages }}")
    template = hashlib.sha256(b"{{ messages }}").hexdigest() if bound else None
    assert publish_tokenizer(model, out, template=template) == (not bound)
    assert (out / "chat_template.jinja").exists() == bound
    with pytest.raises(UseError, match="speaks of another"):
        publish_tokenizer(model, out, template="0" * 64)
