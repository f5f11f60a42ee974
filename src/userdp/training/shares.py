"""Which process owns which numbers of a sum that all of them computed together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate

import torch
from torch import Tensor


def block(numbers: int, size: int) -> int:
    """The length of each process's stretch, but for the last ones: they may be shorter, or empty.

    >>> block(10, 4), block(8, 4), block(1, 4)
    (3, 2, 1)
    """
    return -(-numbers // size)


def stretch(numbers: int, rank: int, size: int) -> tuple[int, int]:
    """Begin and end of what process ``rank`` of ``size`` owns of ``numbers`` numbers in a row.

    Guarantee: the stretches of all processes are disjoint, and together all numbers.

    >>> [stretch(10, rank, 4) for rank in range(4)]
    [(0, 3), (3, 6), (6, 9), (9, 10)]
    >>> [stretch(1, rank, 3) for rank in range(3)]
    [(0, 1), (1, 1), (1, 1)]
    """
    length = block(numbers, size)
    return min(rank * length, numbers), min((rank + 1) * length, numbers)


class Row:
    """Tensors seen as one row of numbers, of which any stretch can be had without a copy.

    Args:
        tensors: contiguous, and on one device; the row has their numbers in this order.

    Attributes:
        numbers: how many there are.
        device: where they lie.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._flat = [tensor.view(-1) for tensor in tensors]
        self._ends = list(accumulate(flat.numel() for flat in self._flat))
        self.numbers = self._ends[-1] if self._ends else 0
        self.device = self._flat[0].device if self._flat else torch.device("cpu")

    def pieces(self, begin: int, end: int) -> list[tuple[int, Tensor]]:
        """The numbers from ``begin`` up to ``end``, as flat views; with each its tensor's place.

        What lies beyond the last number is left out.
        """
        found = list[tuple[int, Tensor]]()
        place = bisect_right(self._ends, begin)
        while place < len(self._flat) and begin < end:
            before = self._ends[place] - self._flat[place].numel()
            last = min(end, self._ends[place])
            if begin < last:
                found.append((place, self._flat[place][begin - before : last - before]))
            begin, place = max(begin, last), place + 1
        return found

    def read(self, begin: int, end: int, out: Tensor) -> None:
        """Copy the numbers from ``begin`` up to ``end`` into ``out``; zeros where there are none.

        Args:
            begin: of the stretch.
            end: of the stretch.
            out: flat, of at least ``end - begin`` numbers.
        """
        done = 0
        for _, piece in self.pieces(begin, end):
            out[done : done + piece.numel()].copy_(piece)
            done += piece.numel()
        out[done:].zero_()

    def write(self, begin: int, end: int, numbers: Tensor) -> None:
        """Put ``numbers`` where those from ``begin`` up to ``end`` are; what is over is padding."""
        done = 0
        for _, piece in self.pieces(begin, end):
            piece.copy_(numbers[done : done + piece.numel()])
            done += piece.numel()


def share(tensors: Mapping[str, Tensor], rank: int, size: int) -> dict[str, Tensor]:
    """What process ``rank`` of ``size`` owns of the tensors in a row: flat views, by name.

    Args:
        tensors: contiguous; the same names and shapes in the same order on all processes.
        rank: of the owner.
        size: how many processes there are.

    Returns:
        Of each tensor of which it owns something, that piece.
    """
    names, row = list(tensors), Row(tensors.values())
    pieces = row.pieces(*stretch(row.numbers, rank, size))
    return {names[place]: piece for place, piece in pieces}
