"""``userdp prepare``, ``store stats``: what they tell, and nothing half-written.

Input that cannot be used is in mistakes.toml.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

import userdp as library
from tests.claims.lives import Teller
from tests.data.corpora import corpus, write_jsonl
from tests.speed import fast_then_slow
from tests.training.processes import start
from userdp.core.errors import UseError
from userdp.data import store_folder
from userdp.data.store_meta import read_meta
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger


def people(path: Path, users: int = 20) -> Path:
    """Records of made-up users."""
    written = corpus(users).items()
    rows = [{"user": user.decode(), "text": text} for user, texts in written for text in texts]
    return write_jsonl(path, rows)


def test_prepare_then_stats_tell_the_same_totals(tmp_path):
    source, store = people(tmp_path / "mail.jsonl"), tmp_path / "store"
    tell = Teller()
    made = tell.done("prepare", source, "--out", store)
    assert made["totals"]["records_read"] == len(source.read_text().splitlines())
    assert made["store_id"] == UserStore.open(store).meta.store_id
    told = tell.done("store", "stats", store)
    assert (told["operator_only"], told["users"]) == (True, 20)
    assert told["examples"] == made["totals"]["examples"]


def test_the_home_folder_is_meant_where_no_shell_expands_it(tmp_path, userdp, monkeypatch):
    """In ``--out=~/store``, and in a file of settings."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    people(tmp_path / "mail.jsonl", 3)
    (tmp_path / "settings.toml").write_text('[prepare]\ndata = "~/mail.jsonl"\n')
    assert userdp("prepare", "--config", "settings.toml", "--out=~/store")[0] == 0
    assert UserStore.open(tmp_path / "store").users == 3
    assert not (tmp_path / "~").exists()


def test_tables_name_every_drop_and_neither_a_user_nor_a_text(tmp_path, userdp):
    rows = [{"user": "SECRET", "text": "SECRET"}, {"text": "SECRET"}, '{"user": "SECRET", "te']
    source, store = write_jsonl(tmp_path / "mail.jsonl", rows), tmp_path / "store"
    prepare = ("prepare", source, "--out", store, "--held-out-users", 0)
    for command in (prepare, ("store", "stats", store)):
        status, out, err = userdp(*command)
        assert (status, err) == (0, "")
        for words in ("no user field", "not valid JSON", "perator-only"):
            assert words in out
        again = ("--overwrite",) if command is prepare else ()
        assert "SECRET" not in out + userdp(*command, *again, "--json")[1]


@pytest.mark.parametrize("size", fast_then_slow([100, 4_096, 20_000, 110_000, 240_000]))
def test_a_full_disk_is_a_failure_that_leaves_the_old_store(tmp_path, userdp, size):
    source, out = people(tmp_path / "mail.jsonl", users=400), tmp_path / "store"
    assert userdp("prepare", people(tmp_path / "old.jsonl"), "--out", out)[0] == 0
    (errors := tmp_path / "stderr").touch()
    before = sorted(tmp_path.rglob("*"))
    identity = UserStore.open(out).meta.store_id
    line = ["prepare", str(source), "--out", str(out), "--overwrite"]
    process = start(line, most_bytes=size, stderr=errors)
    process.join()
    printed = errors.read_text()
    assert process.exitcode == 1, printed
    assert (printed.count("error:"), "Traceback" in printed) == (1, False)
    assert sorted(tmp_path.rglob("*")) == before
    assert UserStore.open(out).meta.store_id == identity


def test_a_chat_template_is_used_or_its_absence_is_said(tmp_path, userdp):
    turns = [{"from": "human", "value": "When?"}, {"from": "gpt", "value": "At noon."}]
    path = write_jsonl(tmp_path / "a.jsonl", [{"user": "ana", "conversations": turns}])
    store, folder = tmp_path / "s", tmp_path / "model"
    line = ("prepare", path, "--out", store, "--held-out-users", 0)
    status, out, err = userdp(*line)
    assert (status, "Read as conversations" in out, "--tokenizer" in err) == (0, True, True)
    assert UserStore.open(store).meta.loss_mask
    folder.mkdir()
    shutil.copy(Path(library.__file__).parent / "assets" / "base-model" / "tokenizer.json", folder)
    template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    for more, said in (
        (("--overwrite", "--tokenizer", folder), False),
        (("--append", "--tokenizer", folder), False),
        (("--append",), True),  # the store keeps no template
    ):
        status, _, err = userdp(*line, *more)
        assert (status, "template" in err) == (0, said)


def test_an_append_that_counts_is_not_told_as_one_to_repeat(tmp_path, monkeypatch):
    """A signal while what the store names no more is removed."""
    first, more = people(tmp_path / "a.jsonl", 3), people(tmp_path / "b.jsonl", 5)
    before = library.prepare(first, out=tmp_path / "store")
    honest = store_folder.clear

    def interrupted(folder, meta):
        os.kill(os.getpid(), signal.SIGINT)
        honest(folder, meta)

    monkeypatch.setattr(store_folder, "clear", interrupted)
    after = library.prepare(more, out=tmp_path / "store", append=True)
    assert (before.users, after.users) == (3, 5)


def test_a_store_whose_ledger_is_lost_is_left_as_it_is(tmp_path):
    source, place = people(tmp_path / "a.jsonl", 3), tmp_path / "store"
    kept = library.prepare(source, out=place)
    StoreLedger(place).look("a look")
    (place / "ledger.jsonl").unlink()
    for again in ("append", "overwrite"):
        with pytest.raises(UseError, match="prepare the store elsewhere"):
            library.prepare(source, out=place, **{again: True})
        assert read_meta(place) == kept.meta


def test_an_error_of_the_rows_is_theirs_and_no_full_disk(tmp_path):
    def rows():
        yield {"user": "ana", "text": Path("missing.txt").read_text()}

    with pytest.raises(FileNotFoundError, match="missing"):
        library.prepare(rows(), out=tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_store_of_several_owners_holds_no_examples_out(tmp_path):
    rows = [{"user": [f"u{n}", f"u{n + 1}"], "text": "some words"} for n in range(40)]
    options = {"records_per_user": 2, "held_out_users": 0}
    store = library.prepare(rows, out=tmp_path / "store", **options)
    assert (store.meta.held_out_examples, store.meta.totals["splits"]["train"]["users"]) == (0, 40)
