"""Public text that repeats across the split stands on one side of it."""

from __future__ import annotations

from tests.data.corpora import prepared
from userdp.data.ownership import on_one_side
from userdp.data.records import Drop, Record, Tally
from userdp.data.splits import is_held_out_user
from userdp.data.user_ids import user_hash

FRACTION = 0.3


def corpus() -> list[Record]:
    users = [f"package.module{number}".encode() for number in range(60)]
    texts = [[b"Return self.", b"Initialize %d." % (n % 9), b"Only in %d." % n] for n in range(60)]
    rows = [(user, text) for user, mine in zip(users, texts, strict=True) for text in mine]
    return [Record(user, text) for user, text in rows]


def sides(records: list[Record]) -> dict[bytes, set[bool]]:
    found: dict[bytes, set[bool]] = {}
    for record in records:
        side = is_held_out_user(user_hash(record.user), FRACTION)
        found.setdefault(record.text, set()).add(side)
    return found


def test_a_text_stands_on_one_side_only_and_what_is_dropped_is_counted():
    records, tally = corpus(), Tally()
    kept = list(on_one_side(records, FRACTION, tally))
    assert any(len(side) == 2 for side in sides(records).values())
    assert all(len(side) == 1 for side in sides(kept).values())
    assert set(sides(kept)) == set(sides(records))
    assert tally.drops == {str(Drop.REPEATED): len(records) - len(kept)}


def test_text_on_one_side_is_kept_wherever_it_stands():
    records = corpus()
    kept = list(on_one_side(records, FRACTION, Tally()))
    one_sided = {text for text, side in sides(records).items() if len(side) == 1}
    assert [r for r in kept if r.text in one_sided] == [r for r in records if r.text in one_sided]


def test_private_sources_are_never_compared_across_users(tmp_path):
    store = prepared(corpus(), tmp_path / "private", held_out_users=FRACTION)
    assert store.meta.totals["records_stored"] == len(corpus())
    public = prepared(corpus(), tmp_path / "public", held_out_users=FRACTION, public=True)
    assert public.meta.drops.keys() == {str(Drop.REPEATED)}
