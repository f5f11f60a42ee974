"""Every text in a store is of the user whose it is, or left out and counted, or the input refused.

All through `userdp.prepare` and the command line, on inputs as other programs write them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import userdp
from tests.data.corpora import examples_of
from tests.data.sources.fixtures import write_repository
from userdp.core.errors import UseError

WHOLE = {"held_out_users": 0, "held_out_examples": 0}


def texts(store) -> dict[str, list[str]]:
    """What each user of a store wrote; of a mail, its body."""
    words = Path(store.tokenizer_path)
    tokenizer = Tokenizer.from_file(str(words / "tokenizer.json" if words.is_dir() else words))
    return {
        user.decode(): sorted(
            tokenizer.decode(list(map(int, tokens))).partition("\n\n")[2].strip()
            or tokenizer.decode(list(map(int, tokens))).strip()
            for tokens in examples_of(store, user)
        )
        for user in store.user_ids()
    }


def prepared(folder: Path, name: str, content: bytes | str, **options):
    """The store of one file."""
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return userdp.prepare(file, out=folder / "store", **WHOLE, **options)


OPEN_QUOTE = 'user,text\nana,good morning\nben,"said nothing\ncal,my secret is {}\ndee,bye\n'
MISFITS = {
    "an open quotation mark": (OPEN_QUOTE.format("the pear"), 3),
    "an open mark, another in the secret": (OPEN_QUOTE.format('the "pear"'), 3),
    "an open mark, and a whole field": (OPEN_QUOTE.format("x") + 'eve,"a, b"\n', 3),
    "a mark after a blank": ('user,text\nana,hi\nben, "hello\ncal, it is me"\n', 3),
    "an unquoted comma": ("user,text\nana,hi\nben,well, then\n", 3),
    "a row cut short": ('user,text\nana,"two\nlines"\nben\ncal,hi\n', 4),
    "escapes by a backslash": ('user,text\nana,"he said \\"no\\", and left"\n', 2),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_a_csv_row_that_does_not_fit_is_refused_with_its_line_and_the_way_out(tmp_path, kind):
    content, line = MISFITS[kind]
    said = rf"begins in line {line} has .*\n.*input.csv_escape"
    with pytest.raises(UseError, match=said) as error:
        prepared(tmp_path, "a.csv", content)
    assert "secret" not in str(error.value)
    assert "pear" not in str(error.value)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("variable", ["GIT_DIR", "GIT_COMMON_DIR", "GIT_CONFIG_COUNT"])
def test_the_repository_that_was_named_is_read_whatever_the_environment_says(
    tmp_path, monkeypatch, variable
):
    """As in a hook or a CI step."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    a, b = (
        write_repository(tmp_path / x, [(f"{x}@x.org", "2020-01-01T00:00:00Z", f"message of {x}")])
        for x in "ab"
    )
    values = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "mailmap.file",
              "GIT_CONFIG_VALUE_0": str(tmp_path / "mailmap")}  # fmt: skip
    (tmp_path / "mailmap").write_text("<eve@x.org> <a@x.org>\n")
    if variable != "GIT_CONFIG_COUNT":
        values = {variable: str(b / ".git")}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    store = userdp.prepare(a, out=tmp_path / "store", **WHOLE)
    assert texts(store) == {"a@x.org": ["message of a"]}


def test_a_broken_repository_inside_another_is_not_read_as_the_other(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    outer = write_repository(tmp_path / "a", [("a@x.org", "2020-01-01T00:00:00Z", "of the outer")])
    (outer / "inner" / ".git").mkdir(parents=True)
    with pytest.raises(UseError, match="not a git repository"):
        userdp.prepare(outer / "inner", source="git", out=tmp_path / "store", **WHOLE)


def redacted(rows: dict) -> dict:
    """What a transform of `datasets` does to a batch."""
    return {**rows, "text": [text.replace("555 0199", "[number]") for text in rows["text"]]}


FORMS = {
    "with_transform": lambda table: table.with_transform(redacted),
    "set_transform": lambda table: table.set_transform(redacted) or table,
    "a part of it": lambda table: table.with_transform(redacted).select(range(2)),
    "to numpy": lambda table: table.map(redacted, batched=True).with_format("numpy"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_data_set_is_read_through_its_transform(tmp_path, form):
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    rows = {"user": ["ana", "ben"], "text": ["my phone is 555 0199", "nothing here"]}
    table = FORMS[form](datasets.Dataset.from_dict(rows))
    store = userdp.prepare(table, out=tmp_path / "store", **WHOLE)
    assert texts(store) == {"ana": ["my phone is [number]"], "ben": ["nothing here"]}


def test_a_column_that_the_format_leaves_out_is_not_read(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    table = datasets.Dataset.from_dict({"user": ["ana"], "text": ["secret"], "clean": ["x y"]})
    shown = table.with_format(columns=["user", "clean"])
    with pytest.raises(UseError, match="'text'"):
        userdp.prepare(shown, out=tmp_path / "store", **WHOLE)
    store = userdp.prepare(shown, text="clean", out=tmp_path / "store", **WHOLE)
    assert texts(store) == {"ana": ["x y"]}
