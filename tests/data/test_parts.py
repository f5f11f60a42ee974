"""A store of parts that several processes wrote is the store that one process writes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from tests.data.corpora import ListSource, corpus, interleaved, prepared, view
from userdp.data import parts
from userdp.data.columns import in_columns
from userdp.data.examples import Recipe
from userdp.data.index import KnownOnDisk, known_in
from userdp.data.parts import Part, PartJob, parts_in, write_part
from userdp.data.records import Record, Tally
from userdp.data.splits import SplitRule
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.data.verify import verify_store
from userdp.data.writer import StoreWriter

FRACTIONS = (0.2, 0.2)


def sorted_records(users: int, seed: int = 0) -> list[Record]:
    records = interleaved(corpus(users, seed))
    return sorted(records, key=lambda record: (record.user, record.order))


def in_parts(records: list[Record], writer: StoreWriter, count: int) -> Tally:
    """Write each user's records into one of ``count`` parts, and let ``writer`` take them over."""
    recipe = Recipe.of(writer.meta, rule=SplitRule.HASH, one_per_record=False)
    job, tally = writer.part_job(recipe), Tally()
    tally.read(len(records))
    users = sorted({record.user for record in records})
    for number in range(count):
        own = set(users[number::count])
        mine = in_columns(record for record in records if record.user in own)
        write_part(mine, writer.scratch / f"{number:06d}", job)
    for part in parts_in(writer.scratch):
        writer.adopt(part)
        tally.add(part.tally)
    return tally


def store_of(records: list[Record], out, *, count: int) -> UserStore:
    with StoreWriter.create(
        out, tokenizer=StoreTokenizer.load(), seq_len=8, fractions=FRACTIONS
    ) as writer:
        tally = in_parts(records, writer, count)
        writer.finish(source={"kind": "list", "public": False, "split": "hash"}, tally=tally)
    return UserStore.open(out)


@pytest.mark.parametrize("count", [1, 3, 40])
def test_the_store_is_the_one_of_a_single_process(tmp_path, count):
    """Also with parts of nobody."""
    whole = prepared(corpus(30), tmp_path / "whole")
    store = store_of(sorted_records(30), tmp_path / "parts", count=count)
    assert store.meta.content_sha256 == whole.meta.content_sha256
    assert store.meta.totals == whole.meta.totals
    assert view(store) == view(whole)
    assert verify_store(store.path).ok


def test_appended_parts_go_on_with_known_users(tmp_path):
    first, second = sorted_records(30), sorted_records(45, seed=1)
    stores = []
    for name in ("whole", "parts"):
        store = prepared(first, tmp_path / name)
        with StoreWriter.append(store.path) as writer:
            tally = in_parts(second, writer, 1 if name == "whole" else 5)
            writer.finish(source={"kind": "list"}, tally=tally)
        stores.append(UserStore.open(store.path))
    from userdp.data.prepare import append_records

    by_one = prepared(first, tmp_path / "one").path
    append_records(ListSource(tuple(second)), by_one)
    for store in stores:
        assert view(store) == view(UserStore.open(by_one))
        assert store.meta.content_sha256 == UserStore.open(by_one).meta.content_sha256
        assert verify_store(store.path).ok


def test_twin_a_part_that_does_not_know_its_users_gives_another_store(tmp_path, monkeypatch):
    first = sorted_records(20)
    hashes = []
    for name in ("right", "wrong"):
        store = prepared(first, tmp_path / name)
        if name == "wrong":
            monkeypatch.setattr(KnownOnDisk, "__call__", lambda self, user: None)
        with StoreWriter.append(store.path) as writer:
            tally = in_parts(first, writer, 2)
            writer.finish(source={"kind": "list"}, tally=tally)
        hashes.append(writer.meta.content_sha256)
    assert hashes[0] != hashes[1]


def test_users_on_disk_are_those_in_memory(tmp_path):
    store = prepared(corpus(50), tmp_path / "store")
    index = store.index()
    on_disk = KnownOnDisk(tmp_path / "store" / "index" / "00000")
    in_memory = known_in(index)
    for user in [*index.ids, b"", b"a", b"user0000", b"zzz", b"\xff"]:
        assert on_disk(user) == in_memory(user)
    assert all(on_disk(user) is not None for user in index.ids)


def test_a_part_that_is_there_is_not_written_again(tmp_path):
    with StoreWriter.create(tmp_path / "s", tokenizer=StoreTokenizer.load(), seq_len=8) as writer:
        job = writer.part_job(Recipe.of(writer.meta, rule=SplitRule.HASH, one_per_record=False))
        place = tmp_path / "part"
        write_part(in_columns(sorted_records(5)), place, job)
        before = Part.read(place)
        write_part(None, place, job)  # no record is asked for
        assert Part.read(place) == before


def test_an_attempt_that_fails_leaves_nothing_and_one_that_is_second_gives_way(
    tmp_path, monkeypatch
):
    with StoreWriter.create(tmp_path / "s", tokenizer=StoreTokenizer.load(), seq_len=8) as writer:
        job = writer.part_job(Recipe.of(writer.meta, rule=SplitRule.HASH, one_per_record=False))
        place = tmp_path / "parts" / "000000"

        def failing():
            yield from in_columns(sorted_records(5))
            raise OSError("the disk is full")

        with pytest.raises(OSError, match="full"):
            write_part(failing(), place, job)
        assert list(place.parent.iterdir()) == []

        def overtaken():
            yield from in_columns(sorted_records(5))
            write_part(in_columns(sorted_records(5)), place, job)

        write_part(overtaken(), place, job)
        assert [path.name for path in place.parent.iterdir()] == ["000000"]
        assert parts.done_in(place.parent) == 1
    assert parts.done_in(tmp_path / "nowhere") == 0


def _die_in_the_middle(records: list[Record], place: Path, job: PartJob) -> None:
    def dying():
        yield from in_columns(records[: len(records) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    write_part(dying(), place, job)


def test_a_process_that_is_killed_in_the_middle_leaves_no_part(tmp_path):
    """By SIGKILL; what it leaves counts as nothing, and the next attempt writes the whole part."""
    records = sorted_records(20)
    with StoreWriter.create(tmp_path / "s", tokenizer=StoreTokenizer.load(), seq_len=8) as writer:
        job = writer.part_job(Recipe.of(writer.meta, rule=SplitRule.HASH, one_per_record=False))
        place = tmp_path / "parts" / "000000"

        # not by fork: the threads of a tokenizer that encoded before are not in the child, which
        # would wait for them for ever
        child = multiprocessing.get_context("spawn").Process(
            target=_die_in_the_middle, args=(records, place, job)
        )
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        (left,) = place.parent.iterdir()
        assert left.name.startswith(".")
        assert parts.done_in(place.parent) == 0
        assert parts_in(place.parent) == []
        write_part(in_columns(records), place, job)
        (part,) = parts_in(place.parent)
        assert part.tally["records_stored"] == len(records)
