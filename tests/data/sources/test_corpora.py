"""The papers' data sets, in their own formats."""

from __future__ import annotations

import shutil
import sqlite3
import zipfile

import pytest

from tests.data.corpora import write_jsonl
from tests.data.sources.fixtures import (
    mail,
    pairs,
    read,
    write_enron,
    write_leaf,
    write_mbox,
    write_parquet,
    write_repository,
    write_stackoverflow,
)
from userdp.core.errors import UseError
from userdp.data.records import Drop

REPEATS = " ".join(["one two three four five six seven eight nine ten"] * 4)
MESSAGES = [
    mail(),
    mail(to="ben@example.org, Cy <cy@example.org>", Cc="di@example.org", body="Minutes attached."),
    mail(subject="FW: lunch"),
    mail(body="See below.\n---------------------- Forwarded by Ana ------\nHello"),
    mail(body=REPEATS),
    mail(sender=""),
    mail(to="", body="To nobody."),
    mail(body=" "),
]


def test_mail_gives_sender_and_owners_and_keeps_five_fields(tmp_path):
    records, tally = read(write_mbox(tmp_path / "a.mbox", MESSAGES))
    assert len(records) + tally.drops.total() == len(MESSAGES)
    assert records[0].text.decode() == (
        "Date: Mon, 14 May 2001 16:39:00 -0700\nFrom: ana@example.org\nTo: ben@example.org\n"
        "Subject: lunch\n\nShall we?\n"
    )
    assert records[1].owners == (
        b"ana@example.org", b"ben@example.org", b"cy@example.org", b"di@example.org"
    )  # fmt: skip
    assert {record.user for record in records} == {b"ana@example.org"}
    assert tally.drops == {Drop.NO_USER: 1, Drop.EMPTY_TEXT: 1}


def test_the_enron_preprocessing_of_chua_et_al_appendix_b(tmp_path):
    options = {"receivers": True, "drop_forwarded": True, "drop_repeats": True}
    folder = write_enron(tmp_path, MESSAGES)
    records, tally = read(folder, kind="maildir", **options)
    assert sorted(record.owners[1] for record in records) == [
        b"ben@example.org", b"ben@example.org", b"cy@example.org", b"di@example.org"
    ]  # fmt: skip
    assert tally.drops == {
        Drop.NO_USER: 1, Drop.NO_RECEIVER: 1, Drop.FORWARDED: 2, Drop.REPEATED_NGRAM: 1,
        Drop.EMPTY_TEXT: 1,
    }  # fmt: skip
    assert tally.records_read == len(records) + tally.drops.total()


def test_mail_of_odd_encodings_is_read_and_what_is_no_mail_is_counted(tmp_path):
    odd = [
        b"From: =?utf-8?q?Ana?= <ana@x.org>\n"
        b"Content-Type: text/plain; charset=latin-1\n\ncaf\xe9\n",
        b"From: b@x.org\nContent-Type: text/html\n\n<p>Hello <b>you</b></p>\n",
        b"From: c@x.org\nContent-Type: text/plain; charset=no-such\n\n\xff\xfe\n",
        b"\x00\xff no mail at all",
    ]
    records, tally = read(write_enron(tmp_path, odd), kind="maildir")
    texts = {record.user: record.text.decode() for record in records}
    assert texts[b"ana@x.org"].endswith("café\n")
    assert "Hello you" in " ".join(texts[b"b@x.org"].split(">"))
    assert len(records) + tally.drops.total() == 4


def test_git_gives_messages_by_author_oldest_first(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    commits = [
        ("ana@x.org", "2017-01-01T00:00:00Z", "first\n\nwith a body"),
        ("ben@x.org", "2018-01-01T00:00:00Z", "second"),
        ("ana@x.org", "2018-01-02T00:00:00Z", ""),
    ]
    repository = write_repository(tmp_path / "repo", commits)
    records, tally = read(repository, held_out_from="2018-01-01")
    assert pairs(records) == [("ana@x.org", "first\n\nwith a body"), ("ben@x.org", "second")]
    assert [record.held_out for record in records] == [False, True]
    assert tally.drops == {str(Drop.EMPTY_TEXT): 1}
    with pytest.raises(UseError, match="is not a git repository"):
        read(tmp_path, kind="git")
    (repository / ".git" / "HEAD").write_text("nonsense")
    with pytest.raises(UseError, match="git cannot read"):
        read(repository)


def test_leaf_files_give_samples_and_hold_out_the_test_folder(tmp_path):
    shakespeare = {"PLAY_ROLE": {"x": ["to be or no", "o be or not"], "y": ["t", " "]}}
    femnist = {"f0001": {"x": [[0.0, 1.0, 0.5]], "y": [7]}}
    write_leaf(tmp_path / "data" / "train" / "a.json", {**shakespeare, **femnist})
    write_leaf(
        tmp_path / "data" / "test" / "a.json", {"PLAY_ROLE": {"x": [""], "y": [""]}, **shakespeare}
    )
    records, tally = read(tmp_path / "data")
    assert pairs(records) == [
        ("PLAY_ROLE", "to be or not"), ("PLAY_ROLE", "o be or not "),
        ("PLAY_ROLE", "to be or not"), ("PLAY_ROLE", "o be or not "), ("f0001", "7: 0 255 128"),
    ]  # fmt: skip
    assert [record.held_out for record in records] == [True, True, False, False, False]
    assert tally.drops.total() == 0  # the second PLAY_ROLE of the test file replaced the first


def test_stack_overflow_is_split_by_its_own_dates(tmp_path):
    rows = [
        ("train", "1", b"how do i exit vim"), ("test", "1", b"still stuck"),
        ("heldout", "2", b"not read"), ("train", "3", b"\xff"), ("train", "4", "é".encode() * 200),
    ]  # fmt: skip
    records, tally = read(write_stackoverflow(tmp_path / "stackoverflow.sqlite", rows))
    assert [(r.user, r.held_out) for r in records] == [(b"1", False), (b"1", True), (b"4", False)]
    assert records[2].text.decode() == "é" * 200
    assert tally.drops == {str(Drop.INVALID_UTF8): 1}
    with sqlite3.connect(tmp_path / "stackoverflow.sqlite") as database:
        database.execute("UPDATE examples SET serialized_example_proto = 1 << 40")
    # `bytes` of a number n makes n zeros.
    assert read(tmp_path / "stackoverflow.sqlite")[1].drops == {str(Drop.UNREADABLE): 4}
    (tmp_path / "other.sqlite").write_bytes(b"SQLite format 3\0" + bytes(100))
    with pytest.raises(UseError, match="SQLite"):
        read(tmp_path / "other.sqlite")


@pytest.mark.parametrize("kind", ["c4", "ccnews"])
def test_web_text_belongs_to_its_registered_domain(tmp_path, kind):
    pytest.importorskip("tldextract", reason="the extra web is not installed")
    urls = ["https://news.bbc.co.uk/a", "http://www.bbc.co.uk:80/b", "https://x.github.io/",
            "http://10.0.0.1/", "", "https://日本.example.jp/"]  # fmt: skip
    rows = [
        {"url": url, "timestamp": "2019-04-25T12:57:54Z", "text": url or "none"} for url in urls
    ]
    for file in (
        write_jsonl(tmp_path / "c4-train.00000-of-01024.json", rows),
        write_parquet(tmp_path / "a.parquet", rows),
    ):
        records, tally = read(file, kind=kind)
        users = [record.user.decode() for record in records]
        assert users == ["bbc.co.uk", "bbc.co.uk", "github.io", "example.jp"]
        assert tally.drops == {str(Drop.NO_DOMAIN): 1, str(Drop.NO_USER): 1}


def test_a_folder_of_books_gives_one_unit_per_file(tmp_path):
    for name, text in (
        ("austen/emma.txt", "Emma"),
        ("b.md", "\ufeffB"),
        ("c.txt", " "),
        ("d.png", "x"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    records, tally = read(tmp_path)
    assert pairs(records) == [("austen/emma.txt", "Emma"), ("b.md", "B")]
    assert tally.drops == {str(Drop.EMPTY_TEXT): 1}


FILES = {
    "ben/notes.md": "\ufeffnotes",
    "ana/2024/diary.txt": "Dear diary",
    "ana/2023/diary.TXT": "an older one",
    "ana/.hidden.txt": "not read",
    "__MACOSX/ana/diary.txt": "not read",
    "ana/picture.png": "not read",
    "stray.txt": "nobody's",
}


def test_the_topmost_folder_is_the_user_and_each_document_a_record(tmp_path):
    with zipfile.ZipFile(tmp_path / "texts.zip", "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    records, tally = read(tmp_path / "texts.zip")
    assert pairs(records) == [
        ("ana", "an older one"), ("ana", "Dear diary"), ("ben", "notes"),
    ]  # fmt: skip
    assert tally.drops == {Drop.NO_USER: 1}


def test_a_damaged_table_name_is_refused_though_it_is_no_utf8(tmp_path):
    path = write_stackoverflow(tmp_path / "stackoverflow.sqlite", [("train", "1", b"text")])
    content = path.read_bytes()
    path.write_bytes(content.replace(b"CREATE TABLE examples", b"CREATE TABL\xc3 examples"))
    with pytest.raises(UseError, match="SQLite"):
        read(path)
