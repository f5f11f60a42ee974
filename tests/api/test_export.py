"""An export holds what the run's claim covers, and nothing that anybody put beside it."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer

import userdp as library
from tests.claims.lives import PLAIN, PLAN, SHAPE, begin
from tests.exports import MARK, make_runs
from tests.modes import holding
from tests.training.toy import toy_store
from userdp.claims import released_files as released_module
from userdp.claims import verify as verify_module

FILES = {
    "README.md", "config.json", "generation_config.json", "ledger.jsonl", "model.safetensors",
    "plan.json", "report.html", "statement.json", "tokenizer.json", "tokenizer_config.json",
    "userdp.json",
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(made, tmp_path) -> Path:
    return shutil.copytree(made / "run", tmp_path / "secret-project")


@pytest.fixture
def refused(userdp):
    """The message of an export that is refused, after which nothing is there."""

    def words(run: Path, out: Path) -> str:
        before = sorted(out.parent.iterdir())
        status, _, err = userdp("export", run, "--out", out)
        assert status == 2
        assert sorted(out.parent.iterdir()) == before, "nothing is half-written"
        return str(err)

    return words


def test_an_export_holds_what_may_leave_and_nothing_else(run, tmp_path):
    shared, old = tmp_path / "shared", os.umask(0o077)
    try:
        exported = library.export(run, out=shared)
    finally:
        os.umask(old)
    assert {path.name for path in shared.iterdir()} == FILES == set(exported["files"])
    assert exported["claim"].guarantee.epsilon == PLAN.guarantee().epsilon
    assert shared.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in shared.iterdir()} == {0o644}
    assert holding(shared, str(tmp_path)) == set()
    assert holding(shared, "secret-project") == set(), "the run's folder is of this machine"
    assert not list(tmp_path.glob(".partial*"))


def test_the_card_has_the_claim_what_the_hub_reads_and_a_snippet_that_runs(
    run, tmp_path, monkeypatch, userdp, capsys
):
    shared = tmp_path / "shared"
    told = ("--base-model", "openai-community/gpt2", "--license", "apache-2.0")
    told += ("--dataset", "a/b", "--dataset", "c/d", "--tag", "code")
    assert userdp("export", run, "--out", shared, *told)[0] == 0
    card = (shared / "README.md").read_text(encoding="utf-8")
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["base_model"] == "openai-community/gpt2"
    assert (head["license"], head["datasets"]) == ("apache-2.0", ["a/b", "c/d"])
    assert {"code", "userdp", "differential-privacy"} <= set(head["tags"])
    assert library.claim(run).headline.replace("1e-05", "1e-5") in card.replace("\\", "")
    snippet = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert snippet is not None
    monkeypatch.chdir(shared)
    exec(snippet[1].replace("max_new_tokens=20", "max_new_tokens=2"), {})  # a toy has few positions
    assert capsys.readouterr().out.strip()


def plant_setting(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "note": MARK}))


def plant_token(path: Path) -> None:
    """A word in the vocabulary, as a tokenizer's own library adds it."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_tokens([MARK])
    tokenizer.save(str(path))


PLANT = {"config.json": plant_setting, "tokenizer.json": plant_token}
"""A file that the run released, and how somebody puts a word into it."""


@pytest.mark.parametrize("name", PLANT)
def test_a_released_file_with_a_word_put_into_it_is_refused_by_name(
    run, tmp_path, userdp, refused, name
):
    file = run / "model" / name
    PLANT[name](file)
    assert holding(run, MARK), "it was planted"
    assert file.name in refused(run, tmp_path / "shared")
    assert userdp("verify", run)[0] == 1
    assert userdp("report", run, "--public", "--out", tmp_path / "page.html")[0] == 2


def test_broken_twin_a_ledger_that_binds_weights_only_lets_words_leave(run, tmp_path, monkeypatch):
    """What an export would be worth without the digests: the same attacks, and most pass."""
    for module in (released_module, verify_module):
        monkeypatch.setattr(module, "differences", lambda *_: iter(()))
    plant_token(run / "model" / "tokenizer.json")
    library.export(run, out=tmp_path / "shared")
    assert holding(tmp_path / "shared", MARK) != set()


def test_files_that_were_put_beside_the_released_ones_stay_and_are_named(run, tmp_path):
    model = run / "model"
    shutil.copytree(model, model / ".cache" / "huggingface" / MARK)
    for name in ("chat_template.jinja", "README.md", "modeling.py", "pytorch_model.bin"):
        (model / name).write_text(MARK)
    assert holding(run, MARK), "it was planted"
    checked = verify_module.verify(run)
    assert not checked.problems
    assert any("in no line of the ledger" in note for note in checked.notes)
    library.export(run, out=tmp_path / "shared")
    assert holding(tmp_path / "shared", MARK) == set()
    assert {path.name for path in (tmp_path / "shared").iterdir()} == FILES


def test_a_model_on_another_disk_is_exported_by_its_content(run, tmp_path, refused):
    for place in ("model/config.json", "model"):
        elsewhere = tmp_path / f"my-{Path(place).name}"
        shutil.move(run / place, elsewhere)
        (run / place).symlink_to(elsewhere)
        library.export(run, out=tmp_path / f"shared-{Path(place).name}")
    (tmp_path / "my-model" / "tokenizer.json").write_text(MARK)
    assert "tokenizer.json" in refused(run, tmp_path / "shared")


def test_nothing_that_is_there_is_written_over(run, tmp_path, refused):
    full, empty, file = (tmp_path / name for name in ("full", "empty", "file"))
    for folder in (full, empty):
        folder.mkdir()
    for one in (full / "mine", file):
        one.write_text("mine")
    for name, target in (("link", empty), ("dangling", tmp_path / "nowhere")):
        (tmp_path / name).symlink_to(target)
    for name in ("full", "empty", "file", "link", "dangling"):
        assert str(tmp_path / name) in refused(run, tmp_path / name)
    assert list(empty.iterdir()) == []


def test_a_run_that_claims_nothing_or_released_nothing_is_refused(tmp_path, userdp, refused):
    store = toy_store(tmp_path / "people")
    begin(store, tmp_path / "stopped", stop=2)
    assert "released no model" in refused(tmp_path / "stopped", tmp_path / "a")
    assert userdp("train", store.path, "--out", tmp_path / "plain", *(*PLAIN, *SHAPE))[0] == 0
    said = refused(tmp_path / "plain", tmp_path / "b")
    assert "nothing is claimed" in said
    assert "without privacy" in said


def test_adapters_leave_with_their_model_and_without_a_place_on_this_machine(made, tmp_path):
    peft = pytest.importorskip("peft", reason="the extra lora is not installed")
    run = shutil.copytree(made / "adapted", tmp_path / "run")
    (run / "adapter" / "README.md").write_text(MARK)
    library.export(run, out=tmp_path / "shared")
    shared = tmp_path / "shared"
    assert holding(shared, MARK) == set()
    assert {path.name for path in (shared / "adapter").iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "userdp.json",
    }  # fmt: skip
    settings = peft.PeftConfig.from_pretrained(str(shared / "adapter"))
    assert (settings.r, settings.base_model_name_or_path) == (2, None)
    assert {"adapter/adapter_model.safetensors", "model.safetensors"} <= {
        one["name"] for one in json.loads((shared / "statement.json").read_text())["subject"]
    }


def test_a_run_that_diverged_is_measured_and_told_of_but_not_exported(tmp_path, userdp, refused):
    pytest.importorskip("peft")
    store, run = toy_store(tmp_path / "people"), tmp_path / "run"
    new = {"model": "new", "layers": 1, "width": 16, "heads": 2}
    with pytest.warns(UserWarning, match="diverged: its weights, or what the model computes"):
        library.train(store, PLAN, out=run, learning_rate=1e30, lora_rank=2, **new)
    for line in (
        ("evaluate", run, "--store", store.path, "--no-base"),
        ("report", run, "--out", tmp_path / "report.html"),
        ("verify", run),
        ("account", "--ledger", run),
    ):
        assert userdp(*line)[0] == 0
    assert "diverged" in refused(run, tmp_path / "shared")
    status, _, told = userdp("generate", run)
    assert (status, "diverged" in told) == (2, True)
