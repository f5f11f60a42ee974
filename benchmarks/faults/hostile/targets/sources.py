"""Records, in every kind of file that ``userdp prepare`` takes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.faults.hostile.cases import Target
from tests.data.sources import fixtures

_CHAT = [
    {"user": "ana", "messages": [{"role": "user", "content": "Hi"},
                                 {"role": "assistant", "content": "Good morning."}]},
    {"user": "ben", "prompt": "Why?", "completion": "Because."},
]  # fmt: skip
_LEAF = {
    "users": ["ana", "ben"],
    "num_samples": [2, 1],
    "user_data": {"ana": {"x": ["eighty characters", "of speech"], "y": ["h", "."]},
                  "ben": {"x": [[0.5, 1.0]], "y": [7]}},
}  # fmt: skip
_COMMIT = {
    "GIT_AUTHOR_NAME": "Ana", "GIT_AUTHOR_EMAIL": "ana@x.org", "GIT_COMMITTER_NAME": "Ana",
    "GIT_COMMITTER_EMAIL": "ana@x.org", "GIT_AUTHOR_DATE": "2018-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2018-01-01T00:00:00Z", "GIT_CONFIG_GLOBAL": "/dev/null",
}  # fmt: skip


class Source(Target):
    """One kind of source, from the file to the store, which is verified."""

    name = "source"
    kind: ClassVar[str | None]
    write: ClassVar[Callable[[Path], object]]

    def make(self, folder: Path) -> None:
        type(self).write(folder)

    def files(self, folder: Path) -> list[str]:
        return [name for name in super().files(folder) if ".git/hooks" not in name]

    def read(self, folder: Path) -> None:
        from userdp.data.prepare import prepare_store
        from userdp.data.sources import SourceOptions, open_source
        from userdp.data.store import UserStore
        from userdp.data.tokenize import StoreTokenizer
        from userdp.data.verify import verify_store
        from userdp.errors import UserdpError

        out = folder.with_name("out") / "store"
        try:
            source = open_source([str(folder)], kind=self.kind, options=SourceOptions())
            meta = prepare_store(
                source, out, tokenizer=_tokenizer(StoreTokenizer), seq_len=16, held_out_users=0.1
            )
        except UserdpError:
            left = [path.name for path in out.parent.iterdir()]
            assert not left, f"refused, and left behind: {left}"
            raise
        assert [path.name for path in out.parent.iterdir()] == ["store"], "something beside it"
        assert verify_store(out).ok, "what was stored is damaged"
        assert meta.totals["records_read"] == meta.totals["records_stored"] + sum(
            meta.drops.values()
        ), "records were lost uncounted"
        users = UserStore.open(out, fixed_graph=True).user_ids()
        assert len(set(users)) == len(users), "a user is there twice"


_TOKENIZERS: list[Any] = []


def _tokenizer(kind: Any) -> Any:
    """The bundled one, read once."""
    if not _TOKENIZERS:
        _TOKENIZERS.append(kind.load())
    return _TOKENIZERS[0]


def _lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _jsonl(folder: Path) -> None:
    (folder / "a.jsonl").write_text(_lines(fixtures.ROWS))
    about = {"generated_by": "m", "private_data": False, "lineage": {}}
    (folder / "a.jsonl.provenance.json").write_text(json.dumps(about))


def _gzip(folder: Path) -> None:
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(_lines(fixtures.ROWS).encode(), mtime=0))


def _csv(folder: Path) -> None:
    fixtures.write_csv(folder / "a.csv")


def _parquet(folder: Path) -> None:
    fixtures.write_parquet(folder / "a.parquet")


def _mbox(folder: Path) -> None:
    mails = (fixtures.mail(), fixtures.mail(sender="Ben <ben@example.org>", subject="Re: lunch"))
    (folder / "a.mbox").write_bytes(b"".join(b"From x\n" + one + b"\n" for one in mails))


def _maildir(folder: Path) -> None:
    fixtures.write_enron(folder, [fixtures.mail(), fixtures.mail(sender="Ben <ben@x.org>")])


def _leaf(folder: Path) -> None:
    (folder / "a.json").write_text(json.dumps(_LEAF))


def _chats(folder: Path) -> None:
    (folder / "chat.jsonl").write_text(_lines(_CHAT))


def _posts(folder: Path) -> None:
    rows = [("train", "1", b"How?"), ("heldout", "2", b"So.")]
    fixtures.write_stackoverflow(folder / "stackoverflow.sqlite", rows)


def _texts(folder: Path) -> None:
    for name in ("a.txt", "b/c.md"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("A book, of one author.")


def _git(folder: Path) -> None:
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "First words\n\nMore."],
                  ["commit", "-q", "--allow-empty", "-m", "Second"]):  # fmt: skip
        environment = {**os.environ, **_COMMIT}
        subprocess.run(["git", "-C", str(folder), *words], check=True, env=environment)
    for left in ("hooks", "info", "description", "logs", "COMMIT_EDITMSG"):
        path = folder / ".git" / left
        subprocess.run(["rm", "-rf", str(path)], check=True)
    (folder / ".mailmap").write_text("Ana <ana@x.org> <old@x.org>\n")


def _kind(name: str, told: str, kind: str | None, make: Callable[[Path], object]) -> type[Source]:
    starts = frozenset({"git"}) if kind == "git" else frozenset[str]()
    values = {"name": name, "what": told, "kind": kind, "write": staticmethod(make)}
    return type(name, (Source,), {**values, "starts": starts, "__doc__": Source.__doc__})


TARGETS: tuple[type[Target], ...] = (
    _kind("jsonl", "JSON Lines, and what is said of their origin", "jsonl", _jsonl),
    _kind("gzip", "JSON Lines, gzip", None, _gzip),
    _kind("csv", "CSV", "csv", _csv),
    _kind("parquet", "Parquet", "parquet", _parquet),
    _kind("mbox", "mail: mbox", "mbox", _mbox),
    _kind("maildir", "mail: a file a message", "maildir", _maildir),
    _kind("leaf", "LEAF JSON", "leaf", _leaf),
    _kind("conversations", "conversations", "conversations", _chats),
    _kind("stackoverflow", "Stack Overflow's SQLite", "stackoverflow", _posts),
    _kind("folder", "a text a file", "folder", _texts),
    _kind("git", "a git repository: objects, refs, settings", "git", _git),
)
