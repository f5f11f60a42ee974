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

from userdp.core.stages import NoProgress
from userdp.data.records import Record, Tally
from userdp.data.sources import SourceOptions, open_source

ROWS = [
    {"user": "ana", "text": "Good morning.", "date": "2017-05-01"},
    {"user": "ben", "text": 'He said "no",\nthen left.', "date": "2018-01-01"},
    {"user": "ana", "text": "日本 🙂", "date": "2018-02-03T10:00:00Z"},
]
EXPECTED = [(row["user"], row["text"]) for row in ROWS]


def read(*paths: Any, kind: str | None = None, **options: Any) -> tuple[list[Record], Tally]:
    """The records of a source, and its books."""
    tally = Tally()
    source = open_source([str(p) for p in paths], kind=kind, options=SourceOptions(**options))
    return list(source.records(tally, NoProgress())), tally


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


def write_enron(folder: Path, messages: Sequence[bytes]) -> Path:
    """As the archive is published: one message per file, by person and folder."""
    for number, message in enumerate(messages, 1):
        place = folder / "maildir" / f"person-{number % 2}" / "inbox"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.").write_bytes(message)
    return folder / "maildir"


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


def write_leaf(path: Path, user_data: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = [len(data["x"]) for data in user_data.values()]
    content = {"users": list(user_data), "num_samples": sizes, "user_data": user_data}
    path.write_text(json.dumps(content))
    return path


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


MESSAGE_PAIRS = [
    ("ana@x.org", "ben@x.org"),
    ("ana@x.org", "cy@x.org"),
    ("cy@x.org", "di@x.org"),
    ("di@x.org", "ben@x.org"),
]
"""(sender, receiver); with one record per user the first and the third are taken."""
