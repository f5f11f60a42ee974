"""Embeddings: a table that is looked up, perhaps tied to the output layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients.engines.layer import Layer, Watcher, apply, stands_in_for
from userdp.gradients.engines.rules.linear import Ghost
from userdp.gradients.engines.uses import Dense, Layout, Use, wide


@dataclass(frozen=True, slots=True)
class Sparse(Use):
    """An embedding's gradient: a sum for each (unit, token) that occurs.

    Attributes:
        units: (K,); tokens: (K,); sums: (K, width). Each pair once, in order of units.
        shape: of the parameter; count: units in the pass.
    """

    units: Tensor
    tokens: Tensor
    sums: Tensor
    shape: torch.Size
    count: int

    def squared_norms(self) -> Tensor:
        return self._nothing().index_add_(0, self.units, self.sums.double().square().sum(1))

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        rows, tokens = self.sums.double() * factors[self.units][:, None], self.tokens
        if total.dtype != torch.float64:
            # A narrow sum rounds at each addition, so it gets one for all units of the pass; and
            # only the result is rounded, not what is added, on which `running` does not count.
            tokens, places = torch.unique(tokens, return_inverse=True)
            rows = total[tokens].double().index_add_(0, places, rows)
            total[tokens] = rows.to(total.dtype)
        else:
            total.index_add_(0, tokens, rows)

    def summed(self) -> Tensor:
        return self.sums.new_zeros(self.shape).index_add_(0, self.tokens, self.sums)

    def dense(self) -> Dense:
        gradients = self.sums.new_zeros(self.count, *self.shape)
        gradients[self.units, self.tokens] = self.sums
        return Dense(gradients)

    def without(self, bad: Tensor) -> Sparse:
        self.sums[bad[self.units]] = 0
        return self

    def cross(self, other: Use) -> Tensor | None:
        r"""The inner product with `Dense` or `Ghost`, as of a table that is the head's weight too.

        Of `Ghost`, formed in float64 where the table was looked up: off by at most :math:`1.01\,(S
        + width + K) u W \|E\|`. For units whose norm was accepted, W is at most :math:`\|G\|` times
        the root of their condition: 1e-10 of :math:`\|G\| \|E\|`.
        """
        inner = self._nothing()
        if isinstance(other, Dense):
            rows = other.gradients[self.units, self.tokens]
            return inner.index_add_(0, self.units, (rows.double() * self.sums).sum(1))
        if not isinstance(other, Ghost):
            return None
        by_unit = zip(other.layout.split(other.left), other.layout.split(other.right), strict=True)
        # Slices, since a device would have to be waited for at each mask.
        places = torch.arange(self.count + 1, device=self.units.device)
        bounds = torch.searchsorted(self.units, places).tolist()
        for unit, (left, right) in enumerate(by_unit):
            mine = slice(bounds[unit], bounds[unit + 1])
            rows = left[:, self.tokens[mine]].double().T @ right.double()
            inner[unit] = (rows * self.sums[mine]).sum()
        return inner

    def _nothing(self) -> Tensor:
        return torch.zeros(self.count, dtype=torch.float64, device=self.sums.device)


def sparse(tokens: Tensor, output_gradients: Tensor, shape: torch.Size, layout: Layout) -> Sparse:
    """Sum an embedding's output gradients by (unit, token)."""
    width = shape[1]
    owner = layout.unit_of_row.view(-1, *[1] * (tokens.dim() - 1))
    keys, places = torch.unique((owner * shape[0] + tokens).flatten(), return_inverse=True)
    flat = output_gradients.reshape(-1, width)
    sums = flat.new_zeros(len(keys), width).index_add_(0, places, flat)
    return Sparse(keys // shape[0], keys % shape[0], sums, shape, layout.units)


@dataclass(frozen=True, slots=True)
class _Embedding(Layer):
    least_dims: ClassVar[int] = 1  # tokens have no width

    tape: Watcher
    name: str
    shape: torch.Size
    padding: int | None

    def forward(self, tokens: Tensor, weight: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return F.embedding(tokens, weight), (tokens,)

    def backward(self, saved: Any, gradient: Tensor, needed: bool) -> None:
        (tokens,) = saved
        if self.padding is not None:  # the padding token has no gradient
            gradient = torch.where((tokens == self.padding)[..., None], 0, gradient)
        use = sparse(tokens, wide(gradient), self.shape, self.tape.layout)
        self.tape.keep(self.name, use, gradient)


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
