"""The measurements of the soak: what the kernel tells, and what the page says of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.faults.soak.measured import cost_of_process, cpu_and_memory
from benchmarks.faults.soak.table import BEGIN, END, draw, flat, section, table
from benchmarks.faults.table import write_section

SAMPLES = [[step, 3 + 0.01 * step, 400.0] for step in range(500, 20_001, 500)]
ROWS = {
    "steps": [
        {"number": 20_000, "what": "train", "cpu": 203.0, "peak": 410.0, "samples": SAMPLES},
        {"number": 20_000, "what": "verify RUN", "cpu": 2.5, "peak": 90.0},
    ],
    "runs": [
        {"number": number, "what": "budget STORE", "cpu": number / 100, "peak": 80.0}
        for number in (50, 100, 200)
    ],
}


def test_a_process_tells_its_own_time_and_memory() -> None:
    busy = "x = bytearray(200_000_000); y = sum(range(10**6))"
    cost = cost_of_process([sys.executable, "-c", busy])
    assert cost.peak > 190  # at least: what its parent holds counts too, until it begins
    assert 0 < cost.cpu < 30
    idle = cost_of_process([sys.executable, "-c", "pass"])
    assert idle.cpu < cost.cpu


def test_a_process_is_watched_while_it_runs() -> None:
    seen: list[tuple[float, float]] = []
    command = [sys.executable, "-c", "import time; time.sleep(1.2)"]
    cost_of_process(command, watch=lambda pid: seen.append(cpu_and_memory(pid)))
    assert all(cpu >= 0 for cpu, _ in seen)
    # The first look may find the fork, as large as what it came from, and the last what has ended.
    assert any(1 < memory < 500 for _, memory in seen)


def test_a_command_that_fails_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        cost_of_process([sys.executable, "-c", "raise SystemExit('no such thing')"])


def test_the_tables_have_a_line_a_command_and_a_column_a_size() -> None:
    told = table(ROWS)
    assert "| budget STORE | 0.5 s, 80 MB | 1 s, 80 MB | 2 s, 80 MB |" in told
    assert "| runs in the store | 50 | 100 | 200 |" in told
    assert "| verify RUN | 2.5 s, 90 MB |" in told


def test_a_step_that_becomes_slower_or_holds_more_shows() -> None:
    assert flat(SAMPLES) == (
        "10.0 ms of processor time a step in the first quarter, 10.0 in the last; 400 MB of memory "
        "after 500 steps, 400 MB after 20,000"
    )
    slower = [[step, 1e-6 * step**2, step / 10] for step in range(500, 20_001, 500)]
    told = flat(slower)
    assert "6.0 ms" in told
    assert "35.0 in the last" in told
    assert "2000 MB after 20,000" in told


def test_the_section_and_the_picture_are_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = section(ROWS, date="2026-01-01", cores=2)
    write_section(page, text)
    write_section(page, text)
    assert page.read_text().count(BEGIN) == page.read_text().count(END) == 1
    draw(ROWS["steps"], tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 1000
