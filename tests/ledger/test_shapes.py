"""Every line that is written has the shape that is asked for, and no other is read."""

import json
from pathlib import Path

import pytest

from userdp.errors import UseError
from userdp.ledger.journal import append_entries, read_entries
from userdp.ledger.shapes import RUN, STORE, require_shapes

CORPUS = Path(__file__).parents[1] / "formats" / "corpus"
LEDGERS = {"run": RUN, "winner": RUN, "unfinished": RUN, "again": RUN, "store": STORE}


def lines(name):
    return read_entries(CORPUS / name / "ledger.jsonl")


@pytest.mark.parametrize("name", LEDGERS)
def test_what_was_written_has_its_shape(name):
    require_shapes(Path(name), lines(name))


@pytest.mark.parametrize("name", LEDGERS)
def test_a_line_without_a_field_or_with_one_of_another_type_is_refused(name):
    whole, shapes = lines(name), LEDGERS[name]
    for at, entry in enumerate(whole):
        for field in (one for one in shapes[entry["kind"]] if not one.endswith("?")):
            if (at, field) == (0, "schema"):
                continue  # then it is another journal, which its readers refuse
            for broken in (
                {key: value for key, value in entry.items() if key != field},
                {**entry, field: object},
            ):
                with pytest.raises(UseError, match=f"line {at + 1} of .*{field}|{field} in line"):
                    require_shapes(Path(name), [*whole[:at], broken, *whole[at + 1 :]])


@pytest.mark.parametrize("kind", [None, 3, "nobody", ["run"]])
def test_a_line_of_no_known_kind_is_refused(kind):
    with pytest.raises(UseError, match="kind"):
        require_shapes(Path("a"), [*lines("run"), {"kind": kind}])


@pytest.mark.parametrize("field", ["attempts", "steps"])
def test_invariant_8_a_count_below_zero_which_would_make_a_claim_smaller_is_refused(field):
    line = {
        "attempts": {"kind": "lost", "attempts": -3},
        "steps": {"kind": "settle", "run_id": "a", "steps": -3},
    }[field]
    before = lines("run" if field == "attempts" else "store")
    with pytest.raises(UseError, match="below 0"):
        require_shapes(Path("a"), [*before, line])


def test_what_is_appended_later_is_asked_too(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes((CORPUS / "run" / "ledger.jsonl").read_bytes())
    read_entries(path)
    append_entries(path, lambda _: [{"kind": "lost", "attempts": "many"}])
    with pytest.raises(UseError, match="attempts in line"):
        read_entries(path)


def test_a_journal_of_anything_else_is_left_to_its_readers(tmp_path):
    append_entries(tmp_path / "a", lambda _: [{"n": 1}])
    assert read_entries(tmp_path / "a") == [{"n": 1}]
    assert json.loads((tmp_path / "a").read_text())["n"] == 1
