"""`Units`: the rows of one cohort, grouped by whatever the privacy unit is.

Nothing here knows what a unit stands for: a user with up to `group_size` examples (ULS), or a
single example (ELS). The gradient engines clip per unit, and that is all they need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from userdp.core.errors import UseError


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """Token rows grouped by unit; unit ``k`` owns rows ``offsets[k]:offsets[k + 1]``.

    Args:
        input_ids: int64, (rows, width). Whatever stands beyond a row's length is never read. The
            width decides how rows are padded (`engines.passes`): let it be public, as the length of
            a store's rows is, and not that of the longest one that was drawn.
        lengths: int64, (rows,); tokens of each row, in [0, width].
        offsets: int64, (units + 1,); starts at 0, never falls, ends at ``rows``. A unit without
            rows is allowed and contributes exactly zero.
        targets: bool, (rows, width): which tokens the loss counts, or None for all. A row's first
            token never counts, since nothing predicts it; what stands beyond a row's length is
            never read.
        host_lengths: ``lengths`` on the CPU, so that a device is not waited for; None looks it up.

    Raises:
        UseError: a length or an offset is out of its range.

    >>> units = Units.from_rows([[[5, 6, 7], [8, 9]], [[1, 2]]])
    >>> len(units), units.lengths.tolist(), units.offsets.tolist()
    (2, [3, 2, 2], [0, 2, 3])
    """

    input_ids: Tensor
    lengths: Tensor
    offsets: Tensor
    targets: Tensor | None = None
    host_lengths: Tensor | None = None

    def __post_init__(self) -> None:
        rows, width = self.input_ids.shape
        assert self.lengths.shape == (rows,)
        assert self.targets is None or self.targets.shape == (rows, width)
        if self.host_lengths is None:
            object.__setattr__(self, "host_lengths", self.lengths.cpu())
        if rows and not (self._lengths.min() >= 0 and self._lengths.max() <= width):
            raise UseError(f"each row's length must be in [0, {width}], the width of input_ids")
        ends = self.offsets.tolist()
        if not ends or ends != sorted(ends) or (ends[0], ends[-1]) != (0, rows):
            raise UseError(
                f"offsets must rise from 0 to the number of rows ({rows}); a row that belongs to "
                "no unit, or to two, would be clipped wrongly"
            )

    @property
    def _lengths(self) -> Tensor:
        """On the CPU."""
        assert self.host_lengths is not None
        return self.host_lengths

    def __len__(self) -> int:
        """The number of units."""
        return self.offsets.shape[0] - 1

    def cut(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """``(input_ids, lengths, targets)`` of all rows, as wide as the longest: `own_rows`.

        Of a unit alone the shape depends on that unit's data: what others hold cannot reach its
        gradient, not even through rounding.
        """
        width = int(self._lengths.max()) if len(self.lengths) else 0
        return own_rows(self.input_ids, self.lengths, self.targets, width=width)

    def all_rows(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The same as wide as ``input_ids``, which no row decides."""
        width = self.input_ids.shape[1]
        return own_rows(self.input_ids, self.lengths, self.targets, width=width)

    def target_counts(self) -> Tensor:
        """int64, (rows,): the tokens that each row's loss is the mean of; 0 where there is none."""
        if self.targets is None:
            return (self.lengths - 1).clamp(min=0)
        places = torch.arange(self.targets.shape[1], device=self.lengths.device)
        counted = self.targets & (places > 0) & (places < self.lengths[:, None])
        return counted.sum(1)

    def select(self, begin: int, end: int) -> Units:
        """Units ``begin:end`` as `Units` of their own."""
        if not 0 <= begin <= end <= len(self):
            raise IndexError(f"units {begin}:{end} of {len(self)}")
        first, last = int(self.offsets[begin]), int(self.offsets[end])
        return Units(
            input_ids=self.input_ids[first:last],
            lengths=self.lengths[first:last],
            offsets=self.offsets[begin : end + 1] - first,
            targets=None if self.targets is None else self.targets[first:last],
            host_lengths=self._lengths[first:last],
        )

    def to(self, device: torch.device | str) -> Units:
        """The same units with all but the offsets on ``device``; those stay where they are."""
        return Units(
            input_ids=self.input_ids.to(device),
            lengths=self.lengths.to(device),
            offsets=self.offsets,
            targets=None if self.targets is None else self.targets.to(device),
            host_lengths=self.host_lengths,
        )

    @classmethod
    def from_rows(cls, units: Sequence[Sequence[Sequence[int]]], *, width: int = 0) -> Units:
        """From nested lists: units, each a list of rows, each a list of token numbers.

        ``width`` is the least one of ``input_ids``; else it is that of the longest row.
        """
        rows = [row for unit in units for row in unit]
        tokens = np.array([token for row in rows for token in row], dtype=np.int64)
        row_offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        unit_offsets = np.cumsum([0, *map(len, units)], dtype=np.int64)
        return cls.from_flat(tokens, row_offsets, unit_offsets, width=width)

    @classmethod
    def from_flat(
        cls,
        tokens: NDArray[np.integer],
        row_offsets: NDArray[np.integer],
        unit_offsets: NDArray[np.integer],
        targets: NDArray[np.bool_] | None = None,
        *,
        width: int = 0,
    ) -> Units:
        """From ragged arrays, as a store gathers them.

        Args:
            tokens: (total tokens,); the rows one after another, any integer dtype.
            row_offsets: (rows + 1,); row r is ``tokens[row_offsets[r]:row_offsets[r + 1]]``.
            unit_offsets: (units + 1,); unit k is rows ``unit_offsets[k]:unit_offsets[k + 1]``.
            targets: bool, parallel to ``tokens``, or None where every token counts.
            width: least one of ``input_ids``; else that of the longest row.

        Raises:
            UseError: the rows do not cover the tokens.
        """
        lengths = np.diff(np.asarray(row_offsets, dtype=np.int64))
        if lengths.sum() != len(tokens) or not (targets is None or len(targets) == len(tokens)):
            raise UseError("row offsets must cover all tokens, and targets be parallel to them")
        width = max(width, int(lengths.max(initial=0)))
        held = np.arange(width) < lengths[:, None]
        input_ids = np.zeros(held.shape, dtype=np.int64)
        input_ids[held] = tokens
        counted = None
        if targets is not None:
            counted = np.zeros(held.shape, dtype=np.bool_)
            counted[held] = targets
        return cls(
            input_ids=torch.from_numpy(input_ids),
            lengths=torch.from_numpy(lengths),
            offsets=torch.from_numpy(np.array(unit_offsets, dtype=np.int64)),
            targets=None if counted is None else torch.from_numpy(counted),
        )


def own_rows(
    input_ids: Tensor, lengths: Tensor, targets: Tensor | None, *, width: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Copies of these rows, cut to ``width``, as a model may be handed them.

    Copies, since a loss may write to them (``labels = input_ids; labels[padding] = -100``), and
    since what is saved of a view is the whole cohort.
    """
    marks = None if targets is None else targets[:, :width].clone()
    return input_ids[:, :width].clone(), lengths.clone(), marks
