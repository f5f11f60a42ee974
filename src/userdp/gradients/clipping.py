r"""Clip factors that keep the sensitivity in floating point, not only on paper.

**The margin.** The clip aims at :math:`C(1 - m)` with :math:`m =` `CLIP_MARGIN` :math:`= 10^{-5}`,
a public constant. With :math:`u = 2^{-53}`:

1. *The norm.* The square of a float32 number is exact in float64 and neither overflows nor
   vanishes there (a float64 gradient adds :math:`u` per square). Squares are summed in float64 in
   blocks of :math:`2^{20}`, then over blocks; for up to :math:`2^{40}` parameters no summand passes
   more than :math:`2^{21}` additions, so the sum is too small by at most :math:`2^{21}u` relative,
   the norm by half of that: :math:`1.2 \cdot 10^{-10}`.
2. *The product* factor x gradient, formed in float64: at most :math:`4u` relative.
3. *The summation over units.* Each of M additions rounds by at most :math:`u` times the partial
   sum, whose norm is at most :math:`MC`: two runs that differ in one unit differ through rounding
   by at most :math:`2 M^2 u C`. For M up to `MOST_UNITS` = 200,000 that is
   :math:`8.9 \cdot 10^{-6} C`.

Together less than :math:`m C`, in the worst case. (In float32, M = 1,000 units could round by
:math:`0.1\,C`, in as many passes: the sum is therefore float64, whatever the parameters' dtype.
Batched engines, whose margin is larger, keep a small one in float32 while they compute:
`userdp.gradients.engines.running`.)

Rounding *inside* a unit's gradient is no concern: what is clipped is the gradient as computed, and
that is a function of the unit alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from userdp.errors import UseError

CLIP_MARGIN = 1e-5
"""The clip aims at ``l2_clip_norm * (1 - CLIP_MARGIN)``. Public."""

MOST_UNITS = 200_000
"""Units in one sum for which the margin is proven to cover all rounding."""

LEAST_FACTOR = 2.0**-40
"""Smaller clip factors are not multiplied in float32: a unit that is so far over the clip norm is
computed alone, or counts as zero. In float32 such a factor times a gradient may fall below the
normal numbers, where it loses its bits: one of 2^-149 was 35% too large."""

MOST_FACTOR = 2.0**60
"""Larger ones, which only automatic clipping has, neither: times a layer's inputs they may pass
float32's end, and infinity times a gradient of 0 is NaN."""

_BLOCK = 1 << 20
_LEAST_CLIP, _MOST_CLIP = 1e-30, 1e30


def require_clip_norm(name: str, value: float) -> float:
    """``value`` if it is in [1e-30, 1e30], where the margin's derivation holds, else `UseError`."""
    if not _LEAST_CLIP <= value <= _MOST_CLIP:
        raise UseError(
            f"{name} must be finite and in [{_LEAST_CLIP:g}, {_MOST_CLIP:g}], got {value!r}; "
            "without a bound on each unit's gradient no amount of noise is enough"
        )
    return float(value)


def squared_norm(tensors: Iterable[Tensor]) -> float:
    """The sum of all squares, accumulated in float64; NaN or inf if anything is not finite.

    ``Tensor.norm`` and ``clip_grad_norm_`` are not used: in float32 on a CPU they underestimate,
    by 2.7e-3 at 3.9e7 elements.

    >>> squared_norm([torch.full((3,), 2.0**100)]) == 3 * 2.0**200  # overflows in float32
    True
    """
    totals: dict[torch.device, Tensor] = {}
    for tensor in tensors:
        nothing = torch.zeros((), dtype=torch.float64, device=tensor.device)
        _add_squares(totals.setdefault(tensor.device, nothing), tensor)
    return sum(float(total) for total in totals.values())


def squared_norms(tensors: Iterable[Tensor]) -> Tensor:
    """`squared_norm` of each tensor: float64, (tensors,), on the CPU; the device is read once.

    >>> squared_norms([torch.full((3,), 2.0), torch.zeros(0)]).tolist()
    [12.0, 0.0]
    """
    totals: list[Tensor] = []
    for tensor in tensors:
        totals.append(torch.zeros((), dtype=torch.float64, device=tensor.device))
        _add_squares(totals[-1], tensor)
    if not totals:
        return torch.zeros(0, dtype=torch.float64)
    return torch.stack([total.to(totals[0].device) for total in totals]).cpu()


def _add_squares(total: Tensor, tensor: Tensor) -> None:
    flat = tensor.detach().reshape(-1)
    for begin in range(0, flat.numel(), _BLOCK):
        wide = flat[begin : begin + _BLOCK].double()
        total += torch.dot(wide, wide)


def clip_factors(
    squared_norms: Tensor, *, l2_clip_norm: float, stability: float | None = None
) -> Tensor:
    r"""The factor of each unit: :math:`\min(1, C(1 - m) / \|g\|)`, and 0 for a non-finite unit.

    Guarantee: ``factor * norm <= l2_clip_norm * (1 - CLIP_MARGIN)`` up to the rounding that the
    margin covers. A factor of 0 means that the gradient must be left out, not multiplied:
    ``0 * inf`` is NaN.

    Args:
        squared_norms: float64, (units,); from `squared_norm`.
        l2_clip_norm: C; finite, > 0.
        stability: γ; if given, the factor is :math:`C(1 - m) / (\|g\| + \gamma)` (automatic
            clipping), which may pass 1.

    Returns:
        float64, (units,), in [0, 1] without ``stability``.

    Source: Charles et al. 2024, Algorithm 2 (clip); Bu et al. 2023, AUTO-S (``stability``).

    >>> squares = torch.tensor([0.0, 0.25, 4.0, float("nan"), float("inf")]).double()
    >>> clip_factors(squares, l2_clip_norm=1.0).tolist()
    [1.0, 1.0, 0.499995, 0.0, 0.0]
    """
    bound = require_clip_norm("l2_clip_norm", l2_clip_norm) * (1 - CLIP_MARGIN)
    if squared_norms.dtype != torch.float64:
        raise UseError(
            f"squared norms must be float64, got {squared_norms.dtype}: rounded norms under-clip"
        )
    norms = squared_norms.sqrt()
    if stability is None:
        factors = torch.where(norms <= bound, torch.ones_like(norms), bound / norms)
    else:
        factors = bound / (norms + stability)
    return torch.where(norms.isfinite(), factors, torch.zeros_like(norms))


def multiplicable(factors: Iterable[Tensor]) -> Tensor:
    """Whether all of a unit's factors may be multiplied in float32: bool, (units,).

    It depends on the unit alone, as its norm does.
    """
    several = torch.stack(list({id(one): one for one in factors}.values()))
    return ((several >= LEAST_FACTOR) & (several <= MOST_FACTOR)).all(0)
