"""The base model by what it is: a name or an option that says otherwise is not repeated."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn

from tests.plans import uls_plan
from tests.training.toy import CONFIG, sgd, toy_model
from userdp.ledger import RunFolder
from userdp.training.loop import train
from userdp.training.origin import base_facts, digest_of_weights
from userdp.training.private import make_private


def a_model(noted: str = "") -> nn.Module:
    model = nn.Linear(3, 2)
    model.config = SimpleNamespace(
        model_type="gpt2",
        num_hidden_layers=7,
        hidden_size=48,
        num_attention_heads=3,
        vocab_size=99,
    )
    model.name_or_path = noted
    return model


def test_the_shape_is_that_of_the_model_that_was_built():
    told = base_facts(a_model(), weights="feed", loaded_from="bundled")
    assert told == {
        "origin": "bundled",
        "weights": "feed",
        "parameters": 8,
        "kind": "gpt2",
        "layers": 7,
        "width": 48,
        "heads": 3,
        "vocabulary": 99,
    }


def test_a_folder_is_told_without_its_place_and_no_folder_is_the_hubs_model(tmp_path):
    folder = tmp_path / "models" / "gpt2"
    folder.mkdir(parents=True)
    told = base_facts(a_model(), weights="feed", loaded_from=str(folder))
    assert (told["origin"], told["name"]) == ("folder", "gpt2")
    assert str(tmp_path) not in str(told)
    hub = base_facts(a_model(), weights="feed", loaded_from="openai-community/gpt2")
    assert (hub["origin"], hub["name"]) == ("hub", "openai-community/gpt2")


@pytest.mark.parametrize("noted", ["", "/secret/place/gpt2", "secret/place/gpt2", "org/gpt2"])
def test_what_a_model_in_memory_says_of_itself_is_not_taken_for_its_origin(noted):
    told = base_facts(a_model(noted), weights=None)
    assert told["origin"] == "memory"
    assert "weights" not in told
    assert "secret" not in str(told)


def test_new_weights_have_no_digest_as_they_follow_a_seed():
    assert "weights" not in base_facts(a_model(), weights="feed", loaded_from="new")


def test_a_module_without_a_configuration_is_told_by_its_class():
    assert base_facts(nn.Linear(3, 2), weights=None) == {
        "origin": "memory",
        "parameters": 8,
        "kind": "Linear",
    }


def test_every_run_notes_it_in_its_ledger(store, tmp_path):
    plan = uls_plan(steps=1)
    train(store, plan, CONFIG, out=tmp_path / "trained")
    told = RunFolder(tmp_path / "trained").read_facts()["base_model"]
    assert (told["origin"], told["layers"], told["width"]) == ("new", 1, 16)
    model = toy_model(store)
    weights = digest_of_weights(model)
    with make_private(model, sgd(model), store, plan, out=tmp_path / "loop"):
        pass
    told = RunFolder(tmp_path / "loop").read_facts()["base_model"]
    assert (told["origin"], told["weights"]) == ("memory", weights)
