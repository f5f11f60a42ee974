"""What files tell of themselves: conversations, and tables of mixed kinds."""

import json
from pathlib import Path

import pytest

from tests.data.corpora import write_jsonl
from tests.data.sources.fixtures import write_csv, write_parquet
from userdp.core.stages import NoProgress
from userdp.data.records import Drop, Tally
from userdp.data.sources import SourceOptions, open_source

MESSAGES = [
    {"user": "ana", "messages": [{"role": "user", "content": "Why?"},
                                 {"role": "assistant", "content": "Because."}]},
]  # fmt: skip
PLAIN = [{"user": "dan", "text": "hello"}]


def read(*paths: Path, **options):
    source = open_source([str(path) for path in paths], options=SourceOptions(**options))
    tally = Tally()
    return source, list(source.records(tally, NoProgress())), tally


def test_a_text_beside_the_messages_is_the_text(tmp_path):
    rows = [MESSAGES[0] | {"text": "as written"}]
    source, records, _ = read(write_jsonl(tmp_path / "a.jsonl", rows))
    assert (source.kind, source.loss_mask) == ("jsonl", False)
    assert records[0].text == b"as written"


@pytest.mark.parametrize("order", [1, -1])
def test_what_does_not_agree_is_left_to_the_operator(tmp_path, order):
    """Else one person's first record would decide how everybody's text is read."""
    with pytest.raises(ValueError, match="prepare them apart"):
        read(write_jsonl(tmp_path / "a.jsonl", [*PLAIN, *MESSAGES][::order]))
    with pytest.raises(ValueError, match="prepare them apart"):
        read(write_jsonl(tmp_path / "a.jsonl", PLAIN), write_jsonl(tmp_path / "b.jsonl", MESSAGES))


def test_a_row_of_neither_decides_nothing(tmp_path):
    source, records, tally = read(write_jsonl(tmp_path / "a.jsonl", [{"user": "x"}, *MESSAGES]))
    assert source.loss_mask
    assert len(records) == 1
    assert tally.drops == {str(Drop.NO_TEXT_FIELD): 1}


def test_tables_of_mixed_kinds_are_read_together_in_their_order(tmp_path):
    rows = [{"user": f"u{number}", "text": f"t{number}"} for number in range(5)]
    files = [
        write_jsonl(tmp_path / "a.jsonl", rows[:2]),
        write_csv(tmp_path / "b.csv", rows[2:3]),
        write_parquet(tmp_path / "c.parquet", rows[3:4]),
        write_jsonl(tmp_path / "d.jsonl", rows[4:]),
    ]
    source, records, tally = read(*files)
    assert source.kind == "csv+jsonl+parquet"
    assert [record.text.decode() for record in records] == [f"t{number}" for number in range(5)]
    assert tally.records_read == 5
    assert source.facts["files"] == 4
    assert source.facts["bytes"] == source.size == sum(file.stat().st_size for file in files)


def test_the_provenance_of_every_part_is_the_wholes(tmp_path):
    """A lineage that one part's facts overwrote would be missing from the claim."""
    files = [
        write_jsonl(tmp_path / "a.jsonl", PLAIN),
        write_csv(tmp_path / "b.csv", [{"user": "eve", "text": "there"}]),
    ]
    for number, file in enumerate(files):
        beside = file.with_name(f"{file.name}.provenance.json")
        beside.write_text(json.dumps({"lineage": {"number": number}, "generated_by": str(number)}))
    facts = read(*files)[0].facts
    assert facts["text_lineage"] == [{"number": 0}, {"number": 1}]
    assert facts["text_written_by"] == ["0", "1"]


def test_a_part_without_rows_is_no_complaint_about_the_others(tmp_path):
    (tmp_path / "b.csv").write_text("user,text\n")
    _, records, _ = read(write_jsonl(tmp_path / "a.jsonl", PLAIN), tmp_path / "b.csv")
    assert len(records) == 1


def test_progress_goes_on_from_part_to_part(tmp_path):
    places: list[int] = []

    class Heard(NoProgress):
        def at(self, done):
            places.append(done)

    files = [write_jsonl(tmp_path / "a.jsonl", PLAIN), write_csv(tmp_path / "b.csv", PLAIN)]
    source = open_source([str(file) for file in files])
    list(source.records(Tally(), Heard()))
    assert places == sorted(places)
    assert places[-1] == source.size


def test_other_kinds_are_not_mixed_and_each_is_named(tmp_path):
    mail = tmp_path / "a.mbox"
    mail.write_text("From ana@example.org Mon Jan  1 00:00:00 2024\n\nhello\n")
    with pytest.raises(ValueError, match=r"a\.mbox: mbox; .*b\.jsonl: jsonl.*\n.*append"):
        read(mail, write_jsonl(tmp_path / "b.jsonl", PLAIN))
