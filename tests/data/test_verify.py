"""The fast check: damage is found before anybody is charged, at no more cost for a larger store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.data.corpora import corpus, prepared
from tests.plans import uls_plan
from tests.training.toy import CONFIG, toy_store
from userdp.claims import claim
from userdp.cli.app import run as userdp
from userdp.core.errors import UseError
from userdp.data import user_store as blocks
from userdp.data.records import Tally
from userdp.data.user_store import UserStore, require_intact, verify_store
from userdp.data.writer import StoreWriter
from userdp.people.erasure import forget_user

TOKENS = "data/00000/train.tokens"


def flip(path: Path) -> None:
    """Exchange a byte in the middle, which is one of the contents, and keep the size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.fixture
def store(tmp_path) -> UserStore:
    return prepared(corpus(20), tmp_path / "store")


def test_a_byte_anywhere_in_a_small_store_is_found(store):
    files = [one for one in store.path.rglob("*") if one.is_file() and one.name != "meta.json"]
    assert len(files) == 8
    for file in files:
        whole = file.read_bytes()
        flip(file)
        with pytest.raises(UseError, match="not what was written"):
            require_intact(store)
        file.write_bytes(whole)
    require_intact(store)


def test_damage_is_found_through_a_generation_that_was_opened_before_an_append(store):
    """Whatever of it is gone by right, the text of its people is not."""
    with StoreWriter.append(store.path) as writer:
        writer.finish(source={}, tally=Tally())
    require_intact(store)
    flip(next(store.path.rglob("train.tokens")))
    with pytest.raises(UseError, match="other content"):
        require_intact(store)


def test_another_store_in_its_place_is_refused(store, tmp_path):
    prepared(corpus(3), store.path, overwrite=True)
    with pytest.raises(UseError, match="another store"):
        require_intact(store)


PLAN = uls_plan(cohort_size=8, group_size=2, steps=2, l2_clip_norm=1.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    from userdp.training.loop import train

    folder = tmp_path_factory.mktemp("made")
    train(toy_store(folder), PLAN, CONFIG, out=folder / "run")
    return folder


LINES = [
    "train STORE --out AGAIN --plan RUN/plan.json --model new --set learning.layers=1 --set "
    "learning.width=16 --set learning.heads=2 --learning-rate 0.1",
    "store stats STORE --epsilon 1",
    "evaluate RUN --store STORE --epsilon 1",
]


def words(line: str, place: Path) -> list[str]:
    for name, folder in {"STORE": "store", "AGAIN": "again", "RUN": "run"}.items():
        line = line.replace(name, str(place / folder))
    return line.split()


@pytest.mark.parametrize("line", LINES)
def test_a_damaged_store_is_refused_before_it_is_charged(made, tmp_path, capsys, line):
    if not line.startswith("train"):
        pytest.importorskip("opendp", reason="the extra queries is not installed")
    place = Path(shutil.copytree(made, tmp_path / "made"))
    before = claim(place / "store").guarantee.epsilon
    flip(place / "store" / TOKENS)
    assert userdp(words(line, place)) == 2
    error = capsys.readouterr().err
    assert "is not what was written" in error
    assert "userdp verify" in error
    assert claim(place / "store").guarantee.epsilon == before
    assert not (place / "again").exists()


def test_every_byte_is_read_where_that_is_asked_for(made, tmp_path, capsys, monkeypatch):
    place = Path(shutil.copytree(made, tmp_path / "made"))
    flip(place / "store" / TOKENS)
    monkeypatch.setattr(blocks, "QUICK_BYTES", 0)  # as of a large store
    before = claim(place / "store").guarantee.epsilon
    assert userdp([*words(LINES[0], place), "--set", "run.verify=true"]) == 2
    assert "SHA-256" in capsys.readouterr().err
    assert claim(place / "store").guarantee.epsilon == before
    assert not verify_store(place / "store", quick=True)
    assert verify_store(place / "store")


def test_a_person_who_is_erased_while_the_check_reads_is_no_damage(tmp_path, monkeypatch):
    """The generation that was opened goes from the disk at once: it names who was erased."""
    store = prepared(corpus(6), tmp_path / "store", held_out_users=0)
    differences = blocks._differences

    def meanwhile(path, meta, **options):
        monkeypatch.undo()
        forget_user(path, "user001")
        return differences(path, meta, **options)

    monkeypatch.setattr(blocks, "_differences", meanwhile)
    require_intact(store)
    require_intact(UserStore.open(store.path))
