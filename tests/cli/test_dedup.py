"""`userdp store dedup`: counts per stage, provenance, and nothing written on bad use."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from tests.data.corpora import prepared, write_jsonl
from userdp.cli.app import run as userdp
from userdp.ledger import StoreLedger

pytest.importorskip("datasketch", reason="the extra dedup is not installed")


def text(seed: int) -> str:
    draw = random.Random(seed)
    return " ".join(f"w{draw.randrange(5000)}" for _ in range(60))


@pytest.fixture
def corpus(tmp_path):
    private = [{"user": f"u{n}", "text": text(n)} for n in range(5)] + [{"user": "u", "text": ""}]
    public = [
        {"text": text(0), "url": "https://a.org/copy"},
        {"text": text(100), "url": "https://meta.stackoverflow.com/q"},
        {"text": text(101), "url": "https://b.org/listed"},
        {"text": text(102), "url": "https://b.org/kept"},
        {"title": "no text"},
    ]
    write_jsonl(tmp_path / "private.jsonl", private)
    write_jsonl(tmp_path / "public.jsonl", public)
    (tmp_path / "urls.txt").write_text("https://b.org/listed\n\n")
    return tmp_path


def dedup(folder, *options) -> int:
    return userdp(
        [
            "store",
            "dedup",
            str(folder / "public.jsonl"),
            "--private",
            str(folder / "private.jsonl"),
            *options,
        ]
    )


def test_each_stage_is_counted_and_the_rest_is_kept_as_it_was(corpus, capsys):
    pytest.importorskip("tldextract", reason="the extra web is not installed")
    out = corpus / "clean.jsonl.gz"
    options = ["--out", str(out), "--domain", "stackoverflow.com"]
    assert dedup(corpus, *options, "--urls", str(corpus / "urls.txt"), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    expected = {
        "documents": 5, "without_text": 1, "candidates": 1, "near_duplicates": 1,
        "after_duplicates": 3, "on_sites": 2, "after_sites": 1, "private_records": 5,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert sum(found["private_drops"].values()) == 1
    assert found["operator_only"] is True
    with gzip.open(out, "rt") as lines:
        assert [json.loads(line)["url"] for line in lines] == ["https://b.org/kept"]
    beside = json.loads((corpus / "clean.jsonl.gz.provenance.json").read_text())
    assert beside["private_data"] == found["private_data"]
    assert not [path for path in corpus.iterdir() if path.name.startswith(".")]


def test_what_is_told_of_a_stores_records_is_a_look_at_it(corpus, tmp_path):
    store = prepared({b"u0": [text(0)]}, tmp_path / "store", held_out_users=0).path
    assert dedup(corpus, "--out", str(corpus / "clean.jsonl"), "--store", str(store)) == 0
    assert [what for _, what in StoreLedger(store).history().looks] == ["dedup"]


def test_with_overwrite_a_file_that_is_there_is_replaced(corpus):
    out = corpus / "clean.jsonl"
    out.write_bytes(b"a thesis\n")
    assert dedup(corpus, "--out", str(out), "--overwrite") == 0
    assert out.read_bytes() != b"a thesis\n"
