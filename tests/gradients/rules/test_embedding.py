"""Embeddings: sums by unit and token."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch import nn

from tests.gradients.rules.layers import Around, error, without_rule
from userdp.gradients.engines.following import NotCoveredError
from userdp.gradients.engines.rules import embedding
from userdp.gradients.engines.uses import Form


def layer() -> Around:
    return Around(nn.Identity())


@pytest.mark.parametrize("form", [None, *Form])
def test_the_rule_gives_each_units_norm_and_clipped_gradient(form: Form | None) -> None:
    assert error(layer(), form) < 2e-5  # float64's margin; the norms agree to rounding


def test_without_the_rule_the_parameter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without_rule(monkeypatch, F.embedding)
    with pytest.raises(NotCoveredError, match="table"):
        error(layer())


def test_invariant_3_twin_norms_too_small_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = embedding.Sparse.squared_norms
    monkeypatch.setattr(embedding.Sparse, "squared_norms", lambda self: 0.8 * honest(self))
    assert error(layer()) > 1e-2
