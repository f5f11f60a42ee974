"""Predictions of time and memory, held against what was measured at paper size; money and fit."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from torch import nn

from benchmarks.decoders import Shape, gpt2
from benchmarks.rows import whole_rows
from tests.gradients.paper_sizes import MEASURED, SETTINGS, Setting, build, setting_of
from userdp.errors import UseError
from userdp.gradients.cost import METHODS, TABLE, Forecaster, hardware_of

ROWS = list(whole_rows(Path(__file__).parents[2] / MEASURED))
SECONDS, RATIO, PEAK = 0.20, 0.11, 0.06
"""How far off a prediction may be: plain seconds and peaks by a share, the ratio absolutely."""

QUICK = {"full_small", "full_small_g4"}


def small(layers: int) -> nn.Module:
    return gpt2(Shape(layers=layers, width=32, heads=2, vocabulary=97, length=12))


@pytest.fixture(scope="module")
def forecaster() -> Forecaster:
    return Forecaster(
        build=small,
        depth=4,
        length=12,
        group_size=2,
        hardware=hardware_of("h100x8"),
        micro_batch=8,
    )


@cache
def looked_at(setting: Setting) -> Forecaster:
    """Of the setting's model on the machine on which it was measured."""
    shape = setting.shape
    return Forecaster(
        build=lambda layers: build(replace(setting, shape=replace(shape, layers=layers))),
        depth=shape.layers,
        length=shape.length,
        group_size=setting.group,
        hardware=TABLE["cpu"],
        micro_batch=64,
    )


def of_setting(setting: Setting) -> Forecaster:
    """Settings that differ only in their units share a look at the model."""
    whole = looked_at(replace(setting, key="", model="", sequences=0, group=1))
    found = replace(whole, group_size=setting.group)
    found.__dict__["looks"] = whole.looks
    return found


def measured(setting: Setting) -> tuple[float, float, dict[str, int]]:
    """Plain seconds, private over plain, and peaks without the optimizer's state."""
    mine = [row for row in ROWS if row["setting"] == setting.key]
    rounds = [row["seconds"] for row in mine if "seconds" in row]
    peaks = next(row["peak"] for row in reversed(mine) if "peak" in row)
    plain = statistics.median(one["plain"] for one in rounds)
    return plain, statistics.median(one["private"] / one["plain"] for one in rounds), peaks


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(s.key, marks=[] if s.key in QUICK else pytest.mark.slow, id=s.key)
        for s in SETTINGS
    ],
)
def test_a_prediction_is_near_what_was_measured_at_paper_size(key):
    setting = setting_of(key)
    here, (seconds, ratio, peaks) = of_setting(setting), measured(setting)
    plain, batched = (
        here.forecast(method, gradients=setting.sequences, steps=1)
        for method in ("plain", "batched")
    )
    gradients = plain.parts["gradients"]
    assert gradients == pytest.approx(seconds, rel=SECONDS)
    assert batched.parts["gradients"] / gradients == pytest.approx(ratio, abs=RATIO)
    moments = 8 * here.looks.trained
    assert plain.memory - moments == pytest.approx(peaks["plain"], rel=PEAK)
    assert batched.memory - moments == pytest.approx(peaks["private"], rel=PEAK)


def test_a_model_that_forgets_what_autograd_keeps_is_caught():
    """A broken twin of the prediction of memory."""
    setting = setting_of("full_small_g4")
    here = of_setting(setting)
    broken = replace(here)
    broken.__dict__["looks"] = replace(here.looks, kept=0)
    memory = broken.forecast("plain", gradients=32, steps=1).memory - 8 * here.looks.trained
    assert memory != pytest.approx(measured(setting)[2]["plain"], rel=PEAK)


def test_layers_beyond_the_second_are_those_of_the_second(forecaster):
    from userdp.gradients.cost import look

    assert forecaster.looks == look(small(4), 4, 12)


def test_plain_products_are_two_per_weight_and_token_and_four_more_backward(forecaster):
    """By hand, for a device on which nothing else takes time."""
    free = replace(TABLE["h100"], attention=math.inf, bytes=math.inf, reached=1.0)
    here = replace(forecaster, hardware=free)
    weights = 4 * 12 * 32 * 32 + 97 * 32  # 4 d² of attention, 8 d² behind it; and the head
    tokens = 8 * 11  # the last of a row predicts nothing
    seconds = here.forecast("plain", gradients=8, steps=1).parts["gradients"]
    assert seconds == pytest.approx(6 * tokens * weights / free.flops)


@pytest.mark.parametrize("words", ["h100", "H100", "a100x4", "cpu"])
def test_hardware_is_named_with_its_number(words):
    found = hardware_of(words)
    assert found.name == words.lower().split("x")[0]
    assert found.count == (4 if "x" in words else 1)


@pytest.mark.parametrize("words", ["", "h1000", "h100x0", "h100x", "x8", "cpux2", "h100x-1"])
def test_hardware_without_figures_is_refused(words):
    with pytest.raises(UseError):
        hardware_of(words)


def test_a_run_takes_its_steps_on_all_devices(forecaster):
    found = forecaster.forecast("batched", gradients=64, steps=100)
    assert found.device_hours == pytest.approx(found.seconds * 100 * 8 / 3600)
    assert sum(found.parts.values()) == pytest.approx(found.seconds)


def test_plain_training_is_the_measure_of_the_others(forecaster):
    plain, batched = (forecaster.forecast(method, gradients=640, steps=1) for method in METHODS)
    assert plain.ratio == 1
    assert plain.parts["noise"] == 0 < batched.parts["noise"]
    assert batched.ratio > 1
    assert batched.memory > plain.memory


def test_a_peak_beyond_the_device_is_said(forecaster):
    small_device = replace(forecaster, hardware=replace(forecaster.hardware, memory=1e3))
    assert not small_device.forecast("plain", gradients=8, steps=1).fits
    assert forecaster.forecast("plain", gradients=8, steps=1).fits


@pytest.mark.parametrize("gradients", [0, -1, math.nan, math.inf])
def test_no_other_number_of_gradients_is_taken(forecaster, gradients):
    with pytest.raises(UseError):
        forecaster.forecast("plain", gradients=gradients, steps=1)
