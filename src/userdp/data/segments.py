"""Write users' examples into segments, and keep the index of what was written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.data import format as layout
from userdp.data.content import CHAIN_BYTES, NO_EXAMPLES, prolong
from userdp.data.files import write_arrow
from userdp.data.index import EMPTY, SPAN_KINDS, Index, Known, known_in, merged
from userdp.data.segment import KINDS, OFFSET, TARGET
from userdp.data.splits import Split

_NO_CHAINS = NO_EXAMPLES * len(layout.SPLIT_CODES)


class SegmentWriter:
    """Writes users one after another, in order of their ids' bytes, into new segments.

    Args:
        folder: of the store; it holds ``segments/``.
        dtype: the store's type of a token.
        loss_mask: whether each write brings targets.
        old: the index that is added to; `EMPTY` for a new store.
        known: what ``old`` says of a user, where it is looked up elsewhere.
        first_segment: the number of the first new segment.
        segment_tokens: a new segment begins once one holds this many.

    Attributes:
        ids, records, chains: of the users so far.
        rows: of the span index so far, as ``[split code, user, segment, start, length]``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dtype: str,
        loss_mask: bool,
        old: Index = EMPTY,
        known: Known | None = None,
        first_segment: int = 0,
        segment_tokens: int = layout.SEGMENT_TOKENS,
    ) -> None:
        self.folder = folder
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._loss_mask = loss_mask
        self._old = old
        self._known = known_in(old) if known is None else known
        self._segment_tokens = segment_tokens
        self._segment: SegmentFiles | None = None
        self.segments = self._first_segment = first_segment
        self.ids: list[bytes] = []
        self.records: list[int] = []
        self.chains: list[bytearray] = []
        self.rows: list[list[int]] = []
        self._last: dict[Split, list[int]] = {}
        self.examples = dict.fromkeys(Split, 0)
        self.tokens = dict.fromkeys(Split, 0)

    @property
    def room(self) -> int:
        """Tokens until the next segment begins."""
        held = 0 if self._segment is None else self._segment.tokens
        return self._segment_tokens - held

    def take(self, part: Index, *, first_user: int = 0, first_segment: int = 0) -> None:
        """Count users and spans as written that another process wrote into this store's segments.

        Args:
            part: of the index.
            first_user: which one its spans call user 0.
            first_segment: which one they call segment 0.
        """
        self.ids += part.ids
        self.records += part.records
        self.chains += map(bytearray, part.chains)
        first = {"user": first_user, "segment": first_segment}
        columns = [part.spans[name] + first.get(name, 0) for name in SPAN_KINDS]
        self.rows += np.stack(columns, axis=1).tolist()

    def records_before(self, user: bytes) -> int:
        """Records of ``user`` that the store holds already."""
        known = self._known(user)
        return 0 if known is None else known[0]

    def user(self, user: bytes) -> None:
        """Begin a user; ids must come in increasing order of bytes."""
        assert not self.ids or self.ids[-1] < user, "users come in order of their ids' bytes"
        records, chains = self._known(user) or (0, _NO_CHAINS)
        self.ids.append(user)
        self.records.append(records)
        self.chains.append(bytearray(chains))

    def write(
        self,
        split: Split,
        tokens: NDArray[Any],
        lengths: NDArray[np.int64],
        *,
        targets: NDArray[np.uint8] | None = None,
        records: int = 0,
    ) -> None:
        """Append examples to ``split`` of the user begun last.

        Args:
            split: one call per split and user is best: each may cost a span.
            tokens: flat, ids below the vocabulary size.
            lengths: int64 (examples,), of each example; their sum is ``len(tokens)``.
            targets: uint8, parallel to the tokens; if and only if the store has a loss mask.
            records: how many stored records these are.
        """
        if len(lengths) == 0:
            return
        assert (targets is not None) is self._loss_mask, "targets come with a loss mask alone"
        self.records[-1] += records
        if self._segment is not None and self._segment.tokens >= self._segment_tokens:
            self._segment.close()
            self._segment = None
        if self._segment is None:
            place = self.folder / layout.SEGMENTS / layout.segment_name(self.segments)
            self._segment = SegmentFiles(place, self._dtype, loss_mask=self._loss_mask)
            self.segments += 1
        self._span(split, self._segment.examples, len(lengths))
        self._segment.append(tokens, lengths, targets)
        code, chain = layout.SPLIT_CODES[split], self.chains[-1]
        part = slice(CHAIN_BYTES * code, CHAIN_BYTES * (code + 1))
        chain[part] = prolong(bytes(chain[part]), tokens, lengths, targets)
        self.examples[split] += len(lengths)
        self.tokens[split] += len(tokens)

    def _span(self, split: Split, start: int, length: int) -> None:
        user, segment = len(self.ids) - 1, self.segments - 1
        last = self._last.get(split)
        if last is not None and last[1:3] == [user, segment] and last[3] + last[4] == start:
            last[4] += length
            return
        row = [layout.SPLIT_CODES[split], user, segment, start, length]
        self.rows.append(row)
        self._last[split] = row

    def close(self) -> None:
        """Close the last segment."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def abandon(self) -> None:
        """Let go of open files."""
        if self._segment is not None:
            self._segment.abandon()

    def new_files(self) -> Iterator[Path]:
        """The files of the new segments, relative to the store."""
        for number in range(self._first_segment, self.segments):
            folder = Path(layout.SEGMENTS) / layout.segment_name(number)
            for file in sorted((self.folder / folder).iterdir()):
                yield folder / file.name

    def written(self, *, users: int = 0, rows: int = 0) -> Index:
        """What was written after the first ``users`` and the first ``rows`` of the span index."""
        columns = np.array(self.rows[rows:], dtype=np.int64).reshape(-1, len(SPAN_KINDS))
        spans = {
            name: columns[:, i].astype(kind) for i, (name, kind) in enumerate(SPAN_KINDS.items())
        }
        chains = [bytes(chain) for chain in self.chains[users:]]
        return Index(self.ids[users:], self.records[users:], chains, spans)

    def index(self) -> Index:
        """The old index with what was written since."""
        return merged(self._old, self.written())


class SegmentFiles:
    """The files of one segment in the making."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], *, loss_mask: bool) -> None:
        folder.mkdir()
        self._folder = folder
        self._kinds = {
            layout.TOKENS: (KINDS[layout.TOKENS], dtype),
            layout.OFFSETS: (KINDS[layout.OFFSETS], np.dtype(OFFSET)),
        }
        if loss_mask:
            self._kinds[layout.TARGETS] = (KINDS[layout.TARGETS], np.dtype(TARGET))
        self._raw: dict[str, IO[bytes]] = {
            name: (folder / f"{name}.raw").open("wb", buffering=2**20) for name in self._kinds
        }
        self.tokens = 0
        self.examples = 0
        self._raw[layout.OFFSETS].write(np.zeros(1, dtype="<i8").tobytes())

    def append(
        self,
        tokens: NDArray[Any],
        lengths: NDArray[np.int64],
        targets: NDArray[np.uint8] | None,
    ) -> None:
        """Write examples into the raw files."""
        ends = self.tokens + np.cumsum(lengths)
        assert ends[-1] == self.tokens + len(tokens), "lengths add up to the tokens"
        dtype = self._kinds[layout.TOKENS][1]
        self._raw[layout.TOKENS].write(tokens.astype(dtype, copy=False).tobytes())
        self._raw[layout.OFFSETS].write(ends.astype("<i8").tobytes())
        if targets is not None:
            assert len(targets) == len(tokens), "one target mark per token"
            self._raw[layout.TARGETS].write(targets.astype("u1", copy=False).tobytes())
        self.tokens += len(tokens)
        self.examples += len(lengths)

    def close(self) -> None:
        """Turn the raw files into Arrow files, through a memory map: no array is held."""
        for name, (column, dtype) in self._kinds.items():
            file = self._raw[name]
            file.close()
            raw = Path(file.name)
            empty = raw.stat().st_size == 0  # compaction may leave nothing, which cannot be mapped
            values = np.zeros(0, dtype) if empty else np.memmap(raw, dtype=dtype, mode="r")
            write_arrow(self._folder / name, {column: pa.array(np.asarray(values))})
            del values
            raw.unlink()

    def abandon(self) -> None:
        """Let go of the files without writing what is in their buffers."""
        for file in self._raw.values():
            try:
                file.close()
            except OSError:  # the disk is full: that is why we are here
                continue
