"""ELS selection: at most G per user, fixed, a function of that user alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from userdp.data.selection import permute, select_once
from userdp.data.user_ids import user_hash


@dataclass(frozen=True)
class Users:
    counts: np.ndarray
    user_hashes: np.ndarray


def users(counts: list[int], first: int = 0) -> Users:
    ids = [f"user {first + number}".encode() for number in range(len(counts))]
    words = np.frombuffer(b"".join(map(user_hash, ids)), dtype="<u8").reshape(-1, 2)
    return Users(np.array(counts, dtype=np.int64), words)


def chosen(split: Users, group_size: int) -> list[list[int]]:
    counts, selection = select_once(split, group_size)
    return [selection.map([u] * n, range(n)).tolist() for u, n in enumerate(counts.tolist())]


@given(st.lists(st.integers(1, 300), max_size=20), st.integers(1, 60))
def test_each_user_has_at_most_group_size_distinct_examples(counts, group_size):
    split = users(counts)
    for n, mine in zip(counts, chosen(split, group_size), strict=True):
        assert len(mine) == min(n, group_size) == len(set(mine))
        assert all(0 <= example < n for example in mine)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 4097])
def test_the_permutation_is_a_bijection(size):
    keys = np.repeat(users([1]).user_hashes, size, axis=0)
    sent = permute(np.arange(size), np.full(size, size), keys)
    assert sorted(sent.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [2, 3, 5, 12])
def test_over_users_each_example_is_as_likely_to_be_chosen(size):
    split = users([size] * 12_000)
    first = np.array([mine[0] for mine in one_each(split)])
    assert chisquare(np.bincount(first, minlength=size)).pvalue > 1e-4


def test_over_users_each_subset_is_as_likely():
    split = users([6] * 20_000)
    _, selection = select_once(split, 3)
    who = np.repeat(np.arange(20_000), 3)
    picks = selection.map(who, np.tile(np.arange(3), 20_000)).reshape(-1, 3)
    subsets = np.bincount((2**picks).sum(axis=1), minlength=64)
    assert (subsets > 0).sum() == comb(6, 3)
    assert chisquare(subsets[subsets > 0]).pvalue > 1e-4


def test_the_chi_square_test_rejects_a_selection_of_the_first_examples():
    """The twin: were ranks taken as they are, the first example would always be chosen."""
    assert chisquare(np.bincount(np.zeros(12_000, dtype=int), minlength=5)).pvalue < 1e-4


def one_each(split: Users) -> list[list[int]]:
    _, selection = select_once(split, 1)
    n = len(split.counts)
    return [[e] for e in selection.map(np.arange(n), np.zeros(n, dtype=np.int64)).tolist()]


def test_invariant_11_a_users_selection_does_not_depend_on_the_other_users():
    split = users([50, 9, 4000, 3])
    alone = [Users(split.counts[u : u + 1], split.user_hashes[u : u + 1]) for u in range(4)]
    assert chosen(split, 8) == [chosen(one, 8)[0] for one in alone]


def test_selections_are_the_same_on_every_machine():
    # Made by this function, userdp 0.1.0: a change would silently re-draw every user's examples.
    assert chosen(users([10, 1000]), 4) == GOLDEN


GOLDEN = [[6, 7, 0, 1], [303, 837, 46, 347]]


@pytest.mark.parametrize(("user", "rank"), [(-1, 0), (2, 0), (0, -1), (0, 4)])
def test_a_rank_out_of_range_is_refused(user, rank):
    _, selection = select_once(users([10, 2]), 4)
    with pytest.raises(IndexError):
        selection.map([user], [rank])


@pytest.mark.parametrize("group_size", [0, -1, float("nan"), 2.5])
def test_a_group_size_out_of_range_is_refused(group_size):
    with pytest.raises(ValueError, match="group_size"):
        select_once(users([3]), group_size)
