"""Ask the contour accountant for random settings from its whole accepted range.

    python -m benchmarks.accounting corners [--settings N] [--seed S] [--cap S]
                                            [--results FILE.jsonl] [--json]

p from 1e-12 to 1 (half of them close to 1), G to 1e6, σ from 1e-3 to 1e5, T to 1e12, δ from 1e-307
to 0.99, ε from 1e-9 to 1e9; log-uniform. Half of the settings are for ε(δ), half for δ(ε). Each is
asked with warnings as errors; processor time is measured and capped.

Counted as failures: an exception other than `UseError`, a warning, an upper bound that is not
finite, a bracket that excludes a fact from elsewhere. The facts: δ(ε) of one of the steps alone is
a lower bound of the whole; the Rényi bound of `userdp.accounting.rdp`, which shares no code with
the contour, is an upper bound of ε; ε(δ) and δ(ε) are inverse to each other.

Settings are seeded one by one and appended to ``--results`` as they come; one that is there already
is not asked again.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from scipy.special import log_ndtr
from scipy.stats import binom

from userdp.accounting import rdp
from userdp.accounting.mechanisms import Mixture, binomial_steps
from userdp.core.errors import UseError

SLOW = 2.0  # processor seconds
_WIDE = 1e-6
_ORDERS = (1.001, 1.01, 1.1, 2.0, 8.0, 32.0)


@dataclass(frozen=True)
class Corner:
    """One question."""

    sampling_probability: float
    group_size: int
    noise_multiplier: float
    steps: int
    delta: float | None
    epsilon: float | None

    def mechanism(self) -> Mixture:
        return binomial_steps(
            sampling_probability=self.sampling_probability,
            group_size=self.group_size,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
        )


def random_corner(seed: tuple[int, ...]) -> Corner:
    """A setting from the whole range; every second one is milder, so that all ways are reached."""
    rng = np.random.default_rng(seed)
    mild = rng.random() < 0.5

    def draw(low: float, high: float) -> float:
        return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.6g}")

    p = draw(1e-7, 1) if mild else draw(1e-12, 1)
    if rng.random() < 0.3:
        p = 1 - draw(1e-9, 0.5)
    group = 1 if rng.random() < 0.25 else int(draw(1, 2e3 if mild else 1e6))
    sigma = draw(0.1, 300) if mild else draw(1e-3, 1e5)
    steps = int(draw(1, 1e7 if mild else 1e12))
    for_delta = rng.random() < 0.5
    delta = draw(1e-80, 0.1) if mild else draw(1e-307, 0.99)
    epsilon = draw(1e-4, 1e4) if mild else draw(1e-9, 1e9)
    return Corner(
        p, group, sigma, steps, None if for_delta else delta, epsilon if for_delta else None
    )


class TooLongError(Exception):
    """The cap was reached."""


@contextmanager
def capped(seconds: float) -> Iterator[None]:
    """Raise `TooLongError` after ``seconds`` of processor time."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def ask(corner: Corner, cap: float) -> dict[str, Any]:
    """The answer, its time, and what is wrong with it (``failures``)."""
    row: dict[str, Any] = {"failures": []}
    started = time.process_time()
    try:
        with warnings.catch_warnings(), capped(cap):
            warnings.simplefilter("error")
            mechanism = corner.mechanism()
            if corner.delta is not None:
                found = mechanism.epsilon(corner.delta)
            else:
                assert corner.epsilon is not None
                found = mechanism.delta(corner.epsilon)
    except UseError as error:
        return row | {"refused": str(error), "cpu_seconds": time.process_time() - started}
    except TooLongError:
        return row | {"failures": ["capped"], "cpu_seconds": cap}
    except Exception as error:  # of whatever kind: that a corner ends in one is the finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return row | {"failures": [what], "cpu_seconds": time.process_time() - started}
    row |= {"cpu_seconds": time.process_time() - started, "lower": found.lower, "note": found.note}
    row["upper"] = found.upper
    if not math.isfinite(found.upper):
        row["failures"].append("the upper bound is not finite")
    row["wide"] = found.upper - found.lower > _WIDE * max(
        found.upper, 1e-3 if corner.delta is not None else 0.0
    )
    try:
        with warnings.catch_warnings(), capped(4 * cap):
            warnings.simplefilter("error")
            row["failures"] += list(contradictions(corner, found.lower, found.upper))
    except TooLongError:
        row["unchecked"] = True
    except Exception as error:  # the campaign goes on: the row says what broke its checks
        row["failures"].append(f"while checking: {type(error).__name__}: {error}")
    return row


def one_step_at_least(corner: Corner, epsilon: float) -> float:
    """A lower bound of δ(ε) of one step alone, and so of all, without the accountant's code.

    Q(x > r) - e^ε P(x > r) for the best of 400 thresholds r, Q from some of its components only.
    """
    group, sigma = corner.group_size, corner.noise_multiplier
    k = np.unique(np.append(np.geomspace(1, group, 300).round(), 0.0))
    r = np.linspace(-10.0, 40.0 + 10.0 * group / sigma, 400)
    chances = binom.logpmf(k, group, corner.sampling_probability)
    inside = np.exp(chances + log_ndtr(k / sigma - r[:, None])).sum(axis=1)
    with np.errstate(over="ignore", under="ignore"):
        outside = np.exp(epsilon + log_ndtr(-r))
        return float((inside * (1 - 1e-9) - outside * (1 + 1e-9)).max())


def contradictions(corner: Corner, lower: float, upper: float) -> Iterator[str]:
    """Facts from elsewhere that the bracket excludes."""
    mechanism = corner.mechanism()
    if corner.epsilon is not None:
        if one_step_at_least(corner, corner.epsilon) > upper:
            yield "one step alone has a larger delta"
        return
    assert corner.delta is not None
    if math.isfinite(upper) and one_step_at_least(corner, upper) > corner.delta:
        yield "one step alone has a larger epsilon"
    if math.isfinite(upper):
        if mechanism.delta(upper).lower > corner.delta:
            yield "delta at the upper end is certainly too large"
        if lower > 0 and mechanism.delta(lower * (1 - 1e-9)).upper < corner.delta:
            yield "delta at the lower end is certainly too small"
    if corner.group_size <= 300 and corner.sampling_probability < 1 and lower > 0:
        renyi = rdp.epsilon_of_curve(rdp.step_curve(mechanism, _ORDERS), corner.delta)
        if renyi < lower:
            yield f"the Renyi bound {renyi!r} is below the lower end"


def summarise(rows: list[tuple[Corner, dict[str, Any]]]) -> dict[str, Any]:
    """Counts, times and the worst of each kind."""
    times = sorted(row["cpu_seconds"] for _, row in rows)
    answered = [row for _, row in rows if "upper" in row]
    return {
        "settings": len(rows),
        "refused": sum("refused" in row for _, row in rows),
        "failures": sum(bool(row["failures"]) for _, row in rows),
        "over_2_s": sum(t > SLOW for t in times),
        "median_seconds": times[len(times) // 2],
        "slowest_seconds": times[-1],
        "wide": sum(row["wide"] for row in answered),
        "wide_without_a_note": sum(row["wide"] and not row["note"] for row in answered),
        "unchecked": sum("unchecked" in row for _, row in rows),
    }


def main(arguments: list[str]) -> int:
    """Ask all, show the failures and the slow ones; 1 if there are any."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accounting corners", description=__doc__
    )
    parser.add_argument("--settings", type=int, default=2000, help="how many")
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--cap", type=float, default=20.0, help="processor seconds of a call")
    parser.add_argument("--results", type=Path, help="JSON lines: append, and skip what is there")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    known: dict[tuple[int, int], dict[str, Any]] = {}
    if options.results is not None and options.results.exists():
        for text in options.results.read_text().splitlines():
            row = json.loads(text)
            known[row["seed"], row["index"]] = row["row"]
    rows = []
    for index in range(options.settings):
        corner = random_corner((options.seed, index))
        found = known.get((options.seed, index))
        if found is None:
            found = ask(corner, options.cap)
            if options.results is not None:
                kept = {"seed": options.seed, "index": index, **asdict(corner), "row": found}
                with options.results.open("a") as file:
                    file.write(json.dumps(kept) + "\n")
        rows.append((corner, found))
        if found["failures"] or found["cpu_seconds"] > SLOW:
            print(f"{corner}\n    {found}", file=sys.stderr, flush=True)
    summary = summarise(rows)
    for key, value in summary.items():
        print(f"{key:>20} {value:.6g}", file=sys.stderr)
    if options.json:
        print(json.dumps(summary))
    return 1 if summary["failures"] else 0
