"""The benchmark at paper size writes dated rows and a page."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime

import pytest

from benchmarks.faults.planted import ROOT
from benchmarks.rows import whole_rows


@pytest.mark.slow
def test_each_row_of_a_measurement_notes_its_date_and_the_source(tmp_path):
    rows, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    command = [sys.executable, "-m", "benchmarks.paper_size", "--only", "trial"]
    command += ["--rounds", "2", "--results", str(rows), "--page", str(page)]
    subprocess.run(command, check=True, cwd=ROOT)
    found = list(whole_rows(rows))
    assert ["peak" in row for row in found] == [True, False, False]
    assert all(row["source"] for row in found)
    dates = [datetime.fromisoformat(row["date"]) for row in found]
    assert dates == sorted(dates)
    assert "trial" not in page.read_text()  # no setting of the page
