"""Grouping: the same records, by user bytes and order, out of core."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import userdp.data.grouping as grouping_module
import userdp.data.records as records_module
from userdp.core.errors import FailureError, UseError
from userdp.data.grouping import Grouping
from userdp.data.records import TARGET, Record, in_blocks, packed, unpacked


def grouped(folder, records, **options):
    grouping = Grouping(folder, **options)
    grouping.add(in_blocks(records))
    grouping.sort()
    return grouping


def records_of(grouping) -> list[Record]:
    """What comes out, as it went in."""
    return [
        Record(row["user"], row["content"], row["held_out"])
        for block in grouping.batches()
        for row in block.to_pylist()
    ]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.binary(min_size=1, max_size=4), st.binary(min_size=1, max_size=30)),
        max_size=40,
    )
)
def test_records_come_out_by_user_bytes_and_in_the_order_in_which_they_went_in(rows):
    records = [Record(user, text, len(text) % 3 == 0) for user, text in rows]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping_module, "BLOCK_BYTES", 90)
        patch.setattr(records_module, "BLOCK_RECORDS", 7)
        got = records_of(grouped(Path(folder), records))
    assert got == sorted(records, key=lambda record: record.user)


def test_text_beyond_the_memory_limit_goes_to_disk(tmp_path):
    """150 MB of records, some of 2 MB and many of 4 kB, under a limit of 32 MB."""
    sizes = [2_000_000 if n % 1500 == 0 else 4_000 for n in range(30_000)]
    records = (Record(b"%d" % (n % 7), bytes([97 + n % 26]) * size) for n, size in enumerate(sizes))
    got = []
    for block in grouped(tmp_path, records, memory_limit="32MB").batches():
        assert block.nbytes < 2**24
        got += [(r["user"], len(r["content"]), r["content"][:1]) for r in block.to_pylist()]
    expected = [(b"%d" % (n % 7), size, bytes([97 + n % 26])) for n, size in enumerate(sizes)]
    assert got == sorted(expected, key=lambda record: record[0])


@pytest.mark.parametrize("pieces", [None, ((2, 1), (6, 3)), ((6, 0),)])
def test_a_text_and_its_pieces_come_out_of_one_value(pieces):
    record = Record(b"u", "aé\0xyz".encode(), False, pieces)
    assert unpacked(packed(record)) == ("aé\0xyz", [*(pieces or [(6, TARGET)])])


@pytest.mark.parametrize("limit", ["", "much", "-1GB", "nan", "0GB", "1 GB; DROP TABLE records"])
def test_a_memory_limit_that_is_no_size_is_refused(tmp_path, limit):
    with pytest.raises(UseError, match="memory_limit"):
        Grouping(tmp_path, memory_limit=limit)


def test_a_limit_too_small_to_work_with_is_a_clear_failure(tmp_path):
    with pytest.raises(FailureError, match="grouping"):
        grouped(tmp_path, (Record(b"u%d" % n, b"x") for n in range(50_000)), memory_limit="1KB")
