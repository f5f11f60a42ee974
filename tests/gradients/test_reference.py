"""The reference engine against independent oracles, and what it leaves alone."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.batches import batched_sum
from tests.gradients.tiny import FAMILIES, Table, length, ragged, table_loss, tiny
from tests.speed import fast_then_slow
from userdp.core.errors import UseError
from userdp.gradients import (
    CLIP_MARGIN,
    ClipRule,
    Units,
    causal_lm_loss,
    clipped_sum,
    trainable_parameters,
)
from userdp.gradients.clip_factors import FLAT, layers_of
from userdp.noise.clip_forms import ClipForm, LayerSplit


def row_gradient(model: nn.Module, row: list[int]) -> dict[str, Tensor]:
    """One row's gradient by ``backward`` on a copy, from unpadded logits: an independent oracle."""
    twin = copy.deepcopy(model)
    if len(row) > 1:
        logs = torch.log_softmax(twin(input_ids=torch.tensor([row[:-1]])).logits[0], -1)
        (-logs[torch.arange(len(row) - 1), torch.tensor(row[1:])].mean()).backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in twin.named_parameters()
    }


def clipped(gradient: dict[str, Tensor], bound: float, rule: ClipRule = FLAT) -> dict[str, Tensor]:
    """By the definitions of the papers."""
    layers = layers_of(dict.fromkeys(gradient, 1)) if rule.layer_split else {"": list(gradient)}
    sizes = {layer: sum(gradient[n].numel() for n in names) for layer, names in layers.items()}
    found = {}
    for layer, names in layers.items():
        by_size = rule.layer_split is LayerSplit.DIMENSION
        share = sizes[layer] / sum(sizes.values()) if by_size else 1 / len(layers)
        most = bound * (1 - CLIP_MARGIN) * math.sqrt(share)
        norm = length({n: gradient[n] for n in names})
        if rule.form is ClipForm.AUTOMATIC:
            factor = most / (norm + rule.stability)
        else:
            factor = min(1.0, most / norm) if norm else 1.0
        found |= {n: gradient[n] * factor for n in names}
    return {name: found[name] for name in gradient}


def added(gradients: list[dict[str, Tensor]], weight: float) -> dict[str, Tensor]:
    return {
        name: torch.stack([gradient[name] for gradient in gradients]).sum(0) * weight
        for name in gradients[0]
    }


UNIFORM, BY_SIZE = (ClipRule(layer_split=split) for split in LayerSplit)
AUTOMATIC = ClipRule(form=ClipForm.AUTOMATIC, stability=0.05)
BOTH = ClipRule(form=ClipForm.AUTOMATIC, layer_split=LayerSplit.UNIFORM)


@pytest.mark.parametrize(
    ("rule", "item_clip_norm"),
    [(FLAT, None), (FLAT, 1.5), (UNIFORM, None), (BY_SIZE, 1.5), (AUTOMATIC, None), (BOTH, None)],
)
@pytest.mark.parametrize("family", fast_then_slow(FAMILIES))
def test_the_sum_is_algorithm_2_of_charles_et_al_row_by_row(family, rule, item_clip_norm):
    # RMSNorm rounds to float32 inside, whatever the dtype of the model.
    exact = 1e-6 if family in ("llama", "qwen2") else 1e-10
    model = tiny(family, torch.float64)
    rows, means = [*ragged([3, 1, 2]), [[4]], [[5, 6], [7]]], []
    for unit in rows:
        gradients = [row_gradient(model, row) for row in unit]
        if item_clip_norm is not None:
            gradients = [clipped(g, item_clip_norm) for g in gradients]
        means.append(added(gradients, 1 / len(unit)))
    expected = added([clipped(mean, 1.0, rule) for mean in means], 1)
    norms = torch.tensor([length(mean) for mean in means], dtype=torch.float64)
    for micro_batch in (1, 2, 32):
        limits = {"item_clip_norm": item_clip_norm, "micro_batch": micro_batch, "rule": rule}
        units = Units.from_rows(rows)
        result = clipped_sum(model, causal_lm_loss, units, l2_clip_norm=1.0, **limits)
        assert list(result.value) == list(trainable_parameters(model))
        for name, value in result.value.items():
            torch.testing.assert_close(value, expected[name], rtol=exact, atol=exact)
        torch.testing.assert_close(result.norms, norms, rtol=exact, atol=exact)
        assert (result.non_finite, result.sensitivity) == (0, 1.0)


@pytest.mark.parametrize("training", [True, False])
def test_the_call_leaves_mode_grad_and_weights_untouched(training: bool) -> None:
    model = tiny().train(training)
    first = next(model.parameters())
    first.grad = torch.full_like(first, 3.0)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():  # gradients are computed all the same
        result = clipped_sum(model, causal_lm_loss, Units.from_rows(ragged([2])), l2_clip_norm=1.0)
    assert result.norms[0] > 0
    assert model.training == training
    assert torch.equal(first.grad, torch.full_like(first, 3.0))
    assert all(p.grad is None for p in list(model.parameters())[1:])
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("sum_of", [clipped_sum, batched_sum])
def test_invariant_3_twin_a_loss_over_the_batch_is_refused(sum_of):
    def batch_mean(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        return causal_lm_loss(model, input_ids, lengths).mean()

    with pytest.raises(UseError, match="one number per row"):
        sum_of(tiny(), batch_mean, Units.from_rows(ragged([2])), l2_clip_norm=1.0)


def test_invariant_6_rows_that_cancel_to_something_finite_still_count_as_non_finite() -> None:
    """Each row overflows float64 when squared; their mean would be an innocent zero."""
    model = Table(torch.tensor([[1e200], [-1e200]], dtype=torch.float64))
    limits = {"l2_clip_norm": 1.0, "item_clip_norm": 1.0}
    result = clipped_sum(model, table_loss, Units.from_rows([[[0], [1]]]), **limits)
    assert result.non_finite == 1
    assert result.value["weight"].tolist() == [0.0]
