"""What the trainer's loop gets in place of data: a ticket for each private step."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, Dataset

_TICKET = "private step"


class _Tickets(Dataset[int]):
    """As many tickets as there are steps in an epoch; none of them holds any data."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> int:
        return index


def tickets(steps: int) -> DataLoader[int]:
    """A data loader of one epoch; its length and order say nothing about anybody.

    Args:
        steps: of an epoch; a public constant.
    """
    return DataLoader(_Tickets(steps), batch_size=1, collate_fn=_one)


def _one(numbers: list[int]) -> dict[str, Any]:
    return {_TICKET: numbers[0]}
