"""Who pays for what: those who were there, from when they joined."""

from __future__ import annotations

import contextlib

import pytest

import userdp
from tests.data.corpora import ListSource, corpus, interleaved, prepared
from tests.ledgers import query, reserve, select
from tests.plans import uls_plan
from userdp.accounting.private_selection import TruncatedNegativeBinomial
from userdp.core.errors import UseError
from userdp.data.pipeline import append_records
from userdp.data.records import Record
from userdp.data.splits import Split, SplitRule
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger
from userdp.plans import PrivateSelection

PLAN = uls_plan()
EPSILON = PLAN.guarantee().epsilon


def charge(path, name):
    reserve(StoreLedger(path), name, PLAN, state=UserStore.open(path).meta.state.id)


@pytest.fixture
def grown(tmp_path):
    """One charge in the first state, one in the second; nobody joined in the third but one."""
    store = prepared(corpus(6), tmp_path / "store", held_out_users=0)
    charge(store.path, "first")
    append_records(ListSource(interleaved({b"late": ["a text"], b"user000": ["more"]})), store.path)
    charge(store.path, "second")
    append_records(ListSource(interleaved({b"last": ["a text"]})), store.path)
    return store.path


def told(store, user):
    """The statement for a user: the names of releases, and its words."""
    statement = userdp.members(store, user=user)["statement"]
    return [one.id for one in statement.releases], "\n".join(statement.lines())


def test_each_user_pays_for_what_came_since_they_joined(grown):
    found = userdp.members(grown)
    assert [(one["users"], one["charges"]) for one in found["joined"]] == [(6, 2), (1, 1), (1, 0)]
    totals = [one["epsilon"] for one in found["joined"]]
    assert totals == [pytest.approx(2 * EPSILON), pytest.approx(EPSILON), 0]
    assert [tuple(one.values()) for one in found["charges"]] == [("first", 1), ("second", 2)]
    reserve(StoreLedger(grown), "another store's", PLAN)
    joined = userdp.members(grown)["joined"]
    assert [one["charges"] for one in joined] == [3, 2, 1], "of an unknown state: everybody's"


@pytest.mark.parametrize("user", [None, "user001", "nobody"])
def test_who_is_in_a_store_is_a_look_even_before_anything_was_charged(tmp_path, user):
    """What is fixed later may have been chosen by the number of users, or by who is there."""
    path = prepared(corpus(6), tmp_path / "store", held_out_users=0).path
    with contextlib.suppress(UseError):  # nobody has that id
        userdp.members(path, user=user)
    assert "members" in StoreLedger(path).history().looked()


def test_a_statement_names_what_the_text_was_in_the_store_for_and_bounds_it(grown):
    releases, said = told(grown, "late")
    assert releases == ["second"]
    assert userdp.members(grown, user="late")["statement"].total.guarantee.epsilon == EPSILON
    for words in ("It was in the store for the following", "drawn in any step", "guesses right",
                  "cannot be called back"):  # fmt: skip
        assert words in said
    assert "late" not in said
    releases, said = told(grown, "user000")  # who wrote more later, and is no younger for it
    assert releases == ["first", "second"]
    assert "spent so far, not a guarantee" in said, "prices chosen one after another add up"
    assert "guesses right" not in said
    assert "Nothing that its ledger holds was released" in told(grown, "last")[1]
    reserve(StoreLedger(grown), "plain", None, state=UserStore.open(grown).meta.state.id)
    assert "no bound, since it was made without privacy" in told(grown, "last")[1]
    assert userdp.members(grown, user="last")["statement"].to_dict()["epsilon"] is None


@pytest.fixture
def held(tmp_path):
    """A store, and the name of somebody in it who is held out."""
    store = prepared(corpus(20), tmp_path / "store", held_out_users=0.5)
    return store, store.user_ids()[store.split(Split.HELD_OUT_USERS).rows[0]].decode()


def test_somebody_held_out_was_in_no_training_but_in_what_may_be_about_anybody(held):
    store, name = held
    ledger, state = StoreLedger(store.path), store.meta.state.id
    charge(store.path, "run")
    query(ledger, "asked", name="users", pure_epsilon=0.5)
    # Of a store that this one replaced, or of one that shares its ledger.
    reserve(ledger, "before", PLAN, state="of a store that this one replaced")
    law = TruncatedNegativeBinomial.of_mean(5, eta=0.0)
    selection = PrivateSelection(plans=(PLAN,), score_epsilon=0.1, repetitions=law)
    select(ledger, "chosen", selection, state=state)
    releases, said = told(store, name)
    assert releases == ["asked", "before", "chosen"]
    assert "does not train" in said
    last = userdp.members(store, user=name)["statement"].releases[-1]
    assert last.claim.guarantee.epsilon == pytest.approx(selection.guarantee().epsilon)


def test_somebody_whose_text_is_held_out_by_its_date_was_in_no_training(tmp_path):
    records = [Record(b"late", b"a text", held_out=True), Record(b"ann", b"a text")]
    store = prepared(records, tmp_path / "store", split=SplitRule.GIVEN)
    charge(store.path, "run")
    assert told(store, "late")[0] == []
    assert "does not train" in told(store, "late")[1]
    assert told(store, "ann")[0] == ["run"]


def test_somebody_held_out_is_told_of_exact_numbers_that_may_have_chosen_a_model(held):
    store, name = held
    assert "exact numbers" not in told(store, name)[1]
    StoreLedger(store.path).look("evaluate")
    assert "evaluate" not in told(store, name)[1], "nothing followed it"
    charge(store.path, "run")
    assert "evaluate" in told(store, name)[1]


def test_who_comes_after_an_erasure_may_have_been_there_before(grown):
    userdp.forget(grown, "late")
    append_records(ListSource(interleaved({b"late": ["back"]})), grown)
    releases, said = told(grown, "late")
    assert releases == ["first", "second"]
    assert "may have been you" in said
    assert [one["charges"] for one in userdp.members(grown)["joined"]] == [2, 1, 0, 2]


def test_somebody_leaves_a_store_that_was_never_charged(tmp_path):
    store = prepared(corpus(3), tmp_path / "store")
    assert userdp.forget(store, "user001").statement.releases == ()
    assert StoreLedger(store.path).history().lines == ()
    assert UserStore.open(store.path).user_ids() == [b"user000", b"user002"]
    assert [one["epsilon"] for one in userdp.members(store)["joined"]] == [0]
