"""Which process owns which numbers of a sum that all of them computed together."""

from __future__ import annotations

from collections.abc import Mapping

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


def share(tensors: Mapping[str, Tensor], rank: int, size: int) -> dict[str, Tensor]:
    """What process ``rank`` of ``size`` owns of the tensors in a row: flat views, by name.

    Args:
        tensors: contiguous; the same names and shapes in the same order on all processes.
        rank: of the owner.
        size: how many processes there are.

    Returns:
        Of each tensor of which it owns something, that piece.
    """
    begin, end = stretch(sum(tensor.numel() for tensor in tensors.values()), rank, size)
    pieces, before = dict[str, Tensor](), 0
    for name, tensor in tensors.items():
        first, last = max(begin - before, 0), min(end - before, tensor.numel())
        if first < last:
            pieces[name] = tensor.view(-1)[first:last]
        before += tensor.numel()
    return pieces
