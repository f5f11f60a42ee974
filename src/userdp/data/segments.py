"""Segments: the files that hold examples, read over a memory map, and written user after user."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.data import meta as layout
from userdp.data.files import read_columns, write_arrow
from userdp.data.index import CHAIN_BYTES, SPAN_KINDS, Index, Known, prolong
from userdp.data.meta import StoreMeta
from userdp.data.splits import Split

_EXAMPLES_AT_ONCE = 2**16


@dataclass(frozen=True, slots=True)
class Segment:
    """The columns of a segment, over memory maps.

    Args:
        tokens: uint16 or uint32, flat.
        offsets: int64 (examples + 1,): where each example begins among the tokens.
        targets: uint8, parallel to ``tokens``; None where the store has no loss mask.
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    targets: NDArray[np.uint8] | None

    @classmethod
    def open(cls, store: Path, meta: StoreMeta, number: int) -> Self:
        """Segment ``number`` of a store.

        Raises:
            OSError: a file of it is not there.
            UseError: one is damaged.
        """
        folder = store / layout.SEGMENTS / meta.segment_folder(number)
        columns = {
            name: read_columns(folder / name, {column: kind})[column]
            for name, (column, kind) in _columns(meta).items()
        }
        tokens, offsets = columns[layout.TOKENS], columns[layout.OFFSETS]
        return cls(tokens, offsets, columns.get(layout.TARGETS))


def _columns(meta: StoreMeta) -> dict[str, tuple[str, str]]:
    """Each file of a segment, with the name and type of its one column."""
    columns = {
        layout.TOKENS: ("token", f"<{np.dtype(meta.token_dtype).str[1:]}"),
        layout.OFFSETS: ("offset", "<i8"),
    }
    return columns | {layout.TARGETS: ("target", "u1")} if meta.loss_mask else columns


class SegmentFiles:
    """The files of one segment in the making."""

    def __init__(self, folder: Path, meta: StoreMeta) -> None:
        folder.mkdir()
        self._columns = _columns(meta)
        self._raw: dict[str, IO[bytes]] = {
            name: (folder / f"{name}.raw").open("wb", buffering=2**20) for name in self._columns
        }
        self.tokens = self.examples = 0
        self._write(layout.OFFSETS, np.zeros(1))

    def append(
        self, tokens: NDArray[Any], lengths: NDArray[np.int64], targets: NDArray[np.uint8] | None
    ) -> None:
        """Write examples; ``targets`` if and only if the store has a loss mask."""
        ends = self.tokens + np.cumsum(lengths)
        assert ends[-1] == self.tokens + len(tokens), "lengths add up to the tokens"
        self._write(layout.TOKENS, tokens)
        self._write(layout.OFFSETS, ends)
        if targets is not None:
            assert len(targets) == len(tokens), "one target mark per token"
            self._write(layout.TARGETS, targets)
        self.tokens += len(tokens)
        self.examples += len(lengths)

    def copy(self, segment: Segment, begins: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Append examples ``begins[i]`` to ``begins[i] + counts[i]`` of a segment, for each i."""
        offsets, targets = segment.offsets, segment.targets
        for begin, count in zip(begins.tolist(), counts.tolist(), strict=True):
            for first in range(begin, begin + count, _EXAMPLES_AT_ONCE):
                ends = offsets[first : min(first + _EXAMPLES_AT_ONCE, begin + count) + 1]
                part = slice(int(ends[0]), int(ends[-1]))
                marks = None if targets is None else targets[part]
                self.append(segment.tokens[part], np.diff(ends), marks)

    def close(self) -> None:
        """Turn the raw files into Arrow files, through a memory map: no array is held."""
        for name, (column, kind) in self._columns.items():
            self._raw[name].close()
            raw = Path(self._raw[name].name)
            empty = raw.stat().st_size == 0  # an erasure may leave nothing, which cannot be mapped
            values = np.zeros(0, kind) if empty else np.memmap(raw, dtype=kind, mode="r")
            write_arrow(raw.with_suffix(""), {column: pa.array(np.asarray(values))})
            raw.unlink()

    def abandon(self) -> None:
        """Let go of the files; where the disk is full, what is in their buffers is lost."""
        for file in self._raw.values():
            with suppress(OSError):
                file.close()

    def _write(self, name: str, values: NDArray[Any]) -> None:
        self._raw[name].write(values.astype(self._columns[name][1], copy=False).tobytes())


class SegmentWriter:
    """Writes users one after another, in order of their ids' bytes, into new segments.

    Args:
        folder: of the store, or of a part of one; it holds ``segments/``.
        meta: of the store that is added to.
        known: what that holds of each user.
        first_segment: the number of the first new segment.
        segment_tokens: a new segment begins once one holds this many.
    """

    def __init__(
        self,
        folder: Path,
        meta: StoreMeta,
        known: Known,
        *,
        first_segment: int = 0,
        segment_tokens: int = layout.SEGMENT_TOKENS,
    ) -> None:
        self.folder, self.meta = folder, meta
        self._known = known
        self._segment_tokens = segment_tokens
        self._segment: SegmentFiles | None = None
        self.segments = first_segment
        self._ids: list[bytes] = []
        self._records: list[int] = []
        self._chains: list[bytearray] = []
        self._rows: list[list[int]] = []  # of the span index: split, user, segment, start, length
        self._last: dict[Split, list[int]] = {}

    def records_before(self, user: bytes) -> int:
        """Records of ``user`` that the store holds already."""
        return self._known(user)[0]

    def user(self, user: bytes) -> None:
        """Begin a user; ids must come in increasing order of bytes."""
        assert not self._ids or self._ids[-1] < user, "users come in order of their ids' bytes"
        records, chains = self._known(user)
        self._ids.append(user)
        self._records.append(records)
        self._chains.append(bytearray(chains))

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
        assert (targets is not None) is self.meta.loss_mask, "targets come with a loss mask alone"
        self._records[-1] += records
        if self._segment is not None and self._segment.tokens >= self._segment_tokens:
            self.close()
        if self._segment is None:
            place = self.folder / layout.SEGMENTS / self.meta.segment_folder(self.segments)
            self._segment = SegmentFiles(place, self.meta)
            self.segments += 1
        self._span(split, self._segment.examples, len(lengths))
        self._segment.append(tokens, lengths, targets)
        code, chain = layout.SPLIT_CODES[split], self._chains[-1]
        part = slice(CHAIN_BYTES * code, CHAIN_BYTES * (code + 1))
        chain[part] = prolong(bytes(chain[part]), tokens, lengths, targets)

    def _span(self, split: Split, start: int, length: int) -> None:
        user, segment = len(self._ids) - 1, self.segments - 1
        last = self._last.get(split)
        if last is not None and last[1:3] == [user, segment] and last[3] + last[4] == start:
            last[4] += length
            return
        self._last[split] = [layout.SPLIT_CODES[split], user, segment, start, length]
        self._rows.append(self._last[split])

    def adopt(self, part: Path) -> None:
        """Take over users of a part that another process wrote: its segments become this store's.

        No token is read here; the cost is that of the part's users and spans.

        Args:
            part: the folder, of users whom neither this writer nor another part has. It is taken
                apart.
        """
        index = Index.read(part / layout.INDEX)
        columns = {
            **index.spans,
            "user": index.spans["user"] + len(self._ids),
            "segment": index.spans["segment"] + self.segments,
        }
        self._rows += np.stack([columns[name] for name in SPAN_KINDS], axis=1).tolist()
        self._ids += index.ids
        self._records += index.records
        self._chains += map(bytearray, index.chains)
        for segment in sorted((part / layout.SEGMENTS).iterdir()):
            segment.rename(self.folder / layout.SEGMENTS / self.meta.segment_folder(self.segments))
            self.segments += 1

    def close(self) -> None:
        """Close the last segment."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def abandon(self) -> None:
        """Let go of open files."""
        if self._segment is not None:
            self._segment.abandon()

    def written(self) -> Index:
        """The index of what was written."""
        columns = np.array(self._rows, dtype=np.int64).reshape(-1, len(SPAN_KINDS))
        spans = {
            name: columns[:, i].astype(kind) for i, (name, kind) in enumerate(SPAN_KINDS.items())
        }
        return Index(self._ids, self._records, [bytes(one) for one in self._chains], spans)
