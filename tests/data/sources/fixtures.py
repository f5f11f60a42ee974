"""Small inputs in the formats of the sources, made anew for each test."""

from __future__ import annotations

import csv
import json
import mailbox
import sqlite3
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from userdp.core.stages import Progress
from userdp.data.records import Drop, Record, Tally
from userdp.data.sources import SourceOptions, open_source

ROWS = [
    {"user": "ana", "text": "Good morning.", "date": "2017-05-01"},
    {"user": "ben", "text": 'He said "no",\nthen left.', "date": "2018-01-01"},
    {"user": "ana", "text": "日本 🙂", "date": "2018-02-03T10:00:00Z"},
]
EXPECTED = [(row["user"], row["text"]) for row in ROWS]
WHOLE = ("a", "t")
ODD_LINES: dict[bytes, Drop | tuple[str, str]] = {
    b" \t": Drop.BLANK_LINE, b"\xe2\x80\x83": Drop.BLANK_LINE, b"{}": Drop.NO_USER_FIELD,
    b"[]": Drop.NOT_AN_OBJECT, b"null": Drop.NOT_AN_OBJECT, b"{": Drop.INVALID_JSON,
    b'{"user":"a","text":"t"}{"user":"b","text":"u"}': Drop.INVALID_JSON,
    b'{"user":"a","text":"t",}': Drop.INVALID_JSON, b"{'user':'a'}": Drop.INVALID_JSON,
    b'{"user":"a","text":"a\tb"}': Drop.INVALID_JSON, b"[" * 100_000: Drop.INVALID_JSON,
    b'\xc2\xa0{"user":"a","text":"t"}': Drop.INVALID_JSON,
    b'{"user":"a","user":"b","text":"t"}': ("b", "t"), b' {"user":"a","text":"t"} \r': WHOLE,
    b'{"us\\u0065r":"a","text":"t"}': WHOLE, b'{"x":{"user":"z"},"user":"a","text":"t"}': WHOLE,
    b'{"user":"a","text":"t","x":[NaN,-Infinity,1e400]}': WHOLE,
    b'{"user":"a","text":"t","x":"\\udc00"}': WHOLE,
    b'{"user":"a","text":"\\ud83d"}': Drop.INVALID_UTF8,
    b'{"user":"a","text":"\xff"}': Drop.INVALID_UTF8,
    b'{"user":"a","text":"t","x":"\xff"}': ("a", "t"),
    b'{"user":"a","text":"\\ud83d\\ude42"}': ("a", "🙂"),
    b'{"user":"\\u2003","text":"t"}': Drop.NO_USER,
    b'{"user":"a","text":"\\u2003\\u0085"}': Drop.EMPTY_TEXT, b'{"user":7,"text":"t"}': ("7", "t"),
    b'{"user":9223372036854775808,"text":"t"}': ("9223372036854775808", "t"),
    b'{"user":%b,"text":"t"}' % (b"9" * 5000): Drop.INVALID_JSON,
    b'{"user":1.0,"text":"t"}': Drop.USER_NOT_TEXT, b'{"user":true,"text":"t"}': Drop.USER_NOT_TEXT,
    b'{"user":[["a"]],"text":"t"}': Drop.USER_NOT_TEXT,
    b'{"user":[],"text":"t"}': Drop.NO_USER_FIELD,
    b'{"user":null,"text":"t"}': Drop.NO_USER_FIELD, b'{"user":["a"],"text":"t"}': WHOLE,
    b'{"user":"a","text":7}': Drop.NOT_TEXT, b'{"user":"a","text":[]}': Drop.NOT_TEXT,
    b'{"user":"a","text":null}': Drop.NO_TEXT_FIELD, b'{"user":"a"}': Drop.NO_TEXT_FIELD,
    b'{"text":"t"}': Drop.NO_USER_FIELD, b'{"user":"\\udc00","text":"t"}': Drop.INVALID_UTF8,
    b'{"user":"a","text":{"body":"t"}}': Drop.NOT_TEXT,
}  # fmt: skip
"""Lines, and the record or the drop that each is; a byte-order mark may stand before the first."""


def read(*paths: Any, kind: str | None = None, **options: Any) -> tuple[list[Record], Tally]:
    """The records of a source, and its books."""
    tally = Tally()
    source = open_source([str(p) for p in paths], kind=kind, options=SourceOptions(**options))
    return list(source.records(tally, Progress())), tally


def pairs(records: Sequence[Record]) -> list[tuple[str, str]]:
    """(user, text) of each."""
    return [(record.user.decode(), record.text.decode()) for record in records]


def write_csv(path: Path, rows: Sequence[dict[str, Any]] = ROWS, **form: Any) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), **form)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path: Path, rows: Sequence[dict[str, Any]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def mail(
    sender: str = "Ana <Ana@Example.org>",
    to: str = "ben@example.org",
    subject: str = "lunch",
    body: str = "Shall we?",
    **headers: str,
) -> bytes:
    """One message."""
    lines = {
        "Date": "Mon, 14 May 2001 16:39:00 -0700",
        "From": sender,
        "To": to,
        "Subject": subject,
    }
    head = "".join(f"{name}: {value}\n" for name, value in {**lines, **headers}.items() if value)
    return f"{head}\n{body}\n".encode()


def write_mbox(path: Path, messages: Sequence[bytes]) -> Path:
    box = mailbox.mbox(path)
    for message in messages:
        box.add(message)
    box.close()
    return path


def write_repository(path: Path, commits: Sequence[tuple[str, str, str]]) -> Path:
    """A git repository of (author's address, ISO date, message)."""

    def git(*arguments: str, **variables: str) -> None:
        environment = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
                       "HOME": str(path),
                       "PATH": "/usr/bin:/bin:/usr/local/bin", **variables}  # fmt: skip
        subprocess.run(["git", "-C", str(path), *arguments], check=True, env=environment)

    path.mkdir()
    git("init", "-q")
    for address, date, message in commits:
        who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER")
               for key, value in (("NAME", "x"), ("EMAIL", address), ("DATE", date))}  # fmt: skip
        git("commit", "-q", "--allow-empty", "--allow-empty-message", "-m", message, **who)
    return path


def leaf(user_data: dict[str, Any]) -> str:
    """LEAF's JSON."""
    sizes = [len(data["x"]) for data in user_data.values()]
    return json.dumps({"users": list(user_data), "num_samples": sizes, "user_data": user_data})


def example_proto(features: dict[str, bytes]) -> bytes:
    """A serialized ``tf.train.Example``."""

    def field(number: int, content: bytes) -> bytes:
        size, rest = b"", len(content)
        while rest > 127:
            size += bytes([rest % 128 + 128])
            rest //= 128
        return bytes([number << 3 | 2]) + size + bytes([rest]) + content

    entries = b"".join(
        field(1, field(1, key.encode()) + field(2, field(1, field(1, value))))
        for key, value in features.items()
    )
    return field(1, entries)


def write_stackoverflow(path: Path, rows: Sequence[tuple[str, str, bytes]]) -> Path:
    """TensorFlow Federated's SQLite file, of (split, client, text)."""
    database = sqlite3.connect(path)
    database.execute(
        "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
    )
    for split, client, text in rows:
        proto = example_proto({"creation_date": b"2017-01-01 00:00:00 UTC", "tokens": text})
        database.execute("INSERT INTO examples VALUES (?, ?, ?)", (split, client, proto))
    database.commit()
    database.close()
    return path
