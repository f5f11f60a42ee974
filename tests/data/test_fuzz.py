"""Any input is stored, or counted with a reason, or refused with one clear error."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.data.corpora import problems_of, write_jsonl
from tests.data.sources.test_sources import CASES
from tests.speed import fast_then_slow
from userdp.core.errors import FailureError, UseError
from userdp.data.grouping import Grouping
from userdp.data.pipeline import prepare_store
from userdp.data.sources import SourceOptions, open_source
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore

TOKENIZER = StoreTokenizer.load()
USERS: list[Any] = [
    "ana", "ben", "", " ", "../../etc/passwd", "a\0b", "ünïcödé", "🙂" * 50, "\u202e\u200b",
    "x" * 5000, "NaN", "'; DROP TABLE records; --", "\ud83d", 0, -1, 10**400, 1.5, True, None, [],
    ["ana", "ben"], [["a"]], {"id": 1}, ["ana", None],
]  # fmt: skip
TEXTS: list[Any] = [
    "plain text", "", " \r\n\t", "é 日本 🙂", "a\0b", "<|endoftext|>", "\ufeff", "\ud83d", "\u2028",
    "x" * 100_000, "\r\n".join(["CRLF"] * 9), None, 3, 1e400, [], ["text"], {"a": "b"},
    "From ana@x.org Mon May 14 16:39:00 2001\nFrom: x@y\n\nhi", [{"role": "user", "content": "x"}],
]  # fmt: skip
BYTES = [b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\0", b"\r\n", b"\n\n"]
BYTES += [b"{", b'"', b"[" * 3000]
INPUTS = ["rows"] * len(CASES) + [name for name in CASES if name != "git"]


def rows_of(draw: random.Random) -> list[dict[str, Any]]:
    names = ["text", "messages", "completion"]
    rows = [
        {"user": draw.choice(USERS), "prompt": "why", draw.choice(names): draw.choice(TEXTS)}
        for _ in range(draw.randint(0, 12))
    ]
    return rows + [{"user": "good", "text": "a record that can be used"}] * draw.randint(0, 1)


def damage(draw: random.Random, path: Path) -> None:
    """Cut a file short, flip bits, or put bytes in."""
    content = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 3)):
        place, what = draw.randint(0, len(content)), draw.randint(0, 3)
        if what == 0:
            del content[place:]
        elif what == 1 and content:
            content[min(place, len(content) - 1)] ^= 1 << draw.randint(0, 7)
        else:
            more = draw.choice([*BYTES, draw.randbytes(draw.randint(1, 40))])
            content[place:place] = more
    path.write_bytes(content)


def outcome(seed: int, folder: Path) -> str:
    """Make input ``seed`` in an empty folder and prepare it; what came of it, or an AssertionError.

    "stored" with all records counted and the store verified, or "refused" in words.
    """
    draw = random.Random(seed)
    inputs, place = folder / "in", folder / "out"
    inputs.mkdir()
    place.mkdir()
    case = CASES.get(draw.choice(INPUTS))
    made = case.make(inputs) if case else write_jsonl(inputs / "a.jsonl", rows_of(draw))
    files = sorted(path for path in inputs.rglob("*") if path.is_file())
    if draw.random() < 0.4:
        damage(draw, draw.choice(files))
    options = {"receivers": draw.random() < 0.5, **(case.options if case else {})}
    kind = options.pop("kind", None)
    try:
        paths = [str(path) for path in (made if isinstance(made, list) else [made])]
        source = open_source(paths, kind=kind, options=SourceOptions(**options))
        prepare_store(source, place / "store", tokenizer=TOKENIZER, seq_len=draw.choice([2, 128]),
                      split=draw.choice(["hash", "given", "first-part"]))  # fmt: skip
        refusal = None
    except (UseError, FailureError) as error:
        refusal = error
    if refusal is not None:
        assert len(refusal.message) > 10, "the error says something"
        assert "\n" not in refusal.message.strip(), "the error is one line"
        assert "defect" not in (refusal.hint or ""), refusal.message
        assert not any(place.iterdir()), "something is left over"
        return "refused"
    assert [entry.name for entry in place.iterdir()] == ["store"]
    meta = UserStore.open(place / "store").meta
    assert meta.totals["records_read"] == meta.totals["records_stored"] + sum(meta.drops.values())
    assert meta.totals["records_stored"] > 0
    assert not problems_of(place / "store")
    return "stored"


@pytest.fixture(autouse=True)
def without_sync(monkeypatch):
    """A kill of the process loses nothing the system holds; syncing would only take time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def in_folder(seed: int) -> str:
    folder = Path(tempfile.mkdtemp(prefix="userdp-fuzz-"))
    try:
        return outcome(seed, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("seeds", fast_then_slow([range(16), range(16, 80)]), ids=str)
def test_some_inputs_are_stored_or_refused_and_leave_nothing_partial(seeds):
    assert set(Counter(map(in_folder, seeds))) == {"stored", "refused"}


def test_a_stage_that_loses_records_is_caught_by_the_campaign(monkeypatch):
    """The twin: a grouping that drops the last record of a batch."""
    whole = Grouping.batches
    monkeypatch.setattr(
        Grouping, "batches", lambda self, **o: (b.slice(0, len(b) - 1) for b in whole(self, **o))
    )
    with pytest.raises(AssertionError):
        Counter(map(in_folder, range(60)))
