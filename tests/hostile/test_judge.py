"""The judge of hostile files tells readers that are broken on purpose from sound ones."""

from __future__ import annotations

import os
import pickle
import random
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.faults.hostile.cases import Case, Target, decoded
from benchmarks.faults.hostile.judge import Judge, Outcome, Verdict
from benchmarks.faults.hostile.mutations import CANARY, VALUES, mutate
from benchmarks.faults.hostile.watch import Watch
from userdp.errors import UseError


class Calls:
    """Unpickling it calls something."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.getpid, ()


def outcome(watch: Watch, folder: Path, read: Callable[[Path], object]) -> Outcome:
    """What is said of a reader that reads so, of a world of one file with one letter changed."""

    class Reader(Target):
        name = "reader"
        what = "one file"
        broken = False

        def make(self, place: Path) -> None:
            (place / "a.txt").write_text("sound")

        def read(self, place: Path) -> None:
            if (place / "a.txt").read_text() != "sound":
                read(place)

    watch.move(folder)
    judge = Judge(Reader(), folder / "reader", watch, seconds=1.0)
    judge.check_world()
    return judge.judge(Case(file="a.txt", content=b"other"))


class RawError(UseError):
    """An error that does not write out what a terminal would obey, as userdp's own do."""

    def __str__(self) -> str:
        return str(self.args[0])


def refuse(words: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        raise RawError(words)

    return read


def test_a_right_result_and_a_clear_error_are_no_findings(watch, tmp_path):
    assert outcome(watch, tmp_path / "a", lambda _: None).verdict is Verdict.RIGHT
    assert outcome(watch, tmp_path / "b", refuse("it is none")).verdict is Verdict.REFUSED


def wrong(folder: Path) -> None:
    raise AssertionError("another number of users")


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "another exception": (lambda folder: {}["a"], "KeyError"),
    "a wrong result": (wrong, "wrong result"),
    "an exit": (lambda folder: exit(1), "SystemExit"),
    "no end": (lambda folder: all(one == 0 for one in iter(int, 1)), "TooLong"),
    "a file elsewhere": (
        lambda folder: (folder.parents[2] / "left").write_text(""),
        "wrote outside",
    ),
    "a folder elsewhere": (lambda folder: (folder.parents[2] / "made").mkdir(), "wrote outside"),
    "half a file": (lambda folder: (folder / ".partial-a").write_text(""), "left behind"),
    "a temporary file": (lambda folder: tempfile.mkstemp(), "left behind"),
    "a pickle": (lambda folder: pickle.loads(pickle.dumps(Calls())), "pickle.find_class"),
    "a program": (lambda folder: subprocess.run(["true"], check=True), "started"),
    "the network": (lambda folder: socket.getaddrinfo("localhost", 1), "socket.getaddrinfo"),
    "a value as a path": (lambda folder: Path(f"/tmp/{CANARY}/a").exists() or _read(), "took"),
    "much memory": (lambda folder: bytearray(400 * 2**20), "much memory"),
    "an error of many letters": (refuse("a" * 9000), "an error"),
    "an error without words": (refuse(" "), "an error without words"),
    "an error that moves the cursor": (refuse("no \x1b[2J"), "an error that cannot be printed"),
    "an error of half a letter": (refuse("no \ud800"), "an error that cannot be printed"),
}


def _read() -> None:
    try:
        Path(f"/tmp/{CANARY}/a").read_text()
    except FileNotFoundError:
        raise UseError("there is no such file") from None


@pytest.mark.parametrize("how", BROKEN)
def test_broken_twin_a_reader_that_ends_in_something_else_is_a_finding(watch, tmp_path, how):
    read, site = BROKEN[how]
    if how == "much memory" and not Path("/proc/self/clear_refs").exists():
        pytest.skip("the system does not tell of memory")
    found = outcome(watch, tmp_path / "deep" / "a", read)
    assert found.verdict is Verdict.FINDING
    assert site in found.site


def test_mutations_are_functions_of_their_seed_and_reach_what_is_odd():
    content = b'{"schema": "a/1", "steps": 3, "clip": {"norm": 1.0, "of": ["a", "b"]}}'
    made = [mutate("a.json", content, random.Random(seed)) for seed in range(3000)]
    assert made == [mutate("a.json", content, random.Random(seed)) for seed in range(3000)]
    text = b"\n".join(made)
    for odd in (b"NaN", b"1e999", b"\\ud800", b"[" * 100_000, b"\xef\xbb\xbf", b"userdp-canary"):
        assert odd in text, odd
    assert sum(one == content for one in made) < 200
    assert len(VALUES) > 40


def test_any_bytes_are_a_case():
    assert decoded(b"", ["a", "b"]) == Case(file="a", content=b"")
    case = Case(file="b", content=b"xyz")
    assert decoded(case.encoded(["a", "b"]), ["a", "b"]) == case
    assert decoded(bytes([7]) + b"x", ["a", "b"]).file == "b"
