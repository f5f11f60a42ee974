"""Writing: the whole store or none, whenever the process ends."""

from __future__ import annotations

import textwrap

import pytest

from tests.data.corpora import corpus, prepared
from tests.kills import run_apart
from userdp.core.errors import UseError
from userdp.data import meta as layout
from userdp.data.tokenize import StoreTokenizer
from userdp.data.user_store import UserStore
from userdp.data.writer import StoreWriter

# Kills a writer before each change of a file in turn; prints what each kill left behind.
KILLS = textwrap.dedent(
    """
    import shutil, sys
    from pathlib import Path
    import numpy as np
    from tests.kills import every_kill
    from userdp.data.records import Tally
    from userdp.data.splits import Split
    from userdp.data.user_store import UserStore
    from userdp.data.tokenize import StoreTokenizer
    from userdp.data.writer import StoreWriter

    out, with_old, careless = Path(sys.argv[1]), sys.argv[2] == "old", sys.argv[3] == "careless"
    tokenizer = StoreTokenizer.load()

    class Careless(StoreWriter):
        def write(self, *arguments):
            shutil.rmtree(self.place / "segments", ignore_errors=True)
            (self.place / "segments").mkdir(exist_ok=True)
            super().write(*arguments)

    def write(token, writer=StoreWriter):
        options = {"overwrite": True, "segment_tokens": 2}
        with writer.create(out, tokenizer=tokenizer, seq_len=4, **options) as new:
            for user in (b"a", b"b"):
                new.write(user, Split.TRAIN, np.full(4, token), np.array([4]))
            new.finish(source={}, tally=Tally())

    def state():
        try:
            return f"token {UserStore.open(out).split('train').gather([1], [0]).tokens[0]}"
        except Exception as error:
            return "none" if not out.exists() else f"broken: {type(error).__name__}"

    def make():
        shutil.rmtree(out, ignore_errors=True)
        if with_old:
            write(1)
            (out / "ledger.jsonl").write_text("charged\\n")

    def killed():
        write(2, Careless if careless else StoreWriter)

    for calls, _ in enumerate(every_kill(out.parent, make=make, work=killed)):
        seen = state()
        if not seen.startswith("broken"):
            write(3)
        ledger = out / "ledger.jsonl"
        kept = not with_old or (ledger.exists() and ledger.read_text() == "charged\\n")
        clean = [name.name for name in out.parent.iterdir()] == [out.name]
        print(calls, seen, "kept" if kept else "LOST", "clean" if clean else "DIRTY", sep=";")
    """
)


def kills(tmp_path, *, old: bool, careless: bool = False) -> list[list[str]]:
    """For each kill: its number, the store at the place, ledger kept, nothing left over."""
    arguments = [str(tmp_path / "store"), "old" if old else "new", "careless" if careless else "-"]
    return run_apart(KILLS, *arguments)


def test_a_kill_at_any_moment_leaves_no_store_or_the_whole_one(tmp_path):
    states = kills(tmp_path, old=False)
    assert len(states) > 15
    assert {state for _, state, _, _ in states} == {"none", "token 2"}
    assert states[-1][1] == "token 2"
    assert all(clean == "clean" for *_, clean in states)


@pytest.mark.slow
def test_a_kill_while_overwriting_leaves_the_old_store_or_the_new_one(tmp_path):
    states = kills(tmp_path, old=True)
    assert {state for _, state, _, _ in states} == {"token 1", "token 2"}
    assert all(ledger == "kept" for _, _, ledger, _ in states)
    assert all(clean == "clean" for *_, clean in states)


@pytest.mark.slow
def test_twin_a_writer_that_removes_the_old_text_first_is_caught(tmp_path):
    states = kills(tmp_path, old=True, careless=True)
    assert any(state.startswith("broken") for _, state, _, _ in states)


def test_leaving_the_block_early_removes_everything(tmp_path):
    with (
        pytest.raises(RuntimeError, match="stop"),
        StoreWriter.create(tmp_path / "store", tokenizer=StoreTokenizer.load(), seq_len=4),
    ):
        raise RuntimeError("stop")
    assert list(tmp_path.iterdir()) == []


def test_of_two_writers_the_second_to_finish_is_refused_and_harms_nothing(tmp_path):
    from userdp.data.records import Tally

    writing = StoreWriter.create(tmp_path / "store", tokenizer=StoreTokenizer.load(), seq_len=4)
    second = writing.__enter__()
    first = prepared(corpus(2), tmp_path / "store")
    second.finish(source={}, tally=Tally())
    with pytest.raises(UseError, match="there is a store at"):
        writing.__exit__(None, None, None)
    assert UserStore.open(tmp_path / "store").meta.store_id == first.meta.store_id
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_only_a_store_is_overwritten_and_only_when_asked(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1").write_text("years of work")
    with pytest.raises(UseError, match="not a user store"):
        prepared(corpus(2), tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter1").read_text() == "years of work"
    old = prepared(corpus(2), tmp_path / "store")
    with pytest.raises(UseError, match="there is a store at"):
        prepared(corpus(3), tmp_path / "store")
    assert UserStore.open(old.path).meta.store_id == old.meta.store_id
    assert prepared(corpus(3), tmp_path / "store", overwrite=True).users == 3


def test_overwriting_keeps_the_privacy_ledger_as_the_same_file(tmp_path):
    store = prepared(corpus(2), tmp_path / "store")
    ledger = store.path / layout.LEDGER
    ledger.write_text("one\n")
    with ledger.open("a") as running:  # a run that has the ledger open goes on writing
        prepared(corpus(3), tmp_path / "store", overwrite=True)
        running.write("two\n")
    assert ledger.read_text() == "one\ntwo\n"


def test_readers_of_an_overwritten_store_keep_what_they_opened(tmp_path):
    store = prepared(corpus(2), tmp_path / "store")
    before = store.split("train").gather([0], [0]).tokens.tolist()
    prepared(corpus(9, seed=3), tmp_path / "store", overwrite=True)
    assert store.split("train").gather([0], [0]).tokens.tolist() == before
