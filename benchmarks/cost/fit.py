"""Fit the rates of this CPU: seconds of single operations, by what they ask of it.

Each setting's plain and private steps are recorded operation by operation. An operation's seconds
are taken to be a sum, each term of what it asks for (operations of products, bytes, numbers, a
call) times a constant that is not negative; least squares with weights 1 / seconds, so that
small operations, of which there are many, count as much as the time that they take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import nnls

from benchmarks.cost.settings import FITTED, Setting, build, task_of
from benchmarks.paper_size.settings import units_of
from userdp.gradients import causal_lm_loss
from userdp.gradients.cost import PLAIN, Op, Rates, Recorder, step_of
from userdp.gradients.cost.recording import Kind, Live

ROWS = 8
Timed = tuple[Op, float]


def timed_operations(setting: Setting, rounds: int) -> list[Timed]:
    """The operations of the setting's plain and private steps, each with its processor seconds.

    A mode of our own making would not do: engines trust none that is not the package's, and would
    compute each unit alone within.
    """
    model, units = build(setting), units_of(setting)
    found: list[Timed] = []
    for _ in range(rounds):
        for method in (PLAIN, task_of(setting).engine):
            step = step_of(method, model, causal_lm_loss, units, rows=ROWS)
            step()
            with Recorder(Live({}, 1), copies=True, clock=time.process_time) as recorder:
                step()
            found += zip(recorder.ops, recorder.seconds, strict=True)
    return found


_TERMS: dict[str, Callable[[Op], float]] = {
    "float32": lambda op: op.flops * (op.kind is Kind.PRODUCT and op.dtype == "float32"),
    "float64": lambda op: op.flops * (op.kind is Kind.PRODUCT and op.dtype == "float64"),
    "attention": lambda op: op.flops * (op.kind is Kind.ATTENTION),
    "product_bytes": lambda op: op.moved * (op.kind is Kind.PRODUCT),
    "special": lambda op: op.numbers * (op.kind is Kind.SPECIAL),
    "mixed": lambda op: op.moved * (op.kind is Kind.MIXED),
    "stream": lambda op: op.moved * (op.kind is Kind.STREAM),
    # Memory that is reserved and not touched costs nothing yet: what touches it first pays.
    "fresh": lambda op: op.fresh * (op.kind is not Kind.VIEW),
    "call": lambda op: 1.0,
}


def fitted(operations: Sequence[Timed]) -> Rates:
    """The rates by which the operations' predicted seconds are nearest to the measured ones."""
    terms = np.array([[term(op) for term in _TERMS.values()] for op, _ in operations])
    seconds = np.array([taken for _, taken in operations])
    scale = np.maximum(terms.max(0), 1)
    expected = seconds
    for _ in range(5):
        # Weighted by expected seconds: by the measured ones, what was quick by chance would count
        # for more than what was slow by chance, and every rate would be too good.
        weights = 1 / np.sqrt(expected + 1e-6)
        per, _ = nnls(terms / scale * weights[:, None], seconds * weights, maxiter=10_000)
        expected = terms / scale @ per
    cost = dict(zip(_TERMS, per / scale, strict=True))

    def rate(name: str) -> float:
        return float(1 / cost[name]) if cost[name] else float("inf")

    return Rates(
        products={"float32": rate("float32"), "float64": rate("float64")},
        attention={"float32": rate("attention")},
        product_bytes=rate("product_bytes"),
        special=rate("special"),
        mixed=rate("mixed"),
        stream=rate("stream"),
        fresh=rate("fresh"),
        call=float(cost["call"]),
    )


def fit() -> Rates:
    """The rates of this CPU."""
    return fitted([one for setting in FITTED for one in timed_operations(setting, 1)])
