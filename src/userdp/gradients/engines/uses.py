r"""What one use of a parameter leaves behind, and what the parameter's units need of it.

In a batch of several units, a parameter's gradient for unit u is a sum over the places where the
parameter is used. Each use is kept in whichever form is cheapest; a layer's rule
(`userdp.gradients.engines.rules`) chooses among

* `Dense`: the per-unit gradients themselves, formed in the backward pass. It *replaces* the
  ordinary weight gradient (as many operations), costs units x parameters of memory;
* `Ghost` (linear layers): the layer's inputs and output gradients;
* `Sparse` (embeddings): rows, summed by (unit, token).

A parameter that is used twice (input and output embedding tied) needs the cross term
:math:`2 \langle G_u, E_u \rangle`; see `squared_norms`.

Legend: U units, S positions of one unit, N positions altogether, K (unit, token) pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from userdp.gradients.engines.forms import Form
from userdp.gradients.precision import reduced_products

_BLOCK = 1024

_ADDED = 1 << 21
"""Numbers that are added to a sum at a time on a CPU: the product is fresh memory there, and so is
its copy that is widened to be added to float64. Of a whole table both are up to three times its
size. In smaller blocks products of few rows cost more than that saves: of 1024 x 4096, in blocks of
64 rows a third more than in one, in blocks of 512 a twentieth."""

_MIXED = 1 << 16
"""The same of formed gradients, whose product with the factors is no sooner made than read: it
stays in the cache."""

_WAITING = 1 << 26
"""Numbers that wait to be added to sums on an accelerator, at most."""

_CANCELLED = 0.25
"""Least part that the joint square of two uses has of the sum of both their squares."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which unit owns which rows of a pass: unit u owns rows ``bounds[u]:bounds[u + 1]``.

    Attributes:
        bounds: from 0 to the number of rows.
        unit_of_row: int64, (rows,).
        units, rows: how many there are in the pass.
        equal: whether all units own the same number of rows, so that they can be batched.
    """

    bounds: tuple[int, ...]
    unit_of_row: Tensor
    units: int = field(init=False)
    rows: int = field(init=False)
    equal: bool = field(init=False)

    def __post_init__(self) -> None:  # each layer asks several times
        bounds = self.bounds
        object.__setattr__(self, "units", len(bounds) - 1)
        object.__setattr__(self, "rows", bounds[-1])
        equal = all(end == unit * bounds[1] for unit, end in enumerate(bounds))
        object.__setattr__(self, "equal", equal)

    def split(self, tensor: Tensor) -> list[Tensor]:
        """Each unit's part of (rows, ..., width), flattened to (positions, width)."""
        width = tensor.shape[-1]
        return [
            tensor[begin:end].reshape(-1, width)
            for begin, end in zip(self.bounds[:-1], self.bounds[1:], strict=True)
        ]

    def stacked(self, tensor: Tensor) -> Tensor:
        """(rows, ..., width) as (units, positions, width); only for `equal` layouts."""
        return tensor.reshape(self.units, -1, tensor.shape[-1])

    def summed(self, tensor: Tensor) -> Tensor:
        """(rows, ..., width) summed over each unit's positions: (units, width)."""
        if self.equal:
            return self.stacked(tensor).sum(1)
        per_row = tensor.reshape(self.rows, -1, tensor.shape[-1]).sum(1)
        return per_row.new_zeros(self.units, tensor.shape[-1]).index_add_(
            0, self.unit_of_row, per_row
        )


class Use(ABC):
    """What one use of a parameter leaves behind for each unit of a pass."""

    __slots__ = ()

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Float64, (units,); NaN where the form does not give it accurately enough."""

    @abstractmethod
    def add_to(self, total: Tensor, factors: Tensor) -> None:
        """Add the sum of the units, each times its factor, to ``total``: one addition to each of
        its numbers, on which `userdp.gradients.engines.running` counts."""

    @abstractmethod
    def summed(self, factors: Tensor) -> Tensor:
        """The sum of the units, each times its factor, of the parameter's shape."""

    @abstractmethod
    def dense(self) -> Dense:
        """The per-unit gradients, formed."""

    @abstractmethod
    def without(self, bad: Tensor) -> Use:
        """The same with zeros for the units of ``bad``: bool, (units,)."""

    def chosen(self, form: Form | None, buffer: Callable[[Sequence[int], Tensor], Tensor]) -> Use:
        """This use in ``form``, or the cheaper one; ``buffer`` gives memory of a shape for it."""
        return self

    def cross(self, other: Use) -> Tensor | None:
        """The inner product with ``other``, float64, (units,); None where there is no short way."""
        return None


@dataclass(frozen=True, slots=True)
class Dense(Use):
    """Per-unit gradients, (units, *shape)."""

    gradients: Tensor

    def squared_norms(self) -> Tensor:
        return squares(self.gradients)

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        flat = self.gradients.reshape(len(self.gradients), -1)
        weights, into = factors.to(flat.dtype), total.view(-1)
        parts = list(added_at_once(len(into), 1, total.device, _MIXED))
        room = flat.new_empty(parts[0].stop) if parts else flat
        for part in parts:
            here = into[part]
            here.add_(weighted(flat[:, part], weights, out=room[: len(here)]))

    def summed(self, factors: Tensor) -> Tensor:
        flat = self.gradients.reshape(len(self.gradients), -1)
        total = weighted(flat, factors.to(flat.dtype), out=flat.new_empty(flat.shape[1]))
        return total.view(self.gradients.shape[1:])

    def dense(self) -> Dense:
        return self

    def without(self, bad: Tensor) -> Dense:
        self.gradients[bad] = 0
        return self


class Together:
    """Sums on an accelerator to which something is added in few calls, not one for each.

    The host can be a thousand calls ahead, and no more: behind many small ones an accelerator would
    have nothing to do once they are done.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._factors: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def add(self, total: Tensor, use: Dense, factors: Tensor) -> None:
        """Add ``use`` to ``total``, each unit times its factor, some time until `finish`.

        Nothing else may be added to this ``total`` until then.
        """
        dtype = use.gradients.dtype
        key = id(factors), dtype  # all parameters have the same ones, as a rule
        if key not in self._factors:
            self._factors[key] = factors, factors.to(dtype)
        flat = use.gradients.reshape(len(use.gradients), -1)
        part = weighted(flat, self._factors[key][1], out=flat.new_empty(flat.shape[1]))
        self._waiting.append((total.view(-1), part))
        if sum(part.numel() for _, part in self._waiting) > _WAITING:
            self.finish()

    def finish(self) -> None:
        """Add what is left."""
        if self._waiting:
            totals, parts = map(list, zip(*self._waiting, strict=True))
            torch._foreach_add_(totals, parts)
        self._waiting.clear()


def added_at_once(
    rows: int, width: int, device: torch.device, most: int | None = None
) -> Iterator[slice]:
    """Which rows of (rows, width) to add to a sum at a time: all, but on a CPU.

    Args:
        rows: of the sum, along its first dimension.
        width: numbers of a row.
        device: where the sum lies.
        most: numbers at a time on a CPU; `_ADDED` where nothing is said.
    """
    step = max(1, (most or _ADDED) // width) if device.type == "cpu" else max(1, rows)
    for begin in range(0, rows, step):
        yield slice(begin, min(begin + step, rows))


def weighted(rows_UN: Tensor, factors_U: Tensor, out: Tensor) -> Tensor:
    """The sum of rows, each times its factor, in ``out``; in all bits, whatever products have."""
    if reduced_products():
        return torch.sum(rows_UN * factors_U[:, None], 0, out=out)
    return torch.mv(rows_UN.T, factors_U, out=out)


def wide(tensor: Tensor) -> Tensor:
    """In float32 or wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def squares(gradients: Tensor) -> Tensor:
    """Squared norm of each of (units, ...): short float32 sums, added up in float64.

    A float32 sum of 1,024 squares is too small by at most 1,024 x 2^-24 = 6.1e-5 relative, in the
    worst order of summation, the root's own rounding among it where its square is taken; a running
    float32 sum of them all would lose percents.
    """
    flat = gradients.reshape(len(gradients), -1)
    units, size = flat.shape
    whole = size - size % _BLOCK
    if not whole:
        return flat.square().sum(1, dtype=torch.float64)
    blocks = flat[:, :whole].reshape(-1, 1, _BLOCK)
    if flat.device.type == "cpu" and not reduced_products():
        sums = torch.bmm(blocks, blocks.transpose(1, 2)).double()
    else:  # in fewer bits they say something else; and read an accelerator's memory slowly
        sums = torch.linalg.vector_norm(blocks, dim=2).double().square_()
    total = sums.view(units, -1).sum(1)
    if whole < size:
        total += flat[:, whole:].square().sum(1, dtype=torch.float64)
    return total


def joint(uses: Sequence[Use]) -> Dense:
    """The per-unit gradients of all uses of one parameter together, formed."""
    gradients = uses[0].dense().gradients
    for use in uses[1:]:
        gradients = gradients + use.dense().gradients
    return Dense(gradients)


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
    if len(uses) == 2:
        # Uses arrive in backward order, and either may know the inner product with the other.
        for one, other in (uses, uses[::-1]):
            inner = other.cross(one)
            if inner is None:
                continue
            apart = first + uses[1].squared_norms()
            together = apart + 2 * inner
            # Formed gradients' squares may be 6.1e-5 too small (`squares`). Where the two cancel,
            # that grows relative to what is left: to at most 6.1e-5 / _CANCELLED, 1.3e-4 of the
            # norm.
            return torch.where(together < _CANCELLED * apart, torch.nan, together), [one, other]
    formed = joint(uses)
    return formed.squared_norms(), [formed]
