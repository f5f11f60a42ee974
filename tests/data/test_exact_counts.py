"""Exact counts, against NumPy; ids that are nearly the same are counted and merged in none."""

from __future__ import annotations

import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.corpora import ListSource, interleaved, prepared, write_jsonl
from userdp.cli.app import run
from userdp.data.exact_counts import QUANTILES, near_colliding, per_user
from userdp.data.pipeline import append_records

COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "Zoë") for form in ("NFC", "NFD"))
PAIRS = {
    "case": ("Ann", "ann"),
    "case beyond ASCII": ("STRASSE", "straße"),
    "Unicode form": (COMPOSED, DECOMPOSED),
    "full width": ("ann1", "ann１"),
    "spaces around": ("bob", " bob "),
    "spaces inside": ("bob  lee", "bob lee"),
    "a no-break space": ("bob lee", "bob\u00a0lee"),
    "a zero-width space": ("eve", "e\u200bve"),
    "a zero-width joiner": ("eve", "eve\u200d"),
    "a byte order mark": ("eve", "\ufeffeve"),
    "a soft hyphen": ("evemay", "eve\u00admay"),
    "a variation selector": ("eve☎", "eve☎\ufe0e"),
    "all at once": (f" {COMPOSED.upper()}\u200b", DECOMPOSED),
}
TEXT = "some words that are long enough to be stored"


@pytest.mark.parametrize("kind", PAIRS)
def test_two_ids_of_one_name_are_counted(kind):
    one, two = (name.encode() for name in PAIRS[kind])
    assert one != two
    assert near_colliding([one, two, b"somebody else"]) == 2


def test_ids_that_differ_by_a_letter_a_digit_or_a_sign_are_not():
    names = ["ann", "anne", "ann1", "ann2", "ann-1", "ann.1", "ann@a", "ann@b", "Zoe", "Zoë", "0"]
    assert near_colliding([name.encode() for name in names]) == 0
    assert near_colliding([]) == 0


def test_an_append_counts_new_users_against_old_ones(tmp_path):
    store = prepared({name: [TEXT] for name in (b"Ann", b" ann", b"bob")}, tmp_path / "store")
    assert store.meta.totals["near_colliding_users"] == 2
    assert store.users == 3
    meta = append_records(ListSource(interleaved({b"ann": [TEXT], b"carl": [TEXT]})), store.path)
    assert meta.totals["near_colliding_users"] == 3


def test_the_operator_is_told_how_many_and_what_to_do_but_never_who(tmp_path, capsys):
    rows = [{"user": name, "text": TEXT} for name in ("Xaver", "xaver", "bob")]
    source = write_jsonl(tmp_path / "mail.jsonl", rows)
    store = tmp_path / "store"
    assert run(["prepare", str(source), "--out", str(store)]) == 0
    assert run(["store", "stats", str(store)]) == 0
    told = capsys.readouterr()
    assert told.out.count("2 users have ids that differ") == 2
    assert "hint: normalise the ids in the source" in told.out
    assert "xaver" not in (told.out + told.err).lower()
    assert run(["store", "stats", str(store), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["near_colliding_users"], found["operator_only"]) == (2, True)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=60))
def test_quantiles_and_histogram_are_those_of_the_sorted_counts(counts):
    found, ordered = per_user(np.array(counts)), sorted(counts)
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
