"""Passes that are queued before anybody knows of the last one, as on an accelerator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.gpu.reads import counted
from userdp.gradients import Units, causal_lm_loss, get_engine
from userdp.gradients.engines import batched, choice
from userdp.gradients.model_randomness import secret_randomness
from userdp.gradients.sums import ClippedSum

CLIP = 0.3


@pytest.fixture(autouse=True)
def ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Ahead on the CPU too; called with False: not."""
    there, seen = [True], list[bool]()

    class Passes(batched.Passes):
        def __init__(self, task: Any, *given: Any, **options: Any) -> None:
            seen.append(task.ahead)
            super().__init__(task, *given, **options)

    def be(ahead: bool) -> None:
        there[0] = ahead

    monkeypatch.setattr(batched, "Passes", Passes)
    monkeypatch.setattr(choice, "tries", lambda device: (True, False) if there[0] else (False,))
    be.passes = seen  # type: ignore[attr-defined]
    return be


@pytest.fixture
def passes(ahead: Any) -> list[bool]:
    """Of each sum over passes, whether it was ahead."""
    found: list[bool] = ahead.passes
    return found


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
    units = Units.from_rows(make_rows([1, 2, 1, 1]), width=16)
    assert int(units.lengths.min()) >= 3
    units.input_ids[:, 0] = torch.arange(len(units.lengths))
    return units


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_sum_is_that_of_passes_that_are_waited_for(
    make_model, make_rows, passes, ahead, dropout
) -> None:
    model = dropping(make_model("gpt2-tied"), dropout)
    units = Units.from_rows(make_rows([1, 2, 1, 1]), width=16)
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


def test_the_host_waits_no_more_often_for_more_passes(make_model, make_rows, ahead) -> None:
    """But on a CPU for the tokens of each pass, whose pairs are counted there."""
    model = make_model("gpt2-tied")
    model.transformer.wte.weight.requires_grad_(False)
    model.transformer.wpe.weight.requires_grad_(False)

    def reads(units: int) -> int:
        rows = Units.from_rows(make_rows([1] * units), width=16)
        total(model, rows)
        with counted() as found:
            total(model, rows)
        return found.count

    more = reads(12) - reads(4)
    ahead(False)
    assert more < reads(12) - reads(4)
