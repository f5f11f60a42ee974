"""Forecasts: arithmetic of counts and figures; what they say of money and of fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.gradients.cost.test_counting import GROUP, decoder, directly, work
from userdp.errors import UseError
from userdp.gradients.cost import CPU, TABLE, Count, Forecaster, hardware_of, seconds_of
from userdp.gradients.cost.forecast import ADAM_STATE
from userdp.gradients.cost.recording import Kind, Op

TFLOP = Op(
    name="mm", kind=Kind.PRODUCT, dtype="float32", flops=1e12, moved=0.0, numbers=0.0, allocated=0.0
)


@pytest.fixture(scope="module")
def forecaster() -> Forecaster:
    return Forecaster(work(device="cuda"), hardware_of("h100x8"), micro_batch=8)


def test_a_product_takes_its_operations_over_the_share_of_the_peak_that_is_reached():
    h100 = hardware_of("h100")
    assert seconds_of(Count({TFLOP: 67}), h100) == pytest.approx(1 / h100.reached)


def test_an_accelerator_waits_for_its_host_or_its_host_for_it():
    tiny = replace(TFLOP, flops=1.0)
    h100 = hardware_of("h100")
    assert seconds_of(Count({tiny: 1000}), h100) == pytest.approx(1000 * h100.rates.call)
    cpu = seconds_of(Count({TFLOP: 1}), CPU)
    assert cpu == pytest.approx(1e12 / CPU.rates.products["float32"] + CPU.rates.call)


def test_products_of_a_dtype_without_a_figure_are_refused():
    with pytest.raises(UseError, match="no rate is known for products of float8"):
        seconds_of(Count({replace(TFLOP, dtype="float8"): 1}), CPU)


@pytest.mark.parametrize("words", ["h100", "H100", "a100x4", "cpu"])
def test_hardware_is_named_with_its_number(words):
    found = hardware_of(words)
    assert found.name == words.lower().split("x")[0]
    assert found.count == (4 if "x" in words else 1)


@pytest.mark.parametrize("words", ["", "h1000", "h100x0", "h100x", "x8", "cpux2", "h100x-1"])
def test_hardware_without_figures_is_refused(words):
    with pytest.raises(UseError):
        hardware_of(words)


def test_every_figure_has_a_source_and_no_device_has_a_price():
    for one in (*TABLE.values(), CPU):
        assert one.source
        assert not hasattr(one, "price")
        rates = one.rates
        values = [rates.product_bytes, rates.special, rates.mixed, rates.stream, rates.fresh]
        for value in (*values, *rates.products.values(), one.memory, one.link):
            assert value > 0
        assert isinstance(rates.products, Mapping)


def test_a_run_costs_its_device_hours_times_the_price(forecaster):
    found = forecaster.forecast("bookkeeping", gradients=64, steps=100, price_per_hour=2.5)
    assert found.device_hours == pytest.approx(found.seconds * 100 * 8 / 3600)
    assert found.price == pytest.approx(2.5 * found.device_hours)
    assert forecaster.forecast("bookkeeping", gradients=64, steps=100).price is None
    assert sum(found.parts.values()) == pytest.approx(found.seconds)


def test_plain_training_is_the_measure_of_the_others(forecaster):
    plain = forecaster.forecast("plain", gradients=64, steps=1)
    private = forecaster.forecast("bookkeeping", gradients=64, steps=1)
    reference = forecaster.forecast("reference", gradients=64, steps=1)
    assert plain.ratio == 1
    assert plain.parts["noise"] == 0 < private.parts["noise"]
    assert 1 < private.ratio < reference.ratio
    assert private.memory > plain.memory


def test_each_device_draws_the_noise_of_its_share(forecaster):
    eight = forecaster.hardware
    eight = replace(eight, rates=replace(eight.rates, noise=25e6))
    alone, each = (
        Forecaster(forecaster.work, replace(eight, count=count), micro_batch=8)
        .forecast("bookkeeping", gradients=64, steps=1)
        .parts["noise"]
        for count in (1, 8)
    )
    assert alone == pytest.approx(forecaster.trained / 25e6)
    assert each == pytest.approx(alone / 8)


def test_hours_buy_what_a_run_of_so_many_hours_takes(forecaster):
    found = forecaster.forecast(forecaster.engine, gradients=6400, steps=50)
    bought = forecaster.gradients_for(found.device_hours, steps=50)
    assert bought == pytest.approx(6400, rel=1e-6)
    assert forecaster.gradients_for(2 * found.device_hours, steps=50) > 6400


def test_a_peak_beyond_the_device_is_said(forecaster):
    small = replace(forecaster.hardware, memory=1e3)
    found = Forecaster(forecaster.work, small, micro_batch=8)
    assert not found.forecast("plain", gradients=8, steps=1).fits
    assert forecaster.forecast("plain", gradients=8, steps=1).fits


@pytest.mark.parametrize(("passes", "narrow"), [(2, True), (40, False)])
def test_a_small_step_is_forecast_with_the_sum_that_it_has(passes, narrow):
    """Counted directly at two passes, which is the peak of any number of them."""
    here = Forecaster(work(), CPU, micro_batch=8)
    units = here.units_in_pass("bookkeeping")
    found = here.forecast("bookkeeping", gradients=passes * units * GROUP, steps=1)
    _, peak = directly(here.work, "bookkeeping", units=units, passes=2, parts=1 if narrow else None)
    held = found.memory - ADAM_STATE * here.trained
    assert held == pytest.approx(peak, rel=0.01)
    _, other = directly(
        here.work, "bookkeeping", units=units, passes=2, parts=None if narrow else 1
    )
    assert abs(other - peak) > 0.02 * peak  # so that the wrong type is noticed


@pytest.mark.parametrize("gradients", [0, -1, math.nan, math.inf])
def test_no_other_number_of_gradients_is_taken(forecaster, gradients):
    with pytest.raises(UseError):
        forecaster.forecast("plain", gradients=gradients, steps=1)


def test_a_model_without_a_list_of_layers_is_refused():
    from torch import nn

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = decoder(3)

    flat = work(lambda layers: Flat())
    with pytest.raises(UseError, match="no list of 1 layers"):
        Forecaster(flat, hardware_of("h100"), micro_batch=4)._count("plain", 2, narrow=False)
