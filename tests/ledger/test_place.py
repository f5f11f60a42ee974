"""Where a store's ledger lies: one that is gone, copied or shared is known as such."""

import shutil

import pytest

from tests.ledgers import reserve
from tests.plans import uls_plan
from userdp.claims import claim
from userdp.claims.parts import ConditionKind
from userdp.errors import FailureError, UseError
from userdp.ledger import StoreLedger, journal, place
from userdp.ledger.journal import read_entries
from userdp.ledger.lines import Declare
from userdp.ledger.place import Place


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


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_invariant_12_a_ledger_that_is_gone_is_noticed(store, how):
    if how == "deleted":
        (store / "ledger.jsonl").unlink()
    else:
        (store / "ledger.jsonl").write_bytes(b"")
    with pytest.raises(UseError, match=r"is gone|was put back"):
        charged(store)
    with pytest.raises(UseError, match=r"is gone|was put back"):
        StoreLedger(store).history()
    with pytest.raises(UseError):
        claim(store)
    assert not list(store.glob("runs/*"))


def test_invariant_12_twin_where_the_place_is_not_kept_a_deleted_ledger_is_begun_again(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(Place, "note", lambda self, begun_as: None)
    reserve(StoreLedger(tmp_path), "one", uls_plan(), logged=False)
    (tmp_path / "ledger.jsonl").unlink()
    assert charged(tmp_path).guarantee == uls_plan().guarantee(), "one of two runs"


def test_a_copied_store_says_that_it_counts_on_no_other_copy(store, tmp_path):
    shutil.copytree(store, tmp_path / "copy", copy_function=shutil.copy2)
    charged(tmp_path / "copy")
    assert kinds(tmp_path / "copy") == {ConditionKind.COPY}
    charged(tmp_path / "copy", "three")
    assert [e["kind"] for e in read_entries(tmp_path / "copy" / "ledger.jsonl")].count(
        "copied"
    ) == 1
    charged(store)
    assert kinds(store) == set(), "nothing tells the first that it was copied"


def test_a_copied_store_is_known_as_one_before_anything_is_written_to_it(store, tmp_path):
    shutil.copytree(store, tmp_path / "copy", copy_function=shutil.copy2)
    before = (tmp_path / "copy" / "ledger.jsonl").read_bytes()
    assert kinds(tmp_path / "copy") == {ConditionKind.COPY}
    assert (tmp_path / "copy" / "ledger.jsonl").read_bytes() == before


def test_invariant_12_a_store_that_was_put_back_whole_knows_that_steps_were_taken_since(
    tmp_path,
):
    """Ledger and place agree, as they did then; what was counted beside them does not."""
    StoreLedger(tmp_path).append(Declare(constants="constants"))
    kept = {name: (tmp_path / name).read_bytes() for name in ("ledger.jsonl", place.PLACE)}
    charged(tmp_path, "one")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one").write_bytes(b"%020d" % 3)
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    for asks in (claim, lambda store: reserve(StoreLedger(store), "two", uls_plan())):
        with pytest.raises(UseError, match="knows nothing of"):
            asks(tmp_path)


def test_a_ledger_that_was_copied_without_its_place_is_one_too(store, tmp_path):
    (tmp_path / "copy").mkdir()
    shutil.copy2(store / "ledger.jsonl", tmp_path / "copy")
    charged(tmp_path / "copy")
    assert kinds(tmp_path / "copy") == {ConditionKind.COPY}


def test_a_copy_to_which_nothing_is_added_stays_one(store, tmp_path):
    StoreLedger(store).append(Declare(constants="constants"))
    shutil.copytree(store, tmp_path / "copy", copy_function=shutil.copy2)
    StoreLedger(tmp_path / "copy").append(Declare(constants="constants"))
    charged(tmp_path / "copy")
    assert kinds(tmp_path / "copy") == {ConditionKind.COPY}


def test_a_store_that_was_moved_keeps_quiet(store, tmp_path):
    store.rename(tmp_path / "moved")
    assert charged(tmp_path / "moved").conditions == ()
    assert len(claim(tmp_path / "moved").parts) == 2


def test_invariant_12_twin_whoever_does_not_look_at_the_file_takes_a_copy_for_the_first(
    store, tmp_path, monkeypatch
):
    shutil.copytree(store, tmp_path / "copy", copy_function=shutil.copy2)
    monkeypatch.setattr(Place, "is_other", lambda self, begun_as: False)
    charged(tmp_path / "copy")
    assert kinds(tmp_path / "copy") == set()


class Killed(BaseException):
    """Stands for a process that is no more."""


@pytest.mark.parametrize(
    ("owner", "name"), [(journal, "_write"), (Place, "note")], ids=["first line", "inode"]
)
def test_a_kill_while_a_ledger_is_begun_makes_it_no_copy(tmp_path, monkeypatch, owner, name):
    def killed(*arguments, **options):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(Killed):
            charged(tmp_path, "one")
    begun = [charge.run_id for charge in StoreLedger(tmp_path).charges()]
    assert begun == (["one"] if owner is Place else [])
    assert charged(tmp_path).conditions == ()


def test_the_place_is_the_operators(store):
    assert (store / place.PLACE).stat().st_mode & 0o777 == 0o600


# One ledger for several stores.


def test_invariant_12_stores_of_the_same_people_are_charged_in_one_ledger(tmp_path):
    ledger, stores = tmp_path / "people" / "ledger.jsonl", [tmp_path / "a", tmp_path / "b"]
    for store in stores:
        store.mkdir()
        StoreLedger.share(store, ledger)
    charged(stores[0], "one")
    total = charged(stores[1], "two")
    assert [part.id for part in total.parts] == ["one", "two"]
    assert total.guarantee == claim(stores[0]).guarantee == claim(ledger).guarantee
    assert total.conditions == ()
    for store in stores:
        assert StoreLedger(store).path == ledger
        assert not (store / "ledger.jsonl").exists()
        assert StoreLedger(store).place.runs == tmp_path / "people" / "ledger.jsonl.runs"
    ledger.unlink()
    for store in stores:
        with pytest.raises(UseError, match="is gone"):
            charged(store, "three")


def test_a_store_that_was_charged_already_shares_no_other_ledger(store, tmp_path):
    with pytest.raises(UseError, match="has a ledger already"):
        StoreLedger.share(store, tmp_path / "people.jsonl")
    assert claim(store).guarantee == uls_plan().guarantee()


def test_broken_twin_a_ledger_of_its_own_for_each_store_forgets_the_other(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        assert charged(tmp_path / name).guarantee == uls_plan().guarantee(), "half of what it cost"


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


def test_a_store_that_joins_a_ledger_with_charges_is_charged_there_without_a_condition(tmp_path):
    ledger, stores = tmp_path / "people" / "ledger.jsonl", [tmp_path / "a", tmp_path / "b"]
    for number, store in enumerate(stores):
        store.mkdir()
        StoreLedger.share(store, ledger)
        charged(store, f"run-{number}")
    assert len({StoreLedger(store).place.id for store in stores}) == 1
    for store in stores:
        assert [part.id for part in claim(store).parts] == ["run-0", "run-1"]
        assert claim(store).conditions == ()


def test_what_a_kill_left_of_the_last_note_goes_when_the_ledger_is_next_looked_at(store):
    left = store / f".partial-{place.PLACE}-0123abcd"
    left.write_text("half")
    claim(store)
    assert not left.exists()


@pytest.mark.parametrize(
    "charge", ["../a", "/tmp/userdp-canary/a", "a/b", "..", "", "a\0", "a" * 200]
)
def test_the_id_of_a_charge_is_no_path(tmp_path, charge):
    """It comes from a run's ledger, and a folder may be somebody else's."""
    (tmp_path / "store").mkdir()
    place = Place(tmp_path / "store")
    with pytest.raises(UseError, match="no id of a charge"):
        place.counter(charge)
    assert place.counter("ab12-c_d").parent == place.runs


@pytest.mark.parametrize("change", ["chmod", "link"])
def test_what_makes_no_other_file_is_no_copy(store, tmp_path, change):
    ledger = store / "ledger.jsonl"
    if change == "chmod":
        ledger.chmod(0o640)
    else:
        (tmp_path / "link").hardlink_to(ledger)
    assert kinds(store) == set()


def test_invariant_12_a_ledger_that_lost_its_last_lines_is_refused(store):
    before = (store / "ledger.jsonl").read_bytes()
    charged(store)
    (store / "ledger.jsonl").write_bytes(before)
    for asks in (claim, charged):
        with pytest.raises(UseError, match="put back to an earlier state"):
            asks(store)


def test_a_disk_that_refused_a_line_makes_no_copy(store, monkeypatch):
    def refused(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", refused)
        with pytest.raises(FailureError):
            charged(store)
    assert kinds(store) == set()
    assert len(charged(store).parts) == 2
