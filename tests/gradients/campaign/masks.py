"""Record the random numbers of each row in one run, and give every row the same in another.

The recorder stands below autograd, where random operations fill plain tensors: what it records is
what the production code drew. A row is known by its first token, which must be its own. Rows of a
pass are those of its last look into the token table; an operation that begins from a state that was
seen before is a repetition (a second pass, activation checkpointing) and has the numbers of the
first time. Coins of Python's `random.random` belong to all rows of their pass.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Key = tuple[int, int]
"""A row's first token, and which draw of its pass. A later pass over the row takes its place."""

NOBODY = 0
"""The first token of padding rows, of rows without a target, and of made-up ones."""


class Masks(TorchDispatchMode):
    """Within, every row's random numbers are noted, or come from ``recorded``.

    Args:
        vocabulary: rows of the token table; no other table may have as many.
        recorded: what another `Masks` noted; None: note.

    Attributes:
        noted: the numbers of each row's draws.
        beside: the rows that were in a row's last pass. In a pass that is run again for one unit,
            copies or made-up tokens stand in the others' rows, so that it is alone.
    """

    def __init__(self, vocabulary: int, recorded: dict[Key, Tensor] | None = None) -> None:
        super().__init__()
        self.noted: dict[Key, Tensor] = {}
        self.beside: dict[int, set[int]] = {}
        self._recorded = recorded
        self._vocabulary = vocabulary
        self._rows: list[int] = []
        self._shape: tuple[int, ...] = ()
        self._count = 0
        self._seen: dict[Any, tuple[list[int], int]] = {}
        self._coin = random.random

    def __enter__(self) -> Self:
        self._patch = mock.patch.object(random, "random", self._flip)
        self._patch.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patch.stop()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunction():  # what is called here is no call of the model
            return self._noted(func, args, kwargs or {})

    def _noted(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        if name == "embedding" and args[0].shape[0] == self._vocabulary:
            ids = args[1]
            self._pass_over(ids[..., 0] if ids.dim() > 1 else ids)
        # In what order units come is drawn too, and is no row's number.
        if torch.Tag.nondeterministic_seeded not in func.tags or name == "randperm":
            return func(*args, **kwargs)
        begin, found = _state(), func(*args, **kwargs)
        if _state() == begin:
            return found
        rows, number = self._drawn_from(begin)
        if name == "rrelu_with_noise":  # the numbers are the second argument
            self._exchange(args[1], rows, number)
            return args[0] * args[1]
        self._exchange(next(t for t in tree_leaves(found) if isinstance(t, Tensor)), rows, number)
        return found

    def _flip(self) -> float:
        begin = random.getstate()
        coin = torch.tensor(self._coin(), dtype=torch.float64)
        self._exchange(coin, *self._drawn_from(begin))
        return float(coin)

    def _drawn_from(self, begin: Any) -> tuple[list[int], int]:
        """The rows whose numbers are drawn from this state, and which of their draws it is."""
        if begin not in self._seen:
            self._seen[begin] = self._rows, self._count
            self._count += 1
        return self._seen[begin]

    def _pass_over(self, first_tokens: Tensor) -> None:
        """A pass begins."""
        self._shape = tuple(first_tokens.shape)
        rows = first_tokens.flatten().tolist()
        somebody = set(rows) - {NOBODY}
        # Copies of the first unit stand behind those of a pass that has places left.
        self._rows = [row if row not in rows[:at] else NOBODY for at, row in enumerate(rows)]
        self._count = 0
        self.beside |= dict.fromkeys(somebody, somebody)

    def _exchange(self, drawn: Tensor, rows: list[int], number: int) -> None:
        """Note each row's part of what was drawn, or put what was recorded in its place."""
        for part, row in zip(self._parts(drawn, len(rows)), rows, strict=True):
            key = (row, number)
            if row == NOBODY:
                continue
            if self._recorded is None:
                self.noted[key] = part.clone()
            elif key in self._recorded:
                _put(part, self._recorded[key])

    def _parts(self, drawn: Tensor, rows: int) -> list[Tensor]:
        if len(self._shape) == 2 and tuple(drawn.shape[:2]) == self._shape:
            return [part for unit in drawn.unbind(0) for part in unit.unbind(0)]
        if drawn.dim() and drawn.shape[0] == rows:
            return list(drawn.unbind(0))
        if drawn.dim() and drawn.shape[0] % rows == 0:
            return list(drawn.split(drawn.shape[0] // rows))
        return [drawn] * rows  # shared by the pass, which is then one unit's


def _state() -> bytes:
    return torch.default_generator.get_state().numpy().tobytes()


def _put(part: Tensor, recorded: Tensor) -> None:
    """Where both have a place: the rest is padding of one of the passes, which nothing reads.

    Batched engines may look tokens up as (rows, 1, width). Of what is drawn as (rows, 1, ...), in a
    pass of one position or one head, the 1 is then taken for the unit's only row; it is put back.
    """
    while part.dim() < recorded.dim():
        part = part[None]
    while recorded.dim() < part.dim():
        recorded = recorded[None]
    here = tuple(slice(0, min(a, b)) for a, b in zip(part.shape, recorded.shape, strict=True))
    part[here] = recorded[here]
