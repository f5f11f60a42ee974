"""Time the data pipeline: records to store, and store to cohorts.

    python -m benchmarks.data [--quick] [--json] [--millions 1 3 10 30] [--parts PART ...]

Parts, each reported on its own:

``scale``   A generated corpus with Stack Overflow's shape at 1, 3, 10 and 30 M records: users as a
            log-normal with the median of 183 and the mean of 397 examples of Charles et al. 2024,
            Table 1, at most 194,200; texts of real words, log-normal in length, at most 128
            tokens. Each size runs in a process of its own: peak RSS, wall seconds, and busy
            seconds per stage: reading (parse and spool), sorting, fetching (records by user),
            tokenizing, cutting (examples and splits), writing (with the content hash), finishing
            (checksums and sync). A block is tokenized in one thread while another fetches, cuts
            and writes, so the stages add up to more than the wall. One line through the sizes
            extrapolates to 135.8 M.
``grouper`` Records by user, against Dataset Grouper and bare Apache Beam: `benchmarks.grouping`.
``gather``  A cohort of 4,096 users x 64 examples of 128 tokens: `StoreSplit.gather` against
            ``numpy.take`` of the same tokens with the index already built; warm, and cold (the
            store's pages dropped first) apart.
``draw``    One Poisson cohort drawn and gathered at 1e5, 1e6 and 1e7 examples (expected size the
            same), and drawn and looked up in the index alone at 1e8. Each is gathered twice: the
            first time finds its pages in memory but perhaps not in the process's page table
            (page faults, at most a few per row whatever the store's size), the second time does.
``flat``    RSS over 10,000 steps of draw and gather behind `Prefetch`.

Wall seconds of a noisy machine: each timing is the least of several, ratios are taken between
neighbouring runs. ``--quick`` ends within 50 s on two cores: small sizes, no Beam unless named.
Tables and progress go to stderr, ``--json`` prints one object on stdout.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import grouping

PAPER_RECORDS, PAPER_USERS, MEDIAN, MOST = 135_818_730, 342_477, 183, 194_200
COHORT, GROUP, SEQ_LEN = 4096, 64, 128
PARTS = ("scale", "grouper", "gather", "draw", "flat")
SENTENCES = 2**15
WORDS_PER_TEXT = 12  # 26 tokens on average


# The corpus


def examples_per_user(records: int, seed: int = 0) -> NDArray[np.int64]:
    """Records of each user: Stack Overflow's shape, adding up to ``records``."""
    draw = np.random.default_rng(seed)
    users = max(3, round(records * PAPER_USERS / PAPER_RECORDS))
    mean = PAPER_RECORDS / PAPER_USERS
    counts = draw.lognormal(np.log(MEDIAN), np.sqrt(2 * np.log(mean / MEDIAN)), users)
    counts = np.clip(np.rint(counts * records / counts.sum()), 1, MOST).astype(np.int64)
    while (off := records - int(counts.sum())) != 0:  # rounding, spread over random users
        some = draw.integers(0, users, min(abs(off), users))
        np.add.at(counts, some, np.sign(off))
        counts = np.clip(counts, 1, MOST)
    return counts


def sentences(seed: int = 0, *, words_per_text: int = WORDS_PER_TEXT) -> list[bytes]:
    """JSON strings of real words; lengths log-normal around the median, a few reach 128 tokens."""
    import pydoc_data.topics

    words = " ".join(pydoc_data.topics.topics.values()).split()
    draw = np.random.default_rng(seed)
    sizes = np.clip(np.rint(draw.lognormal(np.log(words_per_text), 0.7, SENTENCES)), 1, 100).astype(
        int
    )
    starts = draw.integers(0, len(words) - 128, SENTENCES)
    texts = [
        " ".join(words[a : a + n]) for a, n in zip(starts.tolist(), sizes.tolist(), strict=True)
    ]
    return [json.dumps(text).encode() for text in texts]


def write_corpus(
    path: Path, records: int, seed: int = 0, *, words_per_text: int = WORDS_PER_TEXT
) -> int:
    """JSON Lines, users mixed as in a dump by time; returns bytes."""
    draw = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(counts := examples_per_user(records))), counts).astype(np.int32)
    draw.shuffle(owner)
    texts = sentences(words_per_text=words_per_text)
    with path.open("wb", buffering=2**22) as file:
        for begin in range(0, records, 2**17):
            part = owner[begin : begin + 2**17].tolist()
            which = draw.integers(0, SENTENCES, len(part)).tolist()
            file.write(
                b"".join(
                    b'{"user":"so%d","text":%b}\n' % (user, texts[text])
                    for user, text in zip(part, which, strict=True)
                )
            )
    return path.stat().st_size


# scale


class Clock:
    """Seconds by stage; stages nest, and an inner one is taken off the outer.

    Each thread has its own stack of stages, so what two threads do at once counts twice: the
    stages are busy seconds, and the wall's are told apart from them.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._threads = threading.local()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if not hasattr(self._threads, "open"):
            self._threads.open = []
        within: list[list[float]] = self._threads.open
        frame = [time.perf_counter(), 0.0]
        within.append(frame)
        try:
            yield
        finally:
            spent = time.perf_counter() - frame[0]
            within.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - frame[1]
            if within:
                within[-1][1] += spent

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            with self(name):
                return function(*arguments, **options)

        return timed

    def iterate(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Iterator[Any]:
            items = iter(function(*arguments, **options))
            while True:
                with self(name):
                    item = next(items, None)
                if item is None:
                    return
                yield item

        return timed


def prepare_child(path: str, out: str) -> None:
    """Prepare one corpus and print what it took; runs in its own process."""
    from userdp.data.body import Body
    from userdp.data.examples import Examples
    from userdp.data.grouping import Grouping
    from userdp.data.prepare import prepare_store
    from userdp.data.sources import open_source
    from userdp.data.tokenize import StoreTokenizer
    from userdp.data.writer import StoreWriter

    clock = Clock()
    for kind, method, stage in (
        (Grouping, "add", "reading"),
        (Grouping, "sort", "sorting"),
        (Examples, "encode", "tokenizing"),
        (Examples, "add", "cutting"),
        (Body, "write", "writing"),
        (StoreWriter, "finish", "finishing"),
    ):
        setattr(kind, method, clock.wrap(stage, getattr(kind, method)))
    iterated = "batches"
    setattr(Grouping, iterated, clock.iterate("fetching", getattr(Grouping, iterated)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.perf_counter(), time.process_time()
    meta = prepare_store(
        open_source([path]), Path(out), tokenizer=StoreTokenizer.load(), seq_len=SEQ_LEN
    )
    print(
        json.dumps(
            {
                "wall_seconds": time.perf_counter() - began,
                "cpu_seconds": time.process_time() - cpu,
                "seconds": clock.seconds,
                "peak_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                "rss_after_import_gb": before / 2**20,
                "totals": {k: meta.totals[k] for k in ("users", "examples", "tokens")},
            }
        )
    )


def child(*arguments: str) -> dict[str, Any]:
    """Run a part of this module in its own process."""
    command = [sys.executable, "-m", "benchmarks.data", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def scale(folder: Path, sizes: list[int], *, words_per_text: int) -> dict[str, Any]:
    rows = []
    for records in sizes:
        path, out = folder / "corpus.jsonl", folder / "store"
        began = time.perf_counter()
        size = write_corpus(path, records, words_per_text=words_per_text)
        row = {"records": records, "bytes": size, "generating": time.perf_counter() - began}
        row |= child("--prepare", str(path), str(out))
        rows.append(row)
        say(
            f"{records:>12,} records  {row['wall_seconds']:8.1f} s  "
            f"peak {row['peak_rss_gb']:.2f} GB  "
            + "  ".join(f"{name} {s:.1f}" for name, s in row["seconds"].items())
        )
        path.unlink()
        subprocess.run(["rm", "-rf", str(out)], check=True)
    return {"rows": rows, **extrapolated(rows)}


def extrapolated(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A line through (records, seconds) of each stage, at the paper's size; and its fit."""
    if len(rows) < 2:
        return {}
    size = np.array([row["records"] for row in rows], dtype=float)
    hours, worst = {}, {}
    for name in rows[0]["seconds"]:
        seconds = np.array([row["seconds"][name] for row in rows])
        # Relative errors count alike at every size.
        slope = float(np.sum(seconds / size) / len(size))
        hours[name] = slope * PAPER_RECORDS / 3600
        worst[name] = float(np.max(np.abs(seconds / (slope * size) - 1)))
    dominant = max(hours, key=lambda name: hours[name])
    return {
        "hours_at_135_8_m": hours,
        "hours_at_135_8_m_wall": per_record(rows) * PAPER_RECORDS / 3600,
        "wall_seconds_of_all": sum(row["wall_seconds"] for row in rows),
        "wall_microseconds_per_record": 1e6 * per_record(rows),
        "worst_relative_departure_from_line": worst,
        "dominant_stage": dominant,
        "dominant_share": hours[dominant] / sum(hours.values()),
        "peak_rss_gb": max(row["peak_rss_gb"] for row in rows),
    }


def per_record(rows: list[dict[str, Any]]) -> float:
    """Wall seconds per record; relative errors count alike at every size."""
    return float(np.mean([row["wall_seconds"] / row["records"] for row in rows]))


def grouper(folder: Path, records: int, few: int) -> dict[str, Any]:
    files = []
    for name, count in (("corpus.jsonl", records), ("few.jsonl", few)):
        files.append(folder / name)
        write_corpus(files[-1], count)
    result = grouping.compare(folder, *files, records, few, child)
    for line in grouping.describe(result):
        say(line)
    return result


# gather, draw, flat


def write_store(path: Path, counts: NDArray[np.int64], length: int) -> Any:
    """A store of random tokens; every example has ``length``."""
    from userdp.data.records import Tally
    from userdp.data.splits import Split
    from userdp.data.store import UserStore
    from userdp.data.tokenize import StoreTokenizer
    from userdp.data.writer import StoreWriter

    draw = np.random.default_rng(0)
    block = draw.integers(0, 4096, int(counts.max()) * length).astype(np.uint16)
    with StoreWriter(path, tokenizer=StoreTokenizer.load(), seq_len=length) as writer:
        import userdp.data.body as body

        # The content hash is not what is timed here.
        hashing, body.prolong = body.prolong, lambda chain, *_: chain
        try:
            for user, count in enumerate(counts.tolist()):
                writer.user(b"%09d" % user)
                lengths = np.full(count, length, dtype=np.int64)
                writer.write(Split.TRAIN, block[: count * length], lengths)
        finally:
            body.prolong = hashing
        writer.finish(source={}, fractions=(0.0, 0.0), tally=Tally())
    return UserStore.open(path)


def least(function: Callable[[], Any], times: int) -> float:
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - began)
    return best


def gather(folder: Path, users: int, times: int) -> dict[str, Any]:
    store = write_store(folder / "gather", np.full(users, GROUP), SEQ_LEN)
    split = store.split("train")
    draw = np.random.default_rng(1)
    cohort = min(COHORT, users)
    chosen = np.repeat(draw.choice(users, cohort, replace=False), GROUP)
    examples = np.tile(np.arange(GROUP), cohort)
    rows = split.gather(chosen, examples)
    tokens = split._segments[0].tokens
    index = ((split._user_first[chosen] + examples)[:, None] * SEQ_LEN + np.arange(SEQ_LEN)).ravel()
    if len(split._segments) == 1:
        assert np.array_equal(np.take(tokens, index), rows.tokens)
    else:
        index %= len(tokens)
    ratios = []
    for _ in range(times):
        bare = least(lambda: np.take(tokens, index), 2)
        ours = least(lambda: split.gather(chosen, examples), 2)
        ratios.append(ours / bare)
    files = list((folder / "gather").rglob("*.arrow"))
    for file in files:
        with file.open("rb") as held:
            os.fsync(held.fileno())
            os.posix_fadvise(held.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    cold = least(lambda: split.gather(chosen, examples), 1)
    result = {
        "rows": len(chosen), "tokens": int(rows.offsets[-1]), "numpy_seconds": bare,
        "ours_seconds": ours, "ratio_ours_over_numpy": float(np.median(ratios)),
        "cold_seconds": cold,
    }  # fmt: skip
    say(f"gather of {len(chosen):,} rows: NumPy {bare:.3f} s, ours {ours:.3f} s, ratio "
        f"{result['ratio_ours_over_numpy']:.2f}; cold {cold:.3f} s")  # fmt: skip
    return result


def sampler_of(counts: NDArray[np.int64], cohort: int) -> Any:
    from userdp.cohorts import build_sampler
    from userdp.plan import Plan

    plan = Plan.for_users(
        population=len(counts), cohort_size=cohort, group_size=4, steps=10, l2_clip_norm=1.0,
        target_delta=1e-6, noise_multiplier=1.0,
    )  # fmt: skip
    return build_sampler(plan, counts)


def draw(folder: Path, sizes: list[int], index_alone: int, times: int) -> dict[str, Any]:
    rows = []
    for examples in [*sizes, index_alone]:
        counts = np.full(examples // 10, 10, dtype=np.int64)
        if examples == index_alone:
            split = index_of(counts)
        else:
            split = write_store(folder / f"draw-{examples}", counts, 8).split("train")
        sampler = sampler_of(split.counts, 256)
        draws, reads, again, faults = [], [], [], []
        for _ in range(times):
            began = time.perf_counter()
            cohort = sampler.draw()
            drawn = time.perf_counter()
            read = split._places if examples == index_alone else split.gather
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            read(cohort.users, cohort.examples)
            draws.append(drawn - began)
            reads.append(time.perf_counter() - drawn)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
            again.append(least(functools.partial(read, cohort.users, cohort.examples), 1))
        row = {"examples": examples, "draw_seconds": float(np.median(draws)),
               "gather_seconds": float(np.median(reads)),
               "gather_again_seconds": float(np.median(again)),
               "page_faults": float(np.median(faults)), "rows": len(cohort.users),
               "index_alone": examples == index_alone}  # fmt: skip
        rows.append(row)
        say(f"{examples:>12,} examples: draw {1e3 * row['draw_seconds']:.2f} ms, "
            f"gather {1e3 * row['gather_seconds']:.2f} ms ({row['page_faults']:.0f} page faults), "
            f"again {1e3 * row['gather_again_seconds']:.2f} ms")  # fmt: skip
    return {
        "rows": rows,
        "ratio_draw_largest_over_smallest": rows[-1]["draw_seconds"] / rows[0]["draw_seconds"],
        "ratio_gather_largest_over_smallest": rows[-2]["gather_seconds"]
        / rows[0]["gather_seconds"],
        "ratio_gather_again_largest_over_smallest": rows[-2]["gather_again_seconds"]
        / rows[0]["gather_again_seconds"],
    }


def index_of(counts: NDArray[np.int64]) -> Any:
    """A split of which the span index alone exists."""
    from userdp.data.splits import Split
    from userdp.data.store import StoreSplit

    users = len(counts)
    spans = {
        "split": np.zeros(users, np.uint8),
        "user": np.arange(users),
        "segment": np.zeros(users, np.int32),
        "start": np.cumsum(counts) - counts,
        "length": counts,
    }
    return StoreSplit(Split.TRAIN, [], spans, np.zeros((users, 2), np.uint64))


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def flat(folder: Path, steps: int) -> dict[str, Any]:
    from userdp.data.prefetch import Prefetch

    split = write_store(folder / "flat", np.full(2000, 10), 32).split("train")
    sampler = sampler_of(split.counts, 64)

    def step() -> Any:
        cohort = sampler.draw()
        return split.gather(cohort.users, cohort.examples)

    seen = {}
    began = time.perf_counter()
    with Prefetch(step) as ahead:
        for number in range(1, steps + 1):
            ahead.next()
            if number in (steps // 10, steps):
                seen[number] = rss_mb()
    first, last = seen.values()
    result = {"steps": steps, "rss_mb": seen, "growth_mb": last - first,
              "seconds_per_step": (time.perf_counter() - began) / steps}  # fmt: skip
    say(f"RSS over {steps:,} steps: {first:.1f} -> {last:.1f} MB")
    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Where it ran."""

    cores: int
    load: float
    python: str


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 3, 10, 30])
    parser.add_argument(
        "--words", type=int, default=WORDS_PER_TEXT, help="of the median text of the part scale"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--folder", type=Path, help="for working files; needs 15 GB at 30 M")
    parser.add_argument("--prepare", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--group", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare:
        prepare_child(*options.prepare)
        return
    if options.group:
        grouping.group_child(*options.group)
        return
    quick: bool = options.quick
    sizes = [20_000, 60_000] if quick else [round(1e6 * m) for m in options.millions]
    machine = Machine(cores=os.cpu_count() or 1, load=os.getloadavg()[0],
                      python=platform.python_version())  # fmt: skip
    result: dict[str, Any] = {"quick": quick, "machine": asdict(machine)}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        runs: dict[str, Callable[[], dict[str, Any]]] = {
            "scale": lambda: scale(folder, sizes, words_per_text=options.words),
            "grouper": lambda: grouper(
                folder, *((20_000, 1_000) if quick else (1_000_000, 100_000))
            ),
            "gather": lambda: gather(folder, 512 if quick else 2 * COHORT, 3 if quick else 5),
            "draw": lambda: draw(
                folder,
                [10**4, 10**5] if quick else [10**5, 10**6, 10**7],
                10**6 if quick else 10**8,
                5 if quick else 15,
            ),
            "flat": lambda: flat(folder, 500 if quick else 10_000),
        }
        for part in options.parts:
            if quick and part == "grouper" and "BEAM_PYTHON" not in os.environ:
                continue
            result[part] = runs[part]()
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
