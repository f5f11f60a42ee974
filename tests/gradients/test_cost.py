"""Predictions of time and memory: products by hand, plain training as the measure, refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from torch import nn

from benchmarks.decoders import Shape, gpt2
from userdp.core.errors import UseError
from userdp.gradients.cost import METHODS, TABLE, Forecaster, hardware_of


def small(layers: int) -> nn.Module:
    return gpt2(Shape(layers=layers, width=32, heads=2, vocabulary=97, length=12))


@pytest.fixture(scope="module")
def forecaster() -> Forecaster:
    return Forecaster(
        build=small, depth=4, length=12, group_size=2, hardware=hardware_of("h100x8"), micro_batch=8
    )


def test_plain_products_are_two_per_weight_and_token_and_four_more_backward(forecaster):
    """By hand, for a device on which nothing else takes time."""
    free = replace(TABLE["h100"], attention=math.inf, bytes=math.inf, reached=1.0)
    here = replace(forecaster, hardware=free)
    weights = 4 * 12 * 32 * 32 + 97 * 32  # 4 d² of attention, 8 d² behind it; and the head
    tokens = 8 * 11  # the last of a row predicts nothing
    seconds = here.forecast("plain", gradients=8, steps=1).parts["gradients"]
    assert seconds == pytest.approx(6 * tokens * weights / free.flops)


@pytest.mark.parametrize("words", ["", "h1000", "h100x0", "h100x", "x8", "cpux2", "h100x-1"])
def test_hardware_without_figures_is_refused(words):
    with pytest.raises(UseError):
        hardware_of(words)


def test_plain_training_is_the_measure_of_the_others(forecaster):
    plain, batched = (forecaster.forecast(method, gradients=640, steps=1) for method in METHODS)
    assert plain.ratio == 1
    assert plain.parts["noise"] == 0 < batched.parts["noise"]
    assert batched.ratio > 1
    assert batched.memory > plain.memory


@pytest.mark.parametrize("gradients", [0, -1, math.nan, math.inf])
def test_no_other_number_of_gradients_is_taken(forecaster, gradients):
    with pytest.raises(UseError):
        forecaster.forecast("plain", gradients=gradients, steps=1)
