"""What a model's folder says of its weights; damaged ones are in tests/hostile/corpus."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from userdp.claims.lineage import of_parts
from userdp.claims.verify import verify
from userdp.claims.weights import describe, digest_of
from userdp.ledger.charged_parts import Query

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
    (problem,) = verify(model).problems
    assert "are not those" in problem
