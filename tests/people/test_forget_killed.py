"""``kill -9`` before each change of a file: the store holds the person, or it does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.data.corpora import (
    ListSource,
    corpus,
    examples_of,
    interleaved,
    prepared,
    problems_of,
)
from tests.kills import every_kill, run_apart
from tests.ledgers import begun, reserve
from tests.modes import holding
from userdp.data.pipeline import append_records
from userdp.data.selection import write_scores
from userdp.data.store_folder import remember
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger
from userdp.people.erasure import forget_user

USER, TEXT = "the-person-who-leaves", "the copper heron never rang its bell before March"


def make(life: Path) -> UserStore:
    """A store of six people, scores of it, a plain run over it, and what a killed run left."""
    shutil.rmtree(life, ignore_errors=True)
    life.mkdir()
    texts = {**corpus(5), USER.encode(): [TEXT, "and " + TEXT]}
    store = prepared(texts, life / "store", seq_len=16, held_out_users=0, held_out_examples=0)
    late = {b"late": ["one more"], USER.encode(): [TEXT]}
    append_records(ListSource(interleaved(late)), store.path)
    store = UserStore.open(store.path)
    write_scores(life / "s.arrow", store, np.zeros(store.split("train").counts.sum(), np.float32))
    reserve(StoreLedger(store.path), "plain", None, state=store.meta.state.id)
    for place in (life / "plain" / "model", life / ".partial-store-00000001"):
        place.mkdir(parents=True)
        (place / "texts").write_text(TEXT)
    begun(life / "plain" / "ledger.jsonl", None, run_id="plain")
    for place in (life / "s.arrow", life / "plain"):
        remember(store.path, place)
    return store


def kill_everywhere(place: str) -> None:
    """After each kill: whether the person is there, and whether everything else fits that."""
    life = Path(place)
    first = examples_of(make(life), USER.encode())[0][:10]
    sought = USER, TEXT, np.array(first, np.uint16).tobytes()

    def forget() -> None:
        forget_user(life / "store", USER, yes=True)

    for _ in every_kill(life, make=lambda: make(life), work=forget):
        store = UserStore.open(life / "store")
        there = USER.encode() in store.user_ids()
        sound = not problems_of(store.path) and store.users == 6 + there
        sound = sound and bool(holding(store.path, *sought)) is there
        if there:
            forget()
        sound = sound and not holding(life, *sought) and not problems_of(store.path)
        print(there, sound, sep=";", flush=True)


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_the_store_before_or_after(tmp_path):
    moments = run_apart(kill_everywhere, tmp_path / "life")
    assert len(moments) >= 30
    assert {there for there, _ in moments} == {"True", "False"}
    assert [number for number, (_, sound) in enumerate(moments) if sound != "True"] == []
