"""Reading: gathered rows are the rows, in any order."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.corpora import corpus, prepared, rows_of
from userdp.core.errors import UseError
from userdp.data import store_meta as layout
from userdp.data.records import Tally
from userdp.data.splits import Split
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore
from userdp.data.writer import StoreWriter

DATA = Path(layout.generation_at(0))
Written = dict[str, list[list[list[int]]]]


def write(path, seed: int, pieces: int = 3) -> tuple[UserStore, Written]:
    """A store of random examples, written in pieces; and what went in, by split."""
    draw = np.random.default_rng(seed)
    went: Written = {str(split): [] for split in Split}
    with StoreWriter.create(path, tokenizer=StoreTokenizer.load(), seq_len=9) as writer:
        for user in range(12):
            splits = (
                [Split.HELD_OUT_USERS] if user % 4 == 3 else [Split.TRAIN, Split.HELD_OUT_EXAMPLES]
            )
            for split in splits:
                mine: list[list[int]] = []
                for _ in range(draw.integers(1, pieces + 1)):
                    lengths = draw.integers(2, 10, size=draw.integers(1, 6))
                    tokens = draw.integers(0, 4096, size=lengths.sum())
                    writer.write(f"u{user:02d}".encode(), split, tokens, lengths)
                    mine += [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]
                went[str(split)].append(mine)
        writer.finish(source={}, tally=Tally())
    return UserStore.open(path), went


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write(tmp_path_factory.mktemp("stores") / "store", 1)


def test_gather_returns_each_example_of_each_user(written):
    store, went = written
    for name, users in went.items():
        split = store.split(name)
        assert split.counts.tolist() == [len(mine) for mine in users]
        for user, mine in enumerate(users):
            assert rows_of(split, user) == mine
            assert split.lengths([user], [0]).tolist() == [len(mine[0])]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_gather_follows_any_order_and_repetition(written, data):
    store, went = written
    name = data.draw(st.sampled_from(sorted(went)))
    users = went[name]
    places = [(u, e) for u, mine in enumerate(users) for e in range(len(mine))]
    chosen = data.draw(st.lists(st.sampled_from(places), max_size=40))
    rows = store.split(name).gather([u for u, _ in chosen], [e for _, e in chosen])
    assert len(rows) == len(chosen)
    assert [rows.row(r).tolist() for r in range(len(rows))] == [users[u][e] for u, e in chosen]
    assert rows.lengths.tolist() == [len(users[u][e]) for u, e in chosen]


@pytest.mark.parametrize(
    ("users", "examples"),
    [([-1], [0]), ([9], [0]), ([0], [-1]), ([0], [10**6]), ([0, 1], [0]), ([[0]], [[0]])],
)
def test_gather_refuses_indices_out_of_range(written, users, examples):
    with pytest.raises(IndexError):
        written[0].split("train").gather(users, examples)


def test_an_index_off_by_one_user_would_be_caught(written):
    """The twin of the first test: an index shifted by one user gives other rows."""
    store, went = written
    split = store.split("train")
    split._first = np.roll(split._first, -1)
    assert split.gather([0], [0]).row(0).tolist() != went["train"][0][0]


def test_ids_and_folder_are_for_the_operator_alone(tmp_path):
    store = prepared(corpus(2), tmp_path / "store")
    assert store.path.stat().st_mode & 0o077 == 0
    assert (store.path / DATA / layout.USERS).stat().st_mode & 0o077 == 0


def refused(path, match: str) -> None:
    with pytest.raises(UseError, match=match) as caught:
        UserStore.open(path)
    assert caught.value.hint


def test_what_is_not_a_store_of_this_version_is_refused_with_one_clear_error(tmp_path):
    refused(tmp_path / "nowhere", "nothing is there")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "not a user store")
    (tmp_path / "file").write_text("text")
    refused(tmp_path / "file", "not a user store")
    store = prepared(corpus(2), tmp_path / "store")
    meta = json.loads((store.path / layout.META).read_text())
    for version in (1, 5, 7, None, "6"):
        (store.path / layout.META).write_text(json.dumps({**meta, "format_version": version}))
        refused(store.path, f"format version {version!r}")
    (store.path / layout.META).write_text(json.dumps({**meta, "format": "other"}))
    refused(store.path, "not a user store")
    (store.path / layout.META).write_text("{")
    refused(store.path, "not a user store")
    short = {key: value for key, value in meta.items() if key != "seq_len"}
    (store.path / layout.META).write_text(json.dumps(short))
    refused(store.path, r"missing \['seq_len'\]")


@pytest.mark.parametrize("name", [layout.USERS, "train.offsets", "train.tokens"])
def test_a_damaged_store_is_refused(tmp_path, name):
    store = prepared(corpus(2), tmp_path / "store")
    file = store.path / DATA / name
    content = file.read_bytes()
    for damage in (b"", content[: len(content) // 2], content[:-1]):
        file.write_bytes(damage)
        refused(store.path, "damaged")
    file.unlink()
    refused(store.path, "damaged")
    shutil.rmtree(store.path / DATA)
    refused(store.path, "damaged")


def test_importing_the_package_imports_no_arrow():
    code = "import sys, userdp.data; assert not {'pyarrow', 'numpy', 'duckdb'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
