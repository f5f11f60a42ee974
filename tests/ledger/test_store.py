"""A store's ledger that is gone, copied or shared is known as such; two processes at once."""

from __future__ import annotations

import fcntl
import shutil
from contextlib import closing

import pytest

from tests.ledgers import begun, reserve
from tests.plans import uls_plan
from userdp.claims import claim
from userdp.claims.lineage import ConditionKind
from userdp.core.errors import UseError
from userdp.ledger import StoreLedger, journal
from userdp.ledger.run_lock import Counter, open_runs


@pytest.fixture
def store(tmp_path):
    (tmp_path / "store").mkdir()
    reserve(StoreLedger(tmp_path / "store"), "one", uls_plan(), logged=False)
    return tmp_path / "store"


def charged(store, name="two"):
    reserve(StoreLedger(store), name, uls_plan(), logged=False)
    return claim(store)


def kinds(store):
    return {condition.kind for condition in claim(store).conditions}


@pytest.mark.parametrize("kept", [None, b"", "the first lines"])
def test_invariant_12_a_ledger_that_is_gone_or_lost_its_last_lines_is_noticed(store, kept):
    ledger = store / "ledger.jsonl"
    if kept == "the first lines":
        kept = ledger.read_bytes()
        charged(store)
    runs = sorted(store.glob("runs/*"))
    ledger.unlink() if kept is None else ledger.write_bytes(kept)
    for asks in (charged, claim, lambda store: StoreLedger(store).history()):
        with pytest.raises(UseError, match=r"is gone|put back to an earlier state"):
            asks(store)
    assert sorted(store.glob("runs/*")) == runs


def test_invariant_12_twin_where_the_place_is_not_kept_a_deleted_ledger_is_begun_again(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(journal.Read, "holds", lambda self, head: True)
    reserve(StoreLedger(tmp_path), "one", uls_plan(), logged=False)
    (tmp_path / "ledger.jsonl").unlink()
    assert charged(tmp_path).guarantee == uls_plan().guarantee(), "one of two runs"


def whole(store, place):
    return shutil.copytree(store, place, copy_function=shutil.copy2)


def without_its_place(store, place):
    place.mkdir()
    shutil.copy2(store / "ledger.jsonl", place)
    return place


@pytest.mark.parametrize("copy", [whole, without_its_place])
def test_invariant_12_a_copied_store_says_that_it_counts_on_no_other_copy(store, tmp_path, copy):
    ledger = copy(store, tmp_path / "copy") / "ledger.jsonl"
    before = ledger.read_bytes()
    assert kinds(ledger.parent) == {ConditionKind.COPY}
    assert ledger.read_bytes() == before, "it is known before anything is written to it"
    for name in ("two", "three"):
        charged(ledger.parent, name)
        assert kinds(ledger.parent) == {ConditionKind.COPY}
    charged(store)
    assert kinds(store) == set(), "nothing tells the first that it was copied"
    assert kinds(store.rename(store.with_name("moved"))) == set(), "the same file elsewhere"


def test_invariant_12_a_store_that_was_put_back_whole_knows_that_steps_were_taken_since(tmp_path):
    """Ledger and place agree, as they did then; what was counted beside them does not."""
    StoreLedger(tmp_path).look("stats")
    kept = {name: (tmp_path / name).read_bytes() for name in ("ledger.jsonl", "ledger.json")}
    charged(tmp_path, "one")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one").write_bytes(b"...")
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    for asks in (claim, lambda store: reserve(StoreLedger(store), "two", uls_plan())):
        with pytest.raises(UseError, match="put back to an earlier state"):
            asks(tmp_path)


# One ledger for several stores.


def test_invariant_12_stores_of_the_same_people_are_charged_in_one_ledger(tmp_path):
    ledger, stores = tmp_path / "people" / "ledger.jsonl", [tmp_path / "a", tmp_path / "b"]
    for store, run in zip(stores, ("one", "two"), strict=True):  # the second joins with charges
        store.mkdir()
        StoreLedger.share(store, ledger)
        total = charged(store, run)
    assert len({StoreLedger(store).history().id for store in stores}) == 1
    assert [part.id for part in total.parts] == ["one", "two"]
    assert total.guarantee == claim(stores[0]).guarantee == claim(ledger).guarantee
    assert total.conditions == ()
    for store in stores:
        assert StoreLedger(store).path == ledger
        assert not (store / "ledger.jsonl").exists()
        assert StoreLedger(store).runs == tmp_path / "people" / "ledger.jsonl.runs"
    ledger.unlink()
    for store in stores:
        with pytest.raises(UseError, match="is gone"):
            charged(store, "three")


def test_a_store_that_was_charged_already_shares_no_other_ledger(store, tmp_path):
    with pytest.raises(UseError, match="would be lost"):
        StoreLedger.share(store, tmp_path / "people.jsonl")
    assert claim(store).guarantee == uls_plan().guarantee()


@pytest.mark.parametrize("text", ['{"user": "ana"}\n', '{"a": 1}'])
def test_a_file_that_is_no_ledger_of_stores_is_left_as_it_is(tmp_path, text):
    (other := tmp_path / "mail.jsonl").write_text(text)
    with pytest.raises(UseError, match=r"cannot be the ledger|not a ledger entry"):
        StoreLedger.share(tmp_path / "store", other)
    assert other.read_text() == text
    assert not (tmp_path / "store").exists()


def test_what_a_desktop_hides_beside_the_counters_is_none_of_them(store):
    (store / "runs").mkdir(exist_ok=True)
    (store / "runs" / ".DS_Store").write_bytes(b"...")
    assert charged(store).guarantee.epsilon > uls_plan().guarantee().epsilon


@pytest.fixture
def shared(tmp_path):
    """Two stores of the same people, prepared; the first was charged."""
    (tmp_path / "disk").mkdir()
    stores = [tmp_path / "a", tmp_path / "b"]
    for one in stores:
        one.mkdir()
        StoreLedger.share(one, tmp_path / "disk" / "ledger.jsonl")
    charged(stores[0], "one")
    return tmp_path / "disk", stores[1]


def test_invariant_12_a_shared_ledger_that_vanished_is_noticed_by_a_store_that_never_wrote(shared):
    """An unmounted disk: a ledger that is begun anew forgets what the other store was charged."""
    disk, other = shared
    disk.rename(disk.with_name("elsewhere"))
    with pytest.raises(UseError, match="is gone"):
        charged(other)
    disk.mkdir()
    with pytest.raises(UseError, match="is gone"):
        charged(other)
    assert not list(disk.iterdir())


def test_invariant_12_a_shared_ledger_that_is_a_copy_is_told(shared):
    disk, other = shared
    shutil.copytree(disk.rename(disk.with_name("first")), disk)
    assert kinds(other) == {ConditionKind.COPY}
    charged(other)
    assert kinds(other) == {ConditionKind.COPY}


def test_a_run_ledger_is_no_store_ledger(tmp_path):
    begun(tmp_path / "ledger.jsonl", uls_plan()).close()
    with pytest.raises(UseError, match="is no ledger of a store"):
        StoreLedger(tmp_path).history()


# Two processes at once.


def begin_and_step(store, name="other"):
    """Another process reserves a run and takes its first step."""
    ledger = StoreLedger(store)
    reserve(ledger, name, uls_plan())
    with closing(Counter(ledger.runs / name, begun=False)) as counter:
        counter.count()


@pytest.mark.parametrize("when", ["before it is read", "after it was read"])
def test_a_run_that_begins_while_the_ledger_is_read_is_not_taken_for_lost(
    tmp_path, monkeypatch, when
):
    reserve(StoreLedger(tmp_path), "one", uls_plan())
    read, met = journal.read, []

    def meanwhile(path):
        before = read(path)
        if not met:
            met.append(True)
            begin_and_step(tmp_path)
        return before if when == "after it was read" else read(path)

    monkeypatch.setattr(journal, "read", meanwhile)
    assert list(StoreLedger(tmp_path).history().charges)[:1] == ["one"]
    assert list(StoreLedger(tmp_path).history().charges) == ["one", "other"]


def test_of_two_who_ask_which_runs_are_open_neither_takes_the_other_for_a_run(
    tmp_path, monkeypatch
):
    path = tmp_path / "runs" / "one"
    Counter(path, begun=False).close()
    flock, met = fcntl.flock, []

    def meanwhile(descriptor, how):
        flock(descriptor, how)
        if not met:  # the first one holds what it asked with
            met.append(None)
            met[0] = open_runs(path.parent)

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    assert open_runs(path.parent) == []
    assert met == [[]]
    with closing(Counter(path, begun=True)):
        assert open_runs(path.parent) == ["one"]
