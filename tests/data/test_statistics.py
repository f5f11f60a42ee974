"""Statistics of a store: exact counts, against NumPy on the same counts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from userdp.data.exact_counts import QUANTILES, per_user


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=60))
def test_quantiles_and_histogram_are_those_of_the_sorted_counts(counts):
    found = per_user(np.array(counts))
    ordered = sorted(counts)
    for name, level in QUANTILES.items():
        value = found["examples_per_user"][name]
        assert sum(count <= value for count in ordered) >= level * len(ordered) - 1e-9
        assert value == ordered[0] or sum(n < value for n in ordered) < level * len(ordered) + 1e-9
    assert found["examples_per_user"]["max"] == ordered[-1]
    for least, greatest, users in found["histogram"]:
        assert users == sum(least <= count <= greatest for count in counts)
    assert sum(users for *_, users in found["histogram"]) == len(counts)


def test_a_split_without_users_has_no_quantiles():
    empty = per_user(np.array([], dtype=np.int64))
    assert [empty[name] for name in ("examples_per_user", "histogram")] == [{}, ()]
