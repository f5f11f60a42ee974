"""Embeddings: a table that is looked up, perhaps tied to the output layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients.engines.layer import Layer, Watcher, apply, stands_in_for
from userdp.gradients.engines.rules.linear import Ghost
from userdp.gradients.engines.uses import Dense, Layout, Use, wide

_PAIRED = 1 << 22
"""Numbers that an inner product of a table's two uses has of several units at a time."""


@dataclass(frozen=True, slots=True)
class Sparse(Use):
    """An embedding's gradient: a sum for each (unit, token) that occurs.

    Attributes:
        units: (K,); tokens: (K,); sums: (K, width). In order of units; a pair may come again, and
            then has its sum where it comes first, and zeros elsewhere.
        shape: of the parameter; count: units in the pass.
        bounds: (units + 1,), on the CPU; unit u has the pairs ``bounds[u]:bounds[u + 1]``.
    """

    units: Tensor
    tokens: Tensor
    sums: Tensor
    shape: torch.Size
    count: int
    bounds: Tensor

    def squared_norms(self) -> Tensor:
        return self._nothing().index_add_(0, self.units, self.sums.double().square().sum(1))

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        rows, tokens = self.sums.double() * factors[self.units][:, None], self.tokens
        if total.dtype != torch.float64:
            # A narrow sum rounds at each addition, so it gets one for all units of the pass; and
            # only the result is rounded, not what is added, on which `running` does not count.
            first = first_places(tokens)
            rows = torch.zeros_like(rows).index_add_(0, first, rows)
            total[tokens] = (total[tokens].double() + rows[first]).to(total.dtype)
        else:
            total.index_add_(0, tokens, rows)

    def dense(self) -> Dense:
        gradients = self.sums.new_zeros(self.count, *self.shape)
        gradients.index_put_((self.units, self.tokens), self.sums, accumulate=True)
        return Dense(gradients)

    def without(self, bad: Tensor) -> Sparse:
        self.sums[bad[self.units]] = 0
        return self

    def cross(self, other: Use) -> Tensor | None:
        r"""The inner product with `Dense` or `Ghost`, as of a table that is the head's weight too.

        Of `Ghost`, :math:`\sum_{s,k} l_{s,t_k} \langle r_s, e_k \rangle` in float64, over a unit's
        positions s and pairs k of the token :math:`t_k`: off by at most :math:`1.01\,(S + width +
        K) u W \|E\|`. For units whose norm was accepted, W is at most :math:`\|G\|` times the root
        of their condition: 1e-10 of :math:`\|G\| \|E\|`.
        """
        inner = self._nothing()
        if isinstance(other, Dense):
            rows = other.gradients[self.units, self.tokens]
            return inner.index_add_(0, self.units, (rows.double() * self.sums).sum(1))
        if not isinstance(other, Ghost):
            return None
        bounds = self.bounds.tolist()
        for begin, end, left, right in _together(other, bounds):
            mine = slice(bounds[begin], bounds[end])
            owner = self.units[mine] - begin
            first = torch.searchsorted(owner, torch.arange(end - begin, device=owner.device))
            place = torch.arange(len(owner), device=owner.device) - first[owner]
            pairs = max(bounds[unit + 1] - bounds[unit] for unit in range(begin, end))
            tokens = owner.new_zeros(end - begin, pairs)
            tokens[owner, place] = self.tokens[mine]
            sums = self.sums.new_zeros(end - begin, pairs, self.sums.shape[1], dtype=torch.float64)
            sums[owner, place] = self.sums[mine].double()
            at = torch.bmm(right.double(), sums.transpose(1, 2))
            rows = left.gather(2, tokens[:, None].expand(-1, left.shape[1], -1))
            inner[begin:end] = (rows * at).sum(2).sum(1)
        return inner

    def _nothing(self) -> Tensor:
        return torch.zeros(self.count, dtype=torch.float64, device=self.sums.device)


def _together(ghost: Ghost, bounds: list[int]) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Ranges of units, (begin, end), with both sides of each: (units, positions, width).

    As many at a time as `_PAIRED` allows.
    """
    layout = ghost.layout
    left, right = layout.stacked(ghost.left), layout.stacked(ghost.right)
    pairs = max(end - begin for begin, end in pairwise(bounds))
    step = max(1, _PAIRED // max(1, left.shape[1] * pairs))
    for begin in range(0, layout.units, step):
        end = min(begin + step, layout.units)
        yield begin, end, left[begin:end], right[begin:end]


def pairs_of(tokens: Tensor, vocabulary: int, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """The (unit, token) pairs that occur, and which one each token is of.

    On an accelerator each token is a pair, which may come again (`Sparse`): how many there are is
    known without asking it.

    Returns:
        unit times ``vocabulary`` + token of each pair, in order of units, (K,); the pair of each
        token, (tokens,); and bounds, as of `Sparse`.
    """
    owner = layout.unit_of_row.view(-1, *[1] * (tokens.dim() - 1))
    every = (owner * vocabulary + tokens).flatten()
    if every.device.type != "cpu":
        return (
            every,
            first_places(every),
            torch.arange(layout.units + 1) * (len(every) // layout.units),
        )
    keys, places = torch.unique(every, return_inverse=True)
    starts = torch.arange(layout.units + 1) * vocabulary
    return keys, places, torch.searchsorted(keys, starts)


def first_places(keys: Tensor) -> Tensor:
    """For each of (N,) the place where the same key comes first.

    >>> first_places(torch.tensor([7, 3, 7, 7, 3]))
    tensor([0, 1, 0, 0, 1])
    """
    ordered, order = keys.sort(stable=True)
    at = torch.arange(len(keys), device=keys.device)
    begins = F.pad(ordered[1:] != ordered[:-1], (1, 0), value=True)
    first = torch.where(begins, at, 0).cummax(0).values
    return torch.empty_like(order).scatter_(0, order, order[first])


@dataclass(frozen=True, slots=True)
class _Embedding(Layer):
    least_dims: ClassVar[int] = 1  # tokens have no width

    tape: Watcher
    name: str
    shape: torch.Size
    padding: int | None

    def forward(self, tokens: Tensor, weight: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        pairs = pairs_of(tokens, self.shape[0], self.tape.layout)
        return F.embedding(tokens, weight), (tokens, *pairs)

    def backward(self, saved: Any, gradient: Tensor, needed: bool) -> None:
        tokens, keys, places, bounds = saved
        if self.padding is not None:  # the padding token has no gradient
            gradient = torch.where((tokens == self.padding)[..., None], 0, gradient)
        vocabulary, width = self.shape
        flat = wide(gradient).reshape(-1, width)
        sums = flat.new_zeros(len(keys), width).index_add_(0, places, flat)
        owners, found = keys // vocabulary, keys % vocabulary
        use = Sparse(owners, found, sums, self.shape, self.tape.layout.units, bounds)
        self.tape.keep(self.name, use)


@stands_in_for(F.embedding)
def _embedding(
    tape: Watcher,
    tokens: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | None:
    name = tape.name_of(weight)
    if name is None or max_norm is not None or scale_grad_by_freq:
        return None
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    return apply(tape, _Embedding(tape, name, weight.shape, padding_idx), tokens, weight)
