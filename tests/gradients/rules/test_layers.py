"""Each layer's rule gives a unit's norm and clipped gradient; without it the parameter is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from tests.gradients.rules.layers import Around, error, without_rule
from userdp.gradients.engines.following import NotCoveredError
from userdp.gradients.engines.rules import broadcast, embedding, grams, layer_norm, linear
from userdp.gradients.engines.uses import Form

Patch = pytest.MonkeyPatch


def a_turned_input_gradient(patch: Patch) -> None:
    honest = linear.Linear.backward

    def turned(self: Any, saved: Any, gradient: Any, needed: Any) -> Any:
        to_input = honest(self, saved, gradient, needed)
        return None if to_input is None else to_input.flip(-1)

    patch.setattr(linear.Linear, "backward", turned)


def norms_too_small(patch: Patch) -> None:
    honest = embedding.Sparse.squared_norms
    patch.setattr(embedding.Sparse, "squared_norms", lambda self: 0.8 * honest(self))


def a_forgotten_bias(patch: Patch) -> None:
    honest = layer_norm._LayerNorm.backward

    def without_bias(self: Any, saved: Any, gradient: Any, needed: Any) -> Any:
        weight_only = layer_norm._LayerNorm(self.tape, (self.names[0], None), 0)
        return honest(weight_only, saved, gradient, needed)

    patch.setattr(layer_norm._LayerNorm, "backward", without_bias)


def half_a_gram_matrix(patch: Patch) -> None:
    honest = grams.gram
    patch.setattr(grams, "gram", lambda rows: 0.5 * honest(rows))
    patch.setattr(linear, "choose_form", lambda **sizes: Form.GHOST)


def half_a_gradient(patch: Patch) -> None:
    patch.setattr(broadcast, "wide", lambda gradient: 0.5 * gradient)


Make, Twin = Callable[[], nn.Module], Callable[[Patch], None]
LAYERS: dict[str, tuple[Make, Callable[..., Any], str, Twin]] = {
    "embedding": (nn.Identity, F.embedding, "table", norms_too_small),
    "linear": (lambda: nn.Linear(8, 8), F.linear, "layer", half_a_gram_matrix),
    "Conv1D": (lambda: Conv1D(8, 8), torch.addmm, "layer", a_turned_input_gradient),
    "layer norm": (lambda: nn.LayerNorm(8), F.layer_norm, "layer", a_forgotten_bias),
    "RMS norm": (lambda: nn.RMSNorm(8), F.rms_norm, "layer", half_a_gradient),
}
"""A layer, the function that has its rule, the parameter's name, and a broken twin of the rule."""


@pytest.mark.parametrize("form", [None, *Form])
@pytest.mark.parametrize("kind", LAYERS)
def test_the_rule_gives_each_units_norm_and_clipped_gradient(kind: str, form: Form | None) -> None:
    make, *_ = LAYERS[kind]
    assert error(Around(make()), form) < 2e-5  # float64's margin; the norms agree to rounding


@pytest.mark.parametrize("kind", LAYERS)
def test_without_the_rule_the_parameter_is_named(kind: str, monkeypatch: Patch) -> None:
    make, function, name, _ = LAYERS[kind]
    without_rule(monkeypatch, function)
    with pytest.raises(NotCoveredError, match=name):
        error(Around(make()))


@pytest.mark.parametrize("kind", LAYERS)
def test_invariant_3_twin_a_broken_rule_is_caught(kind: str, monkeypatch: Patch) -> None:
    make, _, _, twin = LAYERS[kind]
    twin(monkeypatch)
    assert error(Around(make())) > 1e-2
