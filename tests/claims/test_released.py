"""A run's ledger binds every file of its released model: what came later has no claim."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.claims.lives import PLAN, Teller, begin
from tests.ledger.runs import copied
from tests.ledgers import begun, finish
from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.conftest import prepared
from userdp.claims.lineage import Lineage
from userdp.claims.released_files import bound_files, copy_released, differences
from userdp.claims.verify import verify
from userdp.claims.weights import describe, digest_of
from userdp.data.user_store import UserStore
from userdp.ledger import RunFolder, RunRecord
from userdp.ledger.run_ledger import append_saved

__all__ = ["prepared"]


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    """A model and an adapter, of two tensors each, with a small file beside them."""
    run = RunFolder(tmp_path)
    for place in (run.model, run.adapter):
        place.mkdir()
        tensors = {"first": torch.arange(4.0), "second": torch.arange(4.0) + 1}
        save_file(tensors, place / "model.safetensors")
        (place / "config.json").write_text("{}")
    return run


def test_every_file_is_bound_but_what_says_anew_what_the_weights_descend_from(folder):
    before = bound_files(folder)
    describe(folder.model, Lineage())
    assert bound_files(folder) == before
    (folder.model / "deeper").mkdir()
    (folder.model / "deeper" / "one").write_text("")
    assert sorted(bound_files(folder)) == [
        "adapter/config.json", "adapter/model.safetensors", "model/config.json",
        "model/deeper/one", "model/model.safetensors",
    ]  # fmt: skip


def exchange_names(path: Path) -> None:
    """Two tensors change their names: another model, of the same weights."""
    first, second = load_file(path).values()
    save_file({"first": second.clone(), "second": first.clone()}, path)


CHANGES = {
    "changed": ("config.json", lambda path: path.write_text("[]")),
    "removed": ("config.json", Path.unlink),
    "damaged": ("model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-3])),
    "exchanged names": ("model.safetensors", exchange_names),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_file_that_is_not_the_bound_one_is_named(folder, how):
    name, change = CHANGES[how]
    bound = {folder.path / place: digest for place, digest in bound_files(folder).items()}
    weights, path = digest_of(folder.model), folder.model / name
    (folder.adapter / "README.md").write_text("x")
    assert list(differences(bound, folder.ledger)) == [], "what came later is told apart"
    change(path)
    (problem,) = differences(bound, folder.ledger)
    assert str(path) in problem
    if how == "exchanged names":
        assert digest_of(folder.model) == weights, "the twin: the weights' own digest misses it"


def test_what_no_line_binds_is_told_and_is_no_problem(folder):
    plan = uls_plan()
    for place in (folder.model, folder.adapter):
        describe(place, Lineage())
    ledger = begun(folder.ledger, plan)
    assert any("is not finished" in note for note in verify(folder.path).notes)
    finish(ledger, weights=(digest_of(folder.model),), files=bound_files(folder))
    (folder.model / "README.md").write_text("a word")
    beside, _ = verify(folder.path).notes
    assert "README.md" in beside


def test_weights_that_came_after_the_end_have_no_claim_and_do_not_leave(folder, tmp_path):
    """A merging tool writes its own, and captions or tags into their metadata."""
    describe(folder.model, Lineage())
    shutil.rmtree(folder.adapter)
    finish(begun(folder.ledger, uls_plan()), weights=(digest_of(folder.model),))
    assert any("does not speak of the weights" in one for one in verify(folder.path).problems)
    out = tmp_path / "out"
    out.mkdir()
    copy_released(RunRecord.read(folder.ledger), out, Lineage())
    assert not list(out.iterdir())
    append_saved(folder, bound_files(folder))
    assert not any("speak of the weights" in one for one in verify(folder.path).problems)
    copy_released(RunRecord.read(folder.ledger), out, Lineage())
    assert (out / "model.safetensors").exists()


@pytest.fixture(scope="module")
def honest(prepared, tmp_path_factory) -> Path:
    """A finished run, and one of other weights beside it."""
    folder = tmp_path_factory.mktemp("released")
    store = UserStore.open(shutil.copytree(prepared, folder / "store"))
    begin(store, folder / "run")
    begin(store, folder / "other", seed=1)
    return folder


@pytest.fixture
def run(honest, tmp_path) -> Path:
    return copied(honest / "run", tmp_path / "run")


COMMANDS = {
    "report": lambda run: ("report", run, "--public", "--out", run.parent / "p", "--overwrite"),
    "export": lambda run: ("export", run, "--out", run.parent / "export"),
    "generate": lambda run: ("generate", run, "--records", 1, "--max-tokens", 2),
}


@pytest.mark.parametrize("command", fast_then_slow(COMMANDS))
def test_swapped_weights_have_no_claim(run, honest, command):
    """RUN/model/model.safetensors is replaced by the weights of another training."""
    Teller().done(*COMMANDS[command](run))
    name = "model.safetensors"
    shutil.copyfile(honest / "other" / "model" / name, run / "model" / name)
    shutil.rmtree(run.parent / "export", ignore_errors=True)
    assert Teller()(*COMMANDS[command](run))[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("kept", [1, 3], ids=["no attempt", "two attempts"])
def test_a_cut_ledger_of_a_finished_run_lowers_no_claim(run, kept):
    """The last lines of a finished run's ledger are lost: the hash chain of the rest still holds.

    The weights in RUN/model have seen six steps, ε = 2.47; those of two steps would be 1.92.
    """
    ledger = run / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:kept]))
    assert Teller().of_model(run)[0] >= PLAN.guarantee().epsilon
    assert not math.isinf(Teller().epsilon(run)[0])
