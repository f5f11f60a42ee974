"""δ of compositions by dp-accounting: an oracle that shares no code with ours."""

from __future__ import annotations

import functools

import pytest


def pld_bounds(
    parts: list[tuple[float, list[float], list[float], int]], epsilon: float, grid: float = 5e-3
) -> list[float]:
    """Optimistic and pessimistic δ by dp-accounting, each within its FFT round-off of 1e-13.

    Each part has a σ, shifts, their chances and a number of steps.
    """
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")

    bounds = []
    for pessimistic in (False, True):
        losses = [
            pld.from_mixture_gaussian_mechanism(
                sigma,
                shifts,
                weights,
                pessimistic_estimate=pessimistic,
                value_discretization_interval=grid,
            ).self_compose(steps)
            for sigma, shifts, weights, steps in parts
        ]
        whole = functools.reduce(lambda one, other: one.compose(other), losses)
        bounds.append(whole.get_delta_for_epsilon(epsilon))
    return bounds
