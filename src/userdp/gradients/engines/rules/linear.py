r"""Linear layers: ``x @ weight.T + bias``.

With a unit's inputs A and output gradients B over its positions, its gradient is
:math:`G_u = B_u^T A_u`. Either all :math:`G_u` are formed, or both sides are kept (`Ghost`), since
:math:`\|G_u\|^2 = \langle A_u A_u^T, B_u B_u^T \rangle`, and, once the clip factors are known,
:math:`\sum_u c_u G_u = B^T (c \circ A)` is one product (Goodfellow 2015; Bu et al. 2023,
book-keeping). Such norms are never too small (`rules.grams`). `engines.uses` says which form is
cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients.engines.layer import Layer, Watcher, apply, names_of, stands_in_for
from userdp.gradients.engines.rounding import RUN, at_least
from userdp.gradients.engines.rules.grams import GramNorms, gram_norms
from userdp.gradients.engines.uses import (
    Dense,
    Form,
    Layout,
    Use,
    added_at_once,
    choose_form,
    wide,
)
from userdp.gradients.precision import is_narrow

GHOST_CONDITION = 4096.0
"""Largest condition of a unit whose norm is taken from Gram matrices; beyond it its gradient is
formed. Rows of ordinary text have up to about the number of a unit's positions (measured: 380 at
512 positions). The limit keeps the rounding of the *sum* small, which grows with the root of the
condition, and norms from being taken much larger than they are."""

NARROW = 16
"""Columns of a side below which a product may be summed over one position after another: its
rounding grows with their number then (measured: 9e-5 of W at 16,384 positions on a processor
without AVX-512, and 2e-6 with 16 columns)."""

_BLOCK = 128
"""Positions of a narrow product that are summed at once; block sums are added in float64."""

_AT_ONCE = 1 << 26
"""Numbers of the runs of a product that an accelerator computes side by side."""

_LARGEST_SIDE = 2.0**60
"""Largest sum of the lengths of a unit's rows, on either side, that is weighted in float32. Entries
of the other side times the clip factor are off by at most 2^-126 where they are below the normal
numbers (a processor may take them for zero), the unit's clipped gradient by 2^-126 x 2^13 x 2^60 =
1e-16 (at 2^26 columns): nothing beside the least clip norm of 1e-8."""


@dataclass(frozen=True, slots=True)
class Linear(Layer):
    """``x @ weight.T + bias``, or ``x @ weight + bias`` where ``transposed``."""

    tape: Watcher
    names: tuple[str | None, ...]
    transposed: bool = False

    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        saved = x if self.names[0] is not None else None, weight
        if not self.transposed:
            return F.linear(x, weight, bias), saved
        # Not the view of a flat product: what a model adds to in place may be no view made here.
        return F.linear(x, weight.T, bias), saved

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
            left, right = (x, gradient) if self.transposed else (gradient, x)
            left, right = left.detach(), right.detach()
            self.tape.keep(name, Ghost(left, right, layout))
        if bias_name is not None:
            self.tape.keep(bias_name, Dense(wide(layout.summed(gradient))))
        return to_input


@stands_in_for(F.linear)
def _linear(tape: Watcher, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    names = names_of(tape, weight, bias)
    return None if names is None else apply(tape, Linear(tape, names), x, weight, bias)


@dataclass(frozen=True, slots=True)
class Ghost(Use):
    """Inputs and output gradients of a linear layer, from which its gradient can be formed.

    Of sides in fewer bits than float32, Gram matrices and sums are of their very numbers; formed
    gradients are rounded once, as torch's own are, and it is those that count from there on.

    Attributes:
        left: (rows, ..., p); right: (rows, ..., q). The parameter, (p, q), has the gradient
            ``left.T @ right`` over the positions.
    """

    left: Tensor
    right: Tensor
    layout: Layout

    def squared_norms(self) -> Tensor:
        norms = self.gram_norms()
        beyond = norms.lengths.square() > GHOST_CONDITION * norms.found
        bad = beyond & (norms.lengths > 0) | (norms.longest > _LARGEST_SIDE)
        return torch.where(bad, torch.nan, torch.maximum(norms.most, at_least(norms.run)))

    def at_most(self) -> Tensor:
        """What squared norms are at most, however much cancels; NaN or inf if not finite."""
        norms = self.gram_norms()
        most = torch.maximum(norms.most, at_least(norms.run))
        return torch.where(norms.longest > _LARGEST_SIDE, torch.nan, most)

    def gram_norms(self) -> GramNorms:
        """What Gram matrices tell of each unit."""
        return gram_norms(self.layout.stacked(self.left), self.layout.stacked(self.right))

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        left, right = self._weighted(factors)
        for part in added_at_once(left.shape[1], right.shape[1], total.device):
            total[part].add_(product(left[:, part], right))

    def _weighted(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Both sides, (positions, p) and (positions, q); the narrower one times the factors."""
        left, right = wide(self.left), wide(self.right)
        weights = factors[self.layout.unit_of_row].to(left.dtype)
        weights = weights.view(-1, *[1] * (left.dim() - 1))
        p, q = left.shape[-1], right.shape[-1]
        if p < q:
            left = left * weights
        else:
            right = right * weights
        return left.reshape(-1, p), right.reshape(-1, q)

    def dense(self) -> Dense:
        return Dense(form_gradients(self.left, self.right, self.layout))

    def without(self, bad: Tensor) -> Ghost:
        rows = bad[self.layout.unit_of_row]
        left, right = self.left.clone(), self.right.clone()
        left[rows], right[rows] = 0, 0
        return Ghost(left, right, self.layout)

    def chosen(
        self, form: Form | None, buffer: Callable[[Sequence[int], Tensor], Tensor]
    ) -> Dense | Ghost:
        p, q = self.left.shape[-1], self.right.shape[-1]
        form = form or choose_form(
            units=self.layout.units,
            positions=self.left.numel() // p,
            p=p,
            q=q,
            device=self.left.device.type,
        )
        if form is Form.GHOST:
            return self
        out = buffer((self.layout.units, p, q), wide(self.left[:0]))
        return Dense(form_gradients(self.left, self.right, self.layout, out=out))


def product(left_NP: Tensor, right_NQ: Tensor) -> Tensor:
    """``left.T @ right`` over N positions, of the sides' dtype: (p, q).

    Its rounding does not grow with N beyond that of a product of `RUN` positions.
    """
    positions, p = left_NP.shape
    q = right_NQ.shape[1]
    if min(p, q) >= NARROW or positions <= 2 * _BLOCK:
        total = left_NP.new_empty(1, p, q)
        _form(total, left_NP[None], right_NQ[None])
        return total[0]
    whole = positions // _BLOCK * _BLOCK
    blocks = torch.bmm(
        left_NP[:whole].view(-1, _BLOCK, p).transpose(1, 2), right_NQ[:whole].view(-1, _BLOCK, q)
    )
    total = blocks.sum(0, dtype=torch.float64) + left_NP[whole:].T @ right_NQ[whole:]
    return total.to(left_NP.dtype)


def form_gradients(
    left: Tensor, right: Tensor, layout: Layout, out: Tensor | None = None
) -> Tensor:
    """Each unit's ``left.T @ right``: (units, p, q), in float32 or wider."""
    shape = (layout.units, left.shape[-1], right.shape[-1])
    into = wide(left[:0]).new_empty(shape) if out is None else out
    _form(into, layout.stacked(left), layout.stacked(right))
    return into


def _form(into_UPQ: Tensor, left_USP: Tensor, right_USQ: Tensor) -> None:
    if into_UPQ.dtype != left_USP.dtype:  # a product writes to numbers of its sides' type alone
        into_UPQ.copy_(torch.bmm(left_USP.transpose(1, 2), right_USQ))
    elif left_USP.device.type != "cpu":
        form_runs(into_UPQ, left_USP, right_USQ)
    else:
        _form_run_by_run(into_UPQ, left_USP.transpose(1, 2), right_USQ)


def _form_run_by_run(into_UPQ: Tensor, left_UPS: Tensor, right_USQ: Tensor) -> None:
    torch.bmm(left_UPS[..., :RUN], right_USQ[:, :RUN], out=into_UPQ)
    for begin in range(RUN, right_USQ.shape[1], RUN):
        here = slice(begin, begin + RUN)
        into_UPQ.baddbmm_(left_UPS[..., here], right_USQ[:, here])


def form_runs(into_UPQ: Tensor, left_USP: Tensor, right_USQ: Tensor) -> None:
    """`_form` for an accelerator, which a product of one run of one unit does not keep busy.

    So all runs of some units are computed side by side and added up then, where there is memory for
    them (`_AT_ONCE`).
    """
    units, positions, p = left_USP.shape
    q = right_USQ.shape[2]
    count = max(1, -(-positions // RUN))
    length = max(1, -(-positions // count))  # of runs that are about alike
    runs = positions // length
    whole = runs * length
    together = _AT_ONCE // (runs * p * q) if runs > 1 else 0
    if not together:
        _form_run_by_run(into_UPQ, left_USP.transpose(1, 2), right_USQ)
        return
    for begin in range(0, units, together):
        here = slice(begin, begin + together)
        left, right = left_USP[here], right_USQ[here]
        lefts = left[:, :whole].reshape(-1, length, p).transpose(1, 2)
        each = torch.bmm(lefts, right[:, :whole].reshape(-1, length, q)).view(-1, runs, p, q)
        torch.sum(each, 1, out=into_UPQ[here])
        if whole < positions:
            into_UPQ[here].baddbmm_(left[:, whole:].transpose(1, 2), right[:, whole:])
