"""The question before the first step: each layer in either form, and no memory that steps lack."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.passes import passes_of
from userdp.gradients import Units, trainable_parameters
from userdp.gradients.engines import choice, tape
from userdp.gradients.engines.batched import sum_of_passes
from userdp.gradients.engines.certify import Proving
from userdp.gradients.engines.passes import PassShape
from userdp.gradients.engines.rules import linear
from userdp.gradients.engines.tape import Tape, Workspace
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


def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    real = torch.arange(input_ids.shape[1]) < lengths[:, None]
    means: Tensor = (model(input_ids).square().sum(2) * real).sum(1)
    return means


def agrees(model: nn.Module, **how: Any) -> bool:
    task = Task(model=model, loss=loss, units=Units.from_rows([[[1]]]), l2_clip_norm=1.0)
    return choice.disagreement(task, **how) is None


def test_right_rules_agree():
    assert agrees(Layers())


@pytest.mark.parametrize("sides", SIDES)
def test_twin_gram_matrices_of_one_layer_that_are_wrong_are_noticed(monkeypatch, sides):
    right: Callable[[linear.Ghost], Tensor] = linear.Ghost.squared_norms

    def wrong(use: linear.Ghost) -> Tensor:
        here = {use.left.shape[-1], use.right.shape[-1]} == set(sides)
        return right(use) * (0.99 if here else 1.0)

    monkeypatch.setattr(linear.Ghost, "squared_norms", wrong)
    assert not agrees(Layers())


@pytest.mark.parametrize("sides", SIDES)
def test_twin_formed_gradients_of_one_layer_that_are_wrong_are_noticed(monkeypatch, sides):
    right = linear.form_gradients

    def wrong(left: Tensor, right_: Tensor, out: Tensor | None = None) -> Tensor:
        here = {left.shape[-1], right_.shape[-1]} == set(sides)
        return right(left, right_, out).mul_(1.01 if here else 1.0)

    monkeypatch.setattr(linear, "form_gradients", wrong)
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


def test_what_was_kept_of_a_parameter_is_let_go_once_it_has_been_added():
    model, units = Layers(), Units.from_rows([[[1, 2, 3]], [[4, 5, 6]]])
    parameters = trainable_parameters(model)
    task = Task(model=model, loss=loss, units=units, l2_clip_norm=1.0)
    kept = Tape(task, PassShape(2, 1, 3), Workspace(), Proving, form=Form.GHOST)
    kept.run(units)
    kept.squares_by_name()
    lefts = [
        weakref.ref(use.left)
        for uses in kept._uses.values()
        for use in uses
        if type(use) is linear.Ghost
    ]
    alive: list[int] = []

    class Watched(dict[str, Tensor]):
        def __getitem__(self, name: str) -> Tensor:
            alive.append(sum(left() is not None for left in lefts))
            return super().__getitem__(name)

    total = Watched({name: torch.zeros_like(p) for name, p in parameters.items()})
    kept.add_to(total, dict.fromkeys(parameters, torch.ones(2, dtype=torch.float64)))
    assert len(lefts) == len(SIDES)
    assert alive[0] == len(SIDES)
    assert all(left() is None for left in lefts)
    assert sorted(alive, reverse=True) == alive


def test_buffers_outlive_a_pass_while_all_of_them_are_small(monkeypatch):
    monkeypatch.setattr(tape, "KEPT_BYTES", 4 * 30)
    workspace, like, one, two = Workspace(), torch.zeros(1), ("a", 0), ("b", 0)
    small = workspace.take(one, (2, 10), like)
    assert workspace.take(one, (2, 10), like).data_ptr() == small.data_ptr()
    assert workspace.take(one, (5,), like).data_ptr() == small.data_ptr()
    large = workspace.take(two, (11,), like)
    assert workspace.take(two, (11,), like).data_ptr() != large.data_ptr()
    assert workspace.take(one, (2, 15), like).shape == (2, 15)
    assert sum(held.nbytes for held in workspace._buffers.values()) <= 4 * 30


def test_memory_for_what_is_formed_grows_with_a_model_of_which_little_trains(monkeypatch):
    """Else a large model's adapters would be trained in passes too small for an accelerator."""
    from userdp.gradients.engines import passes

    monkeypatch.setattr(passes, "FORMED_BYTES", 0)
    model = Layers()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == "layers.0.bias")
    units = Units.from_rows([[[1, 2]]] * 400)
    task = Task(model=model, loss=loss, units=units, l2_clip_norm=1.0)
    numbers = sum(p.numel() for p in model.parameters())
    first, *_ = passes_of(task.but(micro_batch=400), Form.FORMED)
    assert len(first.numbers) == numbers // 10
