"""The page that says who may read what shows the table that outputs are held against."""

from pathlib import Path

from tests.secrets.outputs import OPERATOR, OUTPUTS, table

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "secrets.md"


def test_the_page_shows_the_table():
    assert table() in PAGE.read_text(encoding="utf-8")


def test_what_anyone_may_read_holds_nothing_but_a_public_vocabulary():
    held = [one for one in OUTPUTS if one.holds and one.reader != OPERATOR]
    assert [one.name for one in held] == ["`tokenizer.json`, wherever it lies"]
