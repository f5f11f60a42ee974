"""No command loses a file that was there, unless it was told to; and all of them say it alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ledgers import query
from tests.training.toy import toy_store
from userdp.cli.app import run as userdp
from userdp.ledger import StoreLedger

KEPT = b"a thesis\n"

# What each command is given besides the options that name a file; PUBLIC and STORE stand for paths.
WRITERS = {
    "plan --out": "plan STORE --epsilon 4 --budget 8 --steps 2 --model bundled --out FILE.json",
    "plan --norms-out": "plan STORE --epsilon 4 --budget 8 --steps 2 --model bundled "
    "--norms-out FILE.json",
    "report --out": "report STORE --out FILE.html",
    "generate --out": "generate STORE --out FILE.jsonl",
    "score --out": "store score STORE --out FILE.arrow",
    "dedup --out": "store dedup PUBLIC --private PUBLIC --out FILE.jsonl",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    path = toy_store(tmp_path_factory.mktemp("made")).path
    query(StoreLedger(path), "asked", name="users", pure_epsilon=0.1)
    return path


@pytest.mark.parametrize("line", WRITERS.values(), ids=WRITERS)
def test_a_file_that_is_there_is_refused_before_anything_is_done(line, store, tmp_path, capsys):
    public = tmp_path / "public.jsonl"
    public.write_text('{"text": "hello"}\n')
    words = line.replace("FILE", str(tmp_path / "file")).replace("new.json", f"{tmp_path}/new.json")
    arguments = words.replace("STORE", str(store)).replace("PUBLIC", str(public)).split()
    place = Path(next(word for word in arguments if word.startswith(f"{tmp_path}/file")))
    place.write_bytes(KEPT)
    ledger = store / "ledger.jsonl"
    charged = ledger.read_bytes() if ledger.exists() else b""
    assert userdp(arguments) == 2
    error = capsys.readouterr().err
    assert f"there is a file at {place} already" in error.replace("\n", " ")
    assert "--overwrite" in error
    assert place.read_bytes() == KEPT
    assert (ledger.read_bytes() if ledger.exists() else b"") == charged
    assert not (tmp_path / "new.json").exists()


def test_with_overwrite_the_file_is_replaced(store, tmp_path):
    public, out = tmp_path / "public.jsonl", tmp_path / "clean.jsonl"
    public.write_text('{"user": "a", "text": "hello"}\n')
    out.write_bytes(KEPT)
    line = ["store", "dedup", str(public), "--private", str(public), "--out", str(out)]
    assert userdp([*line, "--overwrite"]) == 0
    assert out.read_bytes() != KEPT
