"""The question before the first step: whether each layer's rule is right, in either form."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from benchmarks.passes import passes_of
from tests.gradients.tiny import Small, row_squares
from userdp.gradients import Units
from userdp.gradients.engines import choice, passes
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.rules import linear
from userdp.gradients.engines.uses import Form

SIDES = [(6, 10), (10, 7), (7, 13)]
"""Of the layers below: no two parameters have the same shape."""


def layers() -> Small:
    """An embedding and three linear layers."""

    def answer(model: Any, tokens: Tensor, values: Tensor) -> Tensor:
        for layer in model.layers:
            values = layer(values).tanh()
        return values

    return Small(
        answer, vocabulary=13, layers=lambda: nn.ModuleList(nn.Linear(p, q) for p, q in SIDES)
    )


def agrees(model: nn.Module) -> bool:
    task = Task(model=model, loss=row_squares, units=Units.from_rows([[[1]]]), l2_clip_norm=1.0)
    return choice.disagreement(task) is None


def wrong_gram_matrices(patch: pytest.MonkeyPatch, sides: set[int]) -> None:
    right = linear.Ghost.squared_norms

    def wrong(use: linear.Ghost) -> Tensor:
        return right(use) * (0.99 if {use.left.shape[-1], use.right.shape[-1]} == sides else 1.0)

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
    assert agrees(layers())
    twin(monkeypatch, set(sides))
    assert not agrees(layers())


def test_memory_for_what_is_formed_grows_with_a_model_of_which_little_trains(monkeypatch):
    """Else a large model's adapters would be trained in passes too small for an accelerator."""
    monkeypatch.setattr(passes, "FORMED_BYTES", 0)
    model = layers()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == "layers.0.bias")
    units = Units.from_rows([[[1, 2]]] * 400)
    task = Task(model=model, loss=row_squares, units=units, l2_clip_norm=1.0)
    numbers = sum(p.numel() for p in model.parameters())
    first, *_ = passes_of(task.but(micro_batch=400), Form.FORMED)
    assert len(first.numbers) == numbers // 10
