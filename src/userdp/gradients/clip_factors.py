r"""By which factor the gradient of a unit is clipped, and the `ClippedSum` that engines return.

**Per layer.** With :math:`\sum_l C_l^2 = C^2`, a public split, and each layer clipped to its own
:math:`C_l`, the unit's contribution has squared norm at most :math:`\sum_l C_l^2 = C^2`: the
sensitivity, and with it ε, is that of flat clipping at C.

**Automatic.** :math:`\|g\| \cdot C / (\|g\| + \gamma) < C` for every g: no threshold, the same
sensitivity, and small gradients keep their order because of γ.

**Forms of your own** (`noise.clip_forms.clip_form`). A form says by which factor one unit's
gradient is multiplied, given its norm and C. It sees no other unit. The factor that is used is at
most :math:`C / (\|g\| + 10^{-6})`, and 0 where the form gives no finite number of at least 0: so
the sensitivity is C whatever the form says, and ε does not depend on it.

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
`userdp.gradients.engines.rounding`.)

Rounding *inside* a unit's gradient is no concern: what is clipped is the gradient as computed, and
that is a function of the unit alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from userdp.core.errors import UseError
from userdp.core.vocabulary import require_positive
from userdp.gradients.modes import told
from userdp.noise.clip_forms import LEAST_CLIP, OWN_FORMS, ClipForm, LayerSplit, OwnForm

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
_MOST_CLIP = 1e30
_LEAST_STABILITY = 1e-6


def require_clip_norm(name: str, value: float) -> float:
    """``value`` if it is in [1e-8, 1e30], where the margin's derivation holds, else `UseError`."""
    if not LEAST_CLIP <= value <= _MOST_CLIP:
        raise UseError(
            f"{name} must be finite and in [{LEAST_CLIP:g}, {_MOST_CLIP:g}], got {value!r}; "
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
    return float(squared_norms(tensors).sum())


def squared_norms(tensors: Iterable[Tensor]) -> Tensor:
    """`squared_norm` of each tensor: float64, (tensors,), on the CPU; the device is read once.

    >>> squared_norms([torch.full((3,), 2.0), torch.zeros(0)]).tolist()
    [12.0, 0.0]
    """
    totals: list[Tensor] = []
    for tensor in tensors:
        total = torch.zeros((), dtype=torch.float64, device=tensor.device)
        flat = tensor.detach().reshape(-1)
        for begin in range(0, flat.numel(), _BLOCK):
            wide = flat[begin : begin + _BLOCK].double()
            total += torch.dot(wide, wide)
        totals.append(total.to(totals[0].device) if totals else total)
    return torch.stack(totals).cpu() if totals else torch.zeros(0, dtype=torch.float64)


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
    bound = require_positive("l2_clip_norm", l2_clip_norm) * (1 - CLIP_MARGIN)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipRule:
    """What clipping does beside its norm C, as `Clip` has checked; none of it moves ε.

    Args:
        form: see `userdp.noise.clip_forms.ClipForm`; an engine does the same for ``normalized`` as
            for ``threshold``, the division by C comes after the noise. A name that
            `userdp.noise.clip_forms.clip_form` registered is a form of somebody's own.
        stability: γ of ``automatic``; in [1e-6, 1e6].
        layer_split: clip each layer to its share of C; None clips the whole gradient.
    """

    form: ClipForm | str = ClipForm.THRESHOLD
    stability: float = 0.01
    layer_split: LayerSplit | None = None

    def factors(
        self,
        squared_norms: Mapping[str, Tensor],
        sizes: Mapping[str, int],
        *,
        l2_clip_norm: float,
    ) -> dict[str, Tensor]:
        """Each unit's factor for each parameter.

        Guarantee: a unit's gradients times their factors have norm at most ``l2_clip_norm * (1 -
        CLIP_MARGIN)``, all parameters together, up to the rounding that the margin covers. A unit
        that is not finite in any parameter has factor 0 in all.

        Args:
            squared_norms: float64, (units,), by parameter name; or (), of one unit.
            sizes: numbers in each parameter.
            l2_clip_norm: C.
        """
        total = torch.stack(list(squared_norms.values())).sum(0)
        if self.layer_split is None:
            return dict.fromkeys(squared_norms, self._factors(total, l2_clip_norm))
        norms = layer_clip_norms(sizes, l2_clip_norm=l2_clip_norm, split=self.layer_split)
        factors_by_name: dict[str, Tensor] = {}
        for layer, names in layers_of(sizes).items():
            layer_squares = torch.stack([squared_norms[name] for name in names]).sum(0)
            factors = self._factors(layer_squares, norms[layer])
            factors = torch.where(total.isfinite(), factors, torch.zeros_like(factors))
            factors_by_name |= dict.fromkeys(names, factors)
        return factors_by_name

    def _factors(self, squared_norms: Tensor, bound: float) -> Tensor:
        if not isinstance(self.form, ClipForm):
            return self._own_factors(squared_norms, bound)
        stability = self.stability if self.form is ClipForm.AUTOMATIC else None
        return clip_factors(squared_norms, l2_clip_norm=bound, stability=stability)

    def _own_factors(self, squared_norms: Tensor, bound: float) -> Tensor:
        """Of a form of somebody's own, asked of each unit alone, and held to the bound."""
        most = clip_factors(squared_norms, l2_clip_norm=bound, stability=_LEAST_STABILITY)
        form, norms = OWN_FORMS[self.form], squared_norms.sqrt().flatten().tolist()
        factors = [_own_factor(form, norm, bound) for norm in norms]
        own = torch.tensor(factors, dtype=most.dtype, device=most.device)
        return torch.minimum(most, own.view_as(most))


def _own_factor(form: OwnForm, norm: float, bound: float) -> float:
    """What a form says of one unit; 0 where that is no number that a gradient may be scaled by.

    An error of the form counts as 0 too: that it came would tell what somebody's gradient is.
    """
    if not math.isfinite(norm):
        return 0.0
    try:
        factor = float(form(norm, bound))
    except Exception:
        return 0.0
    return factor if 0 <= factor < math.inf else 0.0


FLAT = ClipRule()
"""The papers' clip: the whole gradient, to a threshold."""


def layers_of(names: Mapping[str, int]) -> dict[str, list[str]]:
    """Parameter names by layer: the module that owns them.

    >>> layers_of({"head.weight": 6, "head.bias": 2, "norm.weight": 3})
    {'head': ['head.weight', 'head.bias'], 'norm': ['norm.weight']}
    """
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    return layers


def layer_clip_norms(
    sizes: Mapping[str, int], *, l2_clip_norm: float, split: LayerSplit
) -> dict[str, float]:
    r"""Each layer's :math:`C_l`, with :math:`\sum_l C_l^2 = C^2`.

    Args:
        sizes: numbers in each parameter, by name: shapes of the model, never data.
        l2_clip_norm: C.
        split: how the squares are shared.

    Source: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models",
    Section 3 (per-layer clipping, C / √layers).

    >>> layer_clip_norms({"a.w": 9, "b.w": 16}, l2_clip_norm=5.0, split=LayerSplit.DIMENSION)
    {'a': 3.0, 'b': 4.0}
    """
    layers = layers_of(sizes)
    total = sum(sizes.values())
    if split is LayerSplit.UNIFORM:
        return dict.fromkeys(layers, l2_clip_norm / math.sqrt(len(layers)))
    return {
        layer: l2_clip_norm * math.sqrt(sum(sizes[name] for name in names) / total)
        for layer, names in layers.items()
    }


@dataclass(kw_only=True, slots=True)
class ClippedSum:
    """The sum over units of their clipped gradients, before noise.

    Guarantee: adding or removing one unit moves ``value`` by at most ``sensitivity`` in L2,
    rounding included, up to `MOST_UNITS` units.

    Attributes:
        value: float64 by trainable parameter name, each tensor once however often it is tied.
            Float64 because the rounding of the *summation* belongs to the sensitivity. (A batched
            engine may keep it in float32 while it computes: `userdp.gradients.engines.rounding`.)
            Round to the parameter's dtype only after the noise has been added: then it is
            post-processing.
        norms: float64, (units,); each unit's norm before the unit clip. Operator-only.
        losses: float64, (units,); each unit's mean loss. Operator-only.
        sensitivity: the ``l2_clip_norm`` that was asked for.
        non_finite: units that counted as zero for a NaN or infinite gradient. Operator-only.
        failed: units that counted as zero since their rows made the model or the loss raise an
            error (`losses.may_be_of_rows`); their norm and loss are NaN. Operator-only.
        halvings: how often memory ran out, and passes were halved, before this was computed anew
            (`userdp.gradients.engines.engine`). Operator-only.
        pending: numbers of units that were added before anybody knew of them, and what waits until
            the device tells; see `settle`.
    """

    value: dict[str, Tensor]
    norms: Tensor
    losses: Tensor
    sensitivity: float
    non_finite: int = 0
    failed: int = 0
    halvings: int = 0
    pending: list[tuple[list[int], Callable[[], Tensor]]] = field(default_factory=list)

    def settle_later(
        self, numbers: list[int], losses: Tensor, squares: Tensor, usable: Tensor
    ) -> None:
        """Note units of a pass that was added; the host does not wait for what they are.

        Args:
            numbers: of the units.
            losses: their mean losses, float64.
            squares: of their norms, float64.
            usable: whether each of the pass, copies too, could be added as it was.
        """
        every = torch.cat([losses, squares.sqrt(), usable.all()[None].double()])
        self.pending.append((numbers, told(every)))

    def settle(self) -> bool:
        """Take in what the device tells of the units that are pending.

        The host waits until it is known; what is left to be added may come later.

        Returns:
            Whether each of them could be added as it was. If not, this sum is worth nothing: a NaN
            times a factor of 0 is a NaN.
        """
        for numbers, arrived in self.pending:
            found = arrived()
            if not found[-1]:
                return False
            self.losses[numbers], self.norms[numbers] = found[:-1].chunk(2)
        self.pending.clear()
        return True

    def widen(self) -> None:
        """Make ``value`` float64, one parameter after another: no second copy of all lives."""
        for name, value in self.value.items():
            self.value[name] = value.double()

    def append(self, more: ClippedSum) -> None:
        """Add the sum of other units, whose norms and losses come behind those that are here."""
        for name, value in more.value.items():
            self.value[name] += value
        self.norms = torch.cat([self.norms, more.norms])
        self.losses = torch.cat([self.losses, more.losses])
        self.non_finite += more.non_finite
        self.failed += more.failed
        self.sensitivity = max(self.sensitivity, more.sensitivity)
        self.halvings += more.halvings
