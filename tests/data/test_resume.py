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
from userdp.data import checkpoints
from userdp.data import format as layout
from userdp.data.grouping import Grouping
from userdp.data.prepare import append_records, prepare_store
from userdp.data.sources import open_source
from userdp.data.splits import SplitRule
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.data.verify import verify_store

SEGMENT = 400

# Prepares argv[1] into argv[2] and dies by SIGKILL at the argv[4]-th call of argv[3].
CHILD = f"""
import os, signal, sys
from importlib import import_module
from pathlib import Path
from userdp.data import format
format.SEGMENT_TOKENS = {SEGMENT}
from userdp.data.writer import StoreWriter
for owner in (StoreWriter.create, StoreWriter.append):
    owner.__func__.__kwdefaults__["segment_tokens"] = {SEGMENT}
import userdp.data.grouping as grouping
grouping.Grouping.batches.__kwdefaults__["records"] = 16
from userdp.data.prepare import append_records, prepare_store
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
BODY, FINISH = "userdp.data.segments:SegmentWriter", "userdp.data.writer:StoreWriter"
MARKS = "userdp.data.checkpoints:Checkpoints"
MOMENTS = [
    (f"{GROUPING}:sort", 1, False), (f"{BODY}:write", 1, True), (f"{MARKS}:segment", 1, True),
    (f"{BODY}:write", 40, True), (f"{MARKS}:segment", 3, True), (f"{FINISH}:_publish", 1, True),
]  # fmt: skip


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
    """How many records each call of `Grouping.add` brought."""
    seen: list[int] = []
    whole = Grouping.add

    def counting(self, blocks):
        seen.append(whole(self, blocks))
        return seen[-1]

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


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "number", "goes_on"), fast_then_slow(MOMENTS))
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
    assert not (stores[1] / checkpoints.SCRATCH).exists()
    names = {entry.name for entry in (stores[1] / layout.SEGMENTS).iterdir()}
    assert names == {layout.segment_name(number) for number in range(meta.segments)}


@pytest.mark.parametrize("number", [2, 12])
def test_an_append_that_was_killed_while_its_working_files_went_begins_anew(tmp_path, number):
    """Whichever of them went first, none is missed: what says that they are there went before."""
    path, out = source_file(tmp_path), tmp_path / "store"
    more = tmp_path / "more.jsonl"
    more.write_text(path.read_text().replace("user00", "late0"))
    prepare(path, out)
    killed(more, out, "shutil:os:rmdir", number, append=True)
    left = out / checkpoints.SCRATCH
    assert left.exists(), "the kill came while working files were removed"
    append_records(open_source([str(more)]), out)
    assert verify_store(out).ok
    assert not left.exists()


@pytest.mark.slow
def test_a_killed_append_is_not_gone_on_with_on_a_store_that_changed(tmp_path, reads):
    path, more, other = source_file(tmp_path), tmp_path / "more.jsonl", tmp_path / "other.jsonl"
    more.write_text(path.read_text().replace("user00", "late0"))
    other.write_text('{"user": "zoe", "text": "in between"}\n')
    out = tmp_path / "store"
    prepare(path, out)
    killed(more, out, f"{MARKS}:segment", 2, append=True)
    append_records(open_source([str(other)]), out)
    reads.clear()
    append_records(open_source([str(more)]), out)
    assert len(reads) == 1
    assert verify_store(out).ok


@pytest.mark.slow
def test_finished_segments_are_kept_and_records_in_them_not_tokenized_again(tmp_path, monkeypatch):
    path, out = source_file(tmp_path), tmp_path / "store"
    whole = prepare(path, tmp_path / "whole")
    killed(path, out, f"{MARKS}:segment", 4)
    tokenized: list[int] = []
    encode = StoreTokenizer.encode_flat

    def counting(self, texts):
        tokenized.append(len(texts))
        return encode(self, texts)

    monkeypatch.setattr(StoreTokenizer, "encode_flat", counting)
    meta = prepare(path, out)
    assert meta.content_sha256 == whole.content_sha256
    assert meta.segments > 3
    assert 0 < sum(tokenized) < whole.totals["records_stored"]


@pytest.mark.slow
@pytest.mark.parametrize("change", fast_then_slow(["seq_len", "file", "boot", "damage"]))
def test_anything_else_begins_from_the_start(tmp_path, reads, monkeypatch, change):
    path = source_file(tmp_path)
    (tmp_path / "place").mkdir()
    out = tmp_path / "place" / "store"
    killed(path, out, f"{MARKS}:segment", 2)
    options = {}
    if change == "file":
        path.write_text(path.read_text() + '{"user": "new", "text": "one more record"}\n')
    elif change == "boot":
        boot = tmp_path / "boot_id"
        boot.write_text("another")
        monkeypatch.setattr(checkpoints, "_BOOT", boot)
    elif change == "damage":
        (spool,) = out.parent.glob(".store.partial-*/scratch/texts")
        os.truncate(spool, spool.stat().st_size - 1)
    else:
        options = {"seq_len": 16}
    meta = prepare(path, out, **options)
    assert len(reads) == 1
    assert meta.content_sha256 == prepare(path, tmp_path / "again", **options).content_sha256
    assert [entry.name for entry in out.parent.iterdir()] == ["store"]


@pytest.mark.slow
def test_books_taken_up_twice_are_caught(tmp_path, monkeypatch):
    """The twin: a run that goes on without knowing what is done."""
    path, out = source_file(tmp_path), tmp_path / "store"
    killed(path, out, f"{MARKS}:segment", 3)
    whole = Grouping.batches
    monkeypatch.setattr(Grouping, "batches", lambda self, **options: whole(self))
    with pytest.raises(Exception, match=r"books do not balance|increasing|order"):
        prepare(path, out)
