"""The fast check: damage is found before anybody is charged, at no more cost for a larger store."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.data.corpora import corpus, prepared
from tests.plans import uls_plan
from tests.training.toy import CONFIG, toy_store
from userdp.claims import claim
from userdp.cli.app import run as userdp
from userdp.data import blocks
from userdp.data.blocks import require_intact
from userdp.data.files import write_arrow
from userdp.data.meta import StoreMeta
from userdp.data.records import Tally
from userdp.data.store import UserStore
from userdp.data.verify import require_every_byte, verify_store
from userdp.data.writer import StoreWriter
from userdp.errors import UseError
from userdp.files import write_json
from userdp.people.forget import forget_user

TOKENS = "segments/00000/tokens.arrow"
CORPUS = Path(__file__).parents[1] / "formats" / "corpus" / "store"


def flip(path: Path, at: int = -200) -> None:
    """Exchange one byte and keep the size."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.fixture
def store(tmp_path) -> UserStore:
    return prepared(corpus(20), tmp_path / "store")


def test_a_store_as_written_passes_again_and_again(store):
    for _ in range(3):
        require_intact(store)


def test_a_byte_anywhere_in_a_small_store_is_found(store):
    for name in sorted(store.meta.files):
        whole = (store.path / name).read_bytes()
        flip(store.path / name, at=len(whole) // 2)
        with pytest.raises(UseError, match="not what was written"):
            require_intact(store)
        (store.path / name).write_bytes(whole)
    require_intact(store)


@pytest.mark.parametrize("damage", ["shorter", "longer", "missing"])
def test_sizes_are_checked(store, damage):
    file = store.path / TOKENS
    if damage == "missing":
        file.rename(store.path / "elsewhere")
    else:
        content = file.read_bytes()
        file.write_bytes(content[:-1] if damage == "shorter" else content + b"\0")
    with pytest.raises(UseError, match=r"tokens\.arrow"):
        require_intact(store)


def test_a_store_without_its_user_ids_passes(store):
    next(store.path.glob("index/*/user-ids.arrow")).unlink()
    require_intact(UserStore.open(store.path))


def test_a_store_of_before_has_its_sizes_checked(tmp_path):
    path = Path(shutil.copytree(CORPUS, tmp_path / "store"))
    old = UserStore.open(path)
    assert not list(path.glob("index/*/blocks.arrow"))
    require_intact(old)
    flip(path / TOKENS)
    require_intact(old)  # without digests only --verify tells
    with pytest.raises(UseError, match="SHA-256"):
        require_every_byte(path)
    (path / TOKENS).write_bytes(b"")
    with pytest.raises(UseError, match="0 bytes"):
        require_intact(old)


def test_an_append_keeps_the_digests_and_knows_none_of_files_of_before(store, monkeypatch):
    with StoreWriter.append(store.path) as writer:
        writer.user(b"zz")
        writer.write(
            "train", np.zeros(4, dtype=np.uint16), np.array([4], dtype=np.int64), records=0
        )
        writer.finish(source={}, tally=Tally())
    again = UserStore.open(store.path)
    digests = blocks.read_blocks(store.path, again.meta)
    assert all(blocks._UNKNOWN not in digest for digest in digests.values())
    assert set(digests) == {name for name in again.meta.files if "blocks" not in name}
    require_intact(again)
    require_intact(store)  # who has the old generation open may go on
    flip(store.path / TOKENS)
    with pytest.raises(UseError, match="other content"):
        require_intact(again)


def test_damage_is_found_through_a_generation_that_was_opened_before_an_append(store):
    """Whatever of it is gone by right, the text of its people is not."""
    with StoreWriter.append(store.path) as writer:
        writer.finish(source={}, tally=Tally())
    require_intact(store)
    flip(store.path / TOKENS)
    with pytest.raises(UseError, match="other content"):
        require_intact(store)


def test_blocks_of_unknown_digest_are_left_out(tmp_path):
    files = {"a": {"bytes": 2 * blocks.BLOCK + 1}, "b": {"bytes": 3}}
    blocks.write_blocks(tmp_path / "blocks.arrow", files, {"b": blocks.digests_of(b"abc")})
    with pa.memory_map(str(tmp_path / "blocks.arrow")) as file:
        digests = pa.ipc.open_file(file).read_all().column("digest").to_pylist()
    assert digests[:3] == [blocks._UNKNOWN] * 3
    assert digests[3] == blocks.digests_of(b"abc")


def test_another_store_in_its_place_is_refused(store, tmp_path):
    prepared(corpus(3), store.path, overwrite=True)
    with pytest.raises(UseError, match="another store"):
        require_intact(store)


def test_a_large_store_costs_no_half_second(tmp_path, store):
    """64 GB of holes with a table of true digests."""
    size = 2**36
    files = {"segments/00000/tokens.arrow": {"bytes": size, "sha256": ""}}
    folder = tmp_path / "large"
    (folder / "segments/00000").mkdir(parents=True)
    (folder / "index/00000").mkdir(parents=True)
    with (folder / TOKENS).open("wb") as file:
        file.truncate(size)
    table = folder / "index/00000/blocks.arrow"
    rows = size // blocks.BLOCK
    hole = blocks.digests_of(bytes(blocks.BLOCK))
    width = pa.binary(blocks.DIGEST_BYTES)
    column = pa.Array.from_buffers(width, rows, [None, pa.py_buffer(hole * rows)])
    write_arrow(table, {"digest": column})
    files["index/00000/blocks.arrow"] = {"bytes": table.stat().st_size, "sha256": ""}
    meta = StoreMeta(**{**_fields(store.meta), "files": files})
    write_json(folder / "meta.json", meta.to_dict())
    begin = time.monotonic()
    assert list(blocks._differences(folder, meta)) == []
    assert time.monotonic() - begin < 0.5


def _fields(meta: StoreMeta) -> dict:
    values = meta.to_dict()
    del values["format"]
    return values


PLAN = uls_plan(cohort_size=8, group_size=2, steps=2, l2_clip_norm=1.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    from userdp.training.loop import train

    folder = tmp_path_factory.mktemp("made")
    train(toy_store(folder), PLAN, CONFIG, out=folder / "run")
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "train STORE --out AGAIN --plan RUN/plan.json --model new --set learning.layers=1 --set "
        "learning.width=16 --set learning.heads=2 "
        "--learning-rate 0.1",
        "stats STORE --epsilon 1",
        "evaluate RUN --store STORE --epsilon 1",
    ],
)
def test_a_damaged_store_is_refused_before_it_is_charged(made, tmp_path, capsys, line):
    if not line.startswith("train"):
        pytest.importorskip("opendp", reason="the extra queries is not installed")
    place = Path(shutil.copytree(made, tmp_path / "made"))
    before = claim(place / "store").guarantee.epsilon
    flip(place / "store" / TOKENS)
    names = {"STORE": "store", "AGAIN": "again", "RUN": "run"}
    for name, folder in names.items():
        line = line.replace(name, str(place / folder))
    assert userdp(line.split()) == 2
    error = capsys.readouterr().err
    assert "is not what was written" in error
    assert "userdp verify" in error
    assert claim(place / "store").guarantee.epsilon == before
    assert not (place / "again").exists()


def test_verify_finds_what_the_sizes_do_not_tell(made, tmp_path, capsys):
    """Without the digests of blocks, as of a store of before, only --verify reads all bytes."""
    place = Path(shutil.copytree(made, tmp_path / "made"))
    facts = json.loads((place / "store/meta.json").read_text())
    facts["files"].pop("index/00000/blocks.arrow")
    (place / "store/meta.json").write_text(json.dumps(facts))
    flip(place / "store" / TOKENS)
    before = claim(place / "store").guarantee.epsilon
    line = ["train", str(place / "store"), "--out", str(place / "again")]
    line += ["--plan", str(place / "run/plan.json"), "--model", "new", "--set", "learning.layers=1"]
    line += ["--set", "learning.width=16", "--set", "learning.heads=2", "--verify"]
    assert userdp(line) == 2
    assert "SHA-256" in capsys.readouterr().err
    assert claim(place / "store").guarantee.epsilon == before
    assert not verify_store(place / "store").ok


def test_a_person_who_is_erased_while_the_check_reads_is_no_damage(tmp_path, monkeypatch):
    """The generation that was opened goes from the disk at once: it names who was erased."""
    store = prepared(corpus(6), tmp_path / "store", held_out_users=0)
    differences = blocks._differences

    def meanwhile(path, meta):
        monkeypatch.undo()
        forget_user(path, "user001")
        return differences(path, meta)

    monkeypatch.setattr(blocks, "_differences", meanwhile)
    require_intact(store)
    require_intact(UserStore.open(store.path))
