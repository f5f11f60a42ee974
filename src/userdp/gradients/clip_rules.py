r"""How a unit's gradient is made to have norm at most C: which form, over which layers.

**Per layer.** With :math:`\sum_l C_l^2 = C^2`, a public split, and each layer clipped to its own
:math:`C_l`, the unit's contribution has squared norm at most :math:`\sum_l C_l^2 = C^2`: the
sensitivity, and with it ε, is that of flat clipping at C.

**Automatic.** :math:`\|g\| \cdot C / (\|g\| + \gamma) < C` for every g: no threshold, the same
sensitivity, and small gradients keep their order because of γ.

**Forms of your own** (`userdp.clip.clip_form`). A form says by which factor one unit's gradient is
multiplied, given its norm and C. It sees no other unit. The factor that is used is at most
:math:`C / (\|g\| + 10^{-6})`, and 0 where the form gives no finite number of at least 0: so the
sensitivity is C whatever the form says, and ε does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from userdp.clip import OWN_FORMS, ClipForm, LayerSplit, OwnForm, require_form
from userdp.errors import UseError
from userdp.gradients.clipping import clip_factors

_LEAST_STABILITY, _MOST_STABILITY = 1e-6, 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipRule:
    """What clipping does beside its norm C; public constants, none of which moves ε.

    Args:
        form: see `userdp.clip.ClipForm`; an engine does the same for ``normalized`` as for
            ``threshold``, the division by C comes after the noise. A name that
            `userdp.clip.clip_form` registered is a form of somebody's own.
        stability: γ of ``automatic``; in [1e-6, 1e6].
        layer_split: clip each layer to its share of C; None clips the whole gradient.
    """

    form: ClipForm | str = ClipForm.THRESHOLD
    stability: float = 0.01
    layer_split: LayerSplit | None = None

    def __post_init__(self) -> None:
        if not _LEAST_STABILITY <= self.stability <= _MOST_STABILITY:
            raise UseError(
                f"the stability constant must be in [{_LEAST_STABILITY:g}, {_MOST_STABILITY:g}], "
                f"got {self.stability!r}"
            )
        require_form(self.form)

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
            whole = self._factors(total, l2_clip_norm)
            return dict.fromkeys(squared_norms, whole)
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
        stability = self.stability if self.form.stabilized else None
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
