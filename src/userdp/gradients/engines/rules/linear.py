r"""Linear layers: ``x @ weight.T + bias``.

With a unit's inputs A and output gradients B over its positions, its gradient is
:math:`G_u = B_u^T A_u`. Either all :math:`G_u` are formed, or both sides are kept (`Ghost`), since
:math:`\|G_u\|^2 = \langle A_u A_u^T, B_u B_u^T \rangle`, and, once the clip factors are known,
:math:`\sum_u c_u G_u = B^T (c \circ A)` is one product (Goodfellow 2015; Bu et al. 2023,
book-keeping). The Gram matrices are float64; how wrong the norm can be is `gram_error`.
`engines.forms` says which form is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients.engines.forms import Form, choose_form
from userdp.gradients.engines.layer import Layer, Watcher, apply, names_of, stands_in_for
from userdp.gradients.engines.precision import is_narrow
from userdp.gradients.engines.uses import Dense, Layout, Use, added_at_once, wide

_GRAM_BLOCK = 1024
"""Columns of one unit that are widened to float64 at a time: a copy of all, or of all units, would
not stay in the caches."""

_DEVICE_GRAM_BLOCK = 2048
"""The same on an accelerator, of all units together."""

_LEAST_ROWS = 32
"""Rows of a Gram matrix that a CPU computes at a time, with those behind them alone: the other half
of the matrix is the same numbers. Products of fewer rows are slower than that saves."""

GHOST_CONDITION = 4096.0
"""Largest condition of a unit whose norm is taken from Gram matrices; beyond it its gradient is
formed. Rows of ordinary text have up to about the number of a unit's positions (measured: 380 at
512 positions). `gram_error` would allow more; the limit keeps the rounding of the *sum* small,
which grows with the root of the condition."""

NARROW = 16
"""Columns of a side below which a product may be summed over one position after another: its
rounding grows with their number then (measured: 9e-5 of W at 16,384 positions on a processor
without AVX-512, and 2e-6 with 16 columns)."""

_BLOCK = 128
"""Positions of a narrow product that are summed at once; block sums are added in float64."""

_LARGEST_SIDE = 2.0**60
"""Largest sum of the lengths of a unit's rows, on either side, that is weighted in float32. Entries
of the other side times the clip factor are off by 2^-150 where they are below the normal numbers,
the unit's clipped gradient by 2^-150 x 2^13 x 2^60 = 7e-24 (at 2^26 columns): nothing beside the
least clip norm of 1e-8."""

GRAM_SHARE = 1e-6
"""Most that a norm from Gram matrices may be too small, relatively: part of every margin."""


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
            self.tape.keep(name, Ghost(left, right, layout), left, right)
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
        p, q = self.left.shape[-1], self.right.shape[-1]
        found = []
        for norms, largest, length, positions in self._by_grams():
            bad = (largest > most_condition(p, q, positions) * norms) & (largest > 0)
            found.append(torch.where(bad | (length > _LARGEST_SIDE), torch.nan, norms))
        return torch.cat(found)

    def at_most(self) -> tuple[Tensor, Tensor]:
        """Float64, (units,): the squared norms, or as much more as `gram_error` allows; and W.

        Close, and never less, however much of a unit cancels; NaN or inf where it is not finite.
        """
        p, q = self.left.shape[-1], self.right.shape[-1]
        found, lengths = [], []
        for norms, largest, length, positions in self._by_grams():
            most = norms.clamp(min=0) + gram_error(p, q, positions) * largest
            found.append(torch.where(length > _LARGEST_SIDE, torch.nan, most))
            lengths.append(largest.sqrt())
        return torch.cat(found), torch.cat(lengths)

    def _by_grams(self) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
        """By Gram matrices, of some units at a time.

        Yields:
            Squared norms; W²; the sum of the lengths of the rows of the longer side; each float64,
            (units,). And how many positions each of these units has.
        """
        if self.layout.equal:
            pairs = [(self.layout.stacked(self.left), self.layout.stacked(self.right))]
        else:
            pairs = [
                (left[None], right[None])
                for left, right in zip(
                    self.layout.split(self.left), self.layout.split(self.right), strict=True
                )
            ]
        for left, right in pairs:
            grams = gram(left), gram(right)
            norms = (grams[0] * grams[1]).sum(2).sum(1)
            lengths = [g.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt() for g in grams]
            largest = (lengths[0] * lengths[1]).sum(1).square()
            length = torch.maximum(lengths[0].sum(1), lengths[1].sum(1))
            yield norms, largest, length, left.shape[1]

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        left, right = wide(self.left), wide(self.right)
        weights = factors[self.layout.unit_of_row].to(left.dtype)
        weights = weights.view(-1, *[1] * (left.dim() - 1))
        p, q = left.shape[-1], right.shape[-1]
        if p < q:
            left = left * weights
        else:
            right = right * weights
        left, right = left.reshape(-1, p), right.reshape(-1, q)
        for part in added_at_once(p, q, total.device):
            total[part].add_(product(left[:, part], right))

    def summed(self) -> Tensor:
        p, q = self.left.shape[-1], self.right.shape[-1]
        return product(wide(self.left).reshape(-1, p), wide(self.right).reshape(-1, q))

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

    Its rounding does not grow with N beyond that of a product whose sides are not narrow.
    """
    positions, p = left_NP.shape
    q = right_NQ.shape[1]
    if min(p, q) >= NARROW or positions <= 2 * _BLOCK:
        return left_NP.T @ right_NQ
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
    rounded = into.dtype != left.dtype  # a product writes to numbers of its sides' type alone
    if layout.equal:
        sides = layout.stacked(left).transpose(1, 2), layout.stacked(right)
        return into.copy_(torch.bmm(*sides)) if rounded else torch.bmm(*sides, out=into)
    for one, two, formed in zip(layout.split(left), layout.split(right), into, strict=True):
        if rounded:
            formed.copy_(one.T @ two)
        else:
            torch.mm(one.T, two, out=formed)
    return into


def gram(rows_USP: Tensor) -> Tensor:
    """Each unit's products of rows with rows, in float64: (units, positions, positions)."""
    units, positions, width = rows_USP.shape
    if rows_USP.device.type != "cpu":
        return device_gram(rows_USP)
    total = rows_USP.new_zeros(units, positions, positions, dtype=torch.float64)
    step = max(_LEAST_ROWS, positions // 8)
    blocks = [slice(begin, begin + step) for begin in range(0, positions, step)]
    room = rows_USP.new_empty(positions * min(width, _GRAM_BLOCK), dtype=torch.float64)
    for unit, products in zip(rows_USP, total, strict=True):
        for begin in range(0, width, _GRAM_BLOCK):
            narrow = unit[:, begin : begin + _GRAM_BLOCK]
            columns = room[: narrow.numel()].view(narrow.shape).copy_(narrow)
            for rows in blocks:  # with themselves and those behind them
                products[rows, rows.start :].addmm_(columns[rows], columns[rows.start :].T)
    for rows in blocks[:-1]:
        total[:, rows.stop :, rows] = total[:, rows, rows.stop :].transpose(1, 2)
    return total


def device_gram(rows_USP: Tensor) -> Tensor:
    """`gram` in as few calls as can be: the host has to make each of them."""
    columns = rows_USP[..., :_DEVICE_GRAM_BLOCK].double()
    total = torch.bmm(columns, columns.transpose(1, 2))
    for begin in range(_DEVICE_GRAM_BLOCK, rows_USP.shape[2], _DEVICE_GRAM_BLOCK):
        columns = rows_USP[..., begin : begin + _DEVICE_GRAM_BLOCK].double()
        total.baddbmm_(columns, columns.transpose(1, 2))
    return total


def gram_error(p: int, q: int, positions: int) -> float:
    r"""Worst-case relative error of a squared norm from Gram matrices, per unit of condition.

    **Bound.** Let :math:`l_s` (p wide) and :math:`r_s` (q wide) be a unit's rows at S positions,
    K and H their Gram matrices, :math:`W = \sum_s \|l_s\| \|r_s\|`, :math:`u = 2^{-53}`. Whatever
    the order of additions, a float64 dot product of n terms is off by at most :math:`n u / (1 - n
    u)` times the sum of its terms' magnitudes (Higham 2002, Section 3.1), so :math:`|\delta
    K_{st}| \le 1.01\,p u \|l_s\| \|l_t\|`, likewise H; the product of both and its two sums over S
    add :math:`(2S + 1) u`. Since :math:`\sum_{st} \|l_s\| \|l_t\| \|r_s\| \|r_t\| = W^2`, the
    squared norm is off by at most :math:`1.01\,(p + q + 2S + 1)\,u W^2`: relatively, that times
    the *condition* :math:`W^2 / \|G\|^2`. (Float32 rows are exact in float64, and so are their
    products; a product of float64 rows rounds once more, which the n above counts.)

    At widths of 2^18 and 2^14 with 2,048 positions and a condition of 4,096 a norm is too small by
    at most 6.5e-8. In float32 the same bound is 35: it was 2.5e-2 in fact, on nearly parallel
    positions that cancel.

    Args:
        p: width of one side.
        q: of the other.
        positions: S, of the unit.
    """
    return 1.01 * (p + q + 2 * positions + 4) * 2.0**-53


def most_condition(p: int, q: int, positions: int) -> float:
    """The condition up to which a Gram matrix norm is accepted, by what `gram_error` leaves.

    The norm has half the relative error of its square. That the condition is computed from the
    norm itself is no circle: a norm is accepted where it is at least ``W^2 / most``, and then its
    error, ``gram_error * W^2``, is at most ``gram_error * most`` of it.

    >>> most_condition(2**18, 2**14, 2048), most_condition(2**26, 2**14, 2048) < 300
    (4096.0, True)
    """
    return min(GHOST_CONDITION, 2 * GRAM_SHARE / gram_error(p, q, positions))
