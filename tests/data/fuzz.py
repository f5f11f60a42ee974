"""Inputs nobody should write, by seed; and what must hold whatever they are."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.data.sources import fixtures
from userdp.core.errors import FailureError, UseError
from userdp.data.prepare import prepare_store
from userdp.data.sources import SourceOptions, open_source
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.data.verify import verify_store

TOKENIZER = StoreTokenizer.load()
USERS: list[Any] = [
    "ana", "ben", "", " ", "../../etc/passwd", "/", "a\0b", "C:\\con", "ünïcödé", "日本", "🙂" * 50,
    "\u202e\u200b", "x" * 5000, "null", "NaN", "<script>", "'; DROP TABLE records; --", "\ud83d",
    0, -1, 2**63, 10**400, 1.5, True, None, [], ["ana", "ben"], [["a"]], {"id": 1}, ["ana", None],
]  # fmt: skip
TEXTS: list[Any] = [
    "plain text", "", " \r\n\t", "é 日本 🙂", "a\0b", "<|endoftext|>", "\ufeff", "\ud83d", "\u2028",
    "x" * 100_000, "a " * 5000, "\r\n".join(["CRLF"] * 9), None, 3, 1e400, [], ["text"], {"a": "b"},
    "{\"user\": \"u\"}", "\x1b[31m", "From ana@x.org Mon May 14 16:39:00 2001\nFrom: x@y\n\nhi",
]  # fmt: skip
BYTES = [
    b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\0", b"\r\n", b"\n\n", b"{", b'"', b"[" * 3000,
]  # fmt: skip


def deep(levels: int) -> str:
    return '{"user": "u", "text": ' + '{"a":' * levels + "1" + "}" * levels + "}"


def rows_of(draw: random.Random) -> list[dict[str, Any]]:
    rows = []
    for _ in range(draw.randint(0, 12)):
        row = {"user": draw.choice(USERS), "text": draw.choice(TEXTS)}
        if draw.random() < 0.15:
            row.pop(draw.choice(["user", "text"]))
        if draw.random() < 0.2:
            row[draw.choice(["User", "extra", "", "date", "messages"])] = draw.choice(TEXTS)
        rows.append(row)
    if draw.random() < 0.6:
        rows.append({"user": "good", "text": "a record that can be used"})
    return rows


def jsonl(draw: random.Random, folder: Path) -> Path:
    lines = [json.dumps(row).encode() for row in rows_of(draw)]
    for _ in range(draw.randint(0, 3)):
        odd = draw.choice([b"", b"{}", b"[]", b"nan", b'{"user":"a","user":"b","text":"t"}',
                           deep(draw.choice([3, 500, 100_000])).encode(), draw.choice(BYTES),
                           b'{"user": ' + b"9" * 5000 + b', "text": "x"}'])  # fmt: skip
        lines.insert(draw.randint(0, len(lines)), odd)
    content = draw.choice([b"\n", b"\r\n"]).join(lines)
    path = folder / draw.choice(["a.jsonl", "a.jsonl.gz", "a.ndjson", "..jsonl"])
    path.write_bytes(gzip.compress(content, 1) if path.name.endswith("gz") else content)
    return path


def table(draw: random.Random, folder: Path) -> Path:
    rows = [{k: v for k, v in row.items() if isinstance(v, str)} for row in rows_of(draw)]
    rows = [{k: v.encode("utf-8", "replace").decode() for k, v in row.items()} for row in rows]
    rows = [row for row in rows if {"user", "text"} <= set(row)] or [{"user": "u", "text": "t"}]
    names = dict.fromkeys(["user", "text", *(k for row in rows for k in row)])
    rows = [{k: row.get(k, "") for k in names} for row in rows]
    return fixtures.write_csv(folder / draw.choice(["a.csv", "a.tsv"]), rows)


def lake(draw: random.Random, folder: Path) -> Path:
    size = draw.randint(0, 9)
    kinds: list[Callable[[], pa.Array]] = [
        lambda: pa.array([draw.choice(["a", "b", None, ""]) for _ in range(size)], pa.string()),
        lambda: pa.array([draw.choice([b"a", b"\xff", None]) for _ in range(size)], pa.binary()),
        lambda: pa.array([draw.choice([1, -(2**63), None]) for _ in range(size)], pa.int64()),
        lambda: pa.array([1.5] * size), lambda: pa.array([True] * size), lambda: pa.nulls(size),
        lambda: pa.array([["a", None]] * size), lambda: pa.array([{"a": 1}] * size),
        lambda: pa.array(["a", "b"] * size).slice(0, size).dictionary_encode(),
        lambda: pa.array([2**62] * size, pa.timestamp("s")),
        lambda: pa.array([b"x"] * size, pa.binary(1)), lambda: pa.array([[b"\xff"]] * size),
        lambda: pa.array(["v"] * size, pa.string_view()),
    ]  # fmt: skip
    arrays = {name: draw.choice(kinds)() for name in draw.choice(
        [["user", "text"], ["user", "text", "date"], ["text"], ["User", "text"]])}  # fmt: skip
    path = folder / "a.parquet"
    try:
        pq.write_table(pa.table(arrays), path)
    except (pa.ArrowException, NotImplementedError):  # Parquet itself cannot hold it
        fixtures.write_parquet(path)
    return path


def mailbox(draw: random.Random, folder: Path) -> Path:
    texts = [text for text in TEXTS if isinstance(text, str)]
    messages = []
    for _ in range(draw.randint(0, 6)):
        content = fixtures.mail(
            sender=draw.choice(["Ana <ana@x.org>", "", "=?bad?q?x?=", "a@b, c@d", "<>",
                                "\u202e@x"]),
            to=draw.choice(["ben@x.org", "", ",,,", "Undisclosed:;", "a@b" + ", c@d" * 400]),
            subject=draw.choice(["FW: x", "=?utf-8?b?////?=", "s", "\ttab"]),
            body=draw.choice(texts).encode("utf-8", "replace").decode(),
            **{"Content-Type": draw.choice(["text/plain; charset=no-such", "multipart/mixed",
                                            "text/html", "image/png",
                                            "multipart/mixed; boundary=b"])},
        )  # fmt: skip
        messages.append(content)
    if draw.random() < 0.5:
        return fixtures.write_enron(folder, messages or [b""])
    path = folder / "a.mbox"
    path.write_bytes(b"".join(b"From x\n" + message + b"\n" for message in messages))
    return path


def leaf(draw: random.Random, folder: Path) -> Path:
    values = [["a", "b"], [[0.1, 1]], [None], [[]], "text", None, [["a", 3]], [{"a": 1}], []]
    data: Any = {}
    for _ in range(draw.randint(0, 3)):
        odd = {"x": draw.choice(values), "y": draw.choice(values)}
        user = str(draw.choice(USERS[:12]))
        data[user] = draw.choice([odd, None, [], {"x": ["ok"], "y": ["!"]}])
    path = folder / "a.json"
    path.write_text(json.dumps(draw.choice([{"users": [], "user_data": data}, data, [data]])))
    return path


def posts(draw: random.Random, folder: Path) -> Path:
    rows = [
        (draw.choice(["train", "test", "heldout", ""]), str(draw.choice(["1", "", "ü"])),
         draw.choice([b"text", b"", b"\xff", b"x" * 3000]))
        for _ in range(draw.randint(0, 6))
    ]  # fmt: skip
    return fixtures.write_stackoverflow(folder / "a.sqlite", rows)


def chats(draw: random.Random, folder: Path) -> Path:
    roles = ["user", "assistant", "system", "", None, 3]
    turns = [{"role": draw.choice(roles), "content": draw.choice(TEXTS)}
             for _ in range(draw.randint(0, 4))]  # fmt: skip
    rows = [
        {"user": draw.choice(USERS), "messages": draw.choice([turns, None, "no", [turns], {}])},
        {"user": "u", "prompt": draw.choice(TEXTS), "completion": draw.choice(TEXTS)},
    ]
    if draw.random() < 0.6:
        rows.append({"user": "good", "prompt": "p", "completion": "c"})
    path = folder / "chat.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def books(draw: random.Random, folder: Path) -> Path:
    root = folder / "books"
    for number in range(draw.randint(0, 4)):
        name = draw.choice(["a.txt", "ü/🙂.md", "deep/er/b.rst", f"{number}.png", ".hidden.txt"])
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(draw.choice([b"A book.", b"", *BYTES]))
    root.mkdir(exist_ok=True)
    return root


KINDS: dict[str, tuple[Callable[[random.Random, Path], Path], tuple[str, ...]]] = {
    "jsonl": (jsonl, ("jsonl", "ccnews", "conversations")),
    "table": (table, ("csv",)),
    "lake": (lake, ("parquet", "ccnews", "conversations")),
    "mail": (mailbox, ("mbox", "maildir")),
    "leaf": (leaf, ("leaf",)),
    "posts": (posts, ("stackoverflow",)),
    "chats": (chats, ("conversations", "jsonl")),
    "books": (books, ("folder",)),
}


ALL_KINDS = sorted({kind for _, kinds in KINDS.values() for kind in kinds} | {"git", "hf"})


def damage(draw: random.Random, path: Path) -> None:
    """Cut a file short, flip bits, or put bytes in."""
    content = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 3)):
        place = draw.randint(0, len(content))
        what = draw.randint(0, 3)
        if what == 0:
            del content[place:]
        elif what == 1 and content:
            content[min(place, len(content) - 1)] ^= 1 << draw.randint(0, 7)
        elif what == 2:
            content[place:place] = draw.choice(BYTES)
        else:
            content[place:place] = draw.randbytes(draw.randint(1, 40))
    path.write_bytes(content)


def outcome(seed: int, folder: Path) -> str:
    """Make input ``seed`` in an empty folder and prepare it; what came of it, or an AssertionError.

    "stored" with all records counted and the store verified, or "refused" in words.
    """
    draw = random.Random(seed)
    maker, kinds = KINDS[draw.choice(sorted(KINDS))]
    incoming, place = folder / "in", folder / "out"
    incoming.mkdir()
    place.mkdir()
    path = maker(draw, incoming)
    if path.is_file() and draw.random() < 0.4:
        damage(draw, path)
    kind = draw.choice([None, *kinds]) if draw.random() < 0.95 else draw.choice(ALL_KINDS)
    options = SourceOptions(
        receivers=draw.random() < 0.5, drop_forwarded=draw.random() < 0.5,
        drop_repeats=draw.random() < 0.5,
        **({"date": "date", "held_out_from": "2018-01-01"} if draw.random() < 0.1 else {}),
    )  # fmt: skip
    old, refusal = None, None
    if draw.random() < 0.2:
        old = write(fixtures_source(folder), place / "store")
    try:
        source = open_source([str(path)], kind=kind, options=options)
        write(source, place / "store", overwrite=old is not None, draw=draw)
        result = "stored"
    except (UseError, FailureError) as error:
        refusal, result = error, "refused"
    left = sorted(entry.name for entry in place.iterdir())
    if refusal is not None:
        assert len(refusal.message) > 10, "the error says something"
        assert "\n" not in refusal.message.strip(), "the error is one line"
        assert "defect" not in (refusal.hint or ""), refusal.message
        assert left == (["store"] if old else []), f"left over: {left}"
        if old:
            assert UserStore.open(place / "store").meta.store_id == old
        return result
    assert left == ["store"], f"left over: {left}"
    store = UserStore.open(place / "store")
    totals, drops = store.meta.totals, store.meta.drops
    assert totals["records_read"] == totals["records_stored"] + sum(drops.values())
    assert totals["records_stored"] > 0
    assert verify_store(place / "store").ok
    return result


def fixtures_source(folder: Path) -> Any:
    path = folder / "old.jsonl"
    path.write_text('{"user": "old", "text": "an old store"}\n')
    return open_source([str(path)])


def write(
    source: Any, out: Path, *, overwrite: bool = False, draw: random.Random | None = None
) -> str:
    meta = prepare_store(
        source, out, tokenizer=TOKENIZER, overwrite=overwrite,
        seq_len=draw.choice([2, 16, 128]) if draw else 16,
        held_out_users=draw.choice([0.0, 0.1, 1.0]) if draw else 0.1,
        split=draw.choice(["hash", "given", "first-part"]) if draw else "hash",
    )  # fmt: skip
    return meta.store_id
