"""Held-out users and records: per-user hashes of the right frequency."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from userdp.data.splits import held_out_records, is_held_out_user, user_hash

USERS = [user_hash(f"user {number}".encode()) for number in range(10_000)]


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.5])
def test_users_and_records_are_held_out_as_often_as_asked(fraction):
    held = sum(is_held_out_user(user, fraction) for user in USERS)
    assert binomtest(held, len(USERS), fraction).pvalue > 1e-4
    records = sum(
        int(held_out_records(user, 1, 5, fraction=fraction).sum()) for user in USERS[:2000]
    )
    assert binomtest(records, 10_000, fraction).pvalue > 1e-4


def test_the_binomial_test_rejects_half_the_fraction():
    held = sum(is_held_out_user(user, 0.05) for user in USERS)
    assert binomtest(held, len(USERS), 0.1).pvalue < 1e-4


def test_fractions_of_zero_and_one_are_exact():
    assert not any(is_held_out_user(user, 0.0) for user in USERS)
    assert all(is_held_out_user(user, 1.0) for user in USERS)


def test_the_first_record_of_a_training_user_always_trains():
    for user in USERS[:100]:
        assert held_out_records(user, 0, 3, fraction=1.0).tolist() == [False, True, True]


def test_hashes_are_the_same_on_every_machine():
    # userdp 0.1.0: `user_hash(b"a").hex()`
    assert user_hash(b"a").hex() == GOLDEN
    assert len({user_hash(b""), user_hash(b"a"), user_hash(b"a\0")}) == 3


GOLDEN = "dcad8201656071bfc658cd9191dd3215"
