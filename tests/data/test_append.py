"""Appending: the same store as one prepared at once, no file rewritten, readers undisturbed."""

from __future__ import annotations

import json
import random
import textwrap

import pytest

from tests.data.corpora import ListSource, corpus, interleaved, prepared, view
from tests.kills import run_apart
from userdp.core.errors import UseError
from userdp.data import meta as layout
from userdp.data.contents import Index
from userdp.data.integrity import verify_store
from userdp.data.pipeline import append_records
from userdp.data.records import Record
from userdp.data.user_store import UserStore
from userdp.data.writer import StoreWriter


def halves(texts, seed=0):
    """Each user's records cut in two at a random place; some users are in one part alone."""
    draw = random.Random(seed)
    first, second = {}, {}
    for user, held in texts.items():
        cut = draw.randint(0, len(held))
        first |= {user: held[:cut]} if cut else {}
        second |= {user: held[cut:]} if cut < len(held) else {}
    return first, second


def append(path, texts):
    return append_records(ListSource(interleaved(texts)), path)


def files(path) -> dict[str, tuple[int, int]]:
    """Token files, by inode and time of change."""
    return {
        str(file.relative_to(path)): (file.stat().st_ino, file.stat().st_mtime_ns)
        for file in (path / layout.SEGMENTS).rglob("*.arrow")
    }


def test_a_store_appended_to_is_the_store_prepared_at_once(tmp_path):
    texts = corpus(40, seed=3)
    first, second = halves(texts)
    whole = prepared(texts, tmp_path / "whole")
    parts = prepared(first, tmp_path / "parts")
    old = parts.meta
    meta = append(parts.path, second)
    parts = UserStore.open(parts.path)
    assert view(parts) == view(whole)
    assert meta.totals == whole.meta.totals
    assert meta.content_sha256 == whole.meta.content_sha256
    assert (meta.store_id, meta.generation) != (old.store_id, old.generation)
    assert verify_store(parts.path).ok


def test_records_split_by_number_among_the_new_ones_alone_would_be_caught(tmp_path, monkeypatch):
    """The twin: an append that forgets how many records a user has splits them otherwise."""
    texts = corpus(40, seed=3)
    first, second = halves(texts)
    whole = prepared(texts, tmp_path / "whole")
    parts = prepared(first, tmp_path / "parts")
    monkeypatch.setattr("userdp.data.writer.StoreWriter.records_of", lambda self, user: 0)
    append(parts.path, second)
    assert view(UserStore.open(parts.path)) != view(whole)


def test_appending_rewrites_no_token_file_and_old_readers_go_on(tmp_path):
    texts = corpus(20, seed=1)
    first, second = halves(texts)
    store = prepared(first, tmp_path / "store")
    seen, before = view(store), files(store.path)
    for number in range(3):
        append(
            store.path, {b"late%d" % number: ["one more text"], **(second if not number else {})}
        )
        now = files(store.path)
        assert before.items() <= now.items()
        before = now
    assert view(store) == seen
    assert len(list((store.path / layout.INDEX).iterdir())) == 1
    assert len(UserStore.open(store.path).meta.states) == 4


def test_drops_and_sources_add_up(tmp_path):
    store = prepared(corpus(5), tmp_path / "store")
    meta = append_records(ListSource((Record(b"z", b"new text", 0),)), store.path)
    assert meta.totals["records_read"] == store.meta.totals["records_read"] + 1
    assert [source["kind"] for source in meta.sources] == ["list", "list"]
    assert meta.totals["users"] == 6


def test_one_appender_at_a_time(tmp_path):
    store = prepared(corpus(5), tmp_path / "store")
    with StoreWriter.append(store.path), pytest.raises(UseError, match="another process appends"):
        StoreWriter.append(store.path).__enter__()


def test_nothing_to_append_is_bad_use_and_changes_nothing(tmp_path):
    store = prepared(corpus(5), tmp_path / "store")
    before = sorted(str(path) for path in store.path.rglob("*"))
    with pytest.raises(UseError, match="nothing to store"):
        append_records(ListSource(()), store.path)
    assert sorted(str(path) for path in store.path.rglob("*")) == before
    with pytest.raises(UseError, match="nothing is there"):
        append_records(ListSource(()), tmp_path / "nowhere")


KILLS = textwrap.dedent(
    """
    import shutil, sys
    from pathlib import Path
    import numpy as np
    from tests.kills import every_kill
    from tests.data.corpora import corpus, prepared
    from userdp.data.records import Tally
    from userdp.data.splits import Split
    from userdp.data.user_store import UserStore
    from userdp.data.integrity import verify_store
    from userdp.data.writer import StoreWriter

    out = Path(sys.argv[1])
    def add(user):
        with StoreWriter.append(out) as new:
            new.write(user, Split.TRAIN, np.arange(4), np.array([4]), records=1)
            new.finish(source={}, tally=Tally())

    base = prepared(corpus(4), out.with_name("base"))
    def make():
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(base.path, out)

    for _ in every_kill(out, make=make, work=lambda: add(b"new")):
        store = UserStore.open(out)
        sound = verify_store(out).ok and store.users == 3 + len(store.meta.states)
        add(b"newer")
        sound = sound and verify_store(out).ok
        print(len(store.meta.states) - 1, sound, sep=";")
    """
)


@pytest.mark.slow
def test_a_kill_while_appending_leaves_the_old_store_or_the_new_one(tmp_path):
    states = run_apart(KILLS, str(tmp_path / "store"))
    assert len(states) > 10
    assert {generation for generation, _ in states} == {"0", "1"}
    assert all(sound == "True" for _, sound in states)


def test_verify_catches_an_index_altered_together_with_its_checksum(tmp_path):
    store = prepared(corpus(6), tmp_path / "store", held_out_users=0, held_out_examples=0)
    other = prepared(corpus(6, seed=9), tmp_path / "other", held_out_users=0, held_out_examples=0)
    meta = json.loads((store.path / layout.META).read_text())
    changed = json.loads((other.path / layout.META).read_text())
    changed["content_sha256"] = meta["content_sha256"]
    (other.path / layout.META).write_text(json.dumps(changed))
    assert "content hash" in verify_store(other.path).problems[0]
    assert verify_store(other.path, quick=True).ok


def test_verify_catches_spans_that_say_other_tokens_than_they_hold(tmp_path, monkeypatch):
    """Random chunks are drawn by them; the index is sealed as it is."""

    def more(self, folder):
        self.spans["tokens"][0] += 1
        whole(self, folder)

    whole = Index.write
    monkeypatch.setattr(Index, "write", more)
    store = prepared(corpus(6), tmp_path / "store")
    assert verify_store(store.path, quick=True).ok
    assert "other tokens than they say" in verify_store(store.path).problems[0]
