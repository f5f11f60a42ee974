"""The base model on a page: its digest and its shape, and no name that proves nothing."""

from __future__ import annotations

import json

import pytest

from tests.reporting.conftest import MakeRun
from userdp.errors import UseError
from userdp.reporting.about import About
from userdp.reporting.base_model import BaseModel, base_model_in_words
from userdp.reporting.run_facts import read_run

SHAPE = {"kind": "gpt2", "layers": 4, "width": 192, "heads": 6, "vocabulary": 4096}


def test_a_folder_called_gpt2_is_not_openais(make_run: MakeRun) -> None:
    noted = {"origin": "folder", "name": "gpt2", "weights": "feed", "parameters": 2_590_000}
    base = read_run(make_run(facts={"base_model": {**noted, **SHAPE}})).base
    words = base_model_in_words(base)
    assert "a local folder called “gpt2”" in words
    assert "4 layers of width 192, 6 heads" in words
    assert "2.59 million parameters" in words
    assert "SHA-256 of its weights feed" in words


def test_layers_and_width_are_the_models_and_not_an_options_default(make_run: MakeRun) -> None:
    """A run of before the ledger noted it: its released model has the shape of its base."""
    run = make_run(config={"train": {"model": "models/llama", "layers": 12, "width": 768}})
    (run / "model").mkdir()
    config = {"model_type": "gpt2", "n_layer": 4, "n_embd": 192, "n_head": 6, "vocab_size": 4096}
    (run / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    facts = read_run(run)
    assert facts.base == BaseModel(name="llama", **SHAPE)
    assert facts.base.called == "called “llama”; whence is not recorded"
    assert not {"layers", "width", "heads"} & facts.settings.keys()


@pytest.mark.parametrize(
    ("noted", "words"),
    [
        ({"origin": "bundled"}, "the model that comes with userdp"),
        ({"origin": "new"}, "none: training began with random weights"),
        ({"origin": "hub", "name": "org/gpt2"}, "“org/gpt2” of the Hugging Face hub"),
        ({"origin": "memory", "name": "gpt2"}, "a model in memory that calls itself “gpt2”"),
        ({"origin": "memory"}, "a model in memory"),
        ({"layers": "four", "origin": 7, "parameters": True}, "not recorded"),
    ],
)
def test_each_origin_has_its_words(make_run: MakeRun, noted: dict, words: str) -> None:
    assert read_run(make_run(facts={"base_model": noted})).base.called == words


def test_the_operators_words_stand_on_one_line_and_are_short() -> None:
    assert About(organisation=" The\nInstitute \u202e").organisation == "The Institute \ufffd"
    for text in ("", "   ", "x" * 501):
        with pytest.raises(UseError, match="data_description must have from 1 to 500"):
            About(data_description=text)
