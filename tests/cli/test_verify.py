"""``userdp verify``: what training wrote passes, and each change of it is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.claims.lives import PLAN, Teller, begin
from tests.ledger.runs import copied
from tests.speed import fast_then_slow
from userdp.claims import Lineage
from userdp.claims import verify as verifying
from userdp.claims.weights import describe
from userdp.data.user_store import UserStore


@pytest.fixture(scope="module")
def honest(prepared, tmp_path_factory) -> Path:
    """A store, a finished run with adapters, one of other weights, and one that was stopped."""
    folder = tmp_path_factory.mktemp("verified")
    store = UserStore.open(shutil.copytree(prepared, folder / "store"))
    begin(store, folder / "run", lora_rank=2)
    begin(store, folder / "other", lora_rank=2, seed=1)
    begin(store, folder / "stopped", stop=2)
    return folder


@pytest.fixture
def place(honest, tmp_path) -> Path:
    return copied(honest, tmp_path / "place")


def verified(path: Path, status: int) -> dict:
    """What is said of a folder, which passes (0) or differs (1)."""
    found, said = Teller()("verify", path)
    assert (found, said["ok"], said["problems"] == []) == (status, status == 0, status == 0)
    return said


def test_what_was_written_passes_and_the_claim_is_recomputed(place) -> None:
    for name in ("run", "run/model", "run/adapter"):
        claim = verified(place / name, 0)["claim"]
        assert claim["epsilon"] == PLAN.guarantee().epsilon
        assert claim["headline"].startswith("(ε ≤ 2.46")
    assert verified(place / "store", 0)["claim"]["epsilon"] == Teller().epsilon(place / "store")[0]
    assert verified(place / "stopped", 0)["claim"]["epsilon_so_far"] < PLAN.guarantee().epsilon


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def cut_ledger(run: Path) -> None:
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))


def swap_weights(run: Path) -> None:
    name = "model/model.safetensors"
    shutil.copyfile(run.parent / "other" / name, run / name)


CHANGES = {
    "weights": (swap_weights, "model.safetensors is not what the run released"),
    "plan": (lambda run: edit(run / "plan.json", '"multiplier": 1', '"multiplier": 2'), "the plan"),
    "description": (lambda run: describe(run / "model", Lineage()), "what the ledger says"),
    "end": (cut_ledger, "does not note the run's end"),
    "options": (lambda run: edit(run / "train.toml", "\n", "\n#\n"), "train.toml is not what"),
    "ledger": (
        lambda run: edit(run / "ledger.jsonl", '"multiplier":1.0', '"multiplier":9.0'),
        "does not follow",
    ),
    "beside": (lambda run: (run / "model/userdp.json").unlink(), "there is no"),
    "adapter": (lambda run: describe(run / "adapter", Lineage()), "what the ledger says"),
}


@pytest.mark.parametrize("what", fast_then_slow([*CHANGES], fast=5))
def test_each_change_of_a_run_is_named(place, what) -> None:
    change, named = CHANGES[what]
    change(place / "run")
    assert [one for one in verified(place / "run", 1)["problems"] if named in one]


def test_a_store_whose_ledger_was_edited_is_named(place) -> None:
    edit(place / "store" / "ledger.jsonl", '"multiplier":1.0', '"multiplier":9.0')
    assert any("does not follow" in one for one in verified(place / "store", 1)["problems"])


def test_broken_twin_a_verifier_of_the_weights_alone_misses_another_description(
    place, monkeypatch
) -> None:
    monkeypatch.setattr(verifying, "_described_otherwise", lambda model, lineage: [])
    with pytest.raises(AssertionError):
        test_each_change_of_a_run_is_named(place, "description")
