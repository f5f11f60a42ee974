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
from tests.data.sources.fixtures import mail, write_repository
from userdp.cli.app import run
from userdp.core.errors import UseError

WHOLE = {"held_out_users": 0, "held_out_examples": 0}
LINE = b"From x@example.org Mon May 14 16:39:00 2001\n"
BEN = mail("Ben <ben@example.org>", body="ok thanks")


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
    with pytest.raises(UseError, match=rf"begins in line {line} has .*\n.*csv_escape") as error:
        prepared(tmp_path, "a.csv", content)
    assert "secret" not in str(error.value)
    assert "pear" not in str(error.value)
    assert not (tmp_path / "store").exists()


def test_standard_csv_and_both_other_forms_are_read(tmp_path):
    standard = 'user,text\r\nana,"he said ""no"",\nand left"\r\n\r\nben,ok then\r\n'
    assert texts(prepared(tmp_path, "a.csv", standard)) == {
        "ana": ['he said "no",\nand left'], "ben": ["ok then"]
    }  # fmt: skip
    escaped = 'user,text\nana,"he said \\"no\\", and left"\nben,one\\, two\n'
    store = prepared(tmp_path, "a.csv", escaped, csv_escape=True, overwrite=True)
    assert texts(store) == {"ana": ['he said "no", and left'], "ben": ["one, two"]}
    (tmp_path / "a.tsv").write_text('user\ttext\nana\t"Hello" she said\nben\tmy 5" pipe\n')
    line = ["prepare", str(tmp_path / "a.tsv"), "--set", "input.csv_no_quotes=true",
            "--out", str(tmp_path / "tsv"), "--held-out-users", "0",
            "--held-out-examples", "0"]  # fmt: skip
    assert run(line) == 0
    assert texts(userdp.UserStore.open(tmp_path / "tsv")) == {
        "ana": ['"Hello" she said'], "ben": ['my 5" pipe']
    }  # fmt: skip


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


BODIES = {
    "a sentence": b"See:\n\nFrom what I could copy:\nFrom: Cal <cal@example.org>\n\nbody of Cal\n",
    "a time": b"See:\n\nFrom Monday 10:30 on\nFrom: Cal <cal@example.org>\n\nbody of Cal\n",
    "a name": b"Yours,\n\nFrom Ana\nFrom: Cal <cal@example.org>\n",
}


@pytest.mark.parametrize("body", BODIES)
def test_a_line_from_in_a_body_begins_no_mail_of_somebody(tmp_path, body):
    content = LINE + mail(body=BODIES[body].decode()) + b"\n" + LINE + BEN
    store = prepared(tmp_path, "a.mbox", content)
    assert texts(store) == {
        "ana@example.org": [BODIES[body].decode().strip()], "ben@example.org": ["ok thanks"]
    }  # fmt: skip


SEPARATORS = [
    "From ana at example.org  Mon May 14 16:39:00 2001",
    "From - Mon May 14 16:39:00 2001",
    "From 1719390000000000000@xxx Mon May 14 16:39:00 +0000 2001",
    "From Ana Quill <ana@example.org> Mon May 14 16:39:00 2001",
    "From ana@example.org Mon, 14 May 2001 16:39:00 -0700",
    "From jwz Fri, Jul 01 09:13:09 1994 (+0700)",
]


@pytest.mark.parametrize("line", SEPARATORS)
def test_every_usual_form_of_the_line_begins_a_mail(tmp_path, line):
    begin = line.encode() + b"\n"
    store = prepared(tmp_path, "a.mbox", begin + mail(body="one") + b"\n" + begin + BEN)
    assert texts(store) == {"ana@example.org": ["one"], "ben@example.org": ["ok thanks"]}


def test_a_quoted_line_from_is_text(tmp_path):
    body = "See:\n\nFrom cal@example.org Mon May 14 16:39:00 2001\nFrom: Cal <cal@example.org>\n\nx"
    quoted = body.replace("\nFrom ", "\n>From ")
    store = prepared(tmp_path, "a.mbox", LINE + mail(body=quoted))
    assert texts(store) == {"ana@example.org": [body]}


SENDERS = {
    "Quill, Ana <ana@example.org>": "ana@example.org",
    "Quill, Ana (Sales, EU) <Ana@Example.org>": "ana@example.org",
    '"Quill, Ana" <ana@example.org>': "ana@example.org",
    '"Quill, Ana <ana@example.org>': "ana@example.org",
    "ben@example.org via List <list@example.org>": "list@example.org",
    "ana at example.org (Ana Quill)": "ana@example.org",
    "ana (at) example.org": "ana@example.org",
    "'ana@example.org'": "ana@example.org",
    "Ana Quill": None,
    "Ana at Home": None,
    "root (Cron Daemon)": None,
    "Quill, Ana": None,
}


def test_a_mails_user_is_an_address_in_one_spelling_or_the_mail_is_dropped(tmp_path):
    for number, sender in enumerate(SENDERS):
        (tmp_path / "box" / "cur").mkdir(parents=True, exist_ok=True)
        (tmp_path / "box" / "new").mkdir(exist_ok=True)
        (tmp_path / "box" / "cur" / f"{number:02d}").write_bytes(mail(sender, body=f"n{number}"))
    store = userdp.prepare(tmp_path / "box", out=tmp_path / "store", **WHOLE)
    expected: dict[str, list[str]] = {}
    for number, user in enumerate(SENDERS.values()):
        if user is not None:
            expected.setdefault(user, []).append(f"n{number}")
    assert texts(store) == {user: sorted(bodies) for user, bodies in expected.items()}
    assert store.meta.drops == {"empty user": 4}


ATTACHED = {
    "message/rfc822": "Content-Type: message/rfc822\nContent-Disposition: attachment\n\n"
    "From: Cal <cal@example.org>\nContent-Type: text/plain\n\nthe secret of Cal",
    "inline": "Content-Type: message/rfc822\n\nFrom: Cal <cal@example.org>\n\nthe secret of Cal",
    "of HTML": "Content-Type: message/rfc822\n\nFrom: Cal <cal@example.org>\n"
    "Content-Type: text/html\n\n<p>the secret of Cal</p>",
    "message/partial": 'Content-Type: message/partial; id="a"; number=1; total=2\n\n'
    "From: Cal <cal@example.org>\n\nthe secret of Cal",
    "digest": "Content-Type: multipart/digest; boundary=DD\n\n--DD\n\n"
    "From: Cal <cal@example.org>\n\nthe secret of Cal\n--DD--",
    "digest with plain parts": "Content-Type: multipart/digest; boundary=DD\n\n--DD\n"
    "Content-Type: text/plain\n\nthe secret of Cal\n--DD--",
}


@pytest.mark.parametrize("kind", ATTACHED)
def test_a_message_attached_to_a_mail_is_left_out_and_counted(tmp_path, kind):
    parts = f"--BB\nContent-Type: text/plain\n\nSee there.\n--BB\n{ATTACHED[kind]}\n--BB--\n"
    content = mail(body=parts, **{"Content-Type": "multipart/mixed; boundary=BB"})
    store = prepared(tmp_path, "a.mbox", LINE + content)
    assert texts(store) == {"ana@example.org": ["See there."]}
    assert store.meta.drops == {"message attached to a mail": 1}
    assert store.meta.totals["records_read"] == 2


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
