"""The mixture-of-Gaussians accountant of the library ``dp-accounting`` (Charles et al. A.1)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import gammaln, xlog1py, xlogy

from userdp.accounting.bracket import Bracket
from userdp.errors import FailureError

NAME = "dp-accounting"


def mixture_event(
    *, group_size: int, sampling_probability: float, noise_multiplier: float, steps: int
) -> Any:
    """T-fold composition of N(Binom(G, p), σ²) against N(0, σ²), as a ``DpEvent``.

    Source: Charles et al. 2024, Appendix A.1.1.
    """
    dp_event = _library().dp_event
    counts = np.arange(group_size + 1)
    log_pmf = (
        gammaln(group_size + 1)
        - gammaln(counts + 1)
        - gammaln(group_size - counts + 1)
        + xlogy(counts, sampling_probability)
        + xlog1py(group_size - counts, -sampling_probability)
    )
    pmf = np.exp(log_pmf)
    single = dp_event.MixtureOfGaussiansDpEvent(
        noise_multiplier, counts.tolist(), (pmf / pmf.sum()).tolist()
    )
    return dp_event.SelfComposedDpEvent(single, steps)


def epsilon(event: Any, delta: float) -> Bracket:
    """Upper bound of ε at δ; the lower bound is 0 (the library gives none)."""
    return _bracket(_accountant(event).get_epsilon(delta))


def delta(event: Any, epsilon: float) -> Bracket:
    """Upper bound of δ at ε; the lower bound is 0 (the library gives none)."""
    return _bracket(_accountant(event).get_delta(epsilon))


def _bracket(upper: float) -> Bracket:
    if math.isnan(upper):
        raise FailureError("dp-accounting answered NaN: no bound can be claimed")
    return Bracket(lower=0.0, upper=max(0.0, float(upper)), accountant=NAME)


def _accountant(event: Any) -> Any:
    accountant = _library().pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(event)
    return accountant


def _library() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
    except ImportError as error:
        raise FailureError(
            "the library dp-accounting is not installed, so this accountant cannot answer",
            hint="pip install 'userdp[dp-accounting]'",
        ) from error
    return dp_accounting
