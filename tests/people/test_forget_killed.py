"""``kill -9`` before each change of a file: the store holds the person, or it does not."""

from __future__ import annotations

import textwrap

import pytest

from tests.kills import run_apart

KILLS = textwrap.dedent(
    """
    import shutil, sys
    from pathlib import Path
    import numpy as np
    from tests.kills import every_kill
    from tests.data.corpora import ListSource, corpus, examples_of, interleaved, prepared
    from userdp.data.store_folder import remember
    from userdp.data.pipeline import append_records
    from userdp.data.example_scores import write_scores
    from userdp.data.user_store import UserStore
    from tests.data.corpora import problems_of
    from userdp.core.errors import UseError
    from tests.ledgers import begun
    from userdp.ledger import StoreLedger
    from userdp.ledger.lines import Charge
    from userdp.ledger.parts import of_run
    from userdp.people.erasure import forget_user

    life = Path(sys.argv[1])
    USER, TEXT = "the-person-who-leaves", "the copper heron never rang its bell before March"

    def make():
        shutil.rmtree(life, ignore_errors=True)
        life.mkdir()
        texts = {**corpus(5), USER.encode(): [TEXT, "and " + TEXT]}
        store = prepared(texts, life / "store", seq_len=16, held_out_users=0, held_out_examples=0)
        append_records(ListSource(interleaved({b"late": ["one more"], USER.encode(): [TEXT]})),
                       store.path)
        store = UserStore.open(store.path)
        examples = store.split("train").counts.sum()
        write_scores(life / "s.arrow", store, np.zeros(examples, np.float32))
        remember(store.path, life / "s.arrow")
        charged = Charge(pays_for=of_run("plain", None), logged=True, state=store.meta.state.id)
        StoreLedger(store.path).append(charged)
        (life / "plain" / "model").mkdir(parents=True)
        (life / "plain" / "model" / "weights").write_text(TEXT)
        begun(life / "plain" / "ledger.jsonl", None, run_id="plain",
                         lineage={"parts": [], "conditions": [], "apart": []})
        remember(store.path, life / "plain")
        (life / ".partial-store-00000001" ).mkdir()
        (life / ".partial-store-00000001" / "texts").write_text(TEXT)
        return store

    def marks(store):
        first = examples_of(store, USER.encode())[0][:10]
        return [USER.encode(), TEXT.encode(), np.array(first, np.uint16).tobytes()]

    def holding(folder):
        files = [path for path in folder.rglob("*") if path.is_file()]
        return [path for path in files if any(mark in path.read_bytes() for mark in sought)]

    sought = marks(make())
    for _ in every_kill(life, make=make, work=lambda: forget_user(life / "store", USER, yes=True)):
        store = UserStore.open(life / "store")
        there = USER.encode() in store.user_ids()
        sound = not problems_of(life / "store")
        sound = sound and (bool(holding(life / "store")) is there)
        sound = sound and (there or not holding(life)) and store.users == 6 + there
        if there:
            forget_user(life / "store", USER, yes=True)
            sound = sound and not holding(life) and not problems_of(life / "store")
        print(there, sound, sep=";", flush=True)
    """
)


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_the_store_before_or_after(tmp_path):
    moments = run_apart(KILLS, str(tmp_path / "life"))
    assert len(moments) >= 30
    assert {there for there, _ in moments} == {"True", "False"}
    assert [number for number, (_, sound) in enumerate(moments) if sound != "True"] == []
