"""Time this accountant against dp-accounting, and alone over random settings.

    python -m benchmarks.accounting [--quick] [--json] [--settings N] [--results FILE.jsonl]

Three parts, each reported on its own:

1. ε by both, on the table of six settings and on 30 seeded random settings. dp-accounting runs with
   its defaults, one process for each call, capped at 120 s and 8 GB of address space. A capped
   call counts with what it used until then, so its speed-up is a lower bound; a call that fails
   counts in no ratio.
   Where dp-accounting answers, our lower δ at its ε must not exceed δ + 1e-13 (its FFT round-off);
   where it does, mpmath's δ must lie within our bracket.
2. Calibration of σ by both, on a sample of the table.
3. Ours alone on 300 random settings (T <= 1e6, 1e-6 <= p <= 1, 0.3 <= σ <= 100, G <= 512,
   1e-12 <= δ <= 1e-3, all log-uniform): times, and the peak memory above that after import.

Times are processor seconds of the first call for a setting in a warm process, imports excluded
(both libraries run on one thread; wall time would count the machine's other work). A call that
was capped counts with the processor time it had used. With ``--results``
every measurement is appended as it comes and never repeated (except our own failures), so take a
new file, or drop the lines of "ours", when the code has changed. Tables and progress go to stderr,
``--json`` prints one object on stdout.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import selectors
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

ROUND_OFF = 1e-13  # dp-accounting's, absolute in δ
MEMORY_BYTES = 8 << 30
SLOW_SECONDS = 5.0  # dp-accounting's slow cases
Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """One composition and a δ."""

    steps: int
    sampling_probability: float
    noise_multiplier: float
    group_size: int
    delta: float

    @property
    def key(self) -> str:
        return (
            f"T={self.steps} p={self.sampling_probability!r} sigma={self.noise_multiplier!r}"
            f" G={self.group_size} delta={self.delta!r}"
        )


TABLE = [
    Setting(2000, 0.01, 1.0, 1, 1e-6),
    Setting(2000, 0.01, 1.0, 8, 1e-6),
    Setting(2000, 0.01, 1.0, 16, 1e-6),
    Setting(2000, 0.01, 0.5, 8, 1e-6),
    Setting(2000, 0.01, 2.0, 32, 1e-6),
    Setting(10000, 1e-4, 1.0, 128, 1e-6),
]
CALIBRATION_SAMPLE = [TABLE[0], TABLE[4], TABLE[5]]
# Target ε of a calibration: a little below the ε of the setting's own σ, so that σ moves.
CALIBRATION_EPSILON = {TABLE[0].key: 2.5, TABLE[4].key: 50.0, TABLE[5].key: 8.0}


def random_settings(count: int, seed: int) -> list[Setting]:
    """Log-uniform settings over wide ranges, rounded to 6 digits; same for a seed."""
    rng = np.random.default_rng(seed)

    def draw(low: float, high: float) -> float:
        return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.6g}")

    return [
        Setting(
            steps=round(draw(1, 1e6)),
            sampling_probability=draw(1e-6, 1.0),
            noise_multiplier=draw(0.3, 100.0),
            group_size=round(draw(1, 512)),
            delta=draw(1e-12, 1e-3),
        )
        for _ in range(count)
    ]


# ------------------------------------------------------------------ workers: one JSON per line


class Clock:
    """Wall and processor seconds since it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        return {
            "seconds": time.perf_counter() - self.wall,
            "cpu_seconds": time.process_time() - self.cpu,
        }


def _mechanism(setting: Setting) -> Any:
    from userdp.accounting.mechanisms import PoissonExamples

    return PoissonExamples(
        sampling_probability=setting.sampling_probability,
        group_size=setting.group_size,
        noise_multiplier=setting.noise_multiplier,
        steps=setting.steps,
    )


def _ours(request: Row) -> Row:
    setting = Setting(**request["setting"])
    mechanism = _mechanism(setting)
    from userdp.accounting.calibration import calibrate

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
        "peak_mb": _peak_mb(),
    }


def _dp_accounting(request: Row) -> Row:
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
    row = {**clock.read(), "peak_mb": _peak_mb()}
    return row | ({"epsilon": epsilon} if math.isfinite(epsilon) else {"diverged": str(epsilon)})


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _children_cpu() -> float:
    """Processor seconds of all workers that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def serve(library: str) -> None:
    """Read requests from stdin and answer each, until stdin closes."""
    answer = _ours if library == "ours" else _dp_accounting
    if library == "ours":
        _ours({"task": "epsilon", "setting": asdict(Setting(50, 0.1, 3.0, 2, 1e-5))})  # warm up
    else:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        import dp_accounting  # noqa: F401
    print(json.dumps({"ready": _peak_mb(), "cpu": time.process_time()}), flush=True)
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:  # reported by name; the benchmark goes on
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), flush=True)


class Worker:
    """A process that answers requests; a new one is started after a cap or a crash."""

    def __init__(self, library: str) -> None:
        self.library = library
        self.process: subprocess.Popen[str] | None = None
        self.ready_mb = self.ready_cpu = 0.0

    def ask(self, request: Row, cap: float) -> Row:
        """The reply, or {"capped": True, "seconds": cap}, or {"error": ...}."""
        if self.process is None:
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.accounting", "--worker", self.library],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
            ready = self._read(120)
            if ready is None or "ready" not in ready:
                self.close()
                return {"error": "the worker did not start"}
            self.ready_mb, self.ready_cpu = ready["ready"], ready["cpu"]
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        start = time.perf_counter()
        reply = self._read(cap + 5)
        if reply is None:
            waited, before = time.perf_counter() - start, _children_cpu()
            self.close()
            used = max(_children_cpu() - before - self.ready_cpu, 0.0)
            if waited >= cap - 1:
                return {"capped": True, "seconds": cap, "cpu_seconds": used}
            return {"error": f"the process died after {waited:.1f} s"}
        if reply.get("seconds", 0) > cap:
            return {"capped": True, "seconds": cap, "cpu_seconds": reply["cpu_seconds"]}
        return reply

    def _read(self, timeout: float) -> Row | None:
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                return None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


# ------------------------------------------------------------------ what is measured


class Journal:
    """Measurements by name, appended to a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known: dict[str, Row] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                if not (row["name"].startswith("ours") and "error" in row):  # tried again
                    self.known[row.pop("name")] = row

    def add(self, name: str, row: Row) -> Row:
        self.known[name] = row
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"name": name, **row}) + "\n")
        return row


class Bench:
    """Asks the workers, remembers the answers, keeps to a deadline."""

    def __init__(self, journal: Journal, deadline: float) -> None:
        self.journal, self.deadline, self.skipped = journal, deadline, 0
        self.ours = Worker("ours")

    def measure(self, library: str, setting: Setting, task: str, cap: int, **extra: Any) -> Row:
        name = f"{library} {task} {setting.key} {json.dumps(extra)}"
        if name in self.journal.known:
            return self.journal.known[name]
        left = self.deadline - time.monotonic()
        if left < 1:
            self.skipped += 1
            return {"skipped": True}
        cap = min(cap, int(left)) if math.isfinite(left) else cap
        request = {"task": task, "setting": asdict(setting), "cap": cap, **extra}
        print(f"{name} ...", file=sys.stderr, flush=True)
        if library == "ours":
            row = self.ours.ask(request, cap)
            row["peak_mb_over_import"] = max(row.pop("peak_mb", 0.0) - self.ours.ready_mb, 0.0)
        else:
            worker = Worker(library)
            row = worker.ask(request, cap)
            worker.close()
        if row.get("capped") and math.isfinite(left):
            self.skipped += 1
            return row  # capped by the deadline: not worth remembering
        return self.journal.add(name, row)


def compare(bench: Bench, settings: Iterable[Setting], cap: int) -> list[Row]:
    """ε by both libraries, and whether they agree."""
    rows = []
    for setting in settings:
        mine = bench.measure("ours", setting, "epsilon", cap)
        theirs = bench.measure("dp-accounting", setting, "epsilon", cap)
        row: Row = {"setting": setting.key, "dp_accounting": theirs, "ours": mine}
        if "cpu_seconds" in theirs and "upper" in mine:
            row["speedup"] = theirs["cpu_seconds"] / mine["cpu_seconds"]
        if "epsilon" in theirs and "upper" in mine:
            at_theirs = bench.measure("ours", setting, "delta", cap, epsilon=theirs["epsilon"])
            if "lower" in at_theirs:
                row["excess_delta"] = at_theirs["lower"] - setting.delta
                row["consistent"] = row["excess_delta"] <= ROUND_OFF
                if not row["consistent"]:
                    row |= _ask_mpmath(bench, setting, theirs["epsilon"], at_theirs)
        rows.append(row)
    return rows


def _ask_mpmath(bench: Bench, setting: Setting, epsilon: float, ours: Row) -> Row:
    """Who is right where the libraries differ: consistent if our bracket holds mpmath's δ."""
    from tests.accounting import oracle

    name = f"mpmath delta {setting.key} {epsilon!r}"
    if name not in bench.journal.known:
        print(f"{name} ...", file=sys.stderr, flush=True)
        truth = 0.0
        for direction in ("remove", "add"):
            try:
                answer = oracle.delta(
                    direction,
                    epsilon,
                    steps=setting.steps,
                    p=setting.sampling_probability,
                    sigma=setting.noise_multiplier,
                    group_size=setting.group_size,
                    at_least=ours["lower"] / 1e3,
                )
            except ArithmeticError as error:
                if direction == "add" and "below every guess" in str(error):
                    continue  # far below the other direction
                return {"mpmath": str(error)}
            truth = max(truth, float(answer.value))
        bench.journal.add(name, {"delta": truth})
    truth = bench.journal.known[name]["delta"]
    return {"mpmath": truth, "consistent": bool(ours["lower"] <= truth <= ours["upper"])}


def compare_calibration(bench: Bench, cap: int) -> list[Row]:
    """The least σ by both libraries."""
    rows = []
    for setting in CALIBRATION_SAMPLE:
        extra = {"epsilon": CALIBRATION_EPSILON[setting.key]}
        mine = bench.measure("ours", setting, "calibrate", cap, **extra)
        theirs = bench.measure("dp-accounting", setting, "calibrate", cap, **extra)
        row: Row = {"setting": setting.key, **extra, "dp_accounting": theirs, "ours": mine}
        if "cpu_seconds" in theirs and "sigma" in mine:
            row["speedup"] = theirs["cpu_seconds"] / mine["cpu_seconds"]
        rows.append(row)
    return rows


def summarise(
    compared: list[Row], calibrated: list[Row], own: list[tuple[Setting, Row]], skipped: int
) -> Row:
    """The figures, under keys that say what they are."""
    table_keys = {s.key for s in TABLE}
    counted = [
        r
        for r in compared
        if "speedup" in r
        and (r["setting"] in table_keys or r["dp_accounting"]["cpu_seconds"] > SLOW_SECONDS)
    ]
    done = [(s, r) for s, r in own if "upper" in r]
    times = sorted(1e3 * r["cpu_seconds"] for _, r in done)
    wide = [
        s.key
        for s, r in done
        if not r["upper"] - r["lower"] <= 1e-6 * max(r["upper"], 1e-3) or r["note"]
    ]
    slowest = sorted(done, key=lambda pair: -pair[1]["cpu_seconds"])[:10]

    def median(values: list[float]) -> float | None:
        return statistics.median(values) if values else None

    return {
        "speedup_epsilon_median": median([r["speedup"] for r in counted]),
        "speedup_epsilon_min": min((r["speedup"] for r in counted), default=None),
        "speedup_epsilon_cases": len(counted),
        "speedup_epsilon_capped_cases": sum("capped" in r["dp_accounting"] for r in counted),
        "speedup_calibration_median": median([r["speedup"] for r in calibrated if "speedup" in r]),
        "speedup_calibration_cases": sum("speedup" in r for r in calibrated),
        "speedup_calibration_capped_cases": sum("capped" in r["dp_accounting"] for r in calibrated),
        "dp_accounting_failures": sum("error" in r["dp_accounting"] for r in compared),
        "agreement_cases": sum("consistent" in r for r in compared),
        "dp_accounting_unsafe": [
            {key: r[key] for key in ("setting", "excess_delta", "mpmath")}
            for r in compared
            if "mpmath" in r and r["consistent"]
        ],
        "agreement_failures": [r["setting"] for r in compared if r.get("consistent") is False],
        "own_settings": len(done),
        "own_median_ms": median(times),
        "own_p95_ms": float(np.percentile(times, 95)) if times else None,
        "own_max_ms": times[-1] if times else None,
        "own_peak_memory_mb_over_import": max(
            (r["peak_mb_over_import"] for _, r in done), default=None
        ),
        "own_zero_epsilon": sum(r["upper"] == 0 for _, r in done),
        "own_wide_brackets": len(wide),
        "own_wide_settings": wide[:20],
        "own_failures": [
            {"setting": s.key, "why": r.get("error", "capped")}
            for s, r in own
            if "upper" not in r and "skipped" not in r
        ],
        "own_accountants": dict(Counter(r["accountant"] for _, r in done)),
        "own_slowest": [{"setting": s.key, "ms": 1e3 * r["cpu_seconds"]} for s, r in slowest],
        "skipped_for_lack_of_time": skipped,
        "comparison": compared,
        "calibration": calibrated,
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("numpy", "scipy", "dp-accounting")},
        },
    }


# ------------------------------------------------------------------ what is shown


def _cell(row: Row, *names: str) -> str:
    if "capped" in row:
        return f"> {row['seconds']:.0f} s"
    if "error" in row:
        return row["error"].split(":")[0]
    if "diverged" in row:
        return str(row["diverged"])
    for name in names:
        if name in row:
            return f"{row[name]:.9g}"
    return "-"


def _time(row: Row) -> str:
    if "cpu_seconds" not in row:
        return "-"
    used = row["cpu_seconds"]
    return f"{used:.3g} s" if used >= 1 else f"{1e3 * used:.3g} ms"


def show(summary: Row) -> None:
    """Tables on stderr."""
    console = Console(stderr=True, width=150)
    table = Table(title="epsilon: dp-accounting and userdp")
    for heading in ("setting", "dp-accounting", "time", "userdp (upper)", "time", "speed-up", "ok"):
        table.add_column(heading, no_wrap=True)
    for row in summary["comparison"]:
        theirs, mine = row["dp_accounting"], row["ours"]
        ratio = f"{row['speedup']:.0f}" if "speedup" in row else "-"
        verdict = {True: "yes", False: "NO", None: "-"}[row.get("consistent")]
        cells = (_cell(theirs, "epsilon"), _time(theirs), _cell(mine, "upper"), _time(mine))
        table.add_row(row["setting"], *cells, ratio, verdict)
    console.print(table)
    table = Table(title="calibration of the noise multiplier")
    for heading in ("setting", "epsilon", "dp-accounting", "time", "userdp", "time", "speed-up"):
        table.add_column(heading, no_wrap=True)
    for row in summary["calibration"]:
        theirs, mine = row["dp_accounting"], row["ours"]
        ratio = f"{row['speedup']:.0f}" if "speedup" in row else "-"
        cells = (_cell(theirs, "sigma"), _time(theirs), _cell(mine, "sigma"), _time(mine))
        table.add_row(row["setting"], f"{row['epsilon']:g}", *cells, ratio)
    console.print(table)
    for slow in summary["own_slowest"]:
        console.print(f"slow: {slow['ms']:9.1f} ms  {slow['setting']}")
    for key, value in summary.items():
        if key not in ("comparison", "calibration", "own_slowest"):
            console.print(f"{key}: {value}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accounting", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="a sample that ends within 50 s")
    parser.add_argument("--settings", type=int, help="random settings of our own (default 300)")
    parser.add_argument("--compare", type=int, help="random settings to compare (default 30)")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=["compare", "calibrate", "own"],
        default=["compare", "calibrate", "own"],
        help="which of the three parts to run",
    )
    parser.add_argument("--results", type=Path, help="JSON lines: append, and skip what is there")
    parser.add_argument("--cap", type=int, default=120, help="seconds for a call of either library")
    parser.add_argument("--calibration-cap", type=int, default=900, help="seconds, calibration")
    parser.add_argument("--worker", choices=["ours", "dp-accounting"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(options.worker)
        return 0

    started = time.monotonic()
    bench = Bench(Journal(options.results), started + 36 if options.quick else math.inf)
    count = options.settings or (20 if options.quick else 300)
    compared_count = options.compare or (0 if options.quick else 30)

    own: list[tuple[Setting, Row]] = []
    compared: list[Row] = []
    calibrated: list[Row] = []
    if "own" in options.parts:
        cap = 3 if options.quick else 60
        own = [(s, bench.measure("ours", s, "epsilon", cap)) for s in random_settings(count, 3)]
    if "compare" in options.parts:
        table = [TABLE[0], TABLE[4]] if options.quick else TABLE
        compared = compare(bench, [*table, *random_settings(compared_count, 30)], options.cap)
    if "calibrate" in options.parts and not options.quick:
        calibrated = compare_calibration(bench, options.calibration_cap)
    bench.ours.close()

    summary = summarise(compared, calibrated, own, bench.skipped)
    summary["seconds"] = round(time.monotonic() - started, 1)
    show(summary)
    if options.json:
        print(json.dumps(summary))
    return 1 if summary["agreement_failures"] or summary["own_failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
