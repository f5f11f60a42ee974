"""A finishing line binds every file of a released model, and of weights the tensors' names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from userdp.claims.lineage import Lineage
from userdp.claims.released import bound_files, content_digest, differences
from userdp.claims.subject import describe, digest_of
from userdp.core.errors import UseError
from userdp.ledger import RunFolder

TENSORS = {"first": torch.arange(4.0), "second": torch.arange(4.0) + 1}


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    """A model and an adapter, of a tensor or two each, with a small file beside them."""
    run = RunFolder(tmp_path)
    for place in (run.model, run.adapter):
        place.mkdir()
        save_file(TENSORS, place / "model.safetensors")
        (place / "config.json").write_text("{}")
    return run


def test_every_file_is_bound_but_what_is_written_anew_later(folder):
    describe(folder.model, Lineage())
    (folder.model / "deeper").mkdir()
    (folder.model / "deeper" / "one").write_text("")
    assert sorted(bound_files(folder)) == [
        "adapter/config.json", "adapter/model.safetensors", "model/config.json",
        "model/deeper/one", "model/model.safetensors",
    ]  # fmt: skip


def test_what_weights_descend_from_may_be_told_anew(folder):
    """The winner of a sweep descends from more than its run did: the metadata changes."""
    before = bound_files(folder)
    describe(folder.model, Lineage())
    save_file(TENSORS, folder.adapter / "model.safetensors", metadata={"format": "pt"})
    assert bound_files(folder) == before


def differing(folder: RunFolder, bound: dict[str, str]) -> list[str]:
    paths = {folder.path / place: digest for place, digest in bound.items()}
    return list(differences(paths, folder.ledger))


def exchange(path: Path) -> None:
    """Two tensors change their names: another model."""
    first, second = load_file(path).values()
    save_file({"first": second.clone(), "second": first.clone()}, path)


def name_again(path: Path) -> None:
    """One of them a second time, under a word."""
    tensors = load_file(path)
    save_file({**tensors, "a-word": tensors["first"].clone()}, path)


@pytest.mark.parametrize("how", [exchange, name_again])
def test_names_of_tensors_are_bound(folder, how):
    path = folder.model / "model.safetensors"
    bound, weights = bound_files(folder), digest_of(folder.model)
    how(path)
    (problem,) = differing(folder, bound)
    assert f"the weights in {path} are not those" in problem
    assert digest_of(folder.model) == weights, "the twin: the weights' own digest misses it"


@pytest.mark.parametrize("how", ["changed", "removed", "a link", "damaged"])
def test_a_file_that_is_not_the_bound_one_is_named(folder, how):
    bound, path = bound_files(folder), folder.model / "config.json"
    if how == "changed":
        path.write_text("[]")
    elif how == "damaged":
        path = folder.model / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-3])
    else:
        path.unlink()
        if how == "a link":
            path.symlink_to(folder.adapter / "config.json")
    (problem,) = differing(folder, bound)
    assert str(path) in problem


def test_a_file_that_came_later_is_told_apart(folder):
    bound = bound_files(folder)
    (folder.adapter / "README.md").write_text("x")
    assert differing(folder, bound) == []


def test_a_link_has_no_digest(folder):
    (folder.model / "link").symlink_to(folder.model / "config.json")
    with pytest.raises(UseError, match="link"):
        content_digest(folder.model / "link")
