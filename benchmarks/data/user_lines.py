"""Our grouping alone: records read, brought together by user, and written as JSON lines."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def group_child(path: str, out: str) -> None:
    """Read, group and write a JSON line per user, as Beam does; with each user's records in order.

    What `prepare` runs up to the tokenizer, and a writer of lines that works on columns too.
    """
    from userdp.core.stages import Progress
    from userdp.data.grouping import Grouping
    from userdp.data.records import Tally, in_blocks
    from userdp.data.sources import open_source

    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(dir=Path(out).parent) as scratch,
        Path(out).open("wb") as sink,
    ):
        grouping = Grouping(Path(scratch))
        source: Any = open_source([path])
        read = time.perf_counter()
        grouping.add(in_blocks(source.records(Tally(), Progress())))
        added = time.perf_counter()
        grouping.sort()
        ordered = time.perf_counter()
        write_groups(grouping.batches(), sink)
    stages = {"reading": added - read, "sorting": ordered - added,
              "fetching and writing": time.perf_counter() - ordered}  # fmt: skip
    print(json.dumps({"seconds": time.perf_counter() - began, "stages": stages}))


def write_groups(blocks: Iterator[Any], sink: Any) -> None:
    """``["user", ["text", ...]]`` per line, from blocks of records ordered by user."""
    from userdp.data.examples import ahead

    last: list[bytes] = []

    def with_last() -> Iterator[tuple[Any, bytes | None]]:
        for block in blocks:
            yield block, last[-1] if last else None
            last[:] = [block["user"][-1].as_py()]

    for content in ahead(lines_of, with_last()):
        sink.write(content)
    if last:
        sink.write(b'"]]\n')


def lines_of(block_and_last: tuple[Any, bytes | None]) -> Any:
    """A block of lines; the last is left open, as its user may go on in the next block."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from userdp.data.records import offsets_of

    def plain(text: str) -> Any:
        return pa.scalar(text, pa.large_string())

    block, last = block_and_last
    users = block["user"]
    other = pc.not_equal(users.slice(1), users.slice(0, len(users) - 1))
    first = np.array([last is None or users[0].as_py() != last])
    begins = np.concatenate([first, other.to_numpy(zero_copy_only=False)])
    names = escaped(users.filter(pa.array(begins)))
    heads = pc.binary_join_element_wise(plain('"]]\n["'), names, plain('",["'), plain(""))
    before = pa.concat_arrays([pa.array(['","'], pa.large_string()), heads])
    before = before.take(pa.array(np.cumsum(begins) * begins))
    texts = pc.binary_join_element_wise(before, escaped(block["content"]), plain(""))
    ends = offsets_of(texts)
    begin = int(ends[0]) + (4 if last is None else 0)  # nothing is open before the first
    return memoryview(texts.buffers()[2])[begin : int(ends[-1])]


def escaped(values: Any) -> Any:
    """What stands between the quotes of each value as a JSON string."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from userdp.data.records import offsets_of

    texts = values.cast(pa.large_string())
    ends = offsets_of(values)
    if ends[-1] == ends[0]:
        return texts
    held = np.frombuffer(values.buffers()[2], np.uint8)[ends[0] : ends[-1]]
    characters = [c for c in '\\"' if (held == ord(c)).any()]
    if held.min() < ord(" "):
        characters += map(chr, np.unique(held[held < ord(" ")]).tolist())
    for character in characters:  # the backslash first
        texts = pc.replace_substring(texts, character, json.dumps(character)[1:-1])
    return texts
