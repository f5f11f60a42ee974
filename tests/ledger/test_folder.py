"""Files of a run's folder: what is damaged is refused, and by one error."""

from __future__ import annotations

import json

import pytest

from userdp.errors import UseError
from userdp.ledger.folder import RunFolder, read_lines
from userdp.ledger.journal import append_entries


@pytest.fixture
def path(tmp_path):
    """Three whole lines."""
    path = tmp_path / "operator.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(3)))
    return path


def test_lines_are_read_in_order_without_those_that_the_reader_leaves_out(path):
    assert read_lines(path, lambda line: line["step"]) == [0, 1, 2]
    assert read_lines(path, lambda line: line["step"] or None) == [1, 2]
    assert read_lines(path.with_name("none.jsonl"), lambda line: line["step"]) == []


@pytest.mark.parametrize("line", ["{", "[]", "{}", "null"], ids=str)
def test_a_damaged_line_is_refused_with_its_number(path, line):
    path.write_text(f"{path.read_text()}{line}\n{{}}\n")
    with pytest.raises(UseError, match=r"line 4 of .* is damaged"):
        read_lines(path, lambda line: line["step"], torn=True)


def test_a_last_line_that_a_crash_cut_short_is_left_out_where_that_may_be(path):
    path.write_text(f"{path.read_text()}{{")
    assert read_lines(path, lambda line: line["step"], torn=True) == [0, 1, 2]
    with pytest.raises(UseError, match=r"line 4 of .* is damaged"):
        read_lines(path, lambda line: line["step"])


@pytest.mark.parametrize("entries", [[], [{"kind": "store"}]], ids=["empty", "of a store"])
def test_a_ledger_of_no_run_has_no_facts(tmp_path, entries):
    append_entries(tmp_path / "ledger.jsonl", lambda _: entries)
    with pytest.raises(UseError, match="there is no run at"):
        RunFolder(tmp_path).read_facts()


def test_the_facts_are_those_of_the_first_line(tmp_path):
    lines = [{"kind": "run", "run_id": "one", "facts": {"model": "small"}}, {"kind": "step"}]
    append_entries(tmp_path / "ledger.jsonl", lambda _: lines)
    assert RunFolder(tmp_path).read_facts() == {"model": "small"}
    assert RunFolder(tmp_path).run_id == "one"


@pytest.mark.parametrize(
    "text", ["train = 3", "[other]", "[train", "[train]\nmodel = 3", "\0"], ids=ascii
)
def test_damaged_options_are_one_clear_error(tmp_path, text):
    RunFolder(tmp_path).train.write_text(text)
    with pytest.raises(UseError, match="is damaged"):
        RunFolder(tmp_path).read_train()


def test_a_run_without_options_has_none(tmp_path):
    assert RunFolder(tmp_path).read_train() == {}
