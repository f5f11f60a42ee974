"""What `verify` says of a model, and what is copied of weights, by files of two tensors."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from tests.ledgers import begun, finish, run_with
from tests.plans import uls_plan
from userdp.claims import Claim
from userdp.claims.claims import compose
from userdp.claims.lineage import Lineage, of_parts
from userdp.claims.parts import Query
from userdp.claims.released import bound_files
from userdp.claims.subject import LINEAGE, copy_tensors, describe, digest_of
from userdp.claims.verify import verify
from userdp.core.errors import UseError
from userdp.ledger import RunFolder

ONE = of_parts([Query(id="one", name="users", pure_epsilon=0.1)])
OTHER = of_parts([Query(id="two", name="users", pure_epsilon=0.2)])


@pytest.fixture
def model(tmp_path):
    """Weights that say of themselves, twice, that they descend from one DP answer."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"first": torch.arange(4.0), "second": torch.ones(3)}, folder / "model.safetensors")
    describe(folder, ONE)
    return folder


def test_a_model_that_says_what_it_is_has_no_problem_and_its_parts_claim(model):
    verified = verify(model)
    assert verified.problems == ()
    assert verified.claim.lineage == ONE


def test_weights_that_were_exchanged_are_a_problem(model):
    path = model / "model.safetensors"
    kept = json.loads(path.read_bytes()[8:][: struct.unpack("<Q", path.read_bytes()[:8])[0]])
    save_file({"first": torch.ones(4)}, path, metadata=kept["__metadata__"])
    (problem,) = verify(model).problems
    assert "are not those" in problem


def test_a_model_that_says_nothing_is_a_problem(model):
    (model / LINEAGE).unlink()
    save_file({"first": torch.ones(4)}, model / "model.safetensors")
    verified = verify(model)
    assert "says what the weights descend from" in verified.problems[0]
    assert verified.claim is None


@pytest.mark.parametrize("first", [ONE, OTHER])
def test_where_two_places_say_different_things_both_count(model, first):
    describe(model, first)
    beside = json.loads((model / LINEAGE).read_text())
    beside["lineage"] = (OTHER if first is ONE else ONE).plain
    (model / LINEAGE).write_text(json.dumps(beside))
    verified = verify(model)
    assert "say different things" in verified.problems[0]
    assert {part.id for part in verified.claim.parts} == {"one", "two"}


def test_a_damaged_model_is_a_problem_and_no_crash(model):
    (model / "model.safetensors").write_bytes(b"")
    verified = verify(model)
    assert len(verified.problems) == 1
    assert verified.claim is None


def test_a_damaged_ledger_is_a_problem_and_no_crash(tmp_path):
    run = run_with(tmp_path / "one", uls_plan(), 2)
    ledger = run / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b"one", b"two"))
    verified = verify(run)
    assert len(verified.problems) == 1
    assert verified.claim is None


FACTS = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
DAMAGED = {
    "no dtype": {"first": {key: FACTS[key] for key in FACTS if key != "dtype"}},
    "beyond the file": {"first": {**FACTS, "data_offsets": [0, 400]}},
    "shape below zero": {"first": {**FACTS, "shape": [-1]}},
    "a list": [FACTS],
}


@pytest.fixture(params=DAMAGED)
def damaged(request, tmp_path):
    """A folder of weights whose header says what no header says."""
    folder = tmp_path / "model"
    folder.mkdir()
    encoded = json.dumps(DAMAGED[request.param]).encode()
    data = struct.pack("<Q", len(encoded)) + encoded + bytes(4)
    (folder / "model.safetensors").write_bytes(data)
    return folder


def test_weights_with_a_damaged_header_are_not_copied(damaged, tmp_path):
    with pytest.raises(UseError, match="cannot read the weights"):
        copy_tensors(damaged / "model.safetensors", tmp_path / "copy.safetensors", metadata={})
    assert not (tmp_path / "copy.safetensors").exists()


def test_only_tensors_and_the_lineage_are_copied(model, tmp_path):
    source, copy = model / "model.safetensors", tmp_path / "copy" / "model.safetensors"
    copy.parent.mkdir()
    data = source.read_bytes()
    assert b"userdp.lineage" in data
    size, words = struct.unpack("<Q", data[:8])[0], b'"note": "a word", "dtype"'
    header = data[8 : 8 + size].replace(b'"dtype"', words, 1)
    source.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])
    copy_tensors(source, copy, metadata={"format": "pt"})
    assert digest_of(copy.parent) == digest_of(model)
    assert b"a word" not in copy.read_bytes()
    assert b"userdp.lineage" not in copy.read_bytes()
    source.write_bytes(source.read_bytes() + b"a word that nobody bound")
    with pytest.raises(UseError, match="cannot read the weights"):
        copy_tensors(source, copy, metadata={})


@pytest.mark.parametrize("bound", [False, True])
def test_what_no_line_binds_is_told_and_is_no_problem(model, tmp_path, bound):
    folder, plan = RunFolder(tmp_path), uls_plan()
    ledger = begun(folder.ledger, plan)
    assert any("is not finished" in note for note in verify(tmp_path).notes)
    digests = {"weights": digest_of(model), "plan": plan.digest, "train": None}
    finish(ledger, digests, files=bound_files(folder) if bound else {})
    assert verify(tmp_path).notes == ("The run is as written.",)
    (model / "README.md").write_text("a word")
    beside, _ = verify(tmp_path).notes
    assert "README.md" in beside
    assert "safetensors" not in beside


def test_a_claim_without_parts_says_that_nothing_was_charged():
    nothing = Claim(
        guarantee=compose(Lineage()), lineage=Lineage(), subject="store", steps=0, complete=True
    )
    assert nothing.why_nothing == "nothing was charged"
