"""Automatic and per-layer clipping: the same sensitivity, for every engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from tests.gradients.tiny import Rows, distance, largest_move, ragged, tiny
from tests.speed import fast_then_slow
from userdp.core.clip import OWN_FORMS, ClipForm, LayerSplit
from userdp.gradients import ENGINES, ClippedSum, ClipRule, Units, causal_lm_loss, clipped_sum
from userdp.gradients.clipping import CLIP_MARGIN, layers_of
from userdp.gradients.engines import get_engine
from userdp.gradients.engines.task import Task

Sum = Callable[[Units], ClippedSum]
CLIP = 0.7
RULES = {
    "automatic": ClipRule(form=ClipForm.AUTOMATIC, stability=0.05),
    "uniform": ClipRule(layer_split=LayerSplit.UNIFORM),
    "dimension": ClipRule(layer_split=LayerSplit.DIMENSION),
    "automatic by layer": ClipRule(form=ClipForm.AUTOMATIC, layer_split=LayerSplit.UNIFORM),
}


ROWS = ragged([2, 1, 3], seed=1, longest=8)


def of(name: str, model: nn.Module, rule: ClipRule, item: float | None = None) -> Sum:
    """An engine's sum by a rule."""
    limits = {"l2_clip_norm": CLIP, "rule": rule, "item_clip_norm": item}
    return partial(get_engine(name), model, causal_lm_loss, **limits)


def by_hand(model: nn.Module, units: Rows, rule: ClipRule, bound: float) -> dict[str, torch.Tensor]:
    """From unclipped gradients, by the definitions of the papers."""
    total: dict[str, torch.Tensor] = {}
    for unit in units:
        one = Units.from_rows([unit])
        free = clipped_sum(model, causal_lm_loss, one, l2_clip_norm=1e20).value
        layers = layers_of(dict.fromkeys(free, 1)) if rule.layer_split else {"all": list(free)}
        shares = {name: 1 / len(layers) for name in layers}
        if rule.layer_split is LayerSplit.DIMENSION:
            everything = sum(v.numel() for v in free.values())
            shares = {k: sum(free[n].numel() for n in ns) / everything for k, ns in layers.items()}
        for layer, names in layers.items():
            norm = math.sqrt(sum(float(free[n].square().sum()) for n in names))
            most = bound * math.sqrt(shares[layer])
            if rule.form is ClipForm.AUTOMATIC:
                factor = most / (norm + rule.stability)
            else:
                factor = min(1.0, most / norm) if norm else 1.0
            for n in names:
                total[n] = total.get(n, torch.zeros_like(free[n])) + factor * free[n]
    return total


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("family", fast_then_slow(["gpt2-tied", "llama"]))
@pytest.mark.parametrize("name", fast_then_slow(ENGINES))
def test_every_engine_clips_by_the_rule_of_the_papers(name, family, rule):
    model, units = tiny(family, torch.float64), ragged([3, 1, 2], seed=1, longest=8)
    found = of(name, model, rule)(Units.from_rows(units))
    bound = CLIP * (1 - CLIP_MARGIN)
    if name != "reference":
        whole = Units.from_rows(units)
        task = Task(model=model, loss=causal_lm_loss, units=whole, l2_clip_norm=CLIP)
        bound = task.aim * (1 - CLIP_MARGIN)
    expected = by_hand(model, units, rule, bound)
    for parameter, value in expected.items():
        torch.testing.assert_close(found.value[parameter], value, rtol=1e-5, atol=1e-6)
    assert found.sensitivity == CLIP


@pytest.mark.parametrize("item", fast_then_slow([None, 1.5]))
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("dtype", fast_then_slow([torch.float32, torch.bfloat16]))
@pytest.mark.parametrize("name", ["auto", "reference"])
def test_invariant_3_the_sensitivity_of_every_rule_is_the_clip_norm(name, dtype, rule, item):
    model = tiny("gpt2-tied", dtype)
    moved = largest_move(of(name, model, rule, item), ROWS)
    assert 0.5 * CLIP < moved <= CLIP


@pytest.mark.parametrize("split", [None, LayerSplit.UNIFORM])
@pytest.mark.parametrize("name", ["auto", "reference"])
def test_invariant_3_a_form_of_ones_own_moves_the_sum_by_at_most_the_clip_norm(
    name, split, monkeypatch
):
    """Whatever factor it gives."""
    monkeypatch.setitem(OWN_FORMS, "greedy", lambda norm, clip_norm: 1e6)
    rule = ClipRule(form="greedy", layer_split=split)
    model = tiny("gpt2-tied", torch.float32)
    moved = largest_move(of(name, model, rule), ROWS)
    assert 0.5 * CLIP < moved <= CLIP


@pytest.mark.parametrize("name", ["auto", "reference"])
def test_invariant_3_twin_each_layer_clipped_to_the_whole_norm_is_caught(name, monkeypatch):
    from userdp.gradients import clipping as rules

    def unsplit(sizes: dict[str, int], *, l2_clip_norm: float, split: LayerSplit) -> object:
        return dict.fromkeys(layers_of(sizes), l2_clip_norm)

    monkeypatch.setattr(rules, "layer_clip_norms", unsplit)
    model = tiny("gpt2-tied")
    rule = RULES["uniform"]
    assert largest_move(of(name, model, rule), ragged([2, 1], seed=1, longest=8)) > 1.2 * CLIP


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("name", ["auto", "reference"])
def test_invariant_6_a_unit_that_is_not_finite_in_one_layer_is_left_out_of_all(name, rule):
    model = tiny()

    def loss(model: nn.Module, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        hit = (input_ids == 22).any(1)
        own = model.transformer.ln_f.bias.sum()  # one layer alone gets the bad gradient
        return causal_lm_loss(model, input_ids, lengths) + torch.where(hit, math.inf, 0.0) * own

    good = [[[t % 22 for t in row] for row in unit] for unit in ragged([2, 1], seed=1, longest=8)]
    found, clean = (
        get_engine(name)(model, loss, Units.from_rows(units), l2_clip_norm=CLIP, rule=rule)
        for units in ([good[0], [[1, 22, 2]], good[1]], good)
    )
    assert found.non_finite == 1
    assert distance(found, clean) < 1e-5


@pytest.mark.parametrize("split", LayerSplit)
def test_invariant_6_the_factors_of_such_a_unit_are_zero_in_every_layer(split: LayerSplit) -> None:
    """Engines leave it out by themselves too; whoever asks for factors alone must see it here."""
    squares = {
        "head.weight": torch.tensor([4.0, math.nan, 4.0], dtype=torch.float64),
        "norm.weight": torch.tensor([9.0, 9.0, math.inf], dtype=torch.float64),
    }
    sizes = {"head.weight": 6, "norm.weight": 3}
    factors = ClipRule(layer_split=split).factors(squares, sizes, l2_clip_norm=1.0)
    for factor in factors.values():
        assert factor[0] > 0
        assert factor[1:].tolist() == [0.0, 0.0]


def test_invariant_3_the_factors_are_those_of_the_whole_gradient_or_of_each_layer() -> None:
    squares = {
        "head.weight": torch.tensor([9.0, 0.01], dtype=torch.float64),
        "norm.weight": torch.tensor([16.0, 0.01], dtype=torch.float64),
    }
    sizes, bound = {"head.weight": 6, "norm.weight": 3}, 1 - CLIP_MARGIN
    whole = ClipRule().factors(squares, sizes, l2_clip_norm=1.0)
    for factor in whole.values():
        assert factor.tolist() == pytest.approx([bound / 5, 1.0], rel=1e-12)
    split = ClipRule(layer_split=LayerSplit.UNIFORM).factors(squares, sizes, l2_clip_norm=1.0)
    share = bound / math.sqrt(2)
    assert split["head.weight"].tolist() == pytest.approx([share / 3, 1.0], rel=1e-12)
    assert split["norm.weight"].tolist() == pytest.approx([share / 4, 1.0], rel=1e-12)


@pytest.mark.parametrize("wrong", [None, math.nan, -1.0, math.inf])
def test_invariant_6_a_unit_of_which_a_form_says_no_number_is_left_out(wrong, monkeypatch):
    """An error of the form too: that it came would tell what somebody's gradient is."""

    def form(norm: float, clip_norm: float) -> float | None:
        if norm > 2:
            raise ArithmeticError("too large for this form")
        return wrong if norm > 1 else 0.5

    monkeypatch.setitem(OWN_FORMS, "moody", form)
    squares = torch.tensor([0.25, 2.25, 9.0, math.nan], dtype=torch.float64)
    factors = ClipRule(form="moody").factors({"w": squares}, {"w": 1}, l2_clip_norm=1.0)["w"]
    assert factors.tolist() == [0.5, 0.0, 0.0, 0.0]
