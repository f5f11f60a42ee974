"""The question before the first step: each layer in either form, and no memory that steps lack."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.passes import passes_of
from tests.gradients.tiny import row_squares
from userdp.gradients import Units, trainable_parameters
from userdp.gradients.engines import choice, passes
from userdp.gradients.engines.batched import sum_of_passes
from userdp.gradients.engines.rules import linear
from userdp.gradients.engines.task import Task
from userdp.gradients.engines.uses import Form

SIDES = [(6, 10), (10, 7), (7, 13)]
"""Of the layers below: no two parameters have the same shape."""


class Layers(nn.Module):
    """An embedding and three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(13, SIDES[0][0])
        self.layers = nn.ModuleList(nn.Linear(p, q) for p, q in SIDES)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.table

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        values = self.table(input_ids)
        for layer in self.layers:
            values = layer(values).tanh()
        return values


def agrees(model: nn.Module, **how: Any) -> bool:
    task = Task(model=model, loss=row_squares, units=Units.from_rows([[[1]]]), l2_clip_norm=1.0)
    return choice.disagreement(task, **how) is None


def wrong_gram_matrices(patch: pytest.MonkeyPatch, sides: set[int]) -> None:
    right = linear.Ghost.squared_norms

    def wrong(use: linear.Ghost) -> Tensor:
        here = {use.left.shape[-1], use.right.shape[-1]} == sides
        return right(use) * (0.99 if here else 1.0)

    patch.setattr(linear.Ghost, "squared_norms", wrong)


def wrong_gradients(patch: pytest.MonkeyPatch, sides: set[int]) -> None:
    right = linear.form_gradients

    def wrong(left: Tensor, other: Tensor, out: Tensor | None = None) -> Tensor:
        here = {left.shape[-1], other.shape[-1]} == sides
        return right(left, other, out).mul_(1.01 if here else 1.0)

    patch.setattr(linear, "form_gradients", wrong)


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("twin", [wrong_gram_matrices, wrong_gradients])
def test_twin_either_form_of_one_layer_that_is_wrong_is_noticed(monkeypatch, twin, sides):
    assert agrees(Layers())
    twin(monkeypatch, set(sides))
    assert not agrees(Layers())


def test_each_parameter_is_asked_of_in_both_forms_and_about_half_at_a_time():
    parameters = trainable_parameters(Layers())
    first, second = choice.both_forms(parameters)
    assert set(first) == set(second) == set(parameters)
    assert all({first[name], second[name]} == set(Form) for name in parameters)
    formed = [
        sum(p.numel() for name, p in parameters.items() if form[name] is Form.FORMED)
        for form in (first, second)
    ]
    assert max(formed) <= 0.6 * sum(p.numel() for p in parameters.values())


def test_the_question_holds_one_sum_at_a_time():
    """Each is as large as the model, or twice that."""
    kept, alive = [], []

    def watched(*given: Any, **options: Any) -> Any:
        alive.append(sum(value() is not None for value in kept))
        found = sum_of_passes(*given, **options)
        kept.extend(weakref.ref(value) for value in found.value.values())
        return found

    assert agrees(Layers(), sums=watched)
    assert len(alive) == 4  # of two shapes, in two forms
    assert not any(alive)


def test_memory_for_what_is_formed_grows_with_a_model_of_which_little_trains(monkeypatch):
    """Else a large model's adapters would be trained in passes too small for an accelerator."""
    monkeypatch.setattr(passes, "FORMED_BYTES", 0)
    model = Layers()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == "layers.0.bias")
    units = Units.from_rows([[[1, 2]]] * 400)
    task = Task(model=model, loss=row_squares, units=units, l2_clip_norm=1.0)
    numbers = sum(p.numel() for p in model.parameters())
    first, *_ = passes_of(task.but(micro_batch=400), Form.FORMED)
    assert len(first.numbers) == numbers // 10
