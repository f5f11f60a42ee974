"""Change a user store: all of it, or nothing. One way for new stores, appends and erasures.

Every change writes the next generation beside the one that counts, syncs it, and lets it count by
one rename of ``meta.json``; a new store is written in a hidden folder and renamed as a whole. Users
come in the order of their ids' bytes, and the users of the generation before are merged in between:
that is an append; an erasure merges all but one. What the store does not name any more goes when
the change ends, or after a kill with the next one. A store that replaces another is the next
generation in the same folder, of which nobody is in the one before; so its privacy ledger stays
where it is.
"""

from __future__ import annotations

import glob
import secrets
import shutil
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from userdp.core.errors import UseError
from userdp.core.files import in_the_way, sweep, sync, whole_folder, write_file, write_json
from userdp.core.interrupts import held
from userdp.data import store_meta as layout
from userdp.data.exact_counts import near_colliding
from userdp.data.records import Tally
from userdp.data.splits import Split, user_hash
from userdp.data.store_contents import (
    NO_EXAMPLES,
    USERS,
    ExampleFiles,
    chain_of,
    content_hash,
    ends_of,
    numbers,
    prolong,
    write_arrow,
)
from userdp.data.store_folder import changing
from userdp.data.store_meta import State, StateKind, StoreMeta, is_store, read_meta
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore, seal

_EXAMPLES_AT_ONCE, _MOST_ROWS, _FEW = 2**20, 2**14, 2**9
"""Examples of the generation before that are copied at once; users whose rows wait as Python's
objects; and users of the generation before for whom a table of Arrow's would cost more."""


class StoreWriter:
    """Writes the examples of one user after another; see `create` and `append`.

    Both are context managers. The new store, or the new generation of the old one, is there when
    the block ends after `finish`. Leaving the block before leaves no store, or the old one.

    Attributes:
        folder: that is written: the store's own, or the hidden one of a new store.
        meta: of the store that is added to, empty for a new one; after `finish`, of what was
            written.
        tokenizer: of the store.
    """

    @classmethod
    @contextmanager
    def create(
        cls, out: Path, *, tokenizer: StoreTokenizer, overwrite: bool = False, **facts: Any
    ) -> Iterator[Self]:
        """The writer of a new store at ``out``.

        Args:
            out: the store's place.
            tokenizer: is copied into the store.
            overwrite: replace the store that lies at ``out``; its privacy ledger stays, since the
                people stay charged for what was released.
            facts: of `StoreMeta`: ``seq_len``, and ``held_out_users``, ``held_out_examples`` and
                ``loss_mask`` where they are not the defaults.

        Raises:
            UseError: something lies at ``out`` and ``overwrite`` is false, it is not a store, or
                another process changes it.
        """
        place = out.absolute()
        _require_free(place, overwrite=overwrite)
        meta = StoreMeta(
            vocab_size=tokenizer.vocab_size,
            end_of_text_id=tokenizer.end_of_text_id,
            tokenizer_sha256=tokenizer.sha256,
            **facts,
        )
        if place.exists():
            with changing(place), closing(cls(place, meta, tokenizer)) as writer:
                yield writer
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(place, mode=0o700) as folder:
            with closing(cls(folder, meta, tokenizer)) as writer:
                yield writer
            assert writer.meta.states, "a writer finishes"
            _require_free(place, overwrite=False)

    @classmethod
    @contextmanager
    def append(cls, store: Path) -> Iterator[Self]:
        """The writer of more users, or more of the same users, into the store at ``store``.

        Readers that have the store open keep the generation that they opened. One appender at a
        time: the store's folder is locked. The store gets a new ``store_id`` and content hash, as
        it is other data: a run that began before refuses to resume on it.

        Args:
            store: the store's place.

        Raises:
            UseError: no store of this version is there, or another process changes it.
        """
        folder = store.absolute()
        read_meta(folder)
        with changing(folder), closing(cls.over(folder)) as writer:
            yield writer

    @classmethod
    def over(cls, folder: Path) -> Self:
        """The writer of a generation that takes over the users of the store in ``folder``."""
        old = UserStore.open(folder, fixed_graph=True)
        words = StoreTokenizer.load(old.tokenizer_path).with_end(old.meta.end_of_text_id)
        return cls(folder, old.meta, words, old)

    def __init__(
        self,
        folder: Path,
        meta: StoreMeta,
        tokenizer: StoreTokenizer,
        old: UserStore | None = None,
    ) -> None:
        self.folder, self.meta, self.tokenizer = folder, meta, tokenizer
        self._old = pa.RecordBatch.from_pylist([], USERS) if old is None else old.table
        self._old_examples = {} if old is None else old.examples
        self._old_ids = self._old["id"].to_pylist()
        self._first = {split: ends_of(numbers(self._old[split])) for split in Split}
        self._next, self._last = 0, b""  # row of the old store, and user, up to which all is there
        self._tables = [self._old[:0]]  # the users' rows
        self._rows: list[dict[str, Any]] = []  # the last of them
        # Above all that lies there, so that no generation is taken for one that it replaces.
        there = (folder / layout.GENERATIONS).glob("[0-9]*")
        self._number = max([meta.generation + 1, *(1 + int(one.name) for one in there)])
        self._place = folder / layout.generation_at(self._number)
        self._place.mkdir(parents=True)
        self._files = {split: ExampleFiles(self._place, split, meta) for split in Split}

    def close(self) -> None:
        """Close the files that are written."""
        for files in self._files.values():
            files.close()

    def is_new(self, user: bytes) -> bool:
        """Whether the store held nothing of ``user`` before this change."""
        return not self._old_row(user)[1]

    def records_of(self, user: bytes) -> int:
        """Stored records of ``user`` so far, those that the store held before included."""
        row, known = self._old_row(user)
        if user == self._last:
            return int(self._rows[-1]["records"])
        return int(self._old["records"][row].as_py()) if known else 0

    def write(
        self,
        user: bytes,
        split: Split,
        tokens: NDArray[Any],
        lengths: NDArray[np.int64],
        *,
        targets: NDArray[np.uint8] | None = None,
        records: int = 0,
    ) -> None:
        """Append examples to ``split`` of ``user``.

        Args:
            user: its id; users come in the order of their ids' bytes.
            split: whose examples they are.
            tokens: flat, ids below the vocabulary size.
            lengths: int64 (examples,), of each example; their sum is ``len(tokens)``.
            targets: uint8, parallel to the tokens; if and only if the store has a loss mask.
            records: how many stored records these are.
        """
        if not len(lengths):
            return
        assert lengths.sum() == len(tokens), "lengths add up to the tokens"
        assert (targets is not None) is self.meta.loss_mask, "targets come with a loss mask alone"
        if user != self._last:
            self._begin(user)
        row, chain = self._rows[-1], chain_of(split)
        row["records"] += records
        row[split] += len(lengths)
        row[chain] = prolong(row[chain], tokens, lengths, targets)
        self._files[split].add(tokens, lengths, targets)

    def finish(
        self, *, source: dict[str, Any], tally: Tally, ownership: dict[str, Any] | None = None
    ) -> StoreMeta:
        """Write the new generation, sync, and let it count.

        Args:
            source: what the source says of itself.
            tally: its books must balance.
            ownership: replaces the store's (see `StoreMeta`); None: it stays.
        """
        tally.balance()
        old, store_id = self.meta, secrets.token_hex(16)
        kind = StateKind.APPENDED if old.states else StateKind.PREPARED
        return self._commit(
            replace(
                old,
                store_id=store_id,
                sources=(*old.sources, source),
                drops=_summed(old.drops, tally.drops),
                example_drops=_summed(old.example_drops, tally.example_drops),
                ownership=ownership or old.ownership,
                states=(*old.states, State(id=store_id, kind=kind)),
            ),
            read=tally.records_read,
        )

    def finish_without(self, row: int) -> StoreMeta:
        """Write the generation without the user at ``row`` of the old store; see `finish`."""
        self._take_over(row)
        self._next += 1
        erased = State(id=secrets.token_hex(16), kind=StateKind.ERASED)
        return self._commit(
            replace(self.meta, states=(*self.meta.states, erased)),
            read=-self._old["records"][row].as_py(),
        )

    def _old_row(self, user: bytes) -> tuple[int, bool]:
        """The place of a user in the old store, and whether the user is there."""
        row = bisect_left(self._old_ids, user)
        return row, self._old_ids[row : row + 1] == [user]

    def _begin(self, user: bytes) -> None:
        """Begin the row of ``user``, after those of all users before, with what the store held."""
        assert self._last < user, "users come in the order of their ids' bytes"
        self._last = user
        if len(self._rows) >= _MOST_ROWS:
            self._close_rows()
        row, known = self._old_row(user)
        self._take_over(row)
        if known:
            self._take_over(row + 1)
        else:
            facts = {"hash": user_hash(user), "records": 0, "joined": len(self.meta.states)}
            counts = {str(split): 0 for split in Split}
            chains = {chain_of(split): NO_EXAMPLES for split in Split}
            self._rows.append({"id": user, **facts, **counts, **chains})

    def _close_rows(self) -> None:
        self._tables.append(pa.RecordBatch.from_pylist(self._rows, USERS))
        self._rows = []

    def _take_over(self, end: int) -> None:
        """Take over the users of the old store that are left before row ``end``."""
        users = self._old[self._next : end]
        if len(users) < _FEW:
            self._rows += users.to_pylist()
        else:
            self._close_rows()
            self._tables.append(users)
        for split, old in self._old_examples.items():
            stop = self._first[split][end]
            for at in range(self._first[split][self._next], stop, _EXAMPLES_AT_ONCE):
                offsets = old.offsets[at : min(at + _EXAMPLES_AT_ONCE, stop) + 1]
                here = slice(offsets[0], offsets[-1])
                targets = None if old.targets is None else old.targets[here]
                self._files[split].add(old.tokens[here], np.diff(offsets), targets)
        self._next = end

    def _commit(self, meta: StoreMeta, *, read: int) -> StoreMeta:
        """Let the generation count; return its facts.

        Guarantee: killed at any moment, the store is of the generation before or of this one.

        Args:
            meta: with the totals of the generation before.
            read: records read since the generation before; less than 0 for those taken out.
        """
        self._take_over(len(self._old_ids))
        self._close_rows()
        self.close()
        columns = [pa.concat_arrays([one[n] for one in self._tables]) for n in USERS.names]
        users = pa.record_batch(columns, USERS)
        write_arrow(self._place / layout.USERS, users)
        write_file(self._place / layout.TOKENIZER, self.tokenizer.content)
        self.meta = replace(
            meta,
            generation=self._number,
            content_sha256=content_hash(users, meta),
            totals={"records_read": meta.totals["records_read"] + read, **self._totals(users)},
            files=seal(self._place),
        )
        for changed in (self._place, self._place.parent, self.folder):
            sync(changed)
        with held() as signals:  # once it counts, nobody is told to repeat it
            write_json(self.folder / layout.META, self.meta.to_dict())
            signals.heard = False
        return self.meta

    def _totals(self, users: pa.RecordBatch) -> dict[str, Any]:
        """`StoreMeta.totals`, but for the records that were read."""
        splits = {
            str(split): {
                "users": int(np.count_nonzero(numbers(users[split]))),
                "examples": int(numbers(users[split]).sum()),
                "tokens": files.tokens,
            }
            for split, files in self._files.items()
        }
        return {
            "records_stored": pc.sum(users["records"]).as_py() or 0,
            "users": len(users),
            "near_colliding_users": near_colliding(users["id"].to_pylist()),
            **{key: sum(one[key] for one in splits.values()) for key in ("examples", "tokens")},
            "splits": splits,
        }


def erase_user(store: Path, row: int, *, remove: Sequence[Path]) -> StoreMeta:
    """Write the generation without the user at ``row``, and return the store's new facts.

    What was made of their text elsewhere, working files of killed runs too, goes first, and can be
    removed twice. Then the generation is written, and one rename lets it count.

    Guarantee: the store is then, to its content hash, the one that would have been prepared from
    the records of all others. Killed at any moment, it holds the user or not; what it does not name
    any more goes with the end of `changing`, under which this is called, or is deleted by the next
    `UserStore.open`.

    Args:
        store: its folder.
        row: of the user in the whole store.
        remove: what was made of people's text elsewhere and is to go: weights, scores, and what an
            audit kept.
    """
    place = store.absolute()
    sweep(place.parent, glob.escape(place.name))
    for path in remove:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    with closing(StoreWriter.over(place)) as writer:
        return writer.finish_without(row)


def _summed(before: dict[str, int], new: Counter[str]) -> dict[str, int]:
    """The counts of both, in the order of their names."""
    return dict(sorted((Counter(before) + new).items()))


def _require_free(out: Path, *, overwrite: bool) -> None:
    """`UseError` if a store may not be put at ``out``."""
    if not out.exists() and not out.is_symlink():
        return
    if not is_store(out):
        raise UseError(
            f"{out} exists and is not a user store, so it is left alone",
            hint="choose another place for the store",
        )
    if not overwrite:
        raise in_the_way(out, "a store")
