"""The base model by what it is: a name or an option that says otherwise is not repeated."""

from __future__ import annotations

from types import SimpleNamespace

from torch import nn

from tests.plans import uls_plan
from tests.training.toy import CONFIG, sgd, toy_model
from userdp.ledger import RunRecord
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


def test_a_folder_is_told_without_its_place_and_no_folder_is_the_hubs_model(tmp_path):
    folder = tmp_path / "models" / "gpt2"
    folder.mkdir(parents=True)
    told = base_facts(a_model(), weights="feed", loaded_from=str(folder))
    assert (told["origin"], told["name"]) == ("folder", "gpt2")
    assert str(tmp_path) not in str(told)
    hub = base_facts(a_model(), weights="feed", loaded_from="openai-community/gpt2")
    assert (hub["origin"], hub["name"]) == ("hub", "openai-community/gpt2")


def test_every_run_notes_it_in_its_ledger(store, tmp_path):
    plan = uls_plan(steps=1)
    train(store, plan, CONFIG, out=tmp_path / "trained")
    told = RunRecord.read(tmp_path / "trained").facts["base_model"]
    assert (told["origin"], told["layers"], told["width"]) == ("new", 1, 16)
    model = toy_model(store)
    weights = digest_of_weights(model)
    with make_private(model, sgd(model), store, plan, out=tmp_path / "loop"):
        pass
    told = RunRecord.read(tmp_path / "loop").facts["base_model"]
    assert (told["origin"], told["weights"]) == ("memory", weights)
