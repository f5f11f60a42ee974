"""A request answered by either library, timed: ours, and dp-accounting."""

from __future__ import annotations

import math
import resource
import signal
import time
from typing import Any

from benchmarks.accounting.settings import Setting

Row = dict[str, Any]


class Clock:
    """Wall and processor seconds since it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        return {
            "seconds": time.perf_counter() - self.wall,
            "cpu_seconds": time.process_time() - self.cpu,
        }


def ask_ours(request: Row) -> Row:
    setting = Setting(**request["setting"])
    mechanism = setting.mechanism()
    from userdp.accounting.accountants import calibrate

    clock = Clock()
    if request["task"] == "calibrate":
        found = calibrate(
            mechanism,
            target_epsilon=request["epsilon"],
            target_delta=setting.delta,
            tolerance=1e-6,
        )
        return {"sigma": found.noise_multiplier, **clock.read()}
    if request["task"] == "delta":
        bracket = mechanism.delta(request["epsilon"])
    else:
        bracket = mechanism.epsilon(setting.delta)
    times = clock.read()
    if not math.isfinite(bracket.upper):
        return {"error": f"the upper bound is {bracket.upper}"}
    return {
        "lower": bracket.lower,
        "upper": bracket.upper,
        "accountant": bracket.accountant,
        "note": bracket.note,
        **times,
        "peak_mb": peak_mb(),
    }


def ask_dp_accounting(request: Row) -> Row:
    import dp_accounting
    from scipy.stats import binom

    setting = Setting(**request["setting"])

    def event(noise_multiplier: float) -> Any:
        """Charles et al. 2024, Appendix A.1.1; calibration starts from no noise at all."""
        hits = range(setting.group_size + 1)
        weights = binom.pmf(hits, setting.group_size, setting.sampling_probability)
        single = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(noise_multiplier, hits, weights)
        return dp_accounting.dp_event.SelfComposedDpEvent(single, setting.steps)

    built = event(setting.noise_multiplier)
    signal.alarm(request["cap"])  # its default action ends the process, in C code as well
    clock = Clock()
    if request["task"] == "calibrate":
        sigma = dp_accounting.calibrate_dp_mechanism(
            dp_accounting.pld.PLDAccountant, event, request["epsilon"], setting.delta
        )
        return {"sigma": sigma, **clock.read()}
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(built)
    epsilon = float(accountant.get_epsilon(setting.delta))
    row = {**clock.read(), "peak_mb": peak_mb()}
    return row | ({"epsilon": epsilon} if math.isfinite(epsilon) else {"diverged": str(epsilon)})


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
