"""Cut records into examples, many records at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.data import format as layout


@dataclass(frozen=True, slots=True)
class Cut:
    """Examples of consecutive records.

    Args:
        tokens, lengths, targets: as `SegmentWriter.write` takes them.
        per_record: int64 (records,), examples of each record, at least 1.
        source: int64 (records,), the number of each record among those that were cut.
    """

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]
    per_record: NDArray[np.int64]
    source: NDArray[np.int64]
    targets: NDArray[np.uint8] | None

    @property
    def records(self) -> int:
        """How many records have examples."""
        return len(self.per_record)

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return len(self.lengths)

    def parts(self, bounds: list[int]) -> Iterator[Cut]:
        """The records between any two neighbours of ``bounds``; nothing is copied."""
        ends = np.append(0, np.cumsum(self.per_record))[bounds]
        tokens_ends = np.append(0, np.cumsum(self.lengths))[ends]
        places = (pairwise(at) for at in (bounds, ends.tolist(), tokens_ends.tolist()))
        for record, example, token in zip(*places, strict=True):
            tokens = slice(*token)
            yield Cut(
                self.tokens[tokens],
                self.lengths[slice(*example)],
                self.per_record[slice(*record)],
                self.source[slice(*record)],
                None if self.targets is None else self.targets[tokens],
            )

    def only(self, records: NDArray[np.bool_]) -> Cut:
        """The examples of some of the records."""
        return self if records.all() else self._where(np.repeat(records, self.per_record))

    def first_of_each(self) -> Cut:
        """Each record's first example."""
        first = np.zeros(self.examples, dtype=bool)
        first[np.cumsum(self.per_record) - self.per_record] = True
        return self._where(first)

    def with_targets(self) -> Cut:
        """The examples that have a target after their first token, which nothing precedes."""
        assert self.targets is not None
        starts = np.cumsum(self.lengths) - self.lengths
        counted = self.targets.astype(np.int64)
        counted[starts] = 0
        return self._where((np.add.reduceat(counted, starts) if len(starts) else starts) > 0)

    def _where(self, examples: NDArray[np.bool_]) -> Cut:
        tokens = np.repeat(examples, self.lengths)
        record = np.repeat(np.arange(self.records), self.per_record)
        per_record = np.bincount(record[examples], minlength=self.records)
        left = per_record > 0
        return Cut(
            self.tokens[tokens],
            self.lengths[examples],
            per_record[left],
            self.source[left],
            None if self.targets is None else self.targets[tokens],
        )


def cut_records(
    tokens: NDArray[Any],
    sizes: NDArray[np.int64],
    seq_len: int,
    targets: NDArray[np.uint8] | None = None,
) -> Cut:
    """Cut records into examples: all but a record's last have ``seq_len`` tokens.

    A last one of a single token has no target and is left out.

    Args:
        tokens: of all records, one after another.
        sizes: int64 (records,), tokens of each.
        seq_len: most tokens of an example.
        targets: uint8, parallel to ``tokens``, where the store has a loss mask.
    """
    whole, rest = np.divmod(sizes, seq_len)
    last = rest >= layout.MIN_SEQ_LEN
    per_record = whole + last
    lengths = np.full(int(per_record.sum()), seq_len, dtype=np.int64)
    ends = np.cumsum(per_record)
    lengths[ends[last] - 1] = rest[last]
    lost = np.cumsum(sizes)[rest == 1] - 1
    if len(lost):
        kept = np.ones(len(tokens), dtype=bool)
        kept[lost] = False
        tokens = tokens[kept]
        targets = None if targets is None else targets[kept]
    left = per_record > 0
    return Cut(tokens, lengths, per_record[left], np.flatnonzero(left), targets)
