r"""Sums, products and other functions of numbers at one place, of rows and a trained tensor.

A scale by a vector, a bias, a decay rate, :math:`(1 + w) \hat x`: the trained tensor is broadcast
over rows, so that its gradient arrives summed over them. Here it is spread over the rows before, a
copy for each, and the gradient of row r's copy is row r's part.

The trained tensor is a parameter, or what was made of parameters and constants alone (`1 + w`,
`-exp(A_log)`), see `userdp.gradients.engines.tape`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from userdp.gradients.certificate.calls import named
from userdp.gradients.certificate.places import Place, joined, tensors_in
from userdp.gradients.engines.layer import RUN, Layer, Watcher
from userdp.gradients.engines.uses import Dense, wide
from userdp.gradients.modes import unwatched

_MOST = 1 << 24
"""Numbers that the gradients of all units may take of a tensor that has a part for each row."""

_OPERATORS = ("add", "sub", "mul", "div", "truediv", "pow")
_IN_PLACE = frozenset(named(" ".join(f"{name}_ __i{name}__" for name in _OPERATORS)))
ELEMENTWISE = _IN_PLACE.union(
    named("maximum minimum where lerp addcmul addcdiv true_divide multiply subtract divide"),
    named(" ".join(f"{name} __{name}__ __r{name}__" for name in _OPERATORS)),
)
"""Functions of numbers at one place in which rows and a trained tensor meet."""


def with_rows(
    tape: Watcher, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    """The arguments with each trained tensor spread over the rows of the others.

    None where rows and a trained tensor do not meet in it.

    Args:
        tape: that watches.
        function: one of `ELEMENTWISE`.
        args: of its call.
        kwargs: of its call; with any, None.
    """
    if kwargs or tape.layout.rows == 1:
        return None
    names = [tape.name_of(value) if isinstance(value, Tensor) else None for value in args]
    if not any(names) or (names[0] is not None and function in _IN_PLACE):
        return None
    tensors = list(tensors_in(args))
    dims = max(tensor.dim() for tensor in tensors)
    others = [value for value, name in zip(args, names, strict=True) if name is None]
    place = joined(tape.place_of, others, dims)
    if place is None or place.dim is None or place.outer > 1:
        return None
    spread = list(args)
    with unwatched():
        for at, (value, name) in enumerate(zip(args, names, strict=True)):
            if name is None:
                continue
            ahead = place.dim - (dims - value.dim())
            whole = ahead >= 0 and value.shape[ahead] != 1
            if whole and tape.layout.units * value.numel() > _MOST:
                return None
            copies = RUN(tape.anchor, Spread(tape, name, place, dims), value.detach())
            spread[at] = tape.mark(copies, place)
    return tuple(spread)


@dataclass(frozen=True, slots=True)
class Spread(Layer):
    """A tensor as it is broadcast to ``dims`` dimensions, with a copy for each index of ``place``.

    Its shape is (1, ..., rows x inner, 1, ..., *own): as in the function that it is meant for. A
    tensor that has that dimension already (a constant of rows x ..., plus a parameter) stays as it
    is; row r uses its own part.
    """

    tape: Watcher
    name: str
    place: Place
    dims: int

    def forward(self, tensor: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        dim = self.place.dim
        assert dim is not None
        shape = [1] * (self.dims - tensor.dim()) + list(tensor.shape)
        wanted = [*shape[:dim], self.tape.layout.rows * self.place.inner, *shape[dim + 1 :]]
        return tensor.reshape(shape).expand(wanted).clone(), (tensor,)

    def backward(self, saved: Any, gradient: Tensor, needed: bool) -> None:
        dim, layout = self.place.dim, self.tape.layout
        own = saved[0].shape
        assert dim is not None
        first = wide(gradient).movedim(dim, 0)
        ahead = dim - (self.dims - len(own))
        if ahead < 0 or own[ahead] == 1:
            by_row = first.reshape(layout.rows, self.place.inner, -1).sum(1)
            gradients = layout.summed(by_row).view(layout.units, *own)
        else:
            here = torch.arange(len(first), device=first.device)
            apart = first.new_zeros(layout.units, *first.shape)
            apart[here * layout.units // len(first), here] = first
            gradients = apart.movedim(1, dim + 1).reshape(layout.units, *own)
        self.tape.keep(self.name, Dense(gradients))
