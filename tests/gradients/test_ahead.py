"""Passes that are queued before anybody knows of the last one, as on an accelerator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.gpu.reads import counted
from userdp.gradients import Units, causal_lm_loss, get_engine
from userdp.gradients.engines import agreement, choice, one_pass
from userdp.gradients.model_randomness import secret_randomness
from userdp.gradients.sums import ClippedSum

CLIP = 0.3


@pytest.fixture(autouse=True)
def ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Ahead on the CPU too; called with False: not."""

    def be(there: bool) -> None:
        monkeypatch.setattr(choice, "_runs_ahead", lambda task: there)

    be(True)
    return be


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each sum over passes, whether it was ahead."""
    seen: list[bool] = []
    honest = batched.sum_of_passes

    def sum_of_passes(task: Any, **options: Any) -> ClippedSum:
        seen.append(task.ahead)
        return honest(task, **options)

    monkeypatch.setitem(choice._BATCHED, "bookkeeping", sum_of_passes)
    return seen


def total(model: nn.Module, units: Units, loss: Any = causal_lm_loss, **options: Any) -> ClippedSum:
    with secret_randomness("a test"):
        engine = get_engine("auto")
        return engine(model, loss, units, l2_clip_norm=CLIP, micro_batch=2, **options)


def same(one: ClippedSum, other: ClippedSum) -> bool:
    return (
        all(torch.equal(value, other.value[name]) for name, value in one.value.items())
        and torch.equal(one.norms.nan_to_num(-1), other.norms.nan_to_num(-1))
        and torch.equal(one.losses.nan_to_num(-1), other.losses.nan_to_num(-1))
        and one.non_finite == other.non_finite
    )


def dropping(model: nn.Module, rate: float) -> nn.Module:
    """``model`` with this rate of dropout."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
    return model.train()


def infinite(row: Tensor) -> Any:
    """A loss that is infinite on rows that begin as ``row`` does; made-up ones do not."""
    one, two, three = row[:3].tolist()

    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        losses = causal_lm_loss(model, input_ids, lengths)
        begins = (input_ids[:, 0] == one) & (input_ids[:, 1] == two) & (input_ids[:, 2] == three)
        return losses * torch.where(begins, torch.inf, 1.0)

    return loss


def distinct(make_rows: Any) -> Units:
    """Units whose first tokens differ."""
    units = Units.from_rows(make_rows([1, 2, 1, 1]))
    assert int(units.lengths.min()) >= 3
    units.input_ids[:, 0] = torch.arange(len(units.lengths))
    return units


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_sum_is_that_of_passes_that_are_waited_for(
    make_model, make_rows, passes, ahead, dropout
) -> None:
    model = dropping(make_model("gpt2-tied"), dropout)
    units = Units.from_rows(make_rows([1, 2, 1, 1]))
    total(model, units)  # what is asked once draws numbers once
    passes.clear()
    found = total(model, units)
    ahead(False)
    assert same(found, total(model, units))
    assert passes == [True, False]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_unit_that_is_not_finite_has_the_sum_computed_anew(
    make_model, make_rows, passes, ahead, dropout
) -> None:
    """Under the same masks of everybody, so that nothing is chosen by who could be added."""
    model = dropping(make_model("gpt2-tied"), dropout)
    units = distinct(make_rows)
    loss = infinite(units.input_ids[0])
    total(model, units, loss)
    passes.clear()
    found = total(model, units, loss)
    assert passes == [True, False]
    assert all(bool(value.isfinite().all()) for value in found.value.values())
    ahead(False)
    expected = total(model, units, loss)
    assert expected.non_finite == 1
    assert same(found, expected)


def test_twin_a_sum_that_nobody_asks_carries_what_is_not_finite(
    make_model, make_rows, monkeypatch
) -> None:
    units = distinct(make_rows)
    monkeypatch.setattr(ClippedSum, "settle", lambda self: True)
    found = total(make_model("gpt2-tied"), units, infinite(units.input_ids[0]))
    assert not all(bool(value.isfinite().all()) for value in found.value.values())


def grown(model: nn.Module) -> None:
    """Make a weight so much larger that the engines are asked anew whether they agree."""
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight.mul_(4)


def test_weights_that_have_grown_have_the_sum_computed_anew(
    make_model, make_rows, passes, ahead, monkeypatch
) -> None:
    model, units = make_model("gpt2-tied"), distinct(make_rows)
    total(model, units)
    grown(model)
    passes.clear()
    asked, honest = [], agreement._agrees
    monkeypatch.setattr(agreement, "_agrees", lambda *a: asked.append(a) or honest(*a))
    found = total(model, units)
    assert passes == [True, False]
    assert asked
    ahead(False)
    assert same(found, total(model, units))


def test_what_grown_weights_no_longer_allow_is_not_taken(
    make_model, make_rows, passes, monkeypatch
) -> None:
    """The engines do not agree any more: each unit is computed alone."""
    model, units = make_model("gpt2-tied"), distinct(make_rows)
    total(model, units)
    monkeypatch.setattr(agreement, "_agrees", lambda *given: False)
    passes.clear()
    total(model, units)
    assert passes == [True]  # it is remembered
    grown(model)
    passes.clear()
    alone = total(model, units)
    assert passes == [True]
    expected = get_engine("reference")(model, causal_lm_loss, units, l2_clip_norm=CLIP)
    assert torch.allclose(alone.norms, expected.norms, rtol=1e-9)


def test_twin_a_question_that_nobody_answers_lets_grown_weights_pass(
    make_model, make_rows, passes, monkeypatch
) -> None:
    model, units = make_model("gpt2-tied"), distinct(make_rows)
    total(model, units)
    monkeypatch.setattr(agreement, "_agrees", lambda *given: False)
    monkeypatch.setattr(agreement, "_alike", lambda *given: True)
    grown(model)
    passes.clear()
    found = total(model, units)
    assert passes == [True]
    expected = get_engine("reference")(model, causal_lm_loss, units, l2_clip_norm=CLIP)
    assert not torch.allclose(found.norms, expected.norms, rtol=1e-9)


def test_the_host_waits_no_more_often_for_more_passes(make_model, make_rows, ahead) -> None:
    """But on a CPU for the tokens of each pass, whose pairs are counted there."""
    model = make_model("gpt2-tied")
    model.transformer.wte.weight.requires_grad_(False)
    model.transformer.wpe.weight.requires_grad_(False)

    def reads(units: int) -> int:
        rows = Units.from_rows(make_rows([1] * units))
        total(model, rows)
        with counted() as found:
            total(model, rows)
        return found.count

    more = reads(12) - reads(4)
    ahead(False)
    assert more < reads(12) - reads(4)
