"""A killed `prepare` goes on where it was, and the store is the one it would have been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.corpora import corpus
from tests.speed import fast_then_slow
from userdp.core.errors import FailureError, UseError
from userdp.data import meta as layout
from userdp.data.grouping import Grouping
from userdp.data.integrity import verify_store
from userdp.data.pipeline import append_records, prepare_store
from userdp.data.records import Tally
from userdp.data.sources import open_source
from userdp.data.splits import SplitRule
from userdp.data.store_folder import locked, records_folder
from userdp.data.tokenize import StoreTokenizer
from userdp.data.user_store import UserStore

SEGMENT = 400

# Prepares argv[1] into argv[2] and dies by SIGKILL at the argv[4]-th call of argv[3].
CHILD = f"""
import os, signal, sys
from importlib import import_module
from pathlib import Path
from userdp.data.writer import StoreWriter
for owner in (StoreWriter.create, StoreWriter.append):
    owner.__func__.__wrapped__.__kwdefaults__["segment_tokens"] = {SEGMENT}
import userdp.data.grouping as grouping
grouping.RECORDS_AT_ONCE = 16
from userdp.data.pipeline import append_records, prepare_store
from userdp.data.sources import open_source
from userdp.data.splits import SplitRule
from userdp.data.tokenize import StoreTokenizer
path, out, name, number, rule, append = sys.argv[1:]
if name:
    module, owner, method = name.split(":")
    owner = getattr(import_module(module), owner)
    whole, calls = getattr(owner, method), [0]
    def dying(*a, **k):
        calls[0] += 1
        if calls[0] == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*a, **k)
    setattr(owner, method, dying)
if append:
    append_records(open_source([path]), Path(out), split=SplitRule(rule))
else:
    prepare_store(open_source([path]), Path(out), tokenizer=StoreTokenizer.load(), seq_len=8,
                  split=SplitRule(rule))
"""

GROUPING = "userdp.data.grouping:Grouping"
WRITER = "userdp.data.writer:StoreWriter"
MOMENTS = [
    (f"{GROUPING}:sort", 1, False), (f"{WRITER}:write", 1, True), (f"{WRITER}:write", 40, True),
    (f"{WRITER}:finish", 1, True),
]  # fmt: skip


def kept_for(place: Path) -> Path | None:
    """Where a call that was stopped left sorted records for the store at ``place``, if it did."""
    folder = records_folder(place)
    return folder if (folder / "state.json").exists() else None


def source_file(folder: Path) -> Path:
    texts = corpus(60, seed=3)
    path = folder / "in.jsonl"
    rows = [{"user": u.decode(), "text": t} for u, held in texts.items() for t in held]
    rows += [{"user": "nobody"}, {"user": "user000", "text": " "}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def killed(
    path: Path, out: Path, moment: str, number: int, rule: str = "hash", *, append: bool = False
) -> None:
    line = [sys.executable, "-c", CHILD, str(path), str(out), moment, str(number), rule]
    line.append("append" if append else "")
    done = subprocess.run(line, stderr=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    assert append or not out.exists()


def prepare(path: Path, out: Path, rule: str = "hash", **options):
    return prepare_store(
        open_source([str(path)]), out, tokenizer=StoreTokenizer.load(), split=SplitRule(rule),
        **{"seq_len": 8, **options},
    )  # fmt: skip


@pytest.fixture
def reads(monkeypatch) -> list[int]:
    """An entry for each call of `Grouping.add`."""
    seen: list[int] = []
    whole = Grouping.add

    def counting(self, blocks):
        seen.append(1)
        whole(self, blocks)

    monkeypatch.setattr(Grouping, "add", counting)
    return seen


@pytest.mark.parametrize(("moment", "number", "goes_on"), fast_then_slow(MOMENTS))
def test_a_killed_prepare_goes_on_and_writes_the_same_store(
    tmp_path, reads, moment, number, goes_on
):
    rule = "first-part" if number == 40 else "hash"
    path = source_file(tmp_path)
    whole = prepare(path, tmp_path / "whole", rule)
    reads.clear()
    (tmp_path / "place").mkdir()
    out = tmp_path / "place" / "store"
    killed(path, out, moment, number, rule)
    meta = prepare(path, out, rule)
    assert (len(reads) == 0) is goes_on
    assert meta.content_sha256 == whole.content_sha256
    assert (meta.drops, meta.example_drops) == (whole.drops, whole.example_drops)
    assert meta.totals == whole.totals
    assert verify_store(out).ok
    assert UserStore.open(out).user_ids() == UserStore.open(tmp_path / "whole").user_ids()
    assert [entry.name for entry in out.parent.iterdir()] == ["store"]


@pytest.mark.parametrize(("moment", "number", "goes_on"), fast_then_slow(MOMENTS[:-1]))
def test_a_killed_append_leaves_the_old_store_goes_on_and_writes_the_same(
    tmp_path, reads, moment, number, goes_on
):
    path = source_file(tmp_path)
    more = tmp_path / "more.jsonl"
    more.write_text(path.read_text().replace("user00", "late0"))
    stores = [tmp_path / "whole", tmp_path / "place" / "store"]
    stores[1].parent.mkdir()
    old = [prepare(path, out) for out in stores]
    whole = append_records(open_source([str(more)]), stores[0])
    killed(more, stores[1], moment, number, append=True)
    assert UserStore.open(stores[1]).meta == old[1]
    assert verify_store(stores[1]).ok
    reads.clear()
    meta = append_records(open_source([str(more)]), stores[1])
    assert (len(reads) == 0) is goes_on
    assert (meta.content_sha256, meta.totals) == (whole.content_sha256, whole.totals)
    assert (meta.drops, meta.example_drops) == (whole.drops, whole.example_drops)
    assert verify_store(stores[1]).ok
    assert kept_for(stores[1]) is None
    names = {f"{layout.SEGMENTS}/{one.name}" for one in (stores[1] / layout.SEGMENTS).iterdir()}
    assert names == set(meta.files)


@pytest.mark.parametrize("change", fast_then_slow(["file", "damage"]))
def test_anything_else_begins_from_the_start(tmp_path, reads, change):
    path = source_file(tmp_path)
    (tmp_path / "place").mkdir()
    out = tmp_path / "place" / "store"
    killed(path, out, f"{WRITER}:write", 9)
    kept = kept_for(out)
    assert kept is not None
    if change == "file":
        path.write_text(path.read_text() + '{"user": "new", "text": "one more record"}\n')
    else:
        texts = kept / "files" / "texts"
        os.truncate(texts, texts.stat().st_size - 1)
    meta = prepare(path, out)
    assert len(reads) == 1
    assert meta.content_sha256 == prepare(path, tmp_path / "again").content_sha256
    assert [entry.name for entry in out.parent.iterdir()] == ["store"]


def test_sorted_records_serve_another_length_and_an_interrupt_keeps_them(
    tmp_path, reads, monkeypatch
):
    path, out = source_file(tmp_path), tmp_path / "store"

    def interrupted(self, texts):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StoreTokenizer, "encode_flat", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(path, out)
    assert not out.exists()
    assert kept_for(out) is not None
    assert (kept_for(out).stat().st_mode & 0o077) == 0
    meta = prepare(path, out, seq_len=16)
    assert len(reads) == 1
    assert meta.content_sha256 == prepare(path, tmp_path / "b", seq_len=16).content_sha256


def test_two_calls_for_one_store_do_not_share_working_files(tmp_path):
    path, out = source_file(tmp_path), tmp_path / "store"
    folder = records_folder(out)
    folder.mkdir()
    with locked(folder), pytest.raises(UseError, match="another process"):
        prepare(path, out)


def test_books_taken_up_without_what_was_read_are_caught(tmp_path, monkeypatch):
    """The twin: a call that goes on and forgets what was counted before."""
    path, out = source_file(tmp_path), tmp_path / "store"
    killed(path, out, f"{WRITER}:write", 9)
    monkeypatch.setattr(Tally, "restore", lambda self, facts: None)
    with pytest.raises(FailureError, match="books do not balance"):
        prepare(path, out)
