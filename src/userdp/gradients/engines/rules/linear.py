r"""Linear layers: ``x @ weight.T + bias``, and products that are written as such.

With a unit's inputs A and output gradients B over its positions, its gradient is
:math:`G_u = B_u^T A_u`. Either all :math:`G_u` are formed, or both sides are kept (`Ghost`), since
:math:`\|G_u\|^2 = \langle A_u A_u^T, B_u B_u^T \rangle`, and, once the clip factors are known,
:math:`\sum_u c_u G_u = B^T (c \circ A)` is one product (Goodfellow 2015; Bu et al. 2023,
book-keeping). Such norms are never too small (`engines.rounding`). `engines.uses` says which form
is cheaper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients.certificate.places import FIRST
from userdp.gradients.engines.layer import (
    Layer,
    Watcher,
    apply,
    by_row,
    names_of,
    stands_in_for,
)
from userdp.gradients.engines.rounding import RUN, GramNorms, at_least, gram_norms
from userdp.gradients.engines.uses import Dense, Form, Room, Use, choose_form, split_step, wide
from userdp.gradients.modes import unwatched
from userdp.gradients.precision import is_narrow

GHOST_CONDITION = 4096.0
"""Largest condition of a unit whose norm is taken from Gram matrices; beyond it its gradient is
formed. Rows of ordinary text have up to about the number of a unit's positions (measured: 380 at
512 positions). The limit keeps the rounding of the *sum* small, which grows with the root of the
condition, and norms from being taken much larger than they are."""

NARROW = 16
"""Columns of a side below which a sum over positions is made in float64: a product may be summed
over one position after another there, and its rounding grows with their number (measured: 9e-5 of W
at 16,384 positions on a processor without AVX-512, and 2e-6 with 16 columns)."""

_LARGEST_SIDE = 2.0**60
"""Largest sum of the lengths of a unit's rows, on either side, that is weighted in float32. Entries
of the other side times the clip factor are off by at most 2^-126 where they are below the normal
numbers (a processor may take them for zero), the unit's clipped gradient by 2^-126 x 2^13 x 2^60 =
1e-16 (at 2^26 columns): nothing beside the least clip norm of 1e-8."""

_ADDED = 1 << 21
"""Numbers of a product that are made and added to a sum at a time on a CPU. The product is fresh
memory, and so is its copy that is widened to be added to float64: up to three times a whole table.
In one piece a table of 50,257 x 768 takes a fifth longer; products of few rows longer too."""


@dataclass(frozen=True, slots=True)
class Linear(Layer):
    """``x @ weight.T + bias``, or ``x @ weight + bias`` where ``transposed``."""

    tape: Watcher
    names: tuple[str | None, ...]
    transposed: bool = False

    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        # Not the view of a flat product: what a model adds to in place may be no view made here.
        value = F.linear(x, weight.T if self.transposed else weight, bias)
        return value, (x if self.names[0] is not None else None, weight)

    def backward(self, saved: Any, gradient: Tensor, needed: bool) -> Tensor | None:
        x, weight = saved
        name, bias_name = self.names
        layout = self.tape.layout
        to_input = None
        if needed:
            narrow = weight.to(gradient.dtype)
            to_input = gradient @ (narrow.T if self.transposed else narrow)
        if name is not None:
            if is_narrow(gradient.dtype):  # as torch's own product has it, under autocast
                x = x.to(gradient.dtype)
            sides = (x, gradient) if self.transposed else (gradient, x)
            self.tape.keep(name, Ghost(*(layout.stacked(side.detach()) for side in sides)))
        if bias_name is not None:
            self.tape.keep(bias_name, Dense(wide(layout.summed(gradient))))
        return to_input


@stands_in_for(F.linear)
def _linear(tape: Watcher, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    names = names_of(tape, weight, bias)
    return None if names is None else apply(tape, Linear(tape, names), x, weight, bias)


@stands_in_for(torch.addmm)
def _addmm(
    tape: Watcher, bias: Tensor, x: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor | None:
    """`transformers`' Conv1D (GPT-2), where rows and positions arrive flattened, rows first."""
    names = names_of(tape, weight, bias)
    if names is None or (beta, alpha) != (1, 1) or bias.dim() != 1 or x.dim() != 2:
        return None
    return apply(tape, Linear(tape, names, transposed=True), x, weight, bias)


@stands_in_for(torch.matmul)
@stands_in_for(torch.Tensor.matmul)
@stands_in_for(torch.Tensor.__matmul__)
def _matmul(tape: Watcher, left: Tensor, right: Tensor) -> Tensor | None:
    """``x @ weight``, and ``weight @ x`` with positions last (Mamba)."""
    behind = right.dim() == 2 and left.dim() >= 2
    x, weight = (left, right) if behind else (right, left)
    names = names_of(tape, weight)
    if names is None or tape.name_of(x) is not None:
        return None
    if behind:
        return apply(tape, Linear(tape, (names[0], None), transposed=True), x, weight, None)
    if weight.dim() != 2 or x.dim() < 3 or not by_row(tape, x):
        return None
    with unwatched():
        turned = tape.mark(x.transpose(-1, -2), FIRST)
        value = apply(tape, Linear(tape, (names[0], None)), turned, weight, None)
        return None if value is None else tape.mark(value.transpose(-1, -2), FIRST)


@dataclass(frozen=True, slots=True)
class Ghost(Use):
    """Inputs and output gradients of a linear layer, from which its gradient can be formed.

    Of sides in fewer bits than float32, Gram matrices and sums are of their very numbers; formed
    gradients are rounded once, as torch's own are, and it is those that count from there on.

    Attributes:
        left: (units, positions, p); right: (units, positions, q). The parameter, (p, q), has the
            gradient ``left.T @ right`` over a unit's positions.
    """

    left: Tensor
    right: Tensor

    def squared_norms(self) -> Tensor:
        norms = self.gram_norms()
        beyond = norms.lengths.square() > GHOST_CONDITION * norms.found
        return torch.where(beyond & (norms.lengths > 0), torch.nan, _most(norms))

    def at_most(self) -> Tensor:
        """What squared norms are at most, however much cancels; NaN or inf if not finite."""
        return _most(self.gram_norms())

    def gram_norms(self) -> GramNorms:
        """What Gram matrices tell of each unit."""
        return gram_norms(self.left, self.right)

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        left, right = wide(self.left), wide(self.right)
        weights = factors.to(left.dtype)[:, None, None]
        if left.shape[2] < right.shape[2]:  # the narrower side, which has fewer numbers
            left = left * weights
        else:
            right = right * weights
        left, right = left.flatten(0, 1), right.flatten(0, 1)
        step = split_step(total, _ADDED)
        for into, part in zip(torch.split(total, step), torch.split(left, step, 1), strict=True):
            into.add_(product(part, right))

    def dense(self) -> Dense:
        return Dense(form_gradients(self.left, self.right))

    def without(self, bad: Tensor) -> Ghost:
        left, right = self.left.clone(), self.right.clone()
        left[bad], right[bad] = 0, 0
        return Ghost(left, right)

    def chosen(self, form: Form | None, room: Room | None = None) -> Dense | Ghost:
        units, positions, p = self.left.shape
        q, device = self.right.shape[2], self.left.device.type
        form = form or choose_form(units=units, positions=positions, p=p, q=q, device=device)
        if form is Form.GHOST:
            return self
        if room is None or is_narrow(self.left.dtype):
            return self.dense()
        out = room((units, p, q), self.left)
        return Dense(form_gradients(self.left, self.right, out=out))


def _most(norms: GramNorms) -> Tensor:
    most = torch.maximum(norms.most, at_least(norms.run))
    return torch.where(norms.longest > _LARGEST_SIDE, torch.nan, most)


def product(left_NP: Tensor, right_NQ: Tensor) -> Tensor:
    """``left.T @ right`` over N positions, of the sides' dtype: (p, q)."""
    if min(left_NP.shape[1], right_NQ.shape[1]) < NARROW:
        return (left_NP.double().T @ right_NQ.double()).to(left_NP.dtype)
    return form_gradients(left_NP[None], right_NQ[None])[0]


def form_gradients(left_USP: Tensor, right_USQ: Tensor, out: Tensor | None = None) -> Tensor:
    """Each unit's ``left.T @ right``: (units, p, q), in float32 or wider.

    Its rounding does not grow with positions beyond that of a product of `RUN` of them.
    """
    lefts_UPS = left_USP.transpose(1, 2)
    if is_narrow(left_USP.dtype):
        return wide(torch.bmm(lefts_UPS, right_USQ))
    into = torch.bmm(lefts_UPS[..., :RUN], right_USQ[:, :RUN], out=out)
    for begin in range(RUN, right_USQ.shape[1], RUN):
        here = slice(begin, begin + RUN)
        into.baddbmm_(lefts_UPS[..., here], right_USQ[:, here])
    return into
