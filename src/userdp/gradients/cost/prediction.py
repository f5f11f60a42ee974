"""Seconds from counts and rates. Predictions, all of them: nothing here measures."""

from __future__ import annotations

from collections.abc import Mapping

from userdp.errors import UseError
from userdp.gradients.cost.counting import Count
from userdp.gradients.cost.hardware import Hardware, Rates
from userdp.gradients.cost.recording import Kind, Op


def seconds_of(count: Count, hardware: Hardware) -> float:
    """The predicted seconds of these operations on one device, one after another.

    What an operation asks for adds up: nothing is taken to overlap, but that an accelerator works
    while the host hands it the next operation. Of the two the slower decides.
    """
    rates, device, host = hardware.rates, 0.0, 0.0
    for op, times in count.items():
        device += times * _seconds(op, rates)
        host += times * rates.call
    device /= hardware.reached
    return device + host if hardware.waits else max(device, host)


def _seconds(op: Op, rates: Rates) -> float:
    """Of the device alone."""
    fresh = op.fresh / rates.fresh
    match op.kind:
        case Kind.VIEW:
            return fresh
        case Kind.PRODUCT:
            return (
                op.flops / _rate(rates.products, op.dtype) + op.moved / rates.product_bytes + fresh
            )
        case Kind.ATTENTION:
            return op.flops / _rate(rates.attention, op.dtype) + fresh
        case Kind.SPECIAL:
            slowest = max(op.numbers / rates.special, op.moved / rates.stream)
            return slowest + fresh
        case Kind.MIXED:
            return op.moved / rates.mixed + fresh
        case Kind.STREAM:
            return op.moved / rates.stream + fresh


def _rate(by_dtype: Mapping[str, float], dtype: str) -> float:
    if dtype not in by_dtype:
        raise UseError(
            f"no rate is known for products of {dtype}: the time of a step cannot be predicted",
            hint=f"dtypes with a rate on this hardware: {', '.join(by_dtype)}",
        )
    return by_dtype[dtype]
