"""Each kind of source: a small input as other programs write it, and all that is read of it."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import threading
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.corpora import write_jsonl
from tests.data.sources.fixtures import (
    EXPECTED,
    ROWS,
    leaf,
    mail,
    pairs,
    read,
    write_csv,
    write_mbox,
    write_parquet,
    write_repository,
    write_stackoverflow,
)
from userdp.core.errors import UseError
from userdp.core.stages import Progress
from userdp.data.records import Drop, Tally
from userdp.data.sources import SourceOptions, memory, open_source

LINE = b"From x@example.org Mon May 14 16:39:00 2001\n"
ROW = {"user": "ana", "text": "some words"}
ANA = "ana@example.org"
REPEATS = " ".join(["one two three four five six seven eight nine ten"] * 4)


def within(contents: dict[str, str | bytes], name: str = "") -> Callable[[Path], Path]:
    """Writes files below a folder; what is read is the one of that name, or the folder."""

    def make(folder: Path) -> Path:
        for place, content in contents.items():
            file = folder / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder / name

    return make


class Case(NamedTuple):
    """What is read of an input: (user, text) of each record, of a mail its body; and the drops.

    In ``held_out`` an x stands for each record that is.
    """

    make: Callable[[Path], Any]
    records: list[tuple[str, str]]
    drops: Mapping[Drop, int] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})
    held_out: str | None = None


MESSAGES = [
    mail(body="one"),
    mail(to="ben@example.org, Cy <cy@example.org>", Cc="di@example.org", body="two"),
    mail(subject="FW: lunch", body="three"),
    mail(body="See.\n---------------------- Forwarded by Ana ------\nHello"),
    mail(body=REPEATS),
    mail(sender=""),
    mail(to="", body="six"),
    mail(body=" "),
]
ENRON = {f"maildir/person-{n % 2}/inbox/{n}.": text for n, text in enumerate(MESSAGES)}
PAGE = (
    "<html><head><style>p{color:red}</style><script>x=1</script></head>"
    "<p>Tea &amp; cake&nbsp;at 5</p><!-- a > b --></html>"
)
BOTH = "--BB\nContent-Type: text/plain\n\n\n--BB\nContent-Type: text/html\n\n<p>All</p>\n--BB--"
HTML = [
    mail(body=PAGE, **{"Content-Type": "text/html; charset=utf-8"}),
    mail(body=BOTH, **{"Content-Type": "multipart/alternative; boundary=BB"}),
    mail(body="<p><![no]>markup", **{"Content-Type": "text/html"}),
]
ODD = {
    "m/1": b"From: =?utf-8?q?Ana?= <ana@x.org>\n"
    b"Content-Type: text/plain; charset=latin-1\n\nca\xe9\n",
    "m/2": b"From: c@x.org\nContent-Type: text/plain; charset=no-such\n\n\xff\xfe\n",
    "m/3": b"\x00\xff no mail at all",
}
FOLDERS = {
    f"{folder}/{part}/1": mail(body=folder)
    for folder in (".", ".Sent", ".Archive.2020")
    for part in ("cur", "new", "tmp")
}
SPEECH = {"PLAY_ROLE": {"x": ["to be or no", "o be or not"], "y": ["t", " "]}}
POSTS = [
    ("train", "1", b"how do i exit vim"), ("test", "1", b"still stuck"), ("heldout", "2", b"no"),
    ("train", "3", b"\xff"), ("train", "4", "é".encode() * 200),
]  # fmt: skip
URLS = {
    "https://news.bbc.co.uk/a": "bbc.co.uk", "http://BBC.CO.UK:80/b": "bbc.co.uk",
    "https://x.github.io/": "github.io", "https://bücher.de/": "bücher.de",
    "https://xn--bcher-kva.de/a": "bücher.de", "http://10.0.0.1/": None, "": None,
}  # fmt: skip
PAGES = [{"url": url, "timestamp": "2019-04-25T12:57:54Z", "text": url or "x"} for url in URLS]
WEB = [(user, url) for url, user in URLS.items() if user]
NO_DOMAINS = {Drop.NO_DOMAIN: 1, Drop.NO_USER: 1}
BOOKS = {"austen/emma.txt": "Emma", "b.md": "\ufeffB", "c.txt": " ", "d.png": "x"}
TEXTS = {
    "ben/notes.md": "\ufeffnotes", "ana/2024/diary.txt": "Dear diary",
    "ana/2023/diary.TXT": "an older one", "ana/.hidden.txt": "not read",
    "__MACOSX/ana/diary.txt": "not read", "ana/picture.png": "not read", "stray.txt": "nobody's",
}  # fmt: skip
COMMITS = [
    ("ana@x.org", "2017-01-01T00:00:00Z", "first\nwith a body"),
    ("ben@x.org", "2018-01-01T00:00:00Z", "second"), ("ana@x.org", "2018-01-02T00:00:00Z", ""),
]  # fmt: skip
DATES = [{**ROW, "date": value} for value in
         (1514764799, 1514764800, "soon", None, "1514764800", "1425060800000")]  # fmt: skip
TALK = {"user": "ana", "messages": [{"role": "user", "content": "Why?"},
                                    {"role": "assistant", "content": "So."}]}  # fmt: skip


BEN = mail("Ben <ben@example.org>", body="ok thanks")
THANKS = ("ben@example.org", "ok thanks")
BODIES = {
    "a sentence": "See:\n\nFrom what I could copy:\nFrom: Cal <cal@example.org>\n\nbody of Cal\n",
    "a time": "See:\n\nFrom Monday 10:30 on\nFrom: Cal <cal@example.org>\n\nbody of Cal\n",
    "a name": "Yours,\n\nFrom Ana\nFrom: Cal <cal@example.org>\n",
}
SEPARATORS = [
    "From ana at example.org  Mon May 14 16:39:00 2001",
    "From - Mon May 14 16:39:00 2001",
    "From 1719390000000000000@xxx Mon May 14 16:39:00 +0000 2001",
    "From Ana Quill <ana@example.org> Mon May 14 16:39:00 2001",
    "From ana@example.org Mon, 14 May 2001 16:39:00 -0700",
    "From jwz Fri, Jul 01 09:13:09 1994 (+0700)",
]
SENDERS = {
    "Quill, Ana <ana@example.org>": "ana@example.org",
    "Quill, Ana (Sales, EU) <Ana@Example.org>": "ana@example.org",
    '"Quill, Ana" <ana@example.org>': "ana@example.org",
    '"Quill, Ana <ana@example.org>': "ana@example.org",
    "ben@example.org via List <list@example.org>": "list@example.org",
    "ana at example.org (Ana Quill)": "ana@example.org",
    "ana (at) example.org": "ana@example.org",
    "'ana@example.org'": "ana@example.org",
    "José <josé@example.org>": "josé@example.org",
    "Josè <josè@example.org>": "josè@example.org",
    "Ana Quill": None,
    "Ana at Home": None,
    "root (Cron Daemon)": None,
    "Quill, Ana": None,
}
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
QUOTED = "See:\n\nFrom cal@example.org Mon May 14 16:39:00 2001\nFrom: Cal <cal@example.org>\n\nx"


def attached(part: str) -> bytes:
    parts = f"--BB\nContent-Type: text/plain\n\nSee there.\n--BB\n{part}\n--BB--\n"
    return LINE + mail(body=parts, **{"Content-Type": "multipart/mixed; boundary=BB"})


def zipped(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "texts.zip", "w") as archive:
        for name, text in TEXTS.items():
            archive.writestr(name, text)
    return folder / "texts.zip"


def odd_columns(folder: Path) -> Path:
    user = pa.array(["a", None, "b", "c"]).dictionary_encode()
    text = pa.array([b"x", b"y", b"\xff", None], pa.binary())
    pq.write_table(pa.table({"user": user, "text": text}), folder / "a.parquet")
    return folder / "a.parquet"


def mixed(folder: Path) -> list[Path]:
    rows = [{"user": f"u{number}", "text": f"t{number}"} for number in range(4)]
    writers = {"a.jsonl": write_jsonl, "b.csv": write_csv, "c.parquet": write_parquet}
    files = [
        write(folder / n, [row]) for (n, write), row in zip(writers.items(), rows, strict=False)
    ]
    return [*files, *within({"d.csv": "user,text\n"})(folder).glob("d*"),
            write_jsonl(folder / "e.jsonl", rows[3:])]  # fmt: skip


CASES = {
    "mbox": Case(
        lambda folder: write_mbox(folder / "a.mbox", MESSAGES),
        [(ANA, t) for t in ("one", "two", "three", MESSAGES[3].decode().split("\n\n")[1].strip(),
                            REPEATS, "six")],
        {Drop.NO_USER: 1, Drop.EMPTY_TEXT: 1}),
    "mbox, gzip": Case(
        within({"2012-August.mbox.gz": gzip.compress(LINE + MESSAGES[0])}), [(ANA, "one")]),
    "Enron, as Chua et al. appendix B": Case(
        within(ENRON, "maildir"), [(ANA, "one"), *[(ANA, "two")] * 3],
        {Drop.NO_USER: 1, Drop.NO_RECEIVER: 1, Drop.FORWARDED: 2, Drop.REPEATED_NGRAM: 1,
         Drop.EMPTY_TEXT: 1},
        {"kind": "maildir", "receivers": True, "drop_forwarded": True, "drop_repeats": True}),
    "Maildir++": Case(within({**FOLDERS, ".hidden/1": mail()}),
                      [(ANA, name) for name in (".Archive.2020", ".Sent", ".") for _ in "cn"]),
    "HTML is what a reader sees, and an empty plain part gives way": Case(
        within({"a.mbox": b"\n".join(LINE + one for one in HTML)}),
        [(ANA, "Tea & cake\xa0at 5"), (ANA, "All")], {Drop.UNREADABLE: 1}),
    "mail of odd encodings": Case(within(ODD, "m"), [("ana@x.org", "caé"), ("c@x.org", "ÿþ")],
                                  {Drop.NO_USER: 1}, {"kind": "maildir"}),
    **{f"a line From in a body, {name}": Case(
        within({"a.mbox": b"\n".join(LINE + one for one in (mail(body=body), BEN))}),
        [(ANA, body.strip()), THANKS]) for name, body in BODIES.items()},
    **{f"the line {line}": Case(
        within({"a.mbox": b"\n".join(line.encode() + b"\n" + one for one in (MESSAGES[0], BEN))}),
        [(ANA, "one"), THANKS]) for line in SEPARATORS},
    "a quoted line From is text": Case(
        within({"a.mbox": LINE + mail(body=QUOTED.replace("\nFrom ", "\n>From "))}),
        [(ANA, QUOTED)]),
    "a sender is an address in one spelling, or nobody": Case(
        within({f"box/{n:02d}": mail(sender, body="x") for n, sender in enumerate(SENDERS)}, "box"),
        [(user, "x") for user in SENDERS.values() if user], {Drop.NO_USER: 4}, {"kind": "maildir"}),
    **{f"an attached message is left out, {name}": Case(
        within({"a.mbox": attached(part)}), [(ANA, "See there.")], {Drop.ATTACHED: 1})
       for name, part in ATTACHED.items()},
    "git": Case(lambda folder: write_repository(folder / "repo", COMMITS),
                [(user, text) for user, _, text in COMMITS[:2]], {Drop.EMPTY_TEXT: 1},
                {"held_out_from": "2018-01-01"}, "-x"),
    "LEAF": Case(
        within({"data/train/a.json": leaf({**SPEECH, "f0001": {"x": [[0.0, 1.0, 0.5]], "y": [7]}}),
                "data/test/a.json": leaf(SPEECH), "data/all_data/a.json": leaf(SPEECH)}, "data"),
        [("PLAY_ROLE", "to be or not"), ("PLAY_ROLE", "o be or not ")] * 2
        + [("f0001", "7: 0 255 128")], held_out="xx---"),
    "LEAF below a folder named test": Case(
        within({f"test/{part}/a.json": leaf({"U": {"x": [part], "y": ["!"]}})
                for part in ("train", "test")}, "test"),
        [("U", "test!"), ("U", "train!")], {}, {"kind": "leaf"}, "x-"),
    "LEAF in a folder named test, alone": Case(
        within({"test/a.json": leaf({"U": {"x": ["x"], "y": ["!"]}})}, "test"),
        [("U", "x!")], {}, {"kind": "leaf"}, "-"),
    "Stack Overflow": Case(
        lambda folder: write_stackoverflow(folder / "so.sqlite", POSTS),
        [("1", "how do i exit vim"), ("1", "still stuck"), ("4", "é" * 200)],
        {Drop.INVALID_UTF8: 1}, held_out="-x-"),
    "C4": Case(lambda folder: write_jsonl(folder / "c4-train.00000-of-01024.json", PAGES), WEB,
               NO_DOMAINS),
    "CC-News": Case(lambda folder: write_parquet(folder / "a.parquet", PAGES), WEB, NO_DOMAINS,
                    {"kind": "ccnews"}),
    "books": Case(within(BOOKS), [("austen/emma.txt", "Emma"), ("b.md", "B")],
                  {Drop.EMPTY_TEXT: 1}),
    "a ZIP": Case(zipped, [("ana", "an older one"), ("ana", "Dear diary"), ("ben", "notes")],
                  {Drop.NO_USER: 1}),
    "CSV": Case(lambda folder: write_csv(folder / "a.csv"), EXPECTED),
    "TSV": Case(lambda folder: write_csv(folder / "a.tsv", delimiter="\t"), EXPECTED),
    "CSV, gzip": Case(
        lambda folder: within({"b.csv.gz": gzip.compress(write_csv(folder / "a").read_bytes())},
                              "b.csv.gz")(folder), EXPECTED),
    "CSV as RFC 4180 says": Case(
        within({"a.csv": 'user,text\r\nana,"he said ""no"",\nand left"\r\n\r\nben,ok then\r\n'}),
        [("ana", 'he said "no",\nand left'), ("ben", "ok then")], {Drop.BLANK_LINE: 1}),
    "CSV with escapes": Case(
        within({"a.csv": 'user,text\nana,"he said \\"no\\", and left"\nben,one\\, two\n'}),
        [("ana", 'he said "no", and left'), ("ben", "one, two")], {}, {"csv_escape": True}),
    "TSV without quotes": Case(
        within({"a.tsv": 'user\ttext\nana\t"Hello" she said\nben\tmy 5" pipe\n'}),
        [("ana", '"Hello" she said'), ("ben", 'my 5" pipe')], {}, {"csv_no_quotes": True}),
    "CSV of unusable rows": Case(
        within({"a.csv": b"\xef\xbb\xbfuser,text\r\na,x\r\n\r\nb,\r\n,y\r\nc,\xff\r\nd,z\r\n"}),
        [("a", "x"), ("d", "z")],
        {Drop.BLANK_LINE: 1, Drop.EMPTY_TEXT: 1, Drop.NO_USER: 1, Drop.INVALID_UTF8: 1}),
    "JSON Lines": Case(lambda folder: write_jsonl(folder / "a.jsonl", ROWS), EXPECTED, {},
                       {"date": "date", "held_out_from": "2018-01-01"}, "-xx"),
    "JSON Lines, gzip by its bytes": Case(
        within({"a.txt": gzip.compress(json.dumps(ROW).encode())}, "a.txt"),
        [("ana", "some words")]),
    "Parquet": Case(lambda folder: write_parquet(folder / "a.parquet"), EXPECTED, {},
                    {"date": "date", "held_out_from": "2018-01-01"}, "-xx"),
    "Parquet of dictionaries, bytes and nulls": Case(
        odd_columns, [("a", "x")],
        {Drop.NO_USER_FIELD: 1, Drop.INVALID_UTF8: 1, Drop.NO_TEXT_FIELD: 1}),
    "dates": Case(lambda folder: write_jsonl(folder / "a.jsonl", DATES),
                  [("ana", "some words")] * 3, {Drop.NO_DATE: 3},
                  {"date": "date", "held_out_from": "2018-01-01"}, "-xx"),
    "days as numbers": Case(
        lambda folder: write_jsonl(folder / "a.jsonl", [{**ROW, "date": at}
                                                        for at in (20171231, 20180101.0)]),
        [("ana", "some words")] * 2, {}, {"date": "date", "held_out_from": "2018-01-01"}, "-x"),
    "a table that begins as mail does": Case(
        within({"a.csv": "From Address,Body\nana,hello\n"}, "a.csv"),
        [("ana", "hello")], {}, {"user": "From Address", "text": "Body"}),
    "dates of conversations": Case(
        lambda folder: write_jsonl(folder / "a.jsonl", [{**TALK, "date": at} for at in (0, 2e9)]),
        [("ana", "User: Why?\n\nAssistant: So.\n\n")] * 2, {},
        {"date": "date", "held_out_from": "2018-01-01"}, "-x"),
    "a text beside messages is the text": Case(
        lambda folder: write_jsonl(folder / "a.jsonl", [{**TALK, "text": "as written"}]),
        [("ana", "as written")]),
    "a row of neither decides nothing": Case(
        lambda folder: write_jsonl(folder / "a.jsonl", [{"user": "x"}, TALK]),
        [("ana", "User: Why?\n\nAssistant: So.")], {Drop.NO_TEXT_FIELD: 1}),
    "tables of mixed kinds, in their order": Case(
        mixed, [(f"u{number}", f"t{number}") for number in range(4)]),
}  # fmt: skip


def spoken(records) -> list[tuple[str, str]]:
    """(user, text) of each; of a mail its body."""
    return [
        (user, (text.partition("\n\n")[2] if text.startswith("Date: ") else text).strip())
        for user, text in pairs(records)
    ]


@pytest.mark.filterwarnings("ignore:.*are not read")
@pytest.mark.parametrize("name", CASES)
def test_an_input_gives_its_records_and_every_other_entry_is_counted(tmp_path, name):
    case = CASES[name]
    if name == "git" and shutil.which("git") is None:
        pytest.skip("git is not installed")
    if name in ("C4", "CC-News"):
        pytest.importorskip("tldextract", reason="the extra web is not installed")
    made = case.make(tmp_path)
    records, tally = read(*(made if isinstance(made, list) else [made]), **case.options)
    assert spoken(records) == [(user, text.strip()) for user, text in case.records]
    assert tally.drops == {str(reason): count for reason, count in case.drops.items()}
    assert tally.records_read == len(records) + tally.drops.total()
    if case.held_out is not None:
        assert "".join("-x"[record.held_out] for record in records) == case.held_out


def test_mail_keeps_five_fields_and_its_owners(tmp_path):
    records, _ = read(write_mbox(tmp_path / "a.mbox", MESSAGES[:2]))
    assert records[0].text.decode() == (
        "Date: Mon, 14 May 2001 16:39:00 -0700\nFrom: ana@example.org\nTo: ben@example.org\n"
        "Subject: lunch\n\none\n"
    )
    names = ("ana", "ben", "cy", "di")
    assert records[1].owners == tuple(f"{name}@example.org".encode() for name in names)


def test_several_owners_are_named_once_each_in_their_order(tmp_path):
    rows = [{"user": ["ana", "ben", "ana"], "text": "x"}, {"user": ["ben"], "text": "y"}]
    for write, name in ((write_jsonl, "a.jsonl"), (write_parquet, "a.parquet")):
        records, _ = read(write(tmp_path / name, rows))
        assert [record.owners for record in records] == [(b"ana", b"ben"), ()]


# Paths


def test_a_folders_files_are_read_in_order_capitals_too_hidden_ones_not_and_others_are_told(
    tmp_path,
):
    names = ("b.jsonl", "a.jsonl", "folder/2.jsonl", "folder/1.JSONL", "folder/._1.JSONL",
             "folder/~$2.jsonl", "folder/README")  # fmt: skip
    within({n: json.dumps({"user": "u", "text": n}) for n in names})(tmp_path)
    with pytest.warns(match="1 of the files in .* are not read"):
        records, _ = read(tmp_path / "b.jsonl", tmp_path / "folder", tmp_path / "[a].jsonl")
    assert [r.text.decode() for r in records] == [names[at] for at in (0, 3, 2, 1)]


def test_progress_goes_on_from_file_to_file(tmp_path):
    places: list[int] = []

    class Heard(Progress):
        def at(self, done):
            places.append(done)

    source = open_source(list(map(str, mixed(tmp_path))))
    list(source.records(Tally(), Heard()))
    assert (source.kind, source.facts["files"]) == ("csv+jsonl+parquet", 5)
    assert places == sorted(places)
    assert places[-1] == source.size == source.facts["bytes"]


def test_a_pipe_is_read_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    text = json.dumps(ROW) + "\n"
    threading.Thread(target=(tmp_path / "pipe").write_text, args=(text,), daemon=True).start()
    assert pairs(read(tmp_path / "pipe", kind="jsonl")[0]) == [("ana", "some words")]


def test_an_address_is_read_as_a_file_is(tmp_path):
    """A ZIP and the memory of this process stand for what `fsspec` reaches."""
    fsspec = pytest.importorskip("fsspec")
    file = write_jsonl(tmp_path / "a.jsonl", [ROW])
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("inner.jsonl", "a/x.jsonl", "b/x.jsonl"):
            archive.write(file, name)
    with fsspec.open("memory://bucket/b.jsonl", "wb") as there:
        there.write(file.read_bytes())
    for address in (f"zip://*.jsonl::{tmp_path / 'a.zip'}", "memory://bucket/b.jsonl"):
        assert pairs(read(address)[0]) == [("ana", "some words")]
    assert len(read(f"zip://*/x.jsonl::{tmp_path / 'a.zip'}")[0]) == 2, "of one name, both"
    with pytest.raises(UseError, match="cannot be read"):
        read("memory://bucket/nowhere.jsonl")
    with fsspec.open("memory://bucket/emma.txt", "wb") as there:
        there.write(b"a book")
    with pytest.raises(UseError, match="copy the folder to this machine"):
        read("memory://bucket/emma.txt")


def test_a_file_is_read_once_and_links_to_folders_are_told_of(tmp_path):
    file = within({"lake/a.jsonl": json.dumps(ROW)}, "lake/a.jsonl")(tmp_path)
    (file.parent / "latest.jsonl").symlink_to(file)
    (file.parent / "more").symlink_to(tmp_path)
    with pytest.warns(UserWarning, match="1 links to folders"):
        assert len(read(file.parent, file)[0]) == 1


def test_what_two_places_hold_is_one_record_and_two_files_of_one_name_are_two(tmp_path):
    repository = write_repository(tmp_path / "app", COMMITS)
    shutil.copytree(repository, tmp_path / "fork")
    records, tally = read(repository, tmp_path / "fork")
    assert (len(records), tally.drops[Drop.ALREADY_READ]) == (2, 3)
    inbox = within({"mail/lay-k/1": mail(body="one")}, "mail")(tmp_path)
    assert len(read(inbox, inbox / "lay-k", kind="maildir")[0]) == 1
    with zipfile.ZipFile(zipped(tmp_path), "a") as archive:
        archive.writestr("ana/twice.txt", "first")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("ana/twice.txt", "second")
    assert {"first", "second"} <= {text for _, text in pairs(read(tmp_path / "texts.zip")[0])}


# Tables in memory


def in_memory(table, **options) -> list[tuple[str, str]]:
    source = memory.table_source(table, SourceOptions(**options))
    return pairs(list(source.records(Tally(), Progress())))


def test_tables_in_memory_are_read_by_their_columns():
    pandas = pytest.importorskip("pandas")
    assert in_memory([{"user": np.int64(7), "text": "x"}]) == [("7", "x")]
    texts = ["one", "two"]
    long = pandas.DataFrame({"user": [2**70, 1], "text": texts, "meta": [{"a": 1}, [2]]})
    assert in_memory(long) == [(str(2**70), "one"), ("1", "two")]
    with pytest.raises(UseError, match="2 columns named"):
        in_memory(pandas.DataFrame([["ana", "x", "y"]], columns=["user", "text", "text"]))
    with pytest.raises(UseError, match="Int64"):
        in_memory(pandas.DataFrame({"user": [1, None], "text": texts}))
    dated = pandas.DataFrame({"user": ["ana"], "text": ["x"], "date": [1.5e9]})
    assert in_memory(dated, date="date", held_out_from="2018-01-01") == [("ana", "x")]
    with pytest.raises(UseError, match="prepare them apart"):
        in_memory([TALK, ROW])


def test_data_sets_streamed_and_saved_are_read_as_tables_are(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    held = datasets.Dataset.from_list([TALK])
    expected = [("ana", "User: Why?\n\nAssistant: So.\n\n")]
    assert in_memory(held) == in_memory(held.to_iterable_dataset()) == expected
    assert in_memory(datasets.DatasetDict({"train": held})) == expected
    numbers = datasets.Dataset.from_dict({"user": [7], "text": ["x"]}).to_iterable_dataset()
    assert in_memory(numbers.with_format("numpy")) == [("7", "x")]
    data = datasets.Dataset.from_list(ROWS)
    held.save_to_disk(tmp_path / "talks")
    data.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=data).save_to_disk(tmp_path / "dict")
    assert pairs(read(tmp_path / "talks")[0]) == expected
    assert pairs(read(tmp_path / "one")[0]) == pairs(read(tmp_path / "dict")[0]) == EXPECTED


# What is refused


def broken_head(folder: Path) -> Path:
    (write_repository(folder / "repo", COMMITS) / ".git" / "HEAD").write_text("nonsense")
    return folder / "repo"


def damaged_name(folder: Path) -> Path:
    """The name of its table is no UTF-8."""
    path = write_stackoverflow(folder / "stackoverflow.sqlite", POSTS)
    damaged = path.read_bytes().replace(b"CREATE TABLE examples", b"CREATE TABL\xc3 examples")
    path.write_bytes(damaged)
    return path


def saved(folder: Path) -> Path:
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)).save_to_disk(folder / "dict")
    return folder / "dict"


def of_type(column: str, kind: pa.DataType) -> Callable[[Path], Path]:
    arrays = {"user": pa.array(["a"]), "text": pa.array(["b"]), column: pa.nulls(1, kind)}
    return lambda folder: pq.write_table(pa.table(arrays), folder / "a.parquet") or folder


PLAIN = {"user": "dan", "text": "hello"}
REFUSED: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "nothing there": (within({}, "nowhere"), {}, "nothing is there"),
    "nothing there, of a kind": (within({}, "nowhere"), {"kind": "jsonl"}, "nothing is there"),
    "an empty folder": (within({}), {"kind": "jsonl"}, "holds no files of the kind jsonl"),
    "a binary file": (within({"a.jsonl": "\x7fELF\x02\0\0" + "\1\0" * 2500}), {}, "binary file"),
    "one JSON array": (within({"a.jsonl": '[\n{"user": "a"}\n]\n'}), {}, "one JSON array"),
    "two columns of one name": (within({"a.csv": "user,text,text\na,b,c\n"}), {},
                                "2 columns named 'text'"),
    "numbers as texts": (of_type("text", pa.float64()), {}, "column 'text'"),
    "truths as users": (of_type("user", pa.bool_()), {}, "column 'user'"),
    "no mbox": (within({"a.mbox": "just text"}), {}, "is no mbox"),
    **{f"no LEAF: {text}": (within({"a.json": text}), {"kind": "leaf"}, r"LEAF JSON|as JSON")
       for text in ("[]", "{}", '{"user_data": {"a": {"x": ["b"]}}}', "{")},
    "no repository": (within({}), {"kind": "git"}, "is not a git repository"),
    "a broken repository": (broken_head, {}, "git cannot read"),
    "no SQLite": (within({"a.sqlite": b"SQLite format 3\0" + bytes(100)}, "a.sqlite"), {},
                  "SQLite"),
    "SQLite with a damaged name": (damaged_name, {}, "SQLite"),
    "a day without its field": (within({"a.jsonl": json.dumps(ROW)}),
                                {"held_out_from": "2018-01-01"}, "go together"),
    "a split that is not there": (saved, {"dataset_split": "test"}, "no split 'test'"),
    "no saved data set": (within({"x": ""}), {"kind": "hf"}, "cannot be read"),
    # Else one person's first record would decide how everybody's text is read.
    **{f"texts and conversations, {step}": (
        lambda folder, step=step: write_jsonl(folder / "a.jsonl", [PLAIN, TALK][::step]), {},
        "prepare them apart") for step in (1, -1)},
    "texts and conversations, in two files": (
        within({"a.jsonl": json.dumps(PLAIN), "b.jsonl": json.dumps(TALK)}), {},
        "prepare them apart"),
    "kinds that are not mixed": (
        lambda folder: [write_mbox(folder / "a.mbox", MESSAGES[:1]),
                        write_jsonl(folder / "b.jsonl", ROWS)], {},
        r"a\.mbox: mbox; .*b\.jsonl: jsonl.*\n.*append"),
}  # fmt: skip
"""What is read, the options, and what is said."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_in_words(tmp_path, name):
    make, options, match = REFUSED[name]
    made = make(tmp_path)
    with pytest.raises(UseError, match=match):
        read(*(made if isinstance(made, list) else [made]), **options)


def test_a_column_of_numbers_gives_no_posts(tmp_path):
    """`bytes` of a number n makes n zeros."""
    path = write_stackoverflow(tmp_path / "so.sqlite", POSTS)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE examples SET serialized_example_proto = 1 << 40")
    assert read(path)[1].drops == {str(Drop.UNREADABLE): 4}
