"""Engines over what `torch.compile` compiled: the plain model's sum, and no compiled code runs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import cast

import pytest
import torch
from torch import nn

from tests.gradients.batches import batched_sum
from tests.speed import fast_then_slow
from userdp.gradients import Units, causal_lm_loss, get_engine
from userdp.gradients import clipped_sum as reference_sum
from userdp.gradients.engines import tape
from userdp.gradients.engines.following import NotCoveredError

UNITS = Units.from_rows([[[1, 2, 3, 4], [5, 6, 7, 8]], [[2, 2, 1, 7]], [[9, 4, 4, 3]]])


class Output:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class Toy(nn.Module):
    """An embedding, a hidden layer and a head, with the interface of a language model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table, self.hidden = nn.Embedding(11, 6), nn.Linear(6, 6)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 11)

    def forward(self, input_ids: torch.Tensor, **options: object) -> Output:
        return Output(self.head(self.norm(torch.tanh(self.hidden(self.table(input_ids))))))


@pytest.fixture
def compiled():
    """The plain model, and the same under torch.compile (traced, without code generation)."""
    torch._dynamo.reset()
    plain = Toy()
    yield plain, cast(nn.Module, torch.compile(plain, backend="eager"))
    torch._dynamo.reset()


def apart(model: nn.Module, compiled: nn.Module, engine) -> float:
    """The largest distance of a parameter's sum from the reference's, over the clip norm."""
    exact = reference_sum(model, causal_lm_loss, UNITS, l2_clip_norm=0.5).value
    found = engine(compiled, causal_lm_loss, UNITS, l2_clip_norm=0.5).value
    return max(
        float((v - exact[n.removeprefix("_orig_mod.")]).norm()) / 0.5 for n, v in found.items()
    )


ENGINES = ["auto", "reference"]


@pytest.mark.parametrize("name", fast_then_slow(ENGINES))
def test_an_engine_over_a_compiled_model_gives_the_same_sum(compiled, name):
    plain, wrapped = compiled
    engine = get_engine(name)
    assert apart(plain, wrapped, engine) < 5e-3
    causal_lm_loss(wrapped, UNITS.input_ids, UNITS.lengths).sum().backward()  # compiled by now
    assert apart(plain, wrapped, engine) < 5e-3
    wrapped.train()
    assert apart(plain, wrapped, engine) < 5e-3


def test_twin_compiled_code_in_a_pass_is_noticed(compiled, monkeypatch):
    """What the tape is guarded against: gradients that are lost, or ordinary, in compiled code."""
    monkeypatch.setattr(tape, "eagerly", nullcontext)
    plain, wrapped = compiled
    try:
        lost = apart(plain, wrapped, batched_sum) > 0.1
    except (NotCoveredError, torch._dynamo.exc.TorchDynamoException):
        lost = True
    if not lost and torch.__version__ < "2.13":
        pytest.skip("seen with PyTorch 2.13, not with 2.11")
    assert lost
