"""User stores: facts, index, segments, tokenizer, and files of scores beside them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.hostile.cases import Target
from benchmarks.faults.hostile.targets.ledgers import CORPUS


class Store(Target):
    """A store as it came, whose checksums fit nothing that was changed."""

    name = "store"
    what = "a store: facts, index, segments"

    def make(self, folder: Path) -> None:
        shutil.copytree(CORPUS / "store", folder, dirs_exist_ok=True)
        for name in ("ledger.jsonl", "ledger.json", "runs"):  # targets of their own
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def read(self, folder: Path) -> None:
        from userdp.data.meta import is_store
        from userdp.data.statistics import describe
        from userdp.data.store import UserStore
        from userdp.data.verify import require_intact, verify_store

        is_store(folder)
        checked = verify_store(folder)
        refused = True
        try:
            store = UserStore.open(folder, fixed_graph=True)
            require_intact(store)
            describe(store)
            if checked.ok:
                read_users(store)
            refused = False
        finally:
            assert not (refused and checked.ok), "verified, and then refused"
        if checked.ok:
            same_text(store)


class Tokenizer(Target):
    """The tokenizer that somebody gives to ``prepare``."""

    name = "tokenizer"
    what = "tokenizer.json, tokenizer_config.json"

    def make(self, folder: Path) -> None:
        model = CORPUS / "run" / "model"
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(model / name, folder / name)

    def read(self, folder: Path) -> None:
        from userdp.data.tokenize import StoreTokenizer

        tokenizer = StoreTokenizer.load(folder)
        tokens = tokenizer.encode(["w1 w2 w3", "日本 🙂", ""])
        most = max((max(row) for row in tokens if row), default=0)
        assert most < tokenizer.vocab_size, "a token beyond the vocabulary"
        assert tokenizer.encode_piece("w1", markup=False) is not None


class Scores(Target):
    """A file of scores beside a store."""

    name = "scores"
    what = "a file of scores, the list of places beside a store"
    follows_paths = True  # places.jsonl names where a store's runs lie

    def make(self, folder: Path) -> None:
        from userdp.data.places import Place, remember
        from userdp.data.scores import write_scores
        from userdp.data.splits import Split
        from userdp.data.store import UserStore

        store = UserStore.open(CORPUS / "store", fixed_graph=True)
        count = int(store.split(Split.TRAIN).counts.sum())
        blocks = iter([np.arange(count, dtype=np.float32)])
        write_scores(folder / "scores.arrow", store, blocks, lineage="{}")
        remember(folder, Place.RUN, folder / "run")
        remember(folder, Place.SCORES, folder / "scores.arrow")

    def read(self, folder: Path) -> None:
        from userdp.data.places import Place, places_of
        from userdp.data.scores import digest_of_scores, lineage_of_scores, read_scores
        from userdp.data.store import UserStore

        store = UserStore.open(CORPUS / "store", fixed_graph=True)
        path = folder / "scores.arrow"
        for place in Place:
            assert all(isinstance(one, str) for one in places_of(folder, place))
        digest_of_scores(path)
        lineage_of_scores(path)
        scores = read_scores(path, store)
        assert len(scores) == store.split("train").counts.sum(), "another number of scores"
        float(np.nansum(scores))


TARGETS: tuple[type[Target], ...] = (Store, Tokenizer, Scores)


def read_users(store: Any) -> None:
    """Every token of every user, by all ways that lead to one."""
    from userdp.data.splits import Split

    for split in Split:
        part = store.split(split)
        for user, count in enumerate(part.counts.tolist()):
            rows = part.gather(np.full(count, user), np.arange(count))
            assert len(rows) == count, "another number of examples"
            int(rows.tokens.sum())
    store.user_ids()
    for row in range(store.users):
        for tokens in store.examples_of(row):
            int(tokens.sum())


def same_text(store: Any) -> None:
    """What is verified, byte for byte, says what was written."""
    from userdp.data.store import UserStore

    known = UserStore.open(CORPUS / "store", fixed_graph=True)
    if store.meta.content_sha256 != known.meta.content_sha256:
        return  # meta.json was changed, and names other content
    assert store.user_ids() == known.user_ids(), "other users than were written"
    for row in range(known.users):
        ours = [tokens.tolist() for tokens in store.examples_of(row)]
        assert ours == [tokens.tolist() for tokens in known.examples_of(row)], "other tokens"
