"""Files of a run's folder: what is damaged is refused, and by one error."""

from __future__ import annotations

import json

import pytest

from tests.ledgers import run_with
from tests.plans import uls_plan
from userdp.core.errors import UseError
from userdp.core.files import read_lines
from userdp.ledger import RunRecord, StoreLedger
from userdp.ledger.run_folder import RunFolder


@pytest.fixture
def path(tmp_path):
    """Three whole lines."""
    path = tmp_path / "operator.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(3)))
    return path


def test_lines_are_read_in_order(path):
    assert read_lines(path) == [{"step": step} for step in range(3)]
    assert read_lines(path.with_name("none.jsonl")) == []


@pytest.mark.parametrize("line", ["{", "[1]", "3", "null"], ids=str)
def test_a_damaged_line_is_refused_with_its_number(path, line):
    path.write_text(f"{path.read_text()}{line}\n{{}}\n")
    with pytest.raises(UseError, match=r"line 4 of .* is damaged"):
        read_lines(path)


def test_a_last_line_that_a_crash_cut_short_is_left_out(path):
    path.write_text(f"{path.read_text()}{{")
    assert len(read_lines(path)) == 3


def test_where_no_run_is_there_is_no_record(tmp_path):
    with pytest.raises(UseError, match="there is no run at"):
        RunRecord.read(tmp_path)
    StoreLedger(tmp_path).look("stats")
    with pytest.raises(UseError, match="is a user store, not a run"):
        RunRecord.read(tmp_path)


def test_a_record_says_what_the_lines_come_to(tmp_path):
    plan = uls_plan()
    run = run_with(tmp_path / "run", plan, 3, finished=True, facts={"model": "small"})
    told = RunRecord.read(run)
    assert (told.run_id, told.plan, told.begin.facts) == ("run", plan, {"model": "small"})
    assert (told.attempts, told.finish.attempts) == (3, 3)
    assert told.data == (run / "ledger.jsonl").read_bytes()
    assert RunRecord.read(run / "ledger.jsonl").data == told.data


@pytest.mark.parametrize(
    "text", ["train = 3", "[other]", "[train", "[train]\nmodel = 3", "\0"], ids=ascii
)
def test_damaged_options_are_one_clear_error(tmp_path, text):
    RunFolder(tmp_path).train.write_text(text)
    with pytest.raises(UseError, match="is damaged"):
        RunFolder(tmp_path).read_train()


def test_a_run_without_options_has_none(tmp_path):
    assert RunFolder(tmp_path).read_train() == {}
    RunFolder(tmp_path).train.write_text("[train.plain]\nsteps = 3")  # of a silo
    assert RunFolder(tmp_path).read_train() == {"plain": {"steps": 3}}
