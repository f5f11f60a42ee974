"""`userdp store dedup`: counts per stage, provenance, and nothing written on bad use."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from tests.data.corpora import prepared, write_jsonl
from userdp.ledger import StoreLedger


def text(seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(f"w{rng.randrange(5000)}" for _ in range(60))


@pytest.fixture
def dedup(tmp_path, userdp):
    """Runs the command on five public documents and six private records; what it printed."""
    private = [{"user": f"u{n}", "text": text(n)} for n in range(5)] + [{"user": "u", "text": ""}]
    public = [
        {"text": text(0), "url": "https://a.org/copy"},
        {"text": text(100), "url": "https://meta.stackoverflow.com/q"},
        {"text": text(101), "url": "https://b.org/listed"},
        {"text": text(102), "url": "https://b.org/kept"},
        {"title": "no text"},
    ]
    places = [
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
        for name, rows in (("public", public), ("private", private))
    ]

    def run(out: str, *options: object) -> str:
        line = ("store", "dedup", places[0], "--private", places[1], "--out", tmp_path / out)
        status, said, _ = userdp(*line, *options)
        assert status == 0
        return said

    return run


def test_each_stage_is_counted_and_the_rest_is_kept_as_it_was(dedup, tmp_path):
    pytest.importorskip("tldextract", reason="the extra web is not installed")
    out, urls = tmp_path / "clean.jsonl.gz", tmp_path / "urls.txt"
    urls.write_text("https://b.org/listed\n\n")
    found = json.loads(dedup(out.name, "--domain", "stackoverflow.com", "--urls", urls, "--json"))
    expected = {
        "documents": 5, "without_text": 1, "near_duplicates": 1,
        "after_duplicates": 3, "on_sites": 2, "after_sites": 1, "private_records": 5,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert sum(found["private_drops"].values()) == 1
    assert found["operator_only"] is True
    with gzip.open(out, "rt") as lines:
        assert [json.loads(line)["url"] for line in lines] == ["https://b.org/kept"]
    beside = json.loads((tmp_path / "clean.jsonl.gz.provenance.json").read_text())
    assert beside["private_data"] == found["private_data"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_is_told_of_a_stores_records_is_a_look_at_it(dedup, tmp_path):
    store = prepared({b"u0": [text(0)]}, tmp_path / "store", held_out_users=0).path
    (tmp_path / "clean.jsonl").write_bytes(b"a thesis\n")
    dedup("clean.jsonl", "--store", store, "--overwrite")
    assert [what for _, what in StoreLedger(store).history().looks] == ["dedup"]
    assert (tmp_path / "clean.jsonl").read_bytes() != b"a thesis\n"
