"""Source to store: the stages of `userdp prepare`, as one call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from userdp.data.grouping import MEMORY_LIMIT, Grouping
from userdp.data.hashing import user_hash
from userdp.data.meta import StoreMeta
from userdp.data.progress import NoProgress, Progress
from userdp.data.records import Drop, ExampleDrop, Record, Tally
from userdp.data.repeats import on_one_side
from userdp.data.sources import Source
from userdp.data.splits import Split, is_held_out_user, record_split, require_fraction
from userdp.data.tokenize import StoreTokenizer, cut, require_seq_len
from userdp.data.writer import StoreWriter
from userdp.errors import FailureError, UseError


def prepare_store(
    source: Source,
    out: Path,
    *,
    tokenizer: StoreTokenizer,
    seq_len: int = 128,
    held_out_users: float = 0.1,
    held_out_examples: float = 0.05,
    overwrite: bool = False,
    memory_limit: str = MEMORY_LIMIT,
    progress: Progress | None = None,
) -> StoreMeta:
    """Read ``source``, write the user store ``out``, return its facts.

    Guarantee: a private user's examples, splits and order depend on that user's records and
    public data only (invariant 11; the one exception is `repeats`, for public sources). Every
    record is stored or counted as dropped (invariant 10). ``out`` is whole or untouched.

    Args:
        source: see `userdp.data.sources`.
        out: the store's folder.
        tokenizer: made from public text.
        seq_len: most tokens of an example, 2 to 2**20.
        held_out_users: fraction of users, 0 to 1.
        held_out_examples: fraction of training users' records, 0 to 1.
        overwrite: replace the store at ``out``.
        memory_limit: of the grouping stage, e.g. "1GB".
        progress: is told how far the work is; default nobody.

    Raises:
        UseError: bad arguments or input, or nothing to store.
        FailureError: the disk is full, or another failure of the machine.
    """
    require_seq_len(seq_len)
    fractions = (
        require_fraction("held_out_users", held_out_users),
        require_fraction("held_out_examples", held_out_examples),
    )
    shown = progress or NoProgress()
    tally = Tally()
    try:
        with StoreWriter(out, tokenizer=tokenizer, seq_len=seq_len, overwrite=overwrite) as writer:
            with Grouping(writer.scratch, memory_limit=memory_limit) as grouping:
                shown.stage("reading", source.size)
                records: Iterable[Record] = source.records(tally, shown)
                if source.public:
                    records = on_one_side(records, held_out_users=fractions[0], tally=tally)
                kept = grouping.add(records)
                shown.stage("tokenizing", kept)
                examples = _Examples(writer, tokenizer, seq_len, fractions, tally)
                done = 0
                for batch in grouping.batches():
                    examples.add(batch)
                    done += len(batch)
                    shown.at(done)
                examples.flush()
            if tally.records_stored == 0:
                raise UseError(_nothing(tally), hint="check --user-field, --text-field and PATH")
            facts = {"kind": source.kind, "public": source.public, **source.facts()}
            return writer.finish(source=facts, fractions=fractions, tally=tally)
    except OSError as error:
        raise FailureError(
            f"the store at {out} could not be written: {error.strerror or error}; "
            "what was there before is unchanged",
            hint="is the disk full, or the folder read-only?",
        ) from error


class _Examples:
    """Tokenizes and cuts records that come ordered by user, and writes each user's examples."""

    def __init__(
        self,
        writer: StoreWriter,
        tokenizer: StoreTokenizer,
        seq_len: int,
        fractions: tuple[float, float],
        tally: Tally,
    ) -> None:
        self._writer = writer
        self._tokenizer = tokenizer
        self._seq_len = seq_len
        self._fractions = fractions
        self._tally = tally
        self._dtype = np.dtype(tokenizer.dtype)
        self._user: bytes | None = None
        self._hash = b""
        self._held_out_user = False
        self._stored = 0
        self._pending: dict[Split, list[tuple[np.ndarray, np.ndarray]]] = {s: [] for s in Split}

    def add(self, batch: list[Record]) -> None:
        """Take the next records in."""
        texts = [record.text.decode() for record in batch]
        for record, tokens in zip(batch, self._encode(texts), strict=True):
            if record.user != self._user:
                self._begin(record.user)
            lengths, left = cut(tokens, self._seq_len)
            if len(lengths) == 0:
                self._tally.drop(Drop.TOO_SHORT)
                continue
            if left:
                self._tally.drop_examples(ExampleDrop.TOO_SHORT)
            split = record_split(
                self._hash,
                self._stored,
                held_out_user=self._held_out_user,
                fraction=self._fractions[1],
            )
            if self._stored == 0:
                self._writer.user(record.user)
            kept = np.array(tokens[: len(tokens) - left], dtype=self._dtype)
            self._pending[split].append((kept, lengths))
            self._stored += 1
            self._tally.store()
        self._write(Split.TRAIN)
        self._write(Split.HELD_OUT_USERS)

    def flush(self) -> None:
        """Write what is left of the last user."""
        for split in Split:
            self._write(split)

    def _begin(self, user: bytes) -> None:
        self.flush()
        self._user = user
        self._hash = user_hash(user)
        self._held_out_user = is_held_out_user(self._hash, self._fractions[0])
        self._stored = 0

    def _write(self, split: Split) -> None:
        pending = self._pending[split]
        if pending:
            tokens, lengths = zip(*pending, strict=True)
            self._writer.write(split, np.concatenate(tokens), np.concatenate(lengths))
            pending.clear()

    def _encode(self, texts: list[str]) -> Iterator[list[int]]:
        yield from self._tokenizer.encode(texts)


def _nothing(tally: Tally) -> str:
    if tally.records_read == 0:
        return "nothing to store: the source has no records"
    reasons = ", ".join(f"{reason}: {n}" for reason, n in tally.drops.most_common())
    return f"nothing to store: none of {tally.records_read} records can be used ({reasons})"
