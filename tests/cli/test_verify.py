"""``userdp verify``: what training wrote passes, and each change of it is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.claims.lives import PLAN, Teller, begin, copied
from tests.speed import fast_then_slow
from tests.training.conftest import prepared
from userdp.claims import Condition, Lineage
from userdp.claims import verify as verifying
from userdp.claims.parts import ConditionKind
from userdp.claims.subject import describe
from userdp.core.files import write_json
from userdp.data.store import UserStore

__all__ = ["prepared"]


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


def verified(path: Path) -> tuple[int, dict]:
    return Teller()("verify", path)


def test_what_was_written_passes_and_the_claim_is_recomputed(place) -> None:
    tell = Teller()
    for name in ("run", "run/model", "run/adapter"):
        status, said = verified(place / name)
        assert (status, said["problems"], said["ok"]) == (0, [], True)
        assert said["claim"]["epsilon"] == PLAN.guarantee().epsilon
        assert said["claim"]["headline"].startswith("(ε ≤ 2.46")
    status, said = verified(place / "store")
    assert (status, said["ok"]) == (0, True)
    assert said["claim"]["epsilon"] == tell.epsilon(place / "store")[0]
    status, said = verified(place / "stopped")
    assert (status, said["problems"]) == (0, [])
    assert said["claim"]["epsilon_so_far"] < PLAN.guarantee().epsilon


def swap_weights(run: Path) -> None:
    name = "model.safetensors"
    shutil.copyfile(run.parent / "other" / "model" / name, run / "model" / name)


def swap_model(run: Path) -> None:
    shutil.rmtree(run / "model")
    shutil.copytree(run.parent / "other" / "model", run / "model")


def change_plan(run: Path) -> None:
    values = json.loads((run / "plan.json").read_text())
    values["noise"]["multiplier"] *= 2
    write_json(run / "plan.json", values)


def change_options(run: Path) -> None:
    with (run / "train.toml").open("a", encoding="utf-8") as file:
        file.write("# a word more\n")


def cut_ledger(run: Path) -> None:
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))


def change_ledger(run: Path) -> None:
    text = (run / "ledger.jsonl").read_text()
    (run / "ledger.jsonl").write_text(text.replace('"multiplier":1.0', '"multiplier":9.0', 1))


def forget_beside(run: Path) -> None:
    (run / "model" / "userdp.json").unlink()


def describe_less(run: Path) -> None:
    """Both descriptions are written anew, consistently, and name no part."""
    describe(run / "model", Lineage())


def describe_adapter_less(run: Path) -> None:
    describe(run / "adapter", Lineage())


CHANGES: list[tuple[Callable[[Path], None], str]] = [
    (swap_weights, "the weights in"),
    (swap_model, "the weights in"),
    (change_plan, "the plan in"),
    (describe_less, "what the ledger says"),
    (cut_ledger, "does not note the run's end"),
    (change_options, "the options in"),
    (change_ledger, "does not follow"),
    (forget_beside, "userdp.json does not say"),
    (describe_adapter_less, "what the ledger says"),
]


@pytest.mark.parametrize(("change", "named"), fast_then_slow(CHANGES, fast=5))
def test_each_change_of_a_run_is_named(place, change, named) -> None:
    change(place / "run")
    status, said = verified(place / "run")
    assert status == 1
    assert not said["ok"]
    assert [problem for problem in said["problems"] if named in problem]


def test_a_models_folder_is_held_against_what_it_says(place) -> None:
    """The same without a ledger: weights, and both descriptions."""
    model = copied(place / "run" / "model", place / "model")
    shutil.copyfile(place / "other" / "model" / "userdp.json", model / "userdp.json")
    status, said = verified(model)
    assert status == 1
    assert len(said["problems"]) == 2  # other weights, and another story than in the metadata
    condition = Condition(kind=ConditionKind.BASE, told="somebody's")
    describe(model, Lineage(conditions=(condition,)))
    status, said = verified(model)
    assert status == 0
    assert said["claim"]["epsilon"] == "inf"
    (model / "userdp.json").write_text("{}")
    assert verified(model)[0] == 1


def test_a_store_whose_ledger_was_edited_is_named(place) -> None:
    ledger = place / "store" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"multiplier":1.0', '"multiplier":9.0', 1))
    status, said = verified(place / "store")
    assert status == 1
    assert any("does not follow" in problem for problem in said["problems"])


def test_people_read_the_headline_and_every_problem(place, userdp) -> None:
    assert "Claim: (ε ≤ 2.46" in userdp("verify", place / "run")[1]
    swap_weights(place / "run")
    change_options(place / "run")
    status, said, _ = userdp("verify", place / "run")
    assert (status, "Claim" in said) == (1, False)
    assert "the weights in" in said
    assert "the options in" in said


# --------------------------------------------------------------------------------- broken twins


def test_broken_twin_a_verifier_of_the_weights_alone_misses_other_descriptions(
    place, monkeypatch
) -> None:
    monkeypatch.setattr(verifying, "_told_differs", lambda model, lineage: [])
    with pytest.raises(AssertionError):
        test_each_change_of_a_run_is_named(place, describe_less, "what the ledger says")
