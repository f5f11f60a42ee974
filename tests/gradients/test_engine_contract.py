"""One contract for every engine; the oracle is the reference engine in float64."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.batches import batched_sum
from tests.gradients.campaign import families
from tests.gradients.tiny import VOCABULARY, distance, largest_move, ragged, tiny
from tests.speed import fast_then_slow
from userdp.core.clip import ClipForm
from userdp.gradients import ClippedSum, ClipRule, Units, causal_lm_loss, trainable_parameters
from userdp.gradients import clipped_sum as reference
from userdp.gradients.engines import ENGINES, get_engine
from userdp.gradients.engines.uses import Form
from userdp.gradients.precision import margin

CLIP = 0.7
EXACT = ["gpt2", "gpt_neox", "opt", "bloom", "phi"]
"""The norms of the other families round to float32 inside."""
FAMILIES = [*EXACT, "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2"]


def aim(model: nn.Module) -> float:
    return CLIP * (1 - margin(p.dtype for p in model.parameters()))


def require_equal(
    model: nn.Module, found: ClippedSum, exact: ClippedSum, *, close: float = 1e-5
) -> None:
    torch.testing.assert_close(found.norms, exact.norms, rtol=close, atol=close * 1e-3)
    torch.testing.assert_close(found.losses, exact.losses, rtol=1e-5, atol=1e-6)
    assert list(found.value) == list(trainable_parameters(model))
    assert {v.dtype for v in found.value.values()} == {torch.float64}
    for name, value in found.value.items():
        torch.testing.assert_close(value, exact.value[name], rtol=close, atol=close)
    assert (found.non_finite, found.sensitivity) == (exact.non_finite, CLIP)


def oracle(
    model: nn.Module, units: Units, item: float | None = None, clip: float | None = None
) -> ClippedSum:
    """The reference in float64, clipped where the engine under test aims."""
    wide, clip = copy.deepcopy(model).double(), clip or aim(model)
    return reference(wide, causal_lm_loss, units, l2_clip_norm=clip, item_clip_norm=item)


@pytest.mark.parametrize("family", fast_then_slow(FAMILIES))
@pytest.mark.parametrize("form", fast_then_slow([None, *Form]))
def test_batches_agree_with_the_reference_for_every_family(family, form):
    """Here a fallback would be an error."""
    model = families.build(family).double()
    for sizes in ([3, 1, 2], [2, 2]):
        units = Units.from_rows(ragged(sizes))
        for item in (None, 1.5):
            limits = {"l2_clip_norm": CLIP, "item_clip_norm": item}
            found = batched_sum(model, causal_lm_loss, units, form=form, **limits)
            close = 1e-11 if family in EXACT else 1e-5
            require_equal(model, found, oracle(model, units, item), close=close)


@pytest.mark.parametrize("family", fast_then_slow(["gpt2-tied", "gpt2-untied", "llama"]))
@pytest.mark.parametrize("dtype", fast_then_slow([torch.float32, torch.float64]))
@pytest.mark.parametrize("name", ENGINES)
def test_norms_agree_with_the_float64_reference_to_1e_5(name, dtype, family):
    model = tiny(family, dtype)
    units = Units.from_rows([*ragged([3, 1, 2]), [[4]], [], [[5, 6], [7]]])
    exact = oracle(model, units, clip=CLIP if name == "reference" else None)
    for rows in (32, 3):
        limits = {"l2_clip_norm": CLIP, "micro_batch": rows}
        found = get_engine(name)(model, causal_lm_loss, units, **limits)
        require_equal(model, found, exact)


@pytest.mark.parametrize(
    ("micro_batch", "item"), fast_then_slow([(2, None), (32, None), (32, 1.5)])
)
@pytest.mark.parametrize("family", fast_then_slow(["gpt2-tied", "gpt2-untied", "llama"]))
@pytest.mark.parametrize("dtype", fast_then_slow([torch.float32, torch.float64, torch.bfloat16]))
@pytest.mark.parametrize("name", ENGINES)
def test_invariant_3_sensitivity_is_at_most_the_clip_norm_for_every_engine(
    name, dtype, family, micro_batch, item
):
    limits = {"l2_clip_norm": CLIP, "item_clip_norm": item, "micro_batch": micro_batch}
    engine = partial(get_engine(name), tiny(family, dtype), causal_lm_loss, **limits)
    assert 0.9 * CLIP < largest_move(engine, ragged([2, 1, 3])) <= CLIP


@pytest.mark.parametrize("name", ENGINES)
def test_an_empty_cohort_and_units_without_rows_add_nothing(name):
    for rows in ([], [[], [[]], [[3]]]):
        found = get_engine(name)(tiny(), causal_lm_loss, Units.from_rows(rows), l2_clip_norm=1.0)
        assert not any(v.any() for v in found.value.values())
        assert found.norms.shape == (len(rows),)
        assert bool((found.norms < 1e-12).all())


def test_invariant_6_a_gradient_of_nothing_times_a_huge_factor_is_nothing():
    """As automatic clipping asks for at the largest clip norm; infinity times 0 would be NaN."""
    torch.manual_seed(0)
    table, out = nn.Embedding(8, 20), nn.Linear(20, 20)
    table.weight.requires_grad_(False)
    table.weight.mul_(1000)

    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        return torch.tanh(model(input_ids)[:, 0] / 1000).mean(1) * (input_ids[:, 0] != 3)

    model = nn.Sequential(table, out)
    units = Units.from_rows([[[1, 2], [4, 5]], [[3, 3]], [[5, 6], [1, 1]]])
    rule = ClipRule(form=ClipForm.AUTOMATIC, stability=1e-6)
    for clip in (1e20, 1e30):
        found = get_engine("auto")(model, loss, units, l2_clip_norm=clip, rule=rule)
        assert all(bool(value.isfinite().all()) for value in found.value.values())


@pytest.mark.parametrize("value", fast_then_slow([math.nan, math.inf, 3e38]))
@pytest.mark.parametrize("item", fast_then_slow([None, 0.5]))
@pytest.mark.parametrize("name", ENGINES)
def test_invariant_6_a_non_finite_unit_adds_zero_and_hurts_nobody_else(name, item, value):
    model, poison = tiny(), VOCABULARY - 1

    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        hit = (input_ids == poison).any(1)
        return causal_lm_loss(model, input_ids, lengths) * torch.where(hit, value, 1.0)

    one, two, three = ragged([2, 3, 1], vocabulary=poison)
    bad = [[3, 4, 5], [1, poison, 2]]
    limits = {"l2_clip_norm": 1.0, "item_clip_norm": item}
    without, mixed = (
        get_engine(name)(model, loss, Units.from_rows(rows), **limits)
        for rows in ([one, two, three], [one, two, bad, three, bad])
    )
    assert (without.non_finite, mixed.non_finite) == (0, 2)
    assert distance(without, mixed) < 1e-5


@pytest.mark.parametrize("name", ENGINES)
def test_frozen_parts_are_left_out_and_grad_is_left_alone(name):
    model = tiny("llama")
    for full, parameter in model.named_parameters():
        parameter.requires_grad_("q_proj" in full or full.endswith("norm.weight"))
    units = Units.from_rows(ragged([2, 1]))
    found = get_engine(name)(model, causal_lm_loss, units, l2_clip_norm=CLIP)
    if name == "auto":
        require_equal(model, found, oracle(model, units))
    assert all("q_proj" in n or n.endswith("norm.weight") for n in found.value)
    assert all(p.grad is None for p in model.parameters())
