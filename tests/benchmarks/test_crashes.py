"""The campaign of crashes: numbers name cases, the file layer does as it says, faults are seen."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.faults.crashes import children
from benchmarks.faults.crashes.cases import COMMANDS, INSTANT, case_of
from benchmarks.faults.crashes.layer import Act, FileLayer
from benchmarks.faults.crashes.oracle import Ledgers, left_behind, noise_problems
from benchmarks.faults.crashes.table import BEGIN, END, failures, section, summary
from benchmarks.faults.planted import ROOT
from benchmarks.faults.table import write_section


def test_a_number_names_a_case_for_good() -> None:
    case = case_of(9)
    assert (case.command, case.faults[0].kind, round(case.faults[0].at, 3)) == (
        "train",
        "kill",
        0.627,
    )
    assert case_of(9) == case


def test_every_command_meets_every_kind_of_fault() -> None:
    met = Counter(
        (case_of(number).command, case_of(number).faults[0].kind) for number in range(189)
    )
    assert {command for command, _ in met} == set(COMMANDS)
    assert {kind for _, kind in met} == {INSTANT, *Act}
    assert len(met) == len(COMMANDS) * (1 + len(Act))


def under(folder: Path, work, *, act: Act | None = None, at: int = 0) -> children.Ended:
    """Do ``work`` in a process whose changes under ``folder`` go through the layer."""

    def live() -> int:
        layer = FileLayer(folder, act=act, at=at)
        layer.install()
        work(layer)
        return 0

    return children.run(live, log=folder.with_name("log"))


def write_two(folder: Path) -> None:
    """Six changes: each file is made, written and synced."""
    for name in ("one", "two"):
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(descriptor, b"12345678")
        os.fsync(descriptor)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


@pytest.mark.parametrize("at", range(1, 8))
def test_a_kill_comes_before_the_change_that_it_names(folder, at) -> None:
    ended = under(folder, lambda layer: write_two(folder), act=Act.KILL, at=at)
    assert ended.status == (-signal.SIGKILL if at < 7 else 0)
    left = {path.name: path.read_bytes() for path in folder.iterdir()}
    expected = [{}, {"one": b""}, {"one": b"12345678"}, {"one": b"12345678"}]
    expected += [{"one": b"12345678", "two": b""}, *[{"one": b"12345678", "two": b"12345678"}] * 2]
    assert left == expected[at - 1]


def test_a_torn_write_leaves_half_of_it(folder) -> None:
    assert under(folder, lambda layer: write_two(folder), act=Act.TEAR, at=4).killed
    assert (folder / "two").read_bytes() == b"1234"


def test_a_power_cut_takes_away_what_was_not_synced(folder) -> None:
    (folder / "one").write_bytes(b"before")

    def work(layer) -> None:
        write_two(folder)
        with (folder / "one").open("ab") as file:
            file.write(b"later")
        assert not layer.is_synced(folder / "one")
        assert layer.is_synced(folder / "two")
        (folder / "three").touch()

    assert under(folder, work, act=Act.CUT, at=9).killed
    assert (folder / "one").read_bytes() == b"12345678"
    assert (folder / "two").read_bytes() == b"12345678"


@pytest.mark.parametrize(
    ("act", "number", "refused"),
    [
        (Act.FULL, errno.ENOSPC, ["write", "write", "mkdir"]),
        (Act.ERROR, errno.EIO, ["write"]),
        (Act.READ_ONLY, errno.EROFS, ["write", "write", "mkdir", "unlink"]),
    ],
)
def test_a_disk_that_refuses(folder, act, number, refused) -> None:
    said = folder.with_name("said")
    (folder / "old").touch()

    def work(layer) -> None:
        met = []

        def trying(name, call, *arguments):
            try:
                call(*arguments)
            except OSError as error:
                met.append([name, error.errno])

        with (folder / "new").open("wb", buffering=0) as file:  # the first change
            trying("write", file.write, b"text")
            trying("write", file.write, b"text")
        trying("mkdir", (folder / "below").mkdir)
        trying("unlink", (folder / "old").unlink)
        said.write_text(json.dumps(met))  # outside of the folder, where nothing is refused

    ended = under(folder, work, act=act, at=2)
    assert ended.status == 0, folder.with_name("log").read_text()
    assert json.loads(said.read_text()) == [[name, number] for name in refused]


def test_a_process_that_does_not_end_is_given_up(tmp_path) -> None:
    ended = children.run(lambda: signal.pause() or 0, log=tmp_path / "log", patience=0.05)
    assert ended.status is None
    assert children.run(
        lambda: signal.pause() or 0, log=tmp_path / "log", kill_after=0.05
    ).killed  # fmt: skip


def noise(step: int, *, of: str = "a", lines: int | None = None, noised: str = "", synced=True):
    return {
        "kind": "noise", "ledger": of, "step": step, "noise": noised or f"{of}{step}",
        "sum": f"sum {of}{step}", "lines": step if lines is None else lines, "synced": synced,
    }  # fmt: skip


def test_right_noise_is_not_accused() -> None:
    drawn = [{"kind": "drawn", "ledger": "a", "step": n, "state": str(n)} for n in (1, 2)]
    assert noise_problems([*drawn, noise(1), noise(2), noise(4), noise(1, of="b")]) == []


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([noise(1), noise(2, lines=1)], "before its line was in the ledger"),
        ([noise(1, synced=False)], "before its line was on the disk"),
        ([noise(1), noise(2, noised="a1")], "the noise of another sum"),
        ([noise(1), noise(1, of="b", noised="a1")], "the noise of another sum"),
        ([noise(1), noise(1, lines=2)], "made ready for release twice"),
        (
            [{"kind": "drawn", "ledger": "a", "step": n, "state": "s"} for n in (1, 2)],
            "used before",
        ),
    ],
)
def test_invariant_7_the_oracle_names_what_is_wrong_with_noise(events, told) -> None:
    (problem,) = noise_problems(events)
    assert told in problem


def test_invariant_7_a_ledger_that_loses_a_line_or_is_edited_is_noticed(tmp_path) -> None:
    from userdp.ledger.journal import append_entries

    path = tmp_path / "run" / "ledger.jsonl"
    path.parent.mkdir()
    for kind in ("store", "look", "look"):
        append_entries(path, lambda _, kind=kind: [{"kind": kind}])
    ledgers = Ledgers(tmp_path)
    assert ledgers.problems() == []
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind":"cut sh')
    assert ledgers.problems() == []
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    assert "has lost lines" in ledgers.problems()[0]
    path.write_bytes(whole.replace(b"look", b"loot", 1))
    assert any("does not follow" in one for one in ledgers.problems())
    path.unlink()
    assert "is gone" in ledgers.problems()[-1]


def test_what_is_left_behind_is_named(tmp_path) -> None:
    for name in (".partial-plan.json-0123abcd", "audit/work-0123", "plan.json"):
        (tmp_path / name).mkdir(parents=True)
    assert left_behind(tmp_path) == [
        ".partial-plan.json-0123abcd was left behind",
        "audit/work-0123 was left behind",
    ]


ROW = {
    "source": "0123", "twin": None,
    "kills": 2, "refusals": 0, "lost": 1, "compared": True, "problems": [], "seconds": 1.0,
}  # fmt: skip


def test_only_cases_in_which_all_held_count_as_survived(tmp_path) -> None:
    rows = {0: ROW, 9: {**ROW, "problems": ["a ledger lost a line"]}}
    assert summary(rows).startswith("2 of 4 kills and 0 of 0 errors")
    assert "a ledger lost a line" in failures(rows)
    page = tmp_path / "page.md"
    page.write_text("# Reliability\n\n## Another\n")
    for _ in range(2):
        write_section(page, section(rows, date="2026-01-01", cores=2))
    text = page.read_text()
    assert "## Another" in text
    assert text.count(BEGIN) == text.count(END) == 1
    assert "| train | 2 | 2 / 4 |" in text


def campaign(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable, "-m", "benchmarks.faults.crashes",
            "--results", str(tmp_path / "results.jsonl"), *options,
        ],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


@pytest.mark.slow
def test_invariant_7_commands_survive_the_first_cases_and_are_not_asked_twice(tmp_path) -> None:
    done = campaign(tmp_path, "--cases", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("survived") == 10
    again = campaign(tmp_path, "--cases", "10")
    assert again.returncode == 0
    assert "survived" not in again.stderr, "their results were kept"
    assert again.stdout == done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("twin", "numbers", "told"),
    [
        ("late-ledger", ["9"], "before its line was in the ledger"),
        ("same-noise", ["9"], "has the noise of another sum"),
        ("left-file", ["10", "19"], "was left"),
    ],
)
def test_invariant_7_twins_are_noticed(tmp_path, twin, numbers, told) -> None:
    done = campaign(tmp_path, "--twin", twin, "--numbers", *numbers)
    assert done.returncode == 1, done.stderr
    assert told in done.stdout
