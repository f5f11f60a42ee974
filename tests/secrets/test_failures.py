"""What is said of the operator's own mistakes quotes no text and no id."""

from __future__ import annotations

import gzip
import json
import pickle
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.secrets.conftest import PLAN
from tests.secrets.planted import MARKS, PEOPLE, Kind, rows
from tests.secrets.scan import findings
from tests.secrets.watch import listen
from userdp.cli.app import run as userdp
from userdp.errors import FailureError, Interrupted, UseError, UserdpWarning
from userdp.gradients.losses import LossError

ID, TEXT = PEOPLE[17].id, PEOPLE[17].texts[0]


def found(said, secrets) -> list[str]:
    """What any channel of a call that failed holds, itself and without what the operator typed."""
    return [
        f"{channel}: {one}"
        for channel, data in said.channels.items()
        for one in findings(data, secrets)
    ]


@pytest.mark.parametrize(
    "error",
    [
        UseError("no store", hint="make one"),
        FailureError("no disk"),
        LossError("no graph"),
        Interrupted("after step 3 of 9", resume=True),
        UserdpWarning("mind the gap"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_our_own_tells_the_same_in_another_process(error):
    got = pickle.loads(pickle.dumps(error))
    assert (type(got), str(got), vars(got)) == (type(error), str(error), vars(error))


def words(line: str, planted) -> list[str]:
    meant = {
        "STORE": planted.folder / "store",
        "RUN": planted.folder / "run",
        "INPUT": planted.folder / "input",
        "PLAN": planted.folder / "plan.json",
    }
    return [str(meant.get(word, word)) for word in shlex.split(line)]


def _jsonl(path: Path, *lines: str) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _inputs(folder: Path) -> None:
    """Files that are broken in the ways in which files are."""
    good = [json.dumps(row) for row in rows()[:5]]
    _jsonl(folder / "broken.jsonl", *good, f'{{"author": "{ID}", "message": "{TEXT}')
    _jsonl(folder / "types.jsonl", *good, json.dumps({"author": [1], "message": {TEXT: ID}}))
    _jsonl(folder / "fields.jsonl", json.dumps({ID: TEXT, "message": TEXT}))
    _jsonl(folder / "headless.csv", *(f"{row['author']},{row['message']}" for row in rows()[:5]))
    _jsonl(folder / "twice.csv", f"{TEXT},{TEXT},author", f"{ID},{TEXT},a")
    (folder / "latin.jsonl").write_bytes("\n".join(good).encode("utf-16"))
    whole = gzip.compress("\n".join(good).encode())
    (folder / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    table = pa.table({"author": [ID], "message": pa.array([[TEXT]])})
    pq.write_table(table, folder / "nested.parquet")
    content = (folder / "nested.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(content[: len(content) // 2])
    _jsonl(folder / "leaf.json", json.dumps({"user_data": {ID: {"x": [TEXT]}}}))
    _jsonl(folder / "no-leaf.json", f'{{"user_data": {TEXT}')
    (folder / "people.sqlite").write_bytes(b"SQLite format 3\0" + TEXT.encode() * 30)
    (folder / "mail.mbox").write_text(f"{TEXT}\nFrom {ID}\n")
    (folder / "tokenizer.json").write_text(json.dumps({TEXT: ID}))


MISTAKES = {
    "prepare broken.jsonl --user author --text message --out made": 0,
    "prepare types.jsonl --user author --text message --out made --json": 0,
    "prepare fields.jsonl --user author --text message --out made": 2,
    "prepare headless.csv --user author --text message --out made": 2,
    "prepare twice.csv --user author --text message --out made": 2,
    "prepare latin.jsonl --user author --text message --out made": 2,
    "prepare cut.jsonl.gz --user author --text message --out made --json": 2,
    "prepare nested.parquet --user author --text message --out made": 2,
    "prepare cut.parquet --user author --text message --out made": 2,
    "prepare leaf.json --source leaf --out made": 2,
    "prepare no-leaf.json --source leaf --out made": 2,
    "prepare people.sqlite --source stackoverflow --out made": 2,
    "prepare mail.mbox --source mbox --out made": 2,
    "prepare types.jsonl --user author --text message --tokenizer tokenizer.json --out made": 2,
    "store members STORE --user nobody": 2,
    "store forget STORE --user nobody": 2,
    "audit RUN --store STORE --canaries 4 --no-inference": 2,
    "train STORE --out run --plan PLAN --model bundled --set "
    "learning.selection=highest-perplexity": 2,
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake(line, planted, tmp_path, monkeypatch, capfd):
    place = tmp_path / "place"
    place.mkdir()
    _inputs(place)
    monkeypatch.chdir(place)
    PLAN.save(planted.folder / "plan.json")
    said = listen(lambda: userdp(words(line, planted)), capfd, tmp_path / "temporary")
    assert said.error is None
    assert said.status == MISTAKES[line], said.channels
    assert found(said, planted.secrets) == []


def test_a_file_that_is_named_after_a_person_is_told_by_its_place(
    planted, tmp_path, monkeypatch, capfd
):
    """In a folder, the operator typed the folder's name, and a file's may be a person's."""
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / f"{MARKS[Kind.FILE]}.txt").write_text("words")
    (folder / "cur").mkdir()
    (folder / "new").mkdir()
    (folder / "cur" / MARKS[Kind.FILE]).write_text("From: a\n\nwords")

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    honest = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: (refuse if "documents" in str(path) else honest)(path)
    )
    for kind in ("folder", "maildir"):
        line = ["prepare", str(folder), "--source", kind, "--out", str(tmp_path / "made")]
        said = listen(lambda line=line: userdp(line), capfd, tmp_path / "temporary")
        assert said.status == 2
        assert str(folder) in said.channels["stderr"].decode()
        assert found(said, planted.secrets) == []
