r"""Convolutions along positions, as in Mamba: ``F.conv1d``.

With a unit's input A, (channels in, positions), and output gradients B, (channels out, positions),
the gradient of the kernel is a sum over positions of products of shifted inputs,

.. math:: G_u[o, i, k] = \sum_t B_u[o, t] \, A_u[i, s t + d k - \text{padding}],

formed for each row: kernels are small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients.engines.layer import Layer, Watcher, apply, by_row, names_of, stands_in_for
from userdp.gradients.engines.uses import Dense, wide


@dataclass(frozen=True, slots=True)
class _Conv1d(Layer):
    """(rows, channels, positions) with a kernel of (channels out, channels in / groups, k)."""

    tape: Watcher
    names: tuple[str | None, ...]
    stride: int
    padding: int
    dilation: int
    groups: int

    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        out = F.conv1d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        return out, (x, weight)

    def backward(self, saved: Any, gradient: Tensor, needed: bool) -> Tensor | None:
        x, weight = saved
        name, bias_name = self.names
        to_input = None
        if needed:
            to_input = torch.ops.aten.convolution_backward(
                gradient,
                x,
                weight,
                None,
                [self.stride],
                [self.padding],
                [self.dilation],
                False,
                [0],
                self.groups,
                [True, False, False],
            )[0]
        if name is not None:
            seen, moved = self._sides(x, gradient, weight.shape)
            by_row = torch.einsum("rgot,rgitk->rgoik", moved, seen).reshape(-1, *weight.shape)
            self.tape.keep(name, Dense(self._of_units(by_row)))
        if bias_name is not None:
            moved = wide(gradient)
            self.tape.keep(bias_name, Dense(self._of_units(moved.sum(2))))
        return to_input

    def _sides(self, x: Tensor, gradient: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """What each position saw, (rows, groups, channels in, positions, k), and what moved it,
        (rows, groups, channels out, positions); channels of one group.
        """
        rows, outputs, positions = gradient.shape
        reach = self.dilation * (shape[2] - 1) + 1
        padded = F.pad(wide(x), (self.padding, self.padding))
        seen = padded.unfold(2, reach, self.stride)[..., :: self.dilation]
        seen = seen.reshape(rows, self.groups, shape[1], positions, shape[2])
        moved = wide(gradient).reshape(rows, self.groups, outputs // self.groups, positions)
        return seen, moved

    def _of_units(self, gradients: Tensor) -> Tensor:
        """(rows, ...) summed over each unit's rows: (units, ...)."""
        layout = self.tape.layout
        summed = layout.summed(gradients.reshape(layout.rows, -1))
        return summed.view(layout.units, *gradients.shape[1:])


@stands_in_for(torch.conv1d)
def _conv1d(
    tape: Watcher,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | str | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Tensor | None:
    names = names_of(tape, weight, bias)
    if names is None or isinstance(padding, str) or not by_row(tape, input) or input.dim() != 3:
        return None
    layer = _Conv1d(tape, names, _one(stride), _one(padding), _one(dilation), groups)
    return apply(tape, layer, input, weight, bias)


def _one(size: int | tuple[int, ...]) -> int:
    return size if isinstance(size, int) else size[0]
