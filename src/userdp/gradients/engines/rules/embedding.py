"""Embeddings: a table that is looked up, perhaps tied to the output layer.

And what a model asks of its tokens only to warn of them (`_without_asking`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from userdp.gradients.engines.layer import Layer, Watcher, apply, replaces, stands_in_for
from userdp.gradients.engines.rules.linear import Ghost
from userdp.gradients.engines.uses import Dense, Use, squares, wide

_PAIRED = 1 << 22
"""Numbers that an inner product of a table's two uses has of several units at a time."""


@dataclass(frozen=True, slots=True)
class Sparse(Use):
    """An embedding's gradient: a sum for each (unit, token) that occurs.

    How many there are hangs on the rows, and a device would have to be asked. So each token that a
    unit read has a place, one that comes again its sum where it comes first and zeros elsewhere.

    Attributes:
        tokens: (units, K); sums: (units, K, width).
        shape: of the parameter.
    """

    tokens: Tensor
    sums: Tensor
    shape: torch.Size

    def squared_norms(self) -> Tensor:
        return squares(self.sums)

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        rows = (self.sums * factors.to(self.sums.dtype)[:, None, None]).flatten(0, 1)
        tokens = self.tokens.flatten()
        # The units of the pass are added up apart, so that each number of the total gets one
        # addition: those of the zeros in other places change nothing.
        rows = torch.zeros_like(rows).index_add_(0, first_places(tokens), rows)
        total.index_add_(0, tokens, rows.to(total.dtype))

    def dense(self) -> Dense:
        units = torch.arange(len(self.tokens), device=self.tokens.device)[:, None]
        gradients = self.sums.new_zeros(len(units), *self.shape)
        return Dense(gradients.index_put_((units, self.tokens), self.sums, accumulate=True))

    def without(self, bad: Tensor) -> Sparse:
        self.sums[bad] = 0
        return self

    def cross(self, other: Use) -> Tensor | None:
        r"""The inner product with `Dense` or `Ghost`, as of a table that is the head's weight too.

        Of `Ghost`, :math:`\sum_{s,k} l_{s,t_k} \langle r_s, e_k \rangle` in float64, over a unit's
        positions s and pairs k of the token :math:`t_k`: off by at most :math:`1.01\,(S + width +
        K) u W \|E\|`. For units whose norm was accepted, W is at most :math:`\|G\|` times the root
        of their condition: 1e-10 of :math:`\|G\| \|E\|`.
        """
        if isinstance(other, Dense):
            units, vocabulary = other.gradients.shape[:2]
            begins = vocabulary * torch.arange(units, device=self.tokens.device)
            at = (self.tokens + begins[:, None]).flatten()
            rows = other.gradients.flatten(0, 1).index_select(0, at).double()
            return rows.view_as(self.sums).mul_(self.sums).sum((1, 2))
        if not isinstance(other, Ghost):
            return None
        units, positions, _ = other.left.shape
        step = max(1, _PAIRED // max(1, positions * self.tokens.shape[1]))
        inner = []
        for begin in range(0, units, step):
            here = slice(begin, begin + step)
            left, right = other.left[here], other.right[here].double()
            at = torch.bmm(right, self.sums[here].double().transpose(1, 2))
            tokens = self.tokens[here, None].expand(at.shape)
            inner.append((left.gather(2, tokens) * at).sum((1, 2)))
        return torch.cat(inner)


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
        return F.embedding(tokens, weight), (tokens,)

    def backward(self, saved: Any, gradient: Tensor, needed: bool) -> None:
        (tokens,) = saved
        if self.padding is not None:  # the padding token has no gradient
            gradient = torch.where((tokens == self.padding)[..., None], 0, gradient)
        vocabulary, width = self.shape
        units = self.tape.layout.units
        owned = tokens.reshape(units, -1)
        keys = owned + vocabulary * torch.arange(units, device=owned.device)[:, None]
        each = wide(gradient).reshape(-1, width)
        sums = torch.zeros_like(each).index_add_(0, first_places(keys.flatten()), each)
        self.tape.keep(self.name, Sparse(owned, sums.view(units, -1, width), self.shape))


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


_ASKS = "warn_if_padding_and_no_attention_mask"


@replaces(lambda kind: hasattr(kind, _ASKS))
def _without_asking(module: nn.Module, tape: Watcher) -> Callable[..., Any]:
    """Keeps a model from asking.

    GPT-2 looks, where its configuration names a padding token, whether some row begins or ends with
    one, and logs an advice. Python would read everybody's tokens by that, for no number of the
    loss; and the log would depend on them. While a tape watches, nobody asks.
    """
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        module.__dict__[_ASKS] = lambda *args, **kwargs: None
        try:
            return original(*args, **kwargs)
        finally:
            del module.__dict__[_ASKS]

    return forward
