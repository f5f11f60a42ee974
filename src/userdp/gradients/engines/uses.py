r"""What one use of a parameter leaves behind, and what the parameter's units need of it.

In a batch of several units, a parameter's gradient for unit u is a sum over the places where the
parameter is used. Each use is kept in whichever form is cheapest; a layer's rule
(`userdp.gradients.engines.rules`) chooses among

* `Dense`: the per-unit gradients themselves, formed in the backward pass. It *replaces* the
  ordinary weight gradient (as many operations), costs units x parameters of memory;
* `Ghost` (linear layers): the layer's inputs and output gradients;
* `Sparse` (embeddings): rows, summed by (unit, token).

**Formed, or Gram matrices?** With U units of S positions and a parameter of p x q, beside the
product that the ordinary weight gradient costs too:

* forming them writes U p q numbers, reads them for the norms and reads them again for the sum;
* the Gram matrices cost :math:`2 U S^2 (p + q)` operations.

So forming wins while :math:`S^2 (1/p + 1/q)` is above some number of operations that the machine
does in the time of three transfers of a number: `_BALANCE`. (On a CPU with AVX-512, two threads,
eight units of 128 positions, in one buffer: at 43, of 768 x 768, formed gradients take 0.8 of the
time, at 28 and 27, of 768 x 2,304 and 3,072, both cost the same. In a model of 24 layers, whose
formed gradients no cache holds, the product of 1,024 x 1,024, at 32, takes 29 ms formed and 9 ms as
an ordinary weight gradient. On one H200, 64 units: at 20 Gram matrices are a tenth cheaper,
weighted sum included, at 32 formed gradients; these want memory beside that, so a little more is
asked of them.)

A parameter that is used twice (input and output embedding tied) needs the cross term
:math:`2 \langle G_u, E_u \rangle`; see `squared_norms`.

Legend: U units, S positions of one unit, N positions altogether, K (unit, token) pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from typing import TypeAlias

import torch
from torch import Tensor

from userdp.gradients.precision import reduced_products

_BALANCE = {"cpu": 36.0, "cuda": 40.0}

_BLOCK = 1024

_MIXED = 1 << 18
"""Numbers of formed gradients that are weighted and added to a sum at a time on a CPU: the product
is no sooner made than read, and stays in the cache. In one piece 4 units of 1024 x 4096 take twice
as long, where the sum is float64."""

CANCELLED_USES = 0.25
"""Least part that the joint square of two uses has of the sum of both their squares."""


class Form(StrEnum):
    """How a layer's per-unit gradients are represented."""

    FORMED = "formed"
    GHOST = "ghost"


Forms: TypeAlias = Form | Mapping[str, Form] | None
"""One form for all linear layers, one for each parameter by name, or None: chosen by cost."""


Room: TypeAlias = Callable[[Sequence[int], Tensor], Tensor]
"""Gives memory of a shape, and of the type and device of a tensor."""


def choose_form(*, units: int, positions: int, p: int, q: int, device: str) -> Form:
    """The cheaper form for a parameter (p, q) of which each unit used ``positions``.

    >>> choose_form(units=4, positions=512, p=1024, q=256, device="cpu")
    <Form.FORMED: 'formed'>
    >>> choose_form(units=16, positions=128, p=4096, q=1024, device="cpu")
    <Form.GHOST: 'ghost'>
    """
    cheap = positions**2 * (1 / p + 1 / q) < _BALANCE.get(device, _BALANCE["cuda"])
    return Form.GHOST if cheap and units > 1 else Form.FORMED


@dataclass(frozen=True, slots=True)
class Layout:
    """Which unit owns which row of a pass: each the same number of rows, one unit after another."""

    units: int
    rows: int

    def stacked(self, tensor: Tensor) -> Tensor:
        """(rows, ..., width) as (units, positions, width)."""
        return tensor.reshape(self.units, -1, tensor.shape[-1])

    def summed(self, tensor: Tensor) -> Tensor:
        """(rows, ..., width) summed over each unit's positions: (units, width)."""
        return self.stacked(tensor).sum(1)


class Use(ABC):
    """What one use of a parameter leaves behind for each unit of a pass."""

    __slots__ = ()

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Float64, (units,); NaN where the form does not give it accurately enough."""

    @abstractmethod
    def add_to(self, total: Tensor, factors: Tensor) -> None:
        """Add the sum of the units, each times its factor, to ``total``: one addition to each of
        its numbers, on which `userdp.gradients.engines.rounding` counts."""

    def at_most(self) -> Tensor:
        """`squared_norms`, or more where these would be NaN for want of accuracy."""
        return self.squared_norms()

    @abstractmethod
    def dense(self) -> Dense:
        """The per-unit gradients, formed."""

    @abstractmethod
    def without(self, bad: Tensor) -> Use:
        """The same with zeros for the units of ``bad``: bool, (units,)."""

    def chosen(self, form: Form | None, room: Room | None = None) -> Use:
        """This use in ``form``, or the cheaper one; ``room`` gives memory of a shape for it."""
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
        weights = factors.to(flat.dtype)
        into, step = total.view(-1), split_step(total.view(-1), _MIXED)
        for here, part in zip(torch.split(into, step), torch.split(flat, step, 1), strict=True):
            here.add_(weighted(part, weights))

    def dense(self) -> Dense:
        return self

    def without(self, bad: Tensor) -> Dense:
        self.gradients[bad] = 0
        return self


def split_step(total: Tensor, most: int) -> int:
    """How many rows of a sum are added to at a time: all, but on a CPU ``most`` numbers."""
    rows = max(1, len(total))
    return max(1, most * rows // max(1, total.numel())) if total.device.type == "cpu" else rows


def weighted(rows_UN: Tensor, factors_U: Tensor) -> Tensor:
    """The sum of rows, each times its factor; in all bits, whatever products have."""
    if reduced_products():
        return torch.sum(rows_UN * factors_U[:, None], 0)
    return torch.mv(rows_UN.T, factors_U)


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
    sums: Tensor = torch.linalg.vector_norm(blocks, dim=2).double().square_()
    total = sums.view(units, -1).sum(1)
    if whole < size:
        total += flat[:, whole:].square().sum(1, dtype=torch.float64)
    return total


def joint(uses: Sequence[Use]) -> Dense:
    """The per-unit gradients of all uses of one parameter together, formed."""
    return Dense(reduce(torch.add, (use.dense().gradients for use in uses)))


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
            # that grows relative to what is left: to at most 6.1e-5 / CANCELLED_USES, 1.3e-4 of the
            # norm.
            return torch.where(together < CANCELLED_USES * apart, torch.nan, together), [one, other]
    formed = joint(uses)
    return formed.squared_norms(), [formed]
