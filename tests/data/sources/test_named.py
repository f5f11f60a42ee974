"""Read what was named, all of it and nothing else; an id has one spelling; a library's meaning."""

from __future__ import annotations

import gzip
import json
import os
import threading
import zipfile

import numpy as np
import pytest

from tests.data.corpora import write_jsonl
from tests.data.sources.fixtures import mail, pairs, read, write_csv, write_leaf
from userdp.core.errors import UseError
from userdp.core.stages import NoProgress
from userdp.data.records import Tally
from userdp.data.sources import SourceOptions, memory

LINE = b"From x@example.org Mon May 14 16:39:00 2001\n"
ROW = {"user": "ana", "text": "some words"}


def in_memory(table, **options):
    tally = Tally()
    source = memory.table_source(table, SourceOptions(**options))
    return pairs(list(source.records(tally, NoProgress()))), tally


def test_names_in_capitals_are_read_hidden_files_not_and_others_are_told(tmp_path):
    write_csv(tmp_path / "b.csv", [ROW])
    write_csv(tmp_path / "A.CSV", [ROW])
    (tmp_path / "._A.CSV").write_bytes(b"\0\5\26\7")  # as other systems leave beside a file
    (tmp_path / "~$b.csv").write_bytes(b"\0")
    (tmp_path / "c.json").write_text(json.dumps(ROW))
    with pytest.warns(match="1 of the files in .* are not read"):
        assert len(read(tmp_path)[0]) == 2


@pytest.mark.parametrize("above", ["test", "work"])
def test_leafs_split_is_its_own_whatever_lies_above(tmp_path, above):
    for split in ("train", "test"):
        write_leaf(tmp_path / above / split / "a.json", {"U": {"x": [split], "y": ["!"]}})
    records, _ = read(tmp_path / above, kind="leaf")
    assert {(r.text.decode(), r.held_out) for r in records} == {("train!", False), ("test!", True)}
    write_leaf(tmp_path / "alone" / "test" / "a.json", {"U": {"x": ["x"], "y": ["!"]}})
    assert not read(tmp_path / "alone" / "test", kind="leaf")[0][0].held_out


def test_folders_of_a_maildir_are_read(tmp_path):
    for folder in ("", ".Sent", ".Archive.2020"):
        for part in ("cur", "new", "tmp"):
            (tmp_path / folder / part).mkdir(parents=True)
            (tmp_path / folder / part / "1").write_bytes(mail(body=folder or "inbox"))
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "1").write_bytes(mail())
    records, _ = read(tmp_path)
    assert len(records) == 6


def test_a_gzipped_mbox_is_read(tmp_path):
    (tmp_path / "2012-August.mbox.gz").write_bytes(gzip.compress(LINE + mail()))
    assert len(read(tmp_path)[0]) == 1
    assert len(read(tmp_path / "2012-August.mbox.gz")[0]) == 1


def test_html_is_what_a_reader_sees_and_an_empty_plain_part_gives_way(tmp_path):
    page = (
        "<html><head><style>p{color:red}</style><script>x=1</script></head>"
        "<p>Tea &amp; cake&nbsp;at 5</p><!-- a > b --></html>"
    )
    both = "--BB\nContent-Type: text/plain\n\n\n--BB\nContent-Type: text/html\n\n<p>All</p>\n--BB--"
    (tmp_path / "a.mbox").write_bytes(
        LINE + mail(body=page, **{"Content-Type": "text/html; charset=utf-8"}) + b"\n" + LINE
        + mail(body=both, **{"Content-Type": "multipart/alternative; boundary=BB"})
    )  # fmt: skip
    bodies = [r.text.decode().partition("\n\n")[2].strip() for r in read(tmp_path / "a.mbox")[0]]
    assert bodies == ["Tea & cake\xa0at 5", "All"]


def test_a_domain_has_one_spelling(tmp_path):
    pytest.importorskip("tldextract")
    hosts = ("example.co.uk", "Example.CO.UK", "bücher.de", "xn--bcher-kva.de")
    rows = [{"url": f"https://{host}/a", "text": "x y"} for host in hosts]
    records, _ = read(write_jsonl(tmp_path / "c4-a.jsonl", rows), kind="c4")
    assert [r.user.decode() for r in records] == ["example.co.uk"] * 2 + ["bücher.de"] * 2


def test_whole_numbers_of_numpy_are_users():
    assert in_memory([{"user": np.int64(7), "text": "x"}])[0] == [("7", "x")]


def test_data_frames_are_read_by_their_columns():
    pandas = pytest.importorskip("pandas")
    texts = ["one", "two"]
    long = pandas.DataFrame({"user": [2**70, 1], "text": texts, "meta": [{"a": 1}, [2]]})
    assert in_memory(long)[0] == [(str(2**70), "one"), ("1", "two")]
    with pytest.raises(UseError, match="2 columns named"):
        in_memory(pandas.DataFrame([["ana", "x", "y"]], columns=["user", "text", "text"]))
    with pytest.raises(UseError, match="Int64"):
        in_memory(pandas.DataFrame({"user": [1, None], "text": texts}))


def test_streamed_and_saved_data_sets_are_read_as_tables_are(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    held = datasets.Dataset.from_dict({"user": ["ana"], "messages": [talk]})
    expected = [("ana", "User: hi\n\nAssistant: hello\n\n")]
    assert in_memory(held)[0] == in_memory(held.to_iterable_dataset())[0] == expected
    assert in_memory(datasets.DatasetDict({"train": held}))[0] == expected
    held.save_to_disk(tmp_path / "saved")
    assert pairs(read(tmp_path / "saved")[0]) == expected
    numbers = datasets.Dataset.from_dict({"user": [7], "text": ["x"]}).to_iterable_dataset()
    assert in_memory(numbers.with_format("numpy"))[0] == [("7", "x")]


def test_a_pipe_is_read_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(
        target=(tmp_path / "pipe").write_text, args=(json.dumps(ROW) + "\n",), daemon=True
    )
    writer.start()
    assert pairs(read(tmp_path / "pipe", kind="jsonl")[0]) == [("ana", "some words")]


def test_an_address_is_read_as_a_file_is(tmp_path):
    """A ZIP and the memory of this process stand for what `fsspec` reaches."""
    fsspec = pytest.importorskip("fsspec")
    file = write_jsonl(tmp_path / "a.jsonl", [ROW])
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(file, "inner.jsonl")
    assert pairs(read(f"zip://*.jsonl::{tmp_path / 'a.zip'}")[0]) == [("ana", "some words")]
    with fsspec.open("memory://bucket/b.jsonl", "wb") as there:
        there.write(file.read_bytes())
    assert pairs(read("memory://bucket/b.jsonl")[0]) == [("ana", "some words")]
    with pytest.raises(UseError, match="cannot be read"):
        read("memory://bucket/nowhere.jsonl")
