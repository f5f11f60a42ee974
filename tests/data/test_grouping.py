"""Grouping: the same records, by user bytes and order, out of core."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import userdp.data.grouping as grouping_module
from userdp.data.columns import in_columns
from userdp.data.grouping import Grouping
from userdp.data.records import Record
from userdp.errors import FailureError, UseError


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=4), st.binary(max_size=30)), max_size=40),
    st.randoms(use_true_random=False),
)
def test_records_come_out_as_they_went_in_sorted_by_user_bytes_and_order(rows, draw):
    records = [Record(user, text, order) for order, (user, text) in enumerate(rows)]
    mixed = list(records)
    draw.shuffle(mixed)
    with TemporaryDirectory() as folder, Grouping(Path(folder)) as grouping:
        assert grouping.add(in_columns(mixed)) == len(records)
        got = [record for batch in grouping.batches(records=7) for record in batch]
    assert got == sorted(records, key=lambda record: (record.user, record.order))


def test_text_beyond_the_memory_limit_goes_to_disk(tmp_path):
    """150 MB of records, some of 2 MB and many of 4 kB, under a limit of 32 MB."""
    sizes = [2_000_000 if n % 1500 == 0 else 4_000 for n in range(30_000)]
    records = (
        Record(b"%d" % (n % 7), bytes([97 + n % 26]) * size, 30_000 - n)
        for n, size in enumerate(sizes)
    )
    got = []
    with Grouping(tmp_path, memory_limit="32MB") as grouping:
        assert grouping.add(in_columns(records)) == len(sizes)
        for batch in grouping.batches():
            assert sum(len(record.text) for record in batch) < 2**24
            got += [(r.user, r.order, len(r.text), r.text[:1]) for r in batch]
    expected = [
        (b"%d" % (n % 7), 30_000 - n, size, bytes([97 + n % 26])) for n, size in enumerate(sizes)
    ]
    assert got == sorted(expected)


def test_a_spool_larger_than_memory_is_read_alike(tmp_path, monkeypatch):
    records = [Record(b"%d" % (n % 5), b"text %d" % n * 50, n, n % 3 == 0) for n in range(3000)]
    monkeypatch.setattr(grouping_module, "_MAPPED_MOST", 10_000)
    monkeypatch.setattr(grouping_module.os, "sysconf", lambda name: 1)
    with Grouping(tmp_path) as grouping:
        grouping.add(in_columns(records))
        got = [record for batch in grouping.batches(size=5000) for record in batch]
        rest = [record for batch in grouping.batches(skip=1234) for record in batch]
    assert got == sorted(records, key=lambda record: (record.user, record.order))
    assert rest == got[1234:]


def test_a_spool_cut_short_is_a_failure(tmp_path):
    with Grouping(tmp_path) as grouping:
        grouping.add(in_columns([Record(b"u", b"a text", 0)]))
        grouping.sort()
        (tmp_path / "texts").write_bytes(b"a t")
        with pytest.raises(FailureError, match="cut short"):
            list(grouping.batches())


def test_pieces_come_through(tmp_path):
    pieces = [None, ((2, 1), (6, 3)), ((6, 0),), None]
    records = [Record(b"u", b"a text", n, False, held) for n, held in enumerate(pieces)]
    with Grouping(tmp_path) as grouping:
        grouping.add(in_columns(records))
        assert [record for batch in grouping.batches(records=3) for record in batch] == records


@pytest.mark.parametrize("limit", ["", "much", "-1GB", "nan", "0GB", "1 GB; DROP TABLE records"])
def test_a_memory_limit_that_is_no_size_is_refused(tmp_path, limit):
    with pytest.raises(UseError, match="memory_limit"):
        Grouping(tmp_path, memory_limit=limit)


def test_a_limit_too_small_to_work_with_is_a_clear_failure(tmp_path):
    with Grouping(tmp_path, memory_limit="1KB") as grouping:
        grouping.add(in_columns(Record(b"u%d" % n, b"x", n) for n in range(50_000)))
        with pytest.raises(FailureError, match="grouping"):
            grouping.sort()
