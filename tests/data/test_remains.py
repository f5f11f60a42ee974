"""Traces of a person are found in whatever form they were left, and other people's are not."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import random
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from tests.data.corpora import corpus, prepared
from userdp.data import remains
from userdp.data.hashing import user_hash
from userdp.data.patterns import Patterns
from userdp.data.remains import scan
from userdp.data.traces import traces_of

TEXT = (
    "the heron of Ålesund wore a copper bell and never once rang it before the third of March, "
    "which is why nobody at the harbour believed her story about the drowned piano"
)
USER = b"person-with-a-long-id"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    texts = {**corpus(6), USER: [TEXT, "alpha beta gamma delta"], b"zz": ["alpha beta gamma delta"]}
    place = tmp_path_factory.mktemp("traces") / "store"
    return prepared(texts, place, seq_len=32, held_out_users=0, held_out_examples=0)


@pytest.fixture(scope="module")
def traces(store):
    return traces_of(store, store.user_ids().index(USER))


def tokens_of(store):
    return np.concatenate(list(store.examples_of(store.user_ids().index(USER))))


def naive(patterns, data):
    return {(at, one) for one in patterns for at in range(len(data)) if data.startswith(one, at)}


def test_patterns_are_found_where_a_naive_search_finds_them():
    draw = random.Random(1)
    data = bytes(draw.choices(b"ab", k=5000))
    patterns = [data[at : at + size] for at, size in ((0, 8), (17, 9), (4990, 10), (333, 16))]
    patterns += [b"abababababab", b"b" * 40]
    assert set(Patterns(patterns).find(data)) == naive(patterns, data)
    assert not list(Patterns([]).find(data))
    assert not list(Patterns(patterns).find(b"abc"))


def zipped(data):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner.txt", data)
    return file.getvalue()


def as_codec(name):
    def packed(data):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, name) as stream:
            stream.write(data)
        return sink.getvalue().to_pybytes()

    return packed


FORMS = {
    "as it is": lambda data: data,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": as_codec("zstd"),
    "lz4": as_codec("lz4"),
    "zip": zipped,
    "gzip in a zip": lambda data: zipped(gzip.compress(data)),
}


@pytest.mark.parametrize("form", FORMS)
def test_text_is_found_in_every_form(tmp_path, traces, form):
    (tmp_path / "file").write_bytes(FORMS[form](b"before " + TEXT.encode() + b" after"))
    (tmp_path / "clean").write_bytes(FORMS[form](b"nothing of theirs " * 50))
    result = scan([tmp_path], traces.patterns)
    assert [path.name for path in result.found] == ["file"]
    assert (result.files, result.unread) == (2, ())


def test_tokens_ids_and_hashes_are_found_as_numbers_and_as_words(tmp_path, store, traces):
    tokens = tokens_of(store)[5:40]
    left = {
        "u2": tokens.astype("<u2").tobytes(),
        "u4": b"x" + tokens.astype("<u4").tobytes(),
        "i8": tokens.astype("<i8").tobytes(),
        "json": json.dumps({"tokens": tokens.tolist()}).encode(),
        "short": json.dumps(tokens.tolist(), separators=(",", ":")).encode(),
        "escaped": json.dumps({"text": TEXT}).encode(),
        "id": b'{"user":"' + USER + b'"}',
        "hash": user_hash(USER),
        "hex": user_hash(USER).hex().encode(),
        USER.decode(): b"a name alone",
    }
    for name, data in left.items():
        (tmp_path / name).write_bytes(data)
    found = scan([tmp_path], traces.patterns).found
    assert {path.name for path in found} == set(left)


def test_compressed_columns_are_read(tmp_path, traces):
    table = pa.table({"text": ["a", TEXT, "b"] * 3})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", compression="zstd")
    pyarrow.feather.write_feather(table, tmp_path / "t.arrow", compression="zstd")
    assert {p.name for p in scan([tmp_path], traces.patterns).found} == {"t.parquet", "t.arrow"}


def arrow_file(path, column):
    table = pa.table({"text": column})
    with pa.ipc.new_file(path, table.schema, options=COMPRESSED) as file:
        file.write_table(table)


COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


def test_words_that_a_column_holds_once_are_read(tmp_path, traces):
    """Categories of pandas, say: the column has numbers, and a dictionary the words."""
    words = pa.array(["a", TEXT, "b"] * 3).dictionary_encode()
    pyarrow.parquet.write_table(pa.table({"text": words}), tmp_path / "t", compression="zstd")
    arrow_file(tmp_path / "plain", words)
    arrow_file(tmp_path / "in-a-list", pa.ListArray.from_arrays([0, 2, 9], words))
    arrow_file(tmp_path / "in-a-struct", pa.StructArray.from_arrays([words], ["text"]))
    found = {path.name for path in scan([tmp_path], traces.patterns).found}
    assert found == {"t", "plain", "in-a-list", "in-a-struct"}


def test_what_somebody_else_wrote_too_is_theirs(tmp_path, store, traces):
    assert traces.shared == 1
    (tmp_path / "theirs").write_text("alpha beta gamma delta " * 9)
    tokens = next(store.examples_of(store.user_ids().index(b"zz")))
    (tmp_path / "tokens").write_bytes(tokens.tobytes() * 3)
    assert scan([tmp_path], traces.patterns).clean


def test_a_store_that_still_holds_the_person_is_not_clean(store, traces):
    """The twin: an erasure that erased nothing."""
    names = {path.name for path in scan([store.path], traces.patterns).found}
    assert names == {"tokens.arrow", "user-ids.arrow", "users.arrow"}


def test_a_folder_that_may_not_be_looked_into_is_not_passed_over(tmp_path, traces, monkeypatch):
    """That of somebody else's audit, say: nothing is known of what lies in it."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "notes.txt").write_text(TEXT)
    (tmp_path / "open.txt").write_text("nothing")
    scandir = os.scandir

    def refused(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    for place in (tmp_path, tmp_path / "closed"):
        result = scan([place, tmp_path / "never was"], traces.patterns)
        assert result.unread == (tmp_path / "closed",)
        assert not result.clean


def test_a_damaged_archive_is_not_passed_over(tmp_path, traces):
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"text " * 1000)[:-20])
    result = scan([tmp_path], traces.patterns)
    assert [path.name for path in result.unread] == ["cut.gz"]
    assert not result.clean


def test_a_trace_across_the_border_of_two_blocks_is_found(tmp_path, traces, monkeypatch):
    monkeypatch.setattr("userdp.data.remains._AT_ONCE", 64)
    (tmp_path / "file").write_bytes(b"-" * 50 + TEXT.encode() + b"-" * 500)
    assert scan([tmp_path], traces.patterns).found


def test_short_ids_are_not_looked_for_and_that_is_said(tmp_path):
    store = prepared(corpus(3), tmp_path / "store")
    assert traces_of(store, 0).id_searched is False


def test_an_archive_that_unpacks_to_more_than_the_machine_holds_is_unread(tmp_path, monkeypatch):
    """2 MB that unpack to 2 GiB are not held, whatever lies in them."""
    monkeypatch.setattr(remains, "_LEAST_UNPACKED", 2**20)
    monkeypatch.setattr(remains, "_RATIO", 10)
    bomb = gzip.compress(b"\0" * 2**24)
    (tmp_path / "a.gz").write_bytes(bomb)
    (tmp_path / "b.gz").write_bytes(gzip.compress(bomb * 3))
    found = scan([tmp_path], Patterns([b"quetzalcoatl"]))
    assert not found.found
    assert [path.name for path in found.unread] == ["a.gz", "b.gz"]
    assert not found.clean


def test_a_long_archive_is_read_in_pieces(tmp_path):
    secret = b"quetzalcoatl"
    words = b"a word of somebody else. " * 4_000_000 + secret + b" at its end"
    (tmp_path / "long.gz").write_bytes(gzip.compress(words, 1))
    with most_memory() as taken:
        found = scan([tmp_path], Patterns([secret]))
    assert [path.name for path in found.found] == ["long.gz"]
    assert taken() < 90 * 2**20, "100 MB are not held at once"


@pytest.mark.parametrize("text", [b"12345678", b"123456789", b"x12345678"])
def test_an_archive_of_few_bytes_is_read(tmp_path, text):
    (tmp_path / "a.gz").write_bytes(gzip.compress(text))
    assert scan([tmp_path], Patterns([b"12345678"])).found


@contextlib.contextmanager
def most_memory():
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
