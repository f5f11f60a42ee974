"""`transformers`' Conv1D, whose weight is transposed."""

from __future__ import annotations

import pytest
import torch
from transformers.pytorch_utils import Conv1D

from tests.gradients.rules.layers import Around, error, without_rule
from userdp.gradients.engines.following import NotCoveredError
from userdp.gradients.engines.rules import linear
from userdp.gradients.engines.uses import Form


def layer() -> Around:
    return Around(Conv1D(8, 8))


@pytest.mark.parametrize("form", [None, *Form])
def test_the_rule_gives_each_units_norm_and_clipped_gradient(form: Form | None) -> None:
    assert error(layer(), form) < 2e-5  # float64's margin; the norms agree to rounding


def test_without_the_rule_the_parameter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without_rule(monkeypatch, torch.addmm)
    with pytest.raises(NotCoveredError, match="layer"):
        error(layer())


def test_invariant_3_twin_a_turned_input_gradient_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = linear.Linear.backward

    def turned(self, saved, gradient, needed):
        to_input = honest(self, saved, gradient, needed)
        return None if to_input is None else to_input.flip(-1)

    monkeypatch.setattr(linear.Linear, "backward", turned)
    assert error(layer()) > 1e-2
