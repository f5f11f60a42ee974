"""What a model's folder says of its weights, by files of two tensors."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from userdp.claims import Claim
from userdp.claims.lineage import Lineage, of_parts
from userdp.claims.verify import verify
from userdp.claims.weights import LINEAGE, describe, digest_of
from userdp.ledger.parts import Query

ONE = of_parts([Query(id="one", name="users", pure_epsilon=0.1)])
TENSORS = {"first": torch.arange(4.0), "second": torch.ones(3)}


@pytest.fixture
def model(tmp_path):
    """Weights that are said to descend from one DP answer."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(TENSORS, folder / "model.safetensors")
    describe(folder, ONE)
    return folder


def test_a_model_that_says_what_it_is_has_no_problem_and_its_parts_claim(model):
    verified = verify(model)
    assert verified.problems == ()
    assert verified.claim.lineage == ONE


def test_weights_are_known_under_other_names_in_other_files_and_with_other_metadata(model):
    known = digest_of(model)
    (model / "model.safetensors").unlink()
    for name, tensor in TENSORS.items():
        save_file({f"renamed.{name}": tensor}, model / f"{name}.safetensors", {"format": "pt"})
    assert digest_of(model) == known
    assert verify(model).problems == ()
    save_file({"first": TENSORS["first"].reshape(2, 2)}, model / "first.safetensors")
    assert digest_of(model) != known


def test_weights_that_were_exchanged_are_a_problem(model):
    save_file({"first": torch.ones(4)}, model / "model.safetensors")
    (problem,) = verify(model).problems
    assert "are not those" in problem


def test_a_model_that_says_nothing_is_a_problem(model):
    (model / LINEAGE).unlink()
    verified = verify(model)
    assert "says what the weights descend from" in verified.problems[0]
    assert verified.claim is None


FACTS = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
DAMAGED = {
    "no dtype": {"first": {key: FACTS[key] for key in FACTS if key != "dtype"}},
    "beyond the file": {"first": {**FACTS, "data_offsets": [0, 400]}},
    "shape below zero": {"first": {**FACTS, "shape": [-1]}},
    "a list": [FACTS],
    "nothing": None,
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_weights_are_a_problem_and_no_crash(model, what):
    encoded = json.dumps(DAMAGED[what]).encode()
    data = struct.pack("<Q", len(encoded)) + encoded + bytes(4)
    (model / "model.safetensors").write_bytes(data if DAMAGED[what] else b"")
    verified = verify(model)
    assert "cannot read the weights" in verified.problems[0]
    assert verified.claim is None


def test_a_claim_without_parts_says_that_nothing_was_charged():
    nothing = Claim(
        guarantee=Lineage().guarantee(), lineage=Lineage(), subject="store", steps=0, complete=True
    )
    assert nothing.why_nothing == "nothing was charged"
