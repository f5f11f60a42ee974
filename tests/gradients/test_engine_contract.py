"""One contract for every engine; the oracle is the reference engine in float64.

The sharded engine holds the whole model in a world of one process here; several processes are
`test_sharded`'s.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.batches import reason_alone
from tests.gradients.campaign.measure import engine_of, prepared
from tests.gradients.tiny import (
    FAMILIES,
    VOCABULARY,
    Logits,
    Small,
    distance,
    largest_move,
    masked,
    ragged,
    tiny,
)
from tests.speed import fast_then_slow
from userdp.core.errors import UseError
from userdp.gradients import (
    ClippedSum,
    ClipRule,
    Loss,
    Units,
    causal_lm_loss,
    clip_factors,
    get_engine,
    trainable_parameters,
)
from userdp.gradients import clipped_sum as reference
from userdp.gradients.clip_factors import layers_of
from userdp.gradients.engines import ENGINES
from userdp.gradients.precision import margin
from userdp.noise.clip_forms import OWN_FORMS, ClipForm, LayerSplit

CLIP = 0.7
NAMES = fast_then_slow([*ENGINES, "sharded"], fast=2)
TINY = ["gpt2-tied", "gpt2-untied", "llama"]

AUTOMATIC, UNIFORM = ClipForm.AUTOMATIC, LayerSplit.UNIFORM
OPTIONS: dict[str, dict[str, Any]] = {
    "flat": {},
    "automatic by layer": {"rule": ClipRule(form=AUTOMATIC, layer_split=UNIFORM)},
    "small passes": {"micro_batch": 2},
    "clipped examples": {"item_clip_norm": 1.5},
    "automatic": {"rule": ClipRule(form=AUTOMATIC, stability=0.05)},
    "by layer": {"rule": ClipRule(layer_split=UNIFORM)},
    "by size": {"rule": ClipRule(layer_split=LayerSplit.DIMENSION)},
}
OWN: dict[str, dict[str, Any]] = {
    "a form of one's own": {"rule": ClipRule(form="greedy")},
    "the same by layer": {"rule": ClipRule(form="greedy", layer_split=UNIFORM)},
}
"""Without a sum to agree on: a layer's part that is all rounding is scaled up to its share of C."""


@pytest.fixture(autouse=True)
def _greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form of clipping whose factors are far too large."""
    monkeypatch.setitem(OWN_FORMS, "greedy", lambda norm, clip_norm: 1e6)


def summing(
    name: str, model: nn.Module, loss: Loss = causal_lm_loss, **options: Any
) -> Callable[[Units], ClippedSum]:
    """What computes the sum over some units by the engine of that name."""
    if name == "sharded" and "item_clip_norm" in options:
        pytest.skip("a sharded model's rows are not clipped one by one")
    options = {"l2_clip_norm": CLIP, **options}
    return partial(engine_of(name), prepared(model, name), loss, **options)


def require_equal(model: nn.Module, found: ClippedSum, exact: ClippedSum) -> None:
    torch.testing.assert_close(found.norms, exact.norms, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(found.losses, exact.losses, rtol=1e-5, atol=1e-6)
    assert list(found.value) == list(trainable_parameters(model))
    assert {v.dtype for v in found.value.values()} == {torch.float64}
    for name, value in found.value.items():
        torch.testing.assert_close(value, exact.value[name], rtol=1e-5, atol=1e-5)
    assert (found.non_finite, found.sensitivity) == (exact.non_finite, CLIP)
    assert all(p.grad is None for p in model.parameters())


def oracle(name: str, model: nn.Module, units: Units, options: dict[str, Any]) -> ClippedSum:
    """The reference in float64, clipped where the engine under test aims."""
    narrower = 0.0 if name == "reference" else margin(p.dtype for p in model.parameters())
    wide, clip = copy.deepcopy(model).double(), CLIP * (1 - narrower)
    return reference(wide, causal_lm_loss, units, l2_clip_norm=clip, **options)


@pytest.mark.parametrize("options", fast_then_slow(OPTIONS, fast=3))
@pytest.mark.parametrize("trained", fast_then_slow(["", "att"]))
@pytest.mark.parametrize("marked", fast_then_slow([True, False]))
@pytest.mark.parametrize("family", fast_then_slow(FAMILIES))
@pytest.mark.parametrize("dtype", fast_then_slow([torch.float32, torch.float64]))
@pytest.mark.parametrize("name", NAMES)
def test_norms_and_sums_agree_with_the_float64_reference_to_1e_5(
    name, dtype, family, marked, trained, options
):
    """Of ragged units, one of them empty; where a part of the model trains, of that part.

    In batches where the engine has such: there a fallback would be an error.
    """
    model, options = tiny(family, dtype), OPTIONS[options]
    for full, parameter in model.named_parameters():
        parameter.requires_grad_(trained in full)
    rows = [*ragged([3, 1, 2]), [[4]], [], [[5, 6], [7]]]
    units = masked(rows) if marked else Units.from_rows(rows)
    exact = oracle(name, model, units, options)
    require_equal(model, summing(name, model, **options)(units), exact)
    assert name != "auto" or reason_alone(model, causal_lm_loss, units, **options) is None


@pytest.mark.parametrize("options", fast_then_slow([*OPTIONS, *OWN], fast=4))
@pytest.mark.parametrize("family", fast_then_slow(TINY))
@pytest.mark.parametrize("dtype", fast_then_slow([torch.float32, torch.float64, torch.bfloat16]))
@pytest.mark.parametrize("name", NAMES)
def test_invariant_3_sensitivity_is_at_most_the_clip_norm_for_every_engine(
    name, dtype, family, options
):
    """Whatever the rule, and whatever factor a form of one's own gives."""
    if name == "sharded" and dtype == torch.bfloat16:
        pytest.skip("refused: fewer bits than float32")
    engine = summing(name, tiny(family, dtype), **{**OPTIONS, **OWN}[options])
    assert 0.5 * CLIP < largest_move(engine, ragged([2, 1, 3])) <= CLIP


def test_invariant_3_twin_each_layer_clipped_by_itself_is_caught(monkeypatch):
    engine = summing("auto", tiny(), **OPTIONS["by layer"])

    def whole_norm(sizes: dict[str, int], **how: object) -> dict[str, float]:
        return dict.fromkeys(layers_of(sizes), CLIP)

    monkeypatch.setattr(clip_factors, "layer_clip_norms", whole_norm)
    assert largest_move(engine, ragged([2, 1, 3])) > 1.2 * CLIP


@pytest.mark.parametrize("name", NAMES)
def test_invariant_3_marks_of_one_unit_move_the_sum_by_its_own_part_alone(name: str) -> None:
    """A unit leaves, and what is left is the others' sum: nobody is normalised by its marks."""
    whole = masked(ragged([2, 3, 2], seed=4), seed=5)
    # The clip never bites, so that any coupling would show.
    engine = summing(name, tiny("gpt2-tied", torch.float64), l2_clip_norm=1e4)
    alone = [engine(whole.select(k, k + 1)) for k in range(3)]
    for parameter, value in engine(whole).value.items():
        parts = torch.stack([one.value[parameter] for one in alone]).sum(0)
        torch.testing.assert_close(value, parts, rtol=1e-6, atol=1e-9)


@pytest.mark.pitfall(number=17)
@pytest.mark.parametrize("name", NAMES)
def test_an_empty_cohort_and_units_without_rows_add_nothing(name):
    engine = summing(name, tiny())
    for rows in ([], [[], [[]], [[3]]]):
        found = engine(Units.from_rows(rows))
        assert not any(v.any() for v in found.value.values())
        assert found.norms.shape == (len(rows),)
        assert bool((found.norms < 1e-12).all())


POISON, BEYOND = VOCABULARY - 1, VOCABULARY + 5
"""A token of the model that no good row has here; and one that the model has not."""
RAISE = {"an unknown token": [[3, BEYOND, 4]], "an error": [[7, 7, 3]]}
"""In batches as alone, an IndexError; and an error of a loss that looks at tokens. Either stops a
sharded step; a unit that is not finite there is `test_sharded`'s."""


@pytest.mark.parametrize("options", fast_then_slow([*OPTIONS, *OWN], fast=2))
@pytest.mark.parametrize(
    "kind", fast_then_slow(["one layer", *RAISE, math.nan, math.inf, 3e38], fast=3)
)
@pytest.mark.parametrize("name", ENGINES)
def test_invariant_6_and_invariant_9_a_unit_not_finite_or_in_error_adds_zero_and_hurts_nobody_else(
    name, kind, options
):
    """Of a unit that is not finite in one layer, the others are left out too."""

    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        if kind == "an error" and bool((input_ids[:, :2] == 7).all(1).any()):
            raise ValueError("two sevens")
        hit, losses = (input_ids == POISON).any(1), causal_lm_loss(model, input_ids, lengths)
        if kind == "one layer":
            return losses + torch.where(hit, math.inf, 0.0) * model.transformer.ln_f.bias.sum()
        return losses * torch.where(hit, 1.0 if kind in RAISE else kind, 1.0)

    one, two, three = ragged([2, 3, 1], vocabulary=POISON)
    bad = RAISE.get(kind, [[POISON, POISON], [1, POISON]])  # whose gradient is above 1
    engine = summing(name, tiny(), loss, l2_clip_norm=1.0, **{**OPTIONS, **OWN}[options])
    without, mixed = (
        engine(Units.from_rows(rows)) for rows in ([one, two, three], [one, two, bad, three, bad])
    )
    assert (without.non_finite, without.failed) == (0, 0)
    assert (mixed.non_finite, mixed.failed) == ((0, 2) if kind in RAISE else (2, 0))
    assert mixed.norms.isfinite().tolist() == [True, True, False, True, False]
    assert distance(without, mixed) < 1e-5


@pytest.mark.parametrize("name", ENGINES)
def test_invariant_9_under_dropout_too_a_user_whose_rows_raise_costs_nobody_elses_part(name: str):
    rows = [*ragged([1, 2]), RAISE["an unknown token"], *ragged([1, 1])]
    found = summing(name, tiny(dropout=0.1))(Units.from_rows(rows))
    assert found.failed == 1
    assert bool((found.norms[[0, 1, 3, 4]] > 0).all())


@pytest.mark.parametrize("name", NAMES)
def test_an_error_on_made_up_rows_is_the_codes_own_and_comes_out_as_it_is(name: str) -> None:
    def broken(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        raise ValueError("always")

    with pytest.raises(ValueError, match="always"):
        summing(name, tiny(), broken)(Units.from_rows(ragged([1, 1])))


def autocast_left_on(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    torch.set_autocast_enabled("cpu", True)
    return causal_lm_loss(model, input_ids, lengths)


@pytest.mark.parametrize("name", NAMES)
def test_invariant_3_an_autocast_around_the_engine_or_left_on_by_the_loss_is_refused(name: str):
    """Norms and sums would be computed in fewer bits; the twin is in `test_sensitivity`."""
    units = Units.from_rows(ragged([1, 1]))
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(UseError, match=r"around a private gradient.*fewer bits"),
    ):
        summing(name, tiny())(units)
    try:
        with pytest.raises(UseError, match=r"autocast|fewer bits"):
            summing(name, tiny(), autocast_left_on)(units)
    finally:
        torch.set_autocast_enabled("cpu", False)


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_over_a_compiled_model_gives_the_plain_models_sum(name: str) -> None:
    """Compiled code would lose gradients, or round by who came before: none of it runs."""
    torch._dynamo.reset()
    plain = Small(
        lambda m, tokens, x: Logits(m.head(m.norm(m.hidden(x).tanh()))),
        hidden=lambda: nn.Linear(6, 6), norm=lambda: nn.LayerNorm(6),
        head=lambda: nn.Linear(6, VOCABULARY),
    )  # fmt: skip
    units = Units.from_rows(ragged([2, 1, 1]))
    exact = oracle(name, plain, units, {})
    compiled: Any = torch.compile(plain, backend="eager")  # traced, without code generation
    for _ in range(2):
        found = get_engine(name)(compiled, causal_lm_loss, units, l2_clip_norm=CLIP)
        found.value = {n.removeprefix("_orig_mod."): v for n, v in found.value.items()}
        require_equal(plain, found, exact)
        causal_lm_loss(compiled, units.input_ids, units.lengths).sum().backward()
        plain.zero_grad()  # compiled by now
    torch._dynamo.reset()
