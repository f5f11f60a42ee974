"""A public corpus loses near-duplicates and sites, counted; verbatim copies agree with a search."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from tests.data.corpora import rows_of, write_jsonl
from tests.data.sources.fixtures import read
from tests.modes import made_with, open_to_others
from tests.training.toy import toy_store
from userdp.data import overlap
from userdp.data.overlap import (
    OverlapCounts,
    OverlapRules,
    PrivateTexts,
    PublicCorpus,
    filter_file,
    longest_copies,
    remove_overlap,
)
from userdp.data.pipeline import prepare_store
from userdp.data.sources import open_source
from userdp.data.store_tokenizer import StoreTokenizer

RULES = OverlapRules()


def text(seed: int, words: int = 200) -> str:
    rng = random.Random(seed)
    return " ".join(f"w{rng.randrange(5000)}" for _ in range(words))


def edited(original: str, changes: int, seed: int = 0) -> str:
    words, draw = original.split(), random.Random(seed)
    for place in draw.sample(range(len(words)), changes):
        words[place] = "edited"
    return " ".join(words)


PRIVATE = [text(n) for n in range(60)]


def likeness(one: str, other: str) -> float:
    """The oracle: Jaccard similarity of the sets of 5-grams, lower case."""
    sets = []
    for text in (one, other):
        words = text.lower().split()
        sets.append({tuple(words[at : at + 5]) for at in range(max(1, len(words) - 4))})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def test_near_duplicates_go_and_others_stay_by_the_exact_similarity():
    private = PrivateTexts(PRIVATE, RULES)
    public = [text(1000 + n) for n in range(40)] + ["", "w1", PRIVATE[3].upper()]
    public += [edited(PRIVATE[n], n % 7, seed=n) for n in range(60)]
    nearest = {t: max(likeness(t, other) for other in PRIVATE) for t in public}
    assert {t: private.likeness(t) for t in public} == nearest
    left = [document["text"] for document in remove_overlap(({"text": t} for t in public), private)]
    assert left == [t for t in public if nearest[t] < RULES.similarity]
    assert 40 < len(left) < len(public)


def test_listed_sites_and_urls_go_and_each_stage_is_counted():
    pytest.importorskip("tldextract", reason="the extra web is not installed")
    documents = [
        {"text": PRIVATE[0], "url": "https://a.org/1"},
        {"text": text(2000), "url": "https://meta.stackoverflow.com/q"},
        {"text": text(2001), "url": "https://news.example.org/listed"},
        {"text": text(2002), "url": "https://notstackoverflow.com/"},
        {"text": text(2003)},
        {"text": None},
    ]
    counts = OverlapCounts()
    listed = PublicCorpus(
        domains=frozenset([b"stackoverflow.com"]),
        urls=frozenset(["https://news.example.org/listed"]),
    )
    left = list(remove_overlap(documents, PrivateTexts(PRIVATE, RULES), listed, counts=counts))
    assert left == [documents[3], documents[4]]
    assert counts == OverlapCounts(documents=6, without_text=1, after_duplicates=4, after_sites=2)
    assert (counts.near_duplicates, counts.on_sites) == (1, 2)


@pytest.mark.pitfall(number=29)
def test_a_filtered_corpus_marks_the_store_made_of_it(tmp_path):
    public = write_jsonl(tmp_path / "public.jsonl", [
        {"user": "site", "text": PRIVATE[0]},
        {"user": "site", "text": text(1)[:50] + " public text"},
    ])  # fmt: skip
    counts = filter_file(public, tmp_path / "clean.jsonl", PrivateTexts(PRIVATE, RULES),
                         private_content="store-1")  # fmt: skip
    assert (counts.documents, counts.after_sites) == (2, 1)
    assert len(read(tmp_path / "clean.jsonl")[0]) == 1
    meta = prepare_store(open_source([str(tmp_path / "clean.jsonl")]), tmp_path / "store",
                         tokenizer=StoreTokenizer.load())  # fmt: skip
    (marked,) = meta.sources[0]["filtered_against_private"]
    assert marked["private_data"] == "store-1"
    assert "depends on the private data" in marked["warning"]
    plain = prepare_store(open_source([str(public)]), tmp_path / "plain",
                          tokenizer=StoreTokenizer.load())  # fmt: skip
    assert "filtered_against_private" not in plain.sources[0]
    assert "user" not in json.loads((tmp_path / "clean.jsonl.provenance.json").read_text())


@pytest.mark.parametrize("name", ["clean.jsonl", "clean.jsonl.gz"])
def test_a_filtered_corpus_is_its_operators_alone_from_its_first_moment(
    tmp_path, monkeypatch, name
):
    """Beside the public corpus, it tells which of those documents the private data hold."""
    public = write_jsonl(tmp_path / "public.jsonl", [{"user": "site", "text": PRIVATE[0]}])
    (tmp_path / "out").mkdir()
    left = tmp_path / "out" / name
    left.write_text("of an earlier run")
    left.chmod(0o644)
    private = PrivateTexts(PRIVATE, RULES)
    with made_with(0o022, monkeypatch):
        filter_file(public, tmp_path / "out" / name, private, private_content="x")
    assert open_to_others(tmp_path / "out") == {f"{name}.provenance.json"}


def all_examples(split) -> list[list[int]]:
    return [row for user in range(len(split.counts)) for row in rows_of(split, user)]


def by_search(examples: list[list[int]], text: list[int], least: int) -> int:
    windows = {tuple(e[i : i + least]) for e in examples for i in range(len(e) - least + 1)}
    best = run = 0
    for i in range(len(text) - least + 1):
        run = run + 1 if tuple(text[i : i + least]) in windows else 0
        best = max(best, run)
    return best + least - 1 if best else 0


def test_agrees_with_a_plain_search(tmp_path, monkeypatch):
    monkeypatch.setattr(overlap, "_BLOCK_EXAMPLES", 7)
    split = toy_store(tmp_path).split("train")
    examples, draw = all_examples(split), random.Random(1)
    texts = [[draw.randrange(2, 6) for _ in range(draw.randrange(0, 12))] for _ in range(30)]
    texts += [[99, *draw.choice(examples)[1:], 98] for _ in range(10)] + [[], examples[0][:2]]
    seen = []
    for least in (2, 3, 5):
        found = longest_copies(split, texts, least=least, progress=seen.append)
        assert found.tolist() == [by_search(examples, text, least) for text in texts]
    assert seen[-1] == len(examples)


def test_a_stretch_over_the_border_of_two_examples_is_no_copy(tmp_path):
    split = toy_store(tmp_path, {b"a": ["w1 w2 w3", "w7 w8 w9"]}, held_out=0.0).split("train")
    examples = all_examples(split)
    across = examples[0][-2:] + examples[1][:2]
    assert longest_copies(split, [across], least=3).tolist() == [0]
    assert longest_copies(split, [across], least=2).tolist() == [2]


def test_equal_hashes_of_other_tokens_are_no_copy(tmp_path, monkeypatch):
    split, real = toy_store(tmp_path).split("train"), overlap._window_hashes
    monkeypatch.setattr(overlap, "_window_hashes", lambda t, n: real(t, n) & np.uint64(0))
    assert longest_copies(split, [[90, 91, 92, 93]], least=3).tolist() == [0]
