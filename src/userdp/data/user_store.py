"""Read a user store: memory-mapped, zero-copy, at a cost that follows the rows asked for.

**The check** of a store's files against what was written: ``meta.json`` holds the size and the
SHA-256 of each file of the generation that counts (`seal`). The quick check, before every charge,
compares all sizes, which finds a copy that was cut short, and reads files, the smallest first, up
to `QUICK_BYTES`: a small store whole. The whole check reads every file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from userdp.core.errors import UseError, kind_of
from userdp.core.files import digest_of_file
from userdp.core.stages import Progress
from userdp.data import store_meta as layout
from userdp.data.splits import Split
from userdp.data.store_contents import USERS, TokenRows, ends_of, numbers, pieces, read_arrow
from userdp.data.store_folder import finish_erasure
from userdp.data.store_meta import Seal, StoreMeta, read_meta


class UserStore:
    """A store that `userdp prepare` wrote, open for reading. Several readers may have it open.

    Opening costs time and memory of the order of the number of users; tokens stay on disk until
    they are gathered. Use `open`.

    Args:
        path: the folder.
        meta: its facts; operator-only but for ``store_id`` (see `userdp.data.store_meta`).

    Attributes:
        table: the columns `userdp.data.store_contents.USERS`, a row for each user. Operator-only.
        examples: of each split.
    """

    def __init__(self, path: Path, meta: StoreMeta) -> None:
        self.path, self.meta = path, meta
        # All files are mapped at once: a later change removes them.
        self.table = read_arrow(path / meta.folder / layout.USERS, USERS)
        self.examples = {split: TokenRows.open(path / meta.folder, split, meta) for split in Split}

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"UserStore({str(self.path)!r})"

    def to_dict(self) -> dict[str, Any]:
        """What ``userdp prepare --json`` prints: exact counts."""
        return {"store": str(self.path), "operator_only": True, **self.meta.to_dict()}

    @classmethod
    def open(cls, path: Path | str, *, fixed_graph: bool = False) -> UserStore:
        """Open the store at ``path``.

        Args:
            path: the folder.
            fixed_graph: the caller knows that ``meta.ownership`` may say that claims over this
                store stand under ``fixed-graph`` adjacency, for example-level sampling with
                ``group_size`` of at least ``records_per_user`` alone. Who does not say so is
                refused, as an add-or-remove claim would be false there.

        Raises:
            UseError: no store is there, it is of another version, a file of it is damaged, or it
                needs ``fixed_graph``.
        """
        folder = Path(path)
        meta = read_meta(folder)
        finish_erasure(folder, meta)
        if meta.ownership["adjacency"] == "fixed-graph" and not fixed_graph:
            raise UseError(
                f"the records of the store at {folder} have several owners, bounded for "
                "fixed-graph adjacency: a claim that says add-or-remove would be false",
                hint="prepare it without --records-per-user: each record is its first owner's then",
            )
        try:
            return cls(folder, meta)
        except (OSError, UseError) as error:
            if read_meta(folder).generation != meta.generation:  # changed since we read it
                return cls.open(folder, fixed_graph=fixed_graph)
            raise UseError(
                f"the store at {folder} is damaged: {error}",
                hint="prepare it again from its source",
            ) from error

    @property
    def tokenizer_path(self) -> Path:
        """The copy of tokenizer.json that the tokens were made with."""
        return self.path / self.meta.folder / layout.TOKENIZER

    @property
    def users(self) -> int:
        """Users in all splits. Operator-only."""
        return len(self.table)

    def split(self, name: Split | str) -> StoreSplit:
        """One split: ``Split.TRAIN``, ``HELD_OUT_USERS`` or ``HELD_OUT_EXAMPLES``."""
        split = Split(name)
        hashes = np.frombuffer(self.table["hash"].buffers()[1] or b"", "<u8", 2 * self.users)
        counts = numbers(self.table[split])
        return StoreSplit(split, self.examples[split], counts, hashes.reshape(-1, 2))

    def user_ids(self) -> list[bytes]:
        """Users' ids as UTF-8, by row. Operator-only."""
        return list(self.table["id"].to_pylist())

    def joined(self) -> NDArray[np.int64]:
        """int64 (users,): the place in ``meta.states`` of the state in which each user joined."""
        return numbers(self.table["joined"])


class StoreSplit:
    """The examples of one split, by (user, example) index.

    Users are numbered from 0 among those with examples in this split, in the order of their ids'
    bytes; examples from 0 within each user's part of it.

    Args:
        name: which split.
        held: its examples, user after user.
        counts: int64 (users of the store,), how many of them are each user's.
        hashes: uint64 (users of the store, 2), each user's public-salt hash.

    Attributes:
        name: which split.
        rows: int64 (users,), each user's row in the whole store.
        counts: int64 (users,), examples of each user. Operator-only.
        user_hashes: uint64 (users, 2), for `selection`.
    """

    def __init__(
        self,
        name: Split,
        held: TokenRows,
        counts: NDArray[np.int64],
        hashes: NDArray[np.uint64],
    ) -> None:
        self.name, self._held = name, held
        self.rows: NDArray[np.int64] = np.flatnonzero(counts)
        self.counts: NDArray[np.int64] = counts[self.rows]
        self.user_hashes: NDArray[np.uint64] = hashes[self.rows]
        self._first = ends_of(self.counts)

    def gather(self, users: ArrayLike, examples: ArrayLike) -> TokenRows:
        """The tokens of example ``examples[r]`` of user ``users[r]``, for each r, in that order.

        Cost follows the rows gathered, whatever the size of the store. The result is a copy.

        Args:
            users: int64 (rows,), each in [0, len(counts)).
            examples: int64 (rows,), each in [0, counts[user]).

        Raises:
            IndexError: an index is out of range.
        """
        return self._copy(*self._extents(users, examples))

    @property
    def token_counts(self) -> NDArray[np.int64]:
        """int64 (users,): tokens of each user's examples, one after another. Operator-only."""
        return np.diff(self._held.offsets[self._first])

    def gather_tokens(self, users: ArrayLike, starts: ArrayLike, length: int) -> TokenRows:
        """``length`` tokens from place ``starts[r]`` of all of user ``users[r]``'s tokens.

        A user's examples are read one after another, so rows cross the borders of examples and
        records (never of users). A row is shorter where the user's tokens end.

        Args:
            users: int64 (rows,), each in [0, len(counts)).
            starts: int64 (rows,), each in [0, token_counts[user]).
            length: tokens of a row, at least 1.

        Raises:
            IndexError: an index is out of range.

        Source: "random chunk" of Chua et al. 2024, Section 5.1.
        """
        user, start = require_places(users, starts, self.token_counts, what="start")
        borders = self._held.offsets[self._first]
        begins = borders[user] + start
        return self._copy(begins, np.minimum(length, borders[user + 1] - begins))

    def lengths(self, users: ArrayLike, examples: ArrayLike) -> NDArray[np.int64]:
        """int64 (rows,): tokens of each example; reads no tokens. Arguments as in `gather`."""
        return self._extents(users, examples)[1]

    def _extents(
        self, users: ArrayLike, examples: ArrayLike
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the tokens of each example begin, and how many they are."""
        user, example = require_places(users, examples, self.counts, what="example index")
        row, offsets = self._first[user] + example, self._held.offsets
        return offsets[row], offsets[row + 1] - offsets[row]

    def _copy(self, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> TokenRows:
        marks = self._held.targets
        targets = None if marks is None else pieces(marks, begins, lengths)
        return TokenRows(pieces(self._held.tokens, begins, lengths), ends_of(lengths), targets)


def require_places(
    users: ArrayLike, places: ArrayLike, counts: NDArray[np.int64], *, what: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both as int64, else `IndexError`.

    Args:
        users: int64 (rows,), each in [0, len(counts)).
        places: int64 (rows,), each in [0, counts[user]).
        counts: int64 (users,).
        what: a place is, for the message.
    """
    user, place = np.asarray(users, dtype=np.int64), np.asarray(places, dtype=np.int64)
    if user.shape != place.shape or user.ndim != 1:
        raise IndexError(
            f"users and {what}s must be of one length, got shapes {user.shape} and {place.shape}"
        )
    if user.size and not (user.min() >= 0 and user.max() < len(counts)):
        raise IndexError(f"a user index is outside [0, {len(counts)})")
    if not np.all((place >= 0) & (place < counts[user])):
        raise IndexError(f"a {what} is outside its user's [0, count)")
    return user, place


QUICK_BYTES = 2**25
"""Takes some hundredths of a second to read."""


def seal(folder: Path) -> dict[str, Seal]:
    """The sizes and digests of all files of a new generation."""
    return {
        file.name: Seal(size=file.stat().st_size, sha256=digest_of_file(file))
        for file in sorted(folder.iterdir())
    }


def verify_store(
    path: Path, *, quick: bool = False, progress: Progress | None = None
) -> tuple[str, ...]:
    """What is not as it was written in the store at ``path``, one sentence each.

    Args:
        path: the store.
        quick: see this file's head.
        progress: shows how far the work is, in bytes.

    Raises:
        UseError: no store is at ``path``, or it is of another version.
    """
    return tuple(_differences(path, read_meta(path), quick=quick, progress=progress or Progress()))


def require_intact(
    store: UserStore, *, quick: bool = True, progress: Progress | None = None
) -> None:
    """`UseError` if an open store fails the check; called before anything is charged.

    Raises:
        UseError: something is not what was written, or another store lies there now.
    """
    path = store.path
    while True:
        # People may have been appended, or erased, since the store was opened: the text of all
        # others is among what lies there now.
        meta = read_meta(path)
        if meta.states[: len(store.meta.states)] != store.meta.states:
            raise UseError(
                f"another store lies at {path} than the one that was opened, with other people",
                hint="open it again",
            )
        wrong = next(_differences(path, meta, quick=quick, progress=progress or Progress()), None)
        if wrong is None:
            return
        if read_meta(path).generation == meta.generation:  # else it changed meanwhile
            raise UseError(
                f"the store at {path} is not what was written: {wrong}. People would be charged "
                "for a model of damaged text, so nothing was charged",
                hint=f"`userdp verify {path}` names all that differs; prepare it again from its "
                "source with --overwrite, which keeps its ledger",
            )


def _differences(path: Path, meta: StoreMeta, *, quick: bool, progress: Progress) -> Iterator[str]:
    """Which of a store's files are not as they were written, and how they differ."""
    done, total = 0, sum(written.size for written in meta.files.values())
    progress.stage("checksums", min(total, QUICK_BYTES) if quick else total)
    for name, written in sorted(meta.files.items(), key=lambda one: one[1].size):
        file, done = path / meta.folder / name, done + written.size
        try:
            size = file.stat().st_size
            if size != written.size:
                yield f"{name} has {size} bytes, and had {written.size}"
            elif not (quick and done > QUICK_BYTES):
                if digest_of_file(file) != written.sha256:
                    yield f"{name} has other content than was written (its SHA-256 differs)"
                progress.at(done)
        except OSError as error:
            yield f"{name}: {kind_of(error)}"
