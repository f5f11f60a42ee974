"""The process that tries cases of one target.

``python -m benchmarks.faults.hostile.child`` is led by coverage; `at_random` is not.

One of them may die of a case, whatever the library does about errors: C++ aborts where an array is
not what it says. So the case that runs lies in a file, for whoever asks later what it was.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import resource
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.faults.hostile.cases import Case, decoded
from benchmarks.faults.hostile.judge import Judge, Verdict
from benchmarks.faults.hostile.mutations import mutate
from benchmarks.faults.hostile.targets import targets
from benchmarks.faults.hostile.watch import Watch

REPORT, CURRENT, DEATH = "report.json", "current", "death"
"""Files in the child's folder: what it counted, the case that runs, and where Python was."""
_LARGEST = 200_000
"""Bytes of a case."""
_WORDS = 300
"""Letters of a finding's error that are kept."""
_PATIENCE = 60
"""Seconds of processor time after its end by which C++ that loops on is killed."""
_SPACE = 6 * 2**30
"""Bytes of addresses that cases may take beside what is mapped at their beginning."""


class Trials:
    """Cases, counted, until the time is over.

    Args:
        judge: of the target.
        folder: for the files that are named above.
        seconds: on the clock.
    """

    def __init__(self, judge: Judge, folder: Path, seconds: float) -> None:
        self._judge, self._folder = judge, folder
        self._begin, self._seconds, self._told = time.monotonic(), seconds, 0.0
        self._computed = time.process_time()
        self._counts = Counter[str]()
        self._findings: dict[str, dict[str, Any]] = {}

    @property
    def over(self) -> bool:
        """Whether the time is."""
        return time.monotonic() - self._begin > self._seconds

    def try_(self, case: Case) -> None:
        """Judge a case, and count it; what was counted is written every few seconds."""
        (self._folder / CURRENT).write_bytes(case.encoded(self._judge.world.files))
        outcome = self._judge.judge(case)
        self._counts[outcome.verdict] += 1
        if outcome.verdict is Verdict.FINDING:
            if outcome.site not in self._findings:
                kept = keep(self._folder, case.encoded(self._judge.world.files))
                why = outcome.why[:_WORDS]
                found = {"why": why, "times": 0, "file": case.file, "case": kept}
                self._findings[outcome.site] = found
            self._findings[outcome.site]["times"] += 1
        now = time.monotonic()
        if now - self._told > 5:
            self._told = now
            self.tell()

    def tell(self) -> None:
        """Write what was counted."""
        values = {
            "seconds": round(time.monotonic() - self._begin, 1),
            "computed": round(time.process_time() - self._computed, 1),
            **{verdict.value: self._counts[verdict] for verdict in Verdict},
            "findings": self._findings,
        }
        temporary = self._folder / f"{REPORT}.new"
        temporary.write_text(json.dumps(values))
        temporary.replace(self._folder / REPORT)


def keep(folder: Path, case: bytes) -> str:
    """Keep the case of a finding; return the name of its file among the ``findings``."""
    name = f"{zlib.crc32(case):08x}"
    (folder / "findings").mkdir(exist_ok=True)
    (folder / "findings" / name).write_bytes(case)
    return name


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.hostile.child")
    parser.add_argument("target")
    parser.add_argument("--folder", type=Path, required=True, help="for the report; kept")
    parser.add_argument("--scratch", type=Path, required=True, help="for the world; empty")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    import atheris  # before the library is loaded, which it puts its counters into

    with atheris.instrument_imports(include=["userdp"]):
        judge = _judge(options.target, options.scratch)
    trials = _limited(judge, options.folder, options.seconds)
    _by_coverage(trials, judge, options)


def at_random(target: str, *, folder: Path, scratch: Path, seconds: float, seed: int) -> int:
    """Change what is sound, again and again; the exit status.

    Args:
        target: its name.
        folder: for the report; kept.
        scratch: for the world; empty.
        seconds: on the clock.
        seed: of the changes.
    """
    judge = _judge(target, scratch)
    trials = _limited(judge, folder, seconds)
    seeds = judge.world.seeds()
    number = 0
    while not trials.over:
        draw = random.Random(f"{seed}/{number}")
        sound = draw.choice(seeds)
        content = mutate(sound.file, sound.content, draw)[:_LARGEST]
        trials.try_(Case(file=sound.file, content=content))
        number += 1
    trials.tell()
    return 0


def _judge(target: str, scratch: Path) -> Judge:
    judge = Judge(targets()[target], scratch, Watch(scratch))
    judge.check_world()  # which loads what its readers need
    return judge


def _limited(judge: Judge, folder: Path, seconds: float) -> Trials:
    """Trials within bounds of this process, which says where it was should it die."""
    resource.setrlimit(resource.RLIMIT_AS, (_mapped() + _SPACE,) * 2)
    most = int(time.process_time() + seconds + _PATIENCE)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    faulthandler.enable((folder / DEATH).open("w"))
    return Trials(judge, folder, seconds)


def _by_coverage(trials: Trials, judge: Judge, options: argparse.Namespace) -> NoReturn:
    """Let atheris choose: it keeps what reaches new lines, and changes that further."""
    import atheris

    names = judge.world.files

    def once(data: bytes) -> None:
        if trials.over:
            trials.tell()
            os._exit(0)  # atheris has no other end
        trials.try_(decoded(data, names))

    def changed(data: bytes, most: int, seed: int) -> bytes:
        draw = random.Random(seed)
        if draw.random() < 0.3:
            return bytes(atheris.Mutate(data, most))
        case = decoded(data, names)
        content = mutate(case.file, case.content, draw)
        return Case(file=case.file, content=content).encoded(names)[:most]

    corpus, seeds = options.folder / "corpus", options.scratch / "seeds"
    corpus.mkdir(exist_ok=True)
    seeds.mkdir()
    for number, case in enumerate(judge.world.seeds()):
        (seeds / str(number)).write_bytes(case.encoded(names))
    flags = [
        f"-max_len={_LARGEST}", f"-seed={options.seed}", "-rss_limit_mb=0", "-timeout=1000",
        "-handle_segv=0", "-handle_bus=0", "-handle_abrt=0", "-handle_ill=0", "-handle_fpe=0",
        "-len_control=0", "-verbosity=0", "-detect_leaks=0",
        f"-artifact_prefix={options.scratch}/",
    ]  # fmt: skip
    arguments = [sys.argv[0], *flags, str(corpus), str(seeds)]
    atheris.Setup(arguments, once, custom_mutator=changed)
    atheris.Fuzz()
    raise AssertionError("atheris does not return")


def _mapped() -> int:
    """Bytes of addresses that this process has mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
