"""Verbatim stretches: against a search that compares everything with everything."""

import random

import numpy as np

from tests.data.corpora import rows_of
from tests.training.toy import toy_store
from userdp.data import verbatim
from userdp.data.verbatim import longest_copies


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
    monkeypatch.setattr(verbatim, "_BLOCK_EXAMPLES", 7)
    split = toy_store(tmp_path).split("train")
    examples = all_examples(split)
    draw = random.Random(1)
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
    split = toy_store(tmp_path).split("train")
    real = verbatim._window_hashes
    monkeypatch.setattr(verbatim, "_window_hashes", lambda t, n: real(t, n) & np.uint64(0))
    assert longest_copies(split, [[90, 91, 92, 93]], least=3).tolist() == [0]
