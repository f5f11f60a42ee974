"""Rows of one user laid end to end, hidden from each other: the same losses with little padding.

Only for what is computed per user anyway (personalization). The private engines never pack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from userdp.gradients import Units

_WIDTH = 256
"""No packed row is wider than this, or than the longest row."""
_SQUARE = 800
"""Attention inside a packed row costs its width squared, other layers the width; equal here."""


class Packed(NamedTuple):
    """Several users' packed rows; a tuple, so that ``torch.func.vmap`` maps over the users.

    Args:
        input_ids: int64 (users, rows, width).
        labels: int64, what each place predicts.
        positions: int64, each place's number in its own example.
        segments: int64, which example a place belongs to, from 1; 0 for padding.
        weights: float32, of each place's loss; 0 where nothing counts.
    """

    input_ids: Tensor
    labels: Tensor
    positions: Tensor
    segments: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> Packed:
        """The same on ``device``."""
        return Packed(*(value.to(device) for value in self))

    def flat(self) -> Packed:
        """All users' rows as one user's: (users * rows, width)."""
        return Packed(*(value.flatten(0, 1) for value in self))

    def attention_mask(self) -> Tensor:
        """float32 (…, rows, 1, width, width): 0 within an example's past and itself, else lowest.

        Padding attends to itself, as a softmax over nothing would be NaN.
        """
        width = self.segments.shape[-1]
        places = torch.arange(width, device=self.segments.device)
        same = self.segments[..., :, None] == self.segments[..., None, :]
        seen = same & (places[None, :] <= places[:, None])
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
        return mask[..., None, :, :]


def pack(units: Units, rows: Sequence[NDArray[np.int64]], *, mean_of_rows: bool) -> Packed:
    """Each user's named rows, packed: the longest first, each where there is room.

    A row of n tokens takes n - 1 places: its last token is a target only.

    Args:
        units: where the rows are, on the CPU.
        rows: for each user, which.
        mean_of_rows: weigh each row's targets by one over their number and over the number of the
            user's rows, as a step of SGD does; else each target by 1.
    """
    lengths, counts = units.lengths.numpy(), units.target_counts().numpy()
    needed = [np.maximum(lengths[own] - 1, 1) for own in rows]
    width, places = _fit(needed)
    bins = max(int(bin_.max()) for bin_, _ in places) + 1
    shape = (len(rows), bins, width)
    columns = [np.zeros(shape, dtype=np.int64) for _ in range(4)]
    input_ids, labels, positions, segments = columns
    weights = np.zeros(shape, dtype=np.float32)
    tokens = units.input_ids.numpy()
    targets = None if units.targets is None else units.targets.numpy()
    for user, (own, (bin_, start)) in enumerate(zip(rows, places, strict=True)):
        for number, row in enumerate(own.tolist()):
            size = int(lengths[row]) - 1
            if size < 1:
                continue
            where = (user, int(bin_[number]), slice(int(start[number]), int(start[number]) + size))
            input_ids[where] = tokens[row, :size]
            labels[where] = tokens[row, 1 : size + 1]
            positions[where] = np.arange(size)
            segments[where] = number + 1
            each = 1.0 / (len(own) * max(1, int(counts[row]))) if mean_of_rows else 1.0
            weights[where] = each if targets is None else each * targets[row, 1 : size + 1]
    return Packed(*map(torch.from_numpy, (*columns, weights)))


_Places = list[tuple[NDArray[np.int64], NDArray[np.int64]]]


def _fit(sizes: Sequence[NDArray[np.int64]]) -> tuple[int, _Places]:
    """The width, the same for all users, at which the packed rows cost least; and the places."""
    longest = max(int(own.max()) for own in sizes)
    total = max(int(own.sum()) for own in sizes)
    widest = max(longest, min(_WIDTH, total))
    best: tuple[float, int, _Places] | None = None
    # Down from the widest: each width tried would just hold the fullest user in that many bins.
    for wanted in range(-(-total // widest), -(-total // longest) + 1):
        width = min(widest, max(longest, -(-total // wanted)))
        while True:
            places = [_first_fit(own, width) for own in sizes]
            bins = max(int(bin_.max()) for bin_, _ in places) + 1
            cost = bins * width * (1 + width / _SQUARE)
            if best is None or cost < best[0]:
                best = (cost, width, places)
            if bins <= wanted or width == widest:
                break
            width = min(widest, width + max(1, width // 12))
    assert best is not None
    return best[1], best[2]


def _first_fit(sizes: NDArray[np.int64], width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The bin of each size and its place there: the largest first, into the first bin with room."""
    bins, starts = np.zeros(len(sizes), dtype=np.int64), np.zeros(len(sizes), dtype=np.int64)
    filled: list[int] = []
    for item in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[item])
        chosen = next((b for b, used in enumerate(filled) if used + size <= width), len(filled))
        if chosen == len(filled):
            filled.append(0)
        bins[item], starts[item] = chosen, filled[chosen]
        filled[chosen] += size
    return bins, starts
