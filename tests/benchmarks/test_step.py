"""What a step is timed beside: plain training that was compiled computes the same gradients."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from benchmarks.decoders import Shape, cohort, gpt2
from benchmarks.passes import plain
from benchmarks.step.methods import COMPILED, PART, compiled
from benchmarks.step.report import flat
from userdp.gradients import causal_lm_loss

SHAPE = Shape(layers=2, width=16, heads=2, vocabulary=32, length=8)


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def require_same_gradients(method: str, backend: str) -> None:
    model, units = gpt2(SHAPE), cohort(2 * PART, 4, SHAPE, device="cpu")
    plain(model, causal_lm_loss, units, PART)
    exact = gradients(model)
    model.zero_grad()
    step = compiled(method, model, units, backend=backend)
    step()
    assert counters["stats"]["unique_graphs"] == 1  # one for both blocks, and for both parts
    assert not gradients(model)  # it is a copy's
    found = gradients(step.args[0])  # type: ignore[attr-defined]  # a partial: the copy
    assert found.keys() == exact.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, exact[name])


@pytest.mark.parametrize("method", COMPILED)
def test_compiled_plain_training_is_compiled_and_computes_the_same(method: str) -> None:
    require_same_gradients(method, "eager")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("method", COMPILED)
def test_and_so_it_does_under_inductor(method: str) -> None:
    require_same_gradients(method, "inductor")


def test_the_ratio_to_each_plain_training_is_reported() -> None:
    ratios = {"plain": (1.0, 1.0, 1.0), "auto": (0.9, 0.8, 1.0), "plain compiled": (0.75, 0.7, 0.8)}
    result = {"setting": "small", "ratios": ratios, "exactness": None, "rounds": 3}
    assert flat([result])["ratio_small_to_plain_compiled"] == pytest.approx(1.2)
