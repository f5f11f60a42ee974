r"""What one use of a parameter leaves behind, and what the parameter's units need of it.

In a batch of several units, a parameter's gradient for unit u is a sum over the places where the
parameter is used. Each use is kept in whichever of three forms is cheapest:

* `Dense`: the per-unit gradients themselves, formed in the backward pass. It *replaces* the
  ordinary weight gradient (as many operations), costs units x parameters of memory.
* `Ghost`: the layer's inputs A and output gradients B. With :math:`G_u = B_u^T A_u`,
  :math:`\|G_u\|^2 = \langle A_u A_u^T, B_u B_u^T \rangle`, and, once the clip factors are known,
  :math:`\sum_u c_u G_u = B^T (c \circ A)` is one product (Goodfellow 2015; Bu et al. 2023,
  book-keeping). The Gram matrices are float64; how wrong the norm can be is `gram_error`.
* `Sparse`: an embedding's rows, summed by (unit, token).

A parameter that is used twice (input and output embedding tied) needs the cross term
:math:`2 \langle G_u, E_u \rangle`; see `squared_norms`.

Legend: U units, S positions of one unit, N positions altogether, K (unit, token) pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

_BLOCK = 1024

_GRAM_BLOCK = 2048
"""Columns that are widened to float64 at a time: a copy of all would not stay in the caches."""

GHOST_CONDITION = 4096.0
"""Largest condition of a unit whose norm is taken from Gram matrices; beyond it its gradient is
formed. Rows of ordinary text have up to about the number of a unit's positions (measured: 380 at
512 positions). `gram_error` would allow more; the limit keeps the rounding of the *sum* small,
which grows with the root of the condition."""

_LARGEST_SIDE = 2.0**60
"""Largest sum of the lengths of a unit's rows, on either side, that is weighted in float32. Entries
of the other side times the clip factor are off by 2^-150 where they are below the normal numbers,
the unit's clipped gradient by 2^-150 x 2^13 x 2^60 = 7e-24 (at 2^26 columns): nothing beside the
least clip norm of 1e-8."""

GRAM_SHARE = 1e-6
"""Most that a norm from Gram matrices may be too small, relatively: part of every margin."""

_CANCELLED = 0.25
"""Least part that the joint square of two uses has of the sum of both their squares."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which unit owns which rows of a pass: unit u owns rows ``bounds[u]:bounds[u + 1]``."""

    bounds: tuple[int, ...]
    unit_of_row: Tensor

    @property
    def units(self) -> int:
        """Units in the pass."""
        return len(self.bounds) - 1

    @property
    def rows(self) -> int:
        """Rows in the pass."""
        return self.bounds[-1]

    @property
    def equal(self) -> bool:
        """Whether all units own the same number of rows, so that they can be batched."""
        return self.units * self.bounds[1] == self.rows and all(
            end == (u + 1) * self.bounds[1] for u, end in enumerate(self.bounds[1:])
        )

    def pieces(self, tensor: Tensor) -> list[Tensor]:
        """Each unit's part of (rows, ..., width), flattened to (positions, width)."""
        width = tensor.shape[-1]
        return [
            tensor[begin:end].reshape(-1, width)
            for begin, end in zip(self.bounds[:-1], self.bounds[1:], strict=True)
        ]

    def stacked(self, tensor: Tensor) -> Tensor:
        """(rows, ..., width) as (units, positions, width); `equal` layouts alone."""
        return tensor.reshape(self.units, -1, tensor.shape[-1])

    def summed(self, tensor: Tensor) -> Tensor:
        """(rows, ..., width) summed over each unit's positions: (units, width)."""
        if self.equal:
            return self.stacked(tensor).sum(1)
        per_row = tensor.reshape(self.rows, -1, tensor.shape[-1]).sum(1)
        return per_row.new_zeros(self.units, tensor.shape[-1]).index_add_(
            0, self.unit_of_row, per_row
        )


@dataclass(frozen=True, slots=True)
class Dense:
    """Per-unit gradients, (units, *shape)."""

    gradients: Tensor

    def squared_norms(self) -> Tensor:
        """Float64, (units,)."""
        return squares(self.gradients)

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        """Add the weighted sum of the units to ``total``."""
        flat = self.gradients.flatten(1)
        total.view(-1).add_(factors.to(flat.dtype) @ flat)


@dataclass(frozen=True, slots=True)
class Ghost:
    """Inputs and output gradients of a linear layer, from which its gradient can be formed.

    Attributes:
        left: (rows, ..., p); right: (rows, ..., q). The parameter, (p, q), has the gradient
            ``left.T @ right`` over the positions.
    """

    left: Tensor
    right: Tensor
    layout: Layout

    def squared_norms(self) -> Tensor:
        """Float64, (units,); NaN where the Gram matrices do not give it accurately enough."""
        if self.layout.equal:
            pairs = [(self.layout.stacked(self.left), self.layout.stacked(self.right))]
        else:
            pairs = [
                (left[None], right[None])
                for left, right in zip(
                    self.layout.pieces(self.left), self.layout.pieces(self.right), strict=True
                )
            ]
        found = []
        for left, right in pairs:
            grams = gram(left), gram(right)
            norms = (grams[0] * grams[1]).sum(2).sum(1)
            lengths = [g.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt() for g in grams]
            largest = (lengths[0] * lengths[1]).sum(1).square()
            most = most_condition(left.shape[2], right.shape[2], left.shape[1])
            bad = (largest > most * norms) & (largest > 0)
            bad |= torch.stack([side.sum(1) for side in lengths]).amax(0) > _LARGEST_SIDE
            found.append(torch.where(bad, torch.nan, norms))
        return torch.cat(found)

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        """Add the weighted sum of the units: one product over all positions."""
        weights = factors[self.layout.unit_of_row].to(self.left.dtype)
        weights = weights.view(-1, *[1] * (self.left.dim() - 1))
        p, q = self.left.shape[-1], self.right.shape[-1]
        if p < q:
            left, right = self.left * weights, self.right
        else:
            left, right = self.left, self.right * weights
        total.add_(left.reshape(-1, p).T @ right.reshape(-1, q))

    def dense(self) -> Dense:
        """The per-unit gradients, formed."""
        return Dense(form(self.left, self.right, self.layout))


@dataclass(frozen=True, slots=True)
class Sparse:
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
        """Float64, (units,)."""
        found = torch.zeros(self.count, dtype=torch.float64, device=self.sums.device)
        return found.index_add_(0, self.units, self.sums.double().square().sum(1))

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        """Add the weighted rows to ``total``."""
        rows = self.sums.double() * factors[self.units][:, None]
        total.index_add_(0, self.tokens, rows.to(total.dtype))

    def dense(self) -> Dense:
        """As per-unit gradients."""
        gradients = self.sums.new_zeros(self.count, *self.shape)
        gradients[self.units, self.tokens] = self.sums
        return Dense(gradients)


Use: TypeAlias = Dense | Ghost | Sparse


def form(left: Tensor, right: Tensor, layout: Layout, out: Tensor | None = None) -> Tensor:
    """Each unit's ``left.T @ right``: (units, p, q)."""
    shape = (layout.units, left.shape[-1], right.shape[-1])
    into = left.new_empty(shape) if out is None else out
    if layout.equal:
        torch.bmm(layout.stacked(left).transpose(1, 2), layout.stacked(right), out=into)
        return into
    pieces = zip(layout.pieces(left), layout.pieces(right), strict=True)
    for unit, (one, two) in enumerate(pieces):
        torch.mm(one.T, two, out=into[unit])
    return into


def gram(rows_USP: Tensor) -> Tensor:
    """Each unit's products of rows with rows, in float64: (units, positions, positions)."""
    units, positions, width = rows_USP.shape
    total = rows_USP.new_zeros(units, positions, positions, dtype=torch.float64)
    for begin in range(0, width, _GRAM_BLOCK):
        block = rows_USP[..., begin : begin + _GRAM_BLOCK].double()
        total.baddbmm_(block, block.transpose(1, 2))
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


def sparse(tokens: Tensor, output_gradients: Tensor, shape: torch.Size, layout: Layout) -> Sparse:
    """Sum an embedding's output gradients by (unit, token)."""
    width = shape[1]
    owner = layout.unit_of_row.view(-1, *[1] * (tokens.dim() - 1))
    keys, places = torch.unique((owner * shape[0] + tokens).flatten(), return_inverse=True)
    flat = output_gradients.reshape(-1, width)
    sums = flat.new_zeros(len(keys), width).index_add_(0, places, flat)
    return Sparse(keys // shape[0], keys % shape[0], sums, shape, layout.units)


def squares(gradients: Tensor) -> Tensor:
    """Squared norm of each of (units, ...): short float32 sums, added up in float64.

    A float32 sum of 1,024 squares is too small by at most 1,024 x 2^-24 = 6.1e-5 relative, in the
    worst order of summation; a running float32 sum of them all would lose percents.
    """
    flat = gradients.flatten(1)
    units, size = flat.shape
    whole = size - size % _BLOCK
    found = torch.zeros(units, dtype=torch.float64, device=flat.device)
    if whole:
        blocks = flat[:, :whole].reshape(-1, 1, _BLOCK)
        found += torch.bmm(blocks, blocks.transpose(1, 2)).view(units, -1).double().sum(1)
    if whole < size:
        found += flat[:, whole:].square().sum(1).double()
    return found


def squared_norms(uses: list[Use], known: Tensor | None = None) -> tuple[Tensor, list[Use]]:
    """Each unit's squared gradient norm of one parameter, all its uses together.

    Args:
        uses: at least one.
        known: the first use's own squared norms where they were taken already.

    Returns:
        float64, (units,); NaN where the unit must be computed by other means: it is not finite, or
        these identities are not accurate enough for it. And the uses to sum: the same, or one
        `Dense` that replaces them.
    """
    first = uses[0].squared_norms() if known is None else known
    if len(uses) == 1:
        return first, uses
    if len(uses) == 2 and isinstance(uses[1], Sparse) and not isinstance(uses[0], Sparse):
        second = uses[1].squared_norms()
        together = first + second + 2 * _inner(uses[0], uses[1])
        # Formed gradients' squares may be 6.1e-5 too small (`squares`). Where the two cancel, that
        # grows relative to what is left: to at most 6.1e-5 / _CANCELLED, 1.3e-4 of the norm.
        cancelled = together < _CANCELLED * (first + second)
        return torch.where(cancelled, torch.nan, together), uses
    gradients: Tensor | None = None
    for use in uses:
        part = use if isinstance(use, Dense) else use.dense()
        gradients = part.gradients if gradients is None else gradients + part.gradients
    assert gradients is not None
    joint = Dense(gradients)
    return joint.squared_norms(), [joint]


def _inner(use: Dense | Ghost, other: Sparse) -> Tensor:
    r"""The inner product of each unit's two gradients: float64, (units,).

    Of `Ghost`, formed in float64 where the table was looked up: off by at most :math:`1.01\,(S +
    width + K) u W \|E\|`. For units whose norm was accepted, W is at most :math:`\|G\|` times the
    root of their condition: 1e-10 of :math:`\|G\| \|E\|`.
    """
    found = torch.zeros(other.count, dtype=torch.float64, device=other.sums.device)
    if isinstance(use, Dense):
        rows = use.gradients[other.units, other.tokens]
        return found.index_add_(0, other.units, (rows.double() * other.sums).sum(1))
    pieces = zip(use.layout.pieces(use.left), use.layout.pieces(use.right), strict=True)
    # Slices, since a device would have to be waited for at each mask.
    places = torch.arange(other.count + 1, device=other.units.device)
    bounds = torch.searchsorted(other.units, places).tolist()
    for unit, (left, right) in enumerate(pieces):
        mine = slice(bounds[unit], bounds[unit + 1])
        rows = left[:, other.tokens[mine]].double().T @ right.double()
        found[unit] = (rows * other.sums[mine]).sum()
    return found
