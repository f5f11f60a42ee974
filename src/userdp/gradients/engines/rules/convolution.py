r"""Convolutions along positions, as in Mamba: ``F.conv1d``.

With a unit's input A, (channels in, positions), and output gradients B, (channels out, positions),
the gradient of the kernel is a sum over positions of products of shifted inputs,

.. math:: G_u[o, i, k] = \sum_t B_u[o, t] \, A_u[i, s t + d k - \text{padding}],

formed for each unit: kernels are small.
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
            geometry = ([self.stride], [self.padding], [self.dilation], False, [0], self.groups)
            wanted = [True, False, False]
            to_input = torch.ops.aten.convolution_backward(
                gradient, x, weight, None, *geometry, wanted
            )[0]
        units, (outputs, inputs, width) = self.tape.layout.units, weight.shape
        moved = wide(gradient)
        if name is not None:
            padded = F.pad(wide(x), (self.padding, self.padding))
            reach = self.dilation * (width - 1) + 1
            seen = padded.unfold(2, reach, self.stride)[..., :: self.dilation]
            positions, groups = seen.shape[2], self.groups
            seen = seen.reshape(units, -1, groups, inputs, positions, width)
            by_group = moved.reshape(units, -1, groups, outputs // groups, positions)
            kernels = torch.einsum("urgot,urgitk->ugoik", by_group, seen)
            self.tape.keep(name, Dense(kernels.reshape(units, *weight.shape)))
        if bias_name is not None:
            self.tape.keep(bias_name, Dense(moved.sum(2).view(units, -1, outputs).sum(1)))
        return to_input


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
