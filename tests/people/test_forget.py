"""After ``forget`` nothing of a person is on the disk, nothing claimed has changed, runs go on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest

import userdp
from tests.claims.lives import PLAN, begin
from tests.data.corpora import ListSource, examples_of, interleaved, problems_of
from tests.ledgers import the_first
from tests.modes import holding
from tests.plans import plan_of_size
from tests.training.toy import CONFIG, cycles, toy_store
from userdp.claims import claim
from userdp.cli.app import run as command
from userdp.core.errors import UseError
from userdp.data.pipeline import append_records
from userdp.data.selection import write_scores
from userdp.data.splits import Split
from userdp.data.store_folder import remember
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger
from userdp.ledger.run_ledger import RunRecord
from userdp.ledger.run_lock import Counter
from userdp.people.erasure import find_runs
from userdp.sampling import FixedSizeUsers
from userdp.training.config import PlainPlan
from userdp.training.loop import train

USER = "the-person-who-leaves"
TEXT = "w0 w17 w3 w29 w11 w23 w5"
ELSE = "w8 w2 w28 w14 w21 w9 w1"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store with a finished, an interrupted and a plain run; made once, copied by each test."""
    folder = tmp_path_factory.mktemp("forget")
    store = toy_store(folder, {**cycles(30), USER.encode(): [TEXT, ELSE, TEXT]}, held_out=0.0)
    begin(store, folder / "done")
    begin(store, folder / "stopped", stop=2)
    train(store, PlainPlan(steps=2, batch_size=4), CONFIG, out=folder / "plain")
    return folder


@pytest.fixture
def life(made, tmp_path):
    """A copy of `made`, whose paths are its own."""
    folder = tmp_path / "life"
    shutil.copytree(made, folder)
    the_first(folder / "store")
    (folder / "store" / "places.jsonl").unlink()
    for name in ("done", "stopped", "plain"):
        remember(folder / "store", folder / name)
    return folder


def marks(store):
    """What a person's text looks like in files."""
    tokens = np.concatenate(examples_of(store, USER.encode())).astype(store.meta.token_dtype)[:7]
    kinds = ("<u2", "<u4", "<i8")
    return [USER.encode(), TEXT.encode(), *(tokens.astype(kind).tobytes() for kind in kinds)]


KILLED = """
import os, sys
from pathlib import Path
from userdp.core.files import working_folder
made = []
for place in map(Path, sys.argv[2:]):
    place.mkdir(parents=True, exist_ok=True)
    made.append(working_folder(place, "store"))
    (made[-1].__enter__() / "texts").write_text(sys.argv[1])
os._exit(9)
"""


def scores_of(life):
    """A file of scores of the store, which knows of it."""
    store, path = UserStore.open(life / "store"), life / "s.arrow"
    write_scores(path, store, np.zeros(store.split(Split.TRAIN).counts.sum(), np.float32))
    remember(store.path, path)
    return path


def test_nothing_of_the_person_is_left_and_everything_else_is(life):
    store = UserStore.open(life / "store")
    sought, before = marks(store), claim(life / "done").to_dict()
    ledger_before = (life / "done" / "ledger.jsonl").read_bytes()
    scores_of(life)
    places = (".", "store", "done/audit", "done/audit/references")
    subprocess.run([sys.executable, "-c", KILLED, TEXT, *places], cwd=life)
    assert len([one for place in places for one in (life / place).glob(".partial-*-*")]) == 4
    with pytest.raises(UseError, match="learned from this person without privacy") as refused:
        userdp.forget(store, USER)
    assert str(life / "plain" / "model") in refused.value.message
    assert marks(UserStore.open(store.path)) == sought, "nothing has changed"
    looks = {what for _, what in StoreLedger(store.path).history().looks}
    assert "forget" in looks, "who is there was told, and later constants may follow it"
    done = userdp.forget(store, USER, yes=True)
    assert holding(life, *sought) == set()
    assert done.runs_not_found == ()
    assert set(done.removed) == {
        life / "plain" / "model",
        life / "plain" / "checkpoints",
        life / "done" / "audit" / "references",
        life / "s.arrow",
    }
    assert not problems_of(store.path)
    assert claim(life / "done").to_dict() == before
    assert (life / "done" / "ledger.jsonl").read_bytes() == ledger_before
    assert (life / "done" / "model").is_dir()
    said = "\n".join(done.statement.lines())
    assert claim(life / "done").lineage.parts[0].id in said
    assert "no bound, since it was made without privacy" in said


def test_the_ledger_holds_nothing_of_who_left_and_an_interrupted_run_goes_on(life):
    ledger, opened_before = StoreLedger(life / "store"), UserStore.open(life / "store")
    before = ledger.path.read_bytes()
    userdp.forget(life / "store", USER, yes=True)
    assert ledger.path.read_bytes() == before
    with pytest.raises(UseError, match="lost somebody while the run was opened"):
        begin(opened_before, life / "late")
    begin(UserStore.open(life / "store"), life / "stopped", resume=True)
    assert claim(life / "stopped").complete
    assert claim(life / "stopped").steps == PLAN.steps


def test_public_bounds_on_exact_numbers_are_held_against_those_who_stayed(life):
    """An exact number of people prices fixed sizes: one person fewer may be one too few."""
    store = UserStore.open(life / "store")
    people = len(store.split(Split.TRAIN).counts)
    bounded = plan_of_size(
        FixedSizeUsers, 5, population=people, least_population=people - 1, group_size=2, steps=4,
        l2_clip_norm=1.0, target_delta=1e-5, noise_multiplier=2.0,
    )  # fmt: skip
    begin(store, life / "fixed", bounded, stop=1)
    userdp.forget(store, USER, yes=True)
    with pytest.raises(UseError, match="fewer than"):
        begin(UserStore.open(life / "store"), life / "fixed", bounded, resume=True)


def test_a_run_does_not_go_on_over_an_erasure_after_which_somebody_joined(life):
    userdp.forget(life / "store", USER, yes=True)
    append_records(ListSource(interleaved({b"late": [TEXT]})), life / "store")
    with pytest.raises(UseError, match="the store is not the one"):
        begin(UserStore.open(life / "store"), life / "stopped", resume=True)


def test_weights_of_before_they_joined_stay(life):
    append_records(ListSource(interleaved({b"late-person": [ELSE]})), life / "store")
    done = userdp.forget(life / "store", "late-person")
    assert done.removed == ()
    assert (life / "plain" / "model").is_dir()
    assert done.statement.releases == ()


def test_a_run_that_descends_from_a_plain_one_goes_with_it(life):
    store = UserStore.open(life / "store")
    begin(store, life / "tuned", model=str(life / "plain" / "model"))
    done = userdp.forget(store, USER, yes=True)
    assert not (life / "tuned" / "model").exists()
    assert life / "tuned" / "model" in done.removed


def test_runs_that_were_moved_are_named_and_found_by_also(life, tmp_path, capsys):
    shutil.move(life / "plain", tmp_path / "elsewhere" / "plain")
    history = StoreLedger(life / "store").history()
    assert len(find_runs(life / "store", history)) == 2
    assert len(find_runs(life / "store", history, [tmp_path / "elsewhere"])) == 3
    assert command(["store", "forget", str(life / "store"), "--user", USER]) == 0
    assert "say where such runs lie with --also" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("kind", ["notes", "half"])
def test_what_was_put_in_the_place_of_scores_keeps_no_erasure_from_its_end(life, kind):
    """Something else is the operator's, and stays."""
    store, path = UserStore.open(life / "store"), scores_of(life)
    path.write_bytes(b"something else by now" if kind == "notes" else path.read_bytes()[:-200])
    before = path.read_bytes()
    userdp.forget(store, USER, yes=True)
    assert USER.encode() not in UserStore.open(life / "store").user_ids()
    assert path.read_bytes() == before


@pytest.mark.parametrize("user", ["nobody", USER])
def test_nothing_is_erased_while_a_run_is_open_nor_said_of_who_is_there(life, user):
    store = life / "store"
    before = StoreLedger(store).history().lines
    charge = RunRecord.read(life / "stopped").run_id
    with (
        closing(Counter(StoreLedger(store).runs / charge, begun=True)),
        pytest.raises(UseError, match="a run over this store is open"),
    ):
        userdp.forget(store, user, yes=True)
    assert StoreLedger(store).history().lines == before
    assert marks(UserStore.open(store))
