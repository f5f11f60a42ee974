"""`kill -9` before each change of a file: the old store stands there, or the new one, or none."""

from __future__ import annotations

import textwrap

import pytest

from tests.kills import run_apart
from tests.speed import fast_then_slow

KILLS = textwrap.dedent(
    """
    import os, shutil, sys
    from pathlib import Path
    from tests.kills import every_kill
    from tests.data.corpora import ListSource, corpus, interleaved, problems_of
    from userdp.data.grouping import Grouping
    from userdp.data.pipeline import append_records, prepare_store
    from userdp.data.store_tokenizer import StoreTokenizer
    from userdp.data.user_store import UserStore
    from userdp.data.writer import StoreWriter

    place, change = Path(sys.argv[1]), sys.argv[2]
    out, base = place / "store", place.with_name("base")
    FIRST, SECOND = (ListSource(interleaved(corpus(6, seed))) for seed in (1, 2))

    def apart(function):
        # In a fork: threads of DuckDB and others would be missing in the forks after it.
        end, begin = os.pipe()
        if os.fork() == 0:
            os.write(begin, str(function()).encode())
            os._exit(0)
        os.close(begin)
        os.wait()
        with open(end) as said:
            return said.read()

    def prepare(source, to, **options):
        words = StoreTokenizer.load()
        prepare_store(source, to, tokenizer=words, seq_len=8, **options)

    def work():
        if change == "append":
            append_records(SECOND, out)
        else:
            prepare(SECOND, out, overwrite=change != "new")

    def make():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        if change != "new":
            shutil.copytree(base, out)
            (out / "ledger.jsonl").write_text("charged")

    def found():
        # What lies at the place: its content hash, or what is wrong with it.
        if not out.exists():
            return "none"
        if change != "new" and (out / "ledger.jsonl").read_text() != "charged":
            return "the ledger is lost"
        try:
            return str(problems_of(out) or UserStore.open(out).meta.content_sha256)
        except Exception as error:
            return f"broken: {error}"

    def careless(self, *arguments, **options):
        for generation in (self.folder / "data").iterdir():
            if generation != self._place:
                shutil.rmtree(generation)
        write(self, *arguments, **options)

    if change == "careless":
        write, StoreWriter.write = StoreWriter.write, careless

    apart(lambda: prepare(FIRST, base))
    make()
    old = apart(found)
    apart(work)
    new = apart(found)
    for _ in every_kill(place, make=make, work=work, step=int(sys.argv[3])):
        left = apart(found)
        if left == old:
            apart(work)
        folders = [*place.iterdir(), *out.glob(".*")]
        there = [one.name for one in folders if any(one.iterdir())]  # an empty one may stay
        whole = apart(found) == new and there == ["store"]
        print({old: "old", new: "new"}.get(left, left), whole, sep=";")
    """
)


@pytest.mark.parametrize(
    ("change", "step"), fast_then_slow([("new", 4), ("new", 1), ("append", 1), ("replace", 1)])
)
def test_a_kill_leaves_the_old_store_or_the_new_one_and_the_same_call_ends_it(
    tmp_path, change, step
):
    moments = run_apart(KILLS, str(tmp_path / "place"), change, step)
    assert len(moments) > 10 / step
    assert [moment for moment in moments if moment not in (["old", "True"], ["new", "True"])] == []
    assert {left for left, _ in moments} == {"old", "new"}


@pytest.mark.slow
def test_twin_a_writer_that_removes_the_old_text_first_is_caught(tmp_path):
    moments = run_apart(KILLS, str(tmp_path / "place"), "careless", 1)
    assert any(left.startswith("broken") for left, *_ in moments)
