"""Selection: at most G examples of each user, a function of only that user, by any strategy."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from tests.data.corpora import choices_of, corpus, prepared
from tests.modes import made_with, open_to_others
from userdp.core.errors import UseError
from userdp.data import selection as selections
from userdp.data.selection import Strategy, draw_rows, read_scores, select_once, write_scores
from userdp.data.splits import user_hash
from userdp.data.store_contents import members_of

G = 3
FIXED = [strategy for strategy in Strategy if not strategy.per_step_only]


@dataclass(frozen=True)
class Users:
    counts: np.ndarray
    user_hashes: np.ndarray


def users(counts: list[int], first: int = 0) -> Users:
    ids = [f"user {first + number}".encode() for number in range(len(counts))]
    words = np.frombuffer(b"".join(map(user_hash, ids)), dtype="<u8").reshape(-1, 2)
    return Users(np.array(counts, dtype=np.int64), words)


@given(st.lists(st.integers(1, 300), max_size=20), st.integers(1, 60))
def test_each_user_has_at_most_group_size_distinct_examples(counts, group_size):
    for n, mine in zip(counts, choices_of(select_once(users(counts), group_size)), strict=True):
        assert len(mine) == min(n, group_size) == len(set(mine))
        assert all(0 <= example < n for example in mine)


def test_over_users_each_subset_is_as_likely():
    selection = select_once(users([6] * 20_000), 3)
    who = np.repeat(np.arange(20_000), 3)
    picks = selection.map(who, np.tile(np.arange(3), 20_000)).reshape(-1, 3)
    subsets = np.bincount((2**picks).sum(axis=1), minlength=64)
    assert (subsets > 0).sum() == comb(6, 3)
    assert chisquare(subsets[subsets > 0]).pvalue > 1e-4


def test_the_chi_square_test_rejects_a_selection_of_the_first_examples():
    """The twin: were ranks taken as they are, the first example would always be chosen."""
    assert chisquare(np.bincount(np.zeros(12_000, dtype=int), minlength=5)).pvalue < 1e-4


def test_selections_are_the_same_on_every_machine():
    # Made by this function, userdp 0.1.0: a change would silently re-draw every user's examples.
    assert choices_of(select_once(users([10, 1000]), 4)) == GOLDEN


GOLDEN = [[3, 6, 9, 2], [87, 251, 554, 69]]


@pytest.mark.parametrize(("user", "rank"), [(-1, 0), (2, 0), (0, -1), (0, 4)])
def test_a_rank_out_of_range_is_refused(user, rank):
    selection = select_once(users([10, 2]), 4)
    with pytest.raises(IndexError):
        selection.map([user], [rank])


@pytest.mark.parametrize("group_size", [0, -1, float("nan"), 2.5])
def test_a_group_size_out_of_range_is_refused(group_size):
    with pytest.raises(ValueError, match="group_size"):
        select_once(users([3]), group_size)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return prepared(corpus(30, seed=2), tmp_path_factory.mktemp("s") / "store")


@pytest.fixture(scope="module")
def split(store):
    return store.split("train")


@pytest.fixture(scope="module")
def scores(split):
    return np.random.default_rng(0).lognormal(size=split.counts.sum()).astype(np.float32)


def user_tokens(split, user) -> list[int]:
    count = int(split.counts[user])
    return split.gather([user] * count, range(count)).tokens.tolist()


@pytest.mark.parametrize("strategy", FIXED)
def test_the_chosen_examples_are_the_best_by_plain_sorting(split, scores, strategy, monkeypatch):
    monkeypatch.setattr(selections, "_BLOCK", 7)
    choices = choices_of(select_once(split, G, strategy=strategy, scores=scores))
    first = np.cumsum(split.counts) - split.counts
    for user, (count, chosen) in enumerate(zip(split.counts.tolist(), choices, strict=True)):
        assert len(set(chosen)) == len(chosen) == min(count, G)
        lengths = split.lengths([user] * count, range(count))
        mine = scores[first[user] : first[user] + count]
        keys = {
            Strategy.LONGEST: -lengths, Strategy.SHORTEST: lengths,
            Strategy.HIGHEST_PERPLEXITY: -mine, Strategy.LOWEST_PERPLEXITY: mine,
        }.get(strategy)  # fmt: skip
        if keys is not None:
            assert sorted(keys[chosen].tolist()) == sorted(keys.tolist())[:G]


@pytest.mark.parametrize("strategy", FIXED)
def test_invariant_11_a_users_choice_does_not_depend_on_the_others(tmp_path, strategy):
    texts = corpus(12, seed=4)
    rest = {user: held for user, held in texts.items() if user != min(texts)}

    def chosen(name, held):
        store = prepared(held, tmp_path / name)
        part = store.split("train")
        selection = select_once(part, 2, strategy=strategy, scores=split_scores(part))
        ids = [store.user_ids()[row] for row in part.rows]
        return dict(zip(ids, choices_of(selection), strict=True))

    everybody, without = chosen("all", texts), chosen("rest", rest)
    assert all(everybody[user] == without[user] for user in without)


def split_scores(split):
    """A score that follows from an example's own tokens."""
    rows = split.gather(*members_of(split.counts))
    return np.array([rows.row(r).sum() % 97 for r in range(len(rows))], dtype=np.float32)


def test_invariant_11_ties_broken_by_a_users_index_are_caught(tmp_path, monkeypatch):
    """The twin: with index keys, another user's presence changes who wins a tie."""
    texts = {b"u%02d" % n: [f"text {k}" for k in range(9)] for n in range(8)}

    def shown(name, held):
        part = prepared(held, tmp_path / name, held_out_users=0, held_out_examples=0).split("train")
        index = np.arange(len(part.counts), dtype=np.uint64)
        part.user_hashes = np.stack([index, index], axis=1)
        return choices_of(select_once(part, 2, strategy=Strategy.LONGEST))

    rest = {user: held for user, held in texts.items() if user != b"u00"}
    assert shown("all", texts)[1:] != shown("rest", rest)


def drawn(split, users, strategy, size, seed=0):
    generator = np.random.default_rng(seed)
    return draw_rows(split, users, generator, strategy=strategy, group_size=size, seq_len=8)


@pytest.mark.parametrize("strategy", [Strategy.RANDOM_CHUNK, Strategy.RESAMPLED])
def test_a_selector_gives_each_user_at_most_g_rows_of_its_own(split, strategy):
    users = np.array([5, 0, 9, 3])
    rows, offsets = drawn(split, users, strategy, G, seed=1)
    assert len(offsets) == 5
    assert offsets[-1] == len(rows)
    for k, user in enumerate(users):
        own = "".join(map(chr, user_tokens(split, user)))
        texts = ["".join(map(chr, rows.row(r))) for r in range(offsets[k], offsets[k + 1])]
        assert 1 <= len(texts) <= G
        assert all(text in own for text in texts)
        if strategy is Strategy.RESAMPLED:
            assert len(texts) == G
            assert len(set(texts)) <= split.counts[user]
    assert len(drawn(split, [], strategy, G)[0]) == 0


def test_chunks_begin_anywhere_and_cross_records_but_not_users(split):
    user = int(np.argmax(split.token_counts))
    tokens = user_tokens(split, user)
    assert split.token_counts[user] == len(tokens)
    starts = np.arange(len(tokens))
    rows = split.gather_tokens(np.full(len(starts), user), starts, 8)
    for start in starts:
        assert rows.row(start).tolist() == tokens[start : start + 8]
    with pytest.raises(IndexError):
        split.gather_tokens([user], [len(tokens)], 8)
    chunks, _ = drawn(split, [user], Strategy.RANDOM_CHUNK, 50)
    assert set(chunks.lengths.tolist()) == {8}
    ends = set(np.cumsum(split.lengths([user] * split.counts[user], range(split.counts[user]))))
    text = "".join(map(chr, tokens))
    assert any(text.find("".join(map(chr, chunks.row(r)))) not in ends for r in range(50))


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_scores_belong_to_one_content_and_are_never_open_to_others(
    store, split, scores, tmp_path, monkeypatch, umask
):
    """They are exact functions of private text."""
    path = tmp_path / "scores.arrow"
    with made_with(umask, monkeypatch):
        write_scores(path, store, scores)
    assert open_to_others(tmp_path) == set()
    assert read_scores(path, store).tolist() == scores.tolist()
    other = prepared(corpus(3), tmp_path / "other")
    with pytest.raises(UseError, match="are not those"):
        read_scores(path, other)
    with pytest.raises(UseError, match="scores came for"):
        write_scores(tmp_path / "few", store, scores[1:])
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
    with pytest.raises(UseError, match="needs a score for each"):
        select_once(split, G, strategy=Strategy.LOWEST_PERPLEXITY)
    with pytest.raises(UseError, match="draws anew"):
        select_once(split, G, strategy=Strategy.RANDOM_CHUNK)
