"""Linear layers: formed gradients and Gram matrices."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch import nn

from tests.gradients.rules.layers import Around, error, without_rule
from userdp.gradients.engines.following import NotCoveredError
from userdp.gradients.engines.rules import grams, linear
from userdp.gradients.engines.uses import Form


def layer() -> Around:
    return Around(nn.Linear(8, 8))


@pytest.mark.parametrize("form", [None, *Form])
def test_the_rule_gives_each_units_norm_and_clipped_gradient(form: Form | None) -> None:
    assert error(layer(), form) < 2e-5  # float64's margin; the norms agree to rounding


def test_without_the_rule_the_parameter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without_rule(monkeypatch, F.linear)
    with pytest.raises(NotCoveredError, match="layer"):
        error(layer())


def test_invariant_3_twin_half_a_gram_matrix_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = grams.gram
    monkeypatch.setattr(grams, "gram", lambda rows: 0.5 * honest(rows))
    monkeypatch.setattr(linear, "choose_form", lambda **sizes: Form.GHOST)
    assert error(layer()) > 1e-2
