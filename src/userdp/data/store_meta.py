"""The user store on disk: its layout in words, its constants, and `StoreMeta`, which is meta.json.

A store is a folder::

    STORE/
      meta.json               `StoreMeta`: version, totals, drops, hashes, sources; it names the
                              generation that counts
      data/00000/             one folder per generation
        users.arrow           a row for each user, in the order of ids' bytes: `contents.USERS`
        tokenizer.json        the tokenizer, byte for byte as it was given
        train.tokens          all tokens of the split, one after another: uint16 (vocabulary up to
                              65,536) or uint32, little-endian, without a header
        train.offsets         int64: where each example begins among them, and where the last ends
        train.targets         uint8: 1 where the loss counts that token. Only where
                              ``meta.loss_mask`` is true; without it every token but an example's
                              first is a target
        held-out-users.…      the same files of the other two splits
        held-out-examples.…
      ledger.jsonl            the privacy ledger of the people whose data it is, once there is one;
                              written by `userdp.ledger`, stays when the store is overwritten
      ledger.json             0600: where that ledger is, how far it was written, and when
      places.jsonl            0600: folders of runs and files of scores: `store_folder`
      runs/                   0700: of each run, its attempts and a lock

Files of tokens are read over memory maps: nothing is copied but the rows that are asked for.

**Order.** Users by the bytes of their ids; a user's records as in the source; a user's held-out
examples in a split of their own.

**Every change is a generation.** It writes all of the store anew, beside the generation that
counts, and lets the new one count by one rename of ``meta.json``; what that does not name is
deleted. Who has the store open goes on reading the generation before. An *append* puts users and
examples in their places; an *erasure* leaves the person out, so that the store is, to its content
hash, the one that would have been prepared without them; *replacing* a store takes nothing over.

**Atomicity.** A new store is written in a hidden folder beside its place, which is synced and then
renamed. A kill at any moment leaves no store, the old one or the new one. What ``meta.json`` does
not name is what a killed change left; the next one removes it.

**What is private.** All of it except the tokenizer and ``store_id``: token data, ids, counts
and also ``content_sha256``, which is an exact function of everybody's text (whoever holds all of
it but one user's could test that user's presence). It belongs in operator-only files. The
public name of a store is ``store_id``, a random number. The folder has mode 0700.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from userdp.core.codec import decode, parse
from userdp.core.errors import UseError
from userdp.core.vocabulary import Adjacency
from userdp.data.splits import Split

FORMAT_NAME = "userdp-store"
FORMAT_VERSION = 6

META = "meta.json"
GENERATIONS = "data"
USERS = "users.arrow"
TOKENIZER = "tokenizer.json"
PLACES = "places.jsonl"

MIN_SEQ_LEN = 2
MAX_SEQ_LEN = 2**20


def token_dtype(vocab_size: int) -> str:
    """The narrowest of the store's two token types that holds every id below ``vocab_size``.

    >>> token_dtype(4096), token_dtype(65536), token_dtype(128256)
    ('uint16', 'uint16', 'uint32')
    """
    return "uint16" if vocab_size <= 2**16 else "uint32"


def generation_at(number: int) -> str:
    """The folder of a generation, within the store's."""
    return f"{GENERATIONS}/{number:05d}"


class StateKind(StrEnum):
    """How a state came about."""

    PREPARED = "prepared"
    APPENDED = "appended"
    ERASED = "erased"


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """One state of a store.

    An id is random and says nothing about the data. That of a prepared or appended state is the
    store's ``store_id`` from then on, and public; that of an erasure stays with the operator, since
    whether somebody asked to be forgotten is a fact about people.

    Args:
        id: 32 hex digits.
        kind: how it came about.
    """

    id: str
    kind: StateKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Seal:
    """How a file was written: its size in bytes, and its SHA-256."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreMeta:
    """What a store says about itself. Operator-only, except ``store_id`` and the tokenizer's hash.

    The defaults are those of a store that holds nothing yet.

    Args:
        format_version: of the layout in this file's head.
        store_id: random, 32 hex digits; says nothing about the data, so it may be published.
        seq_len: most tokens of an example.
        vocab_size: greatest token id of the tokenizer, plus one.
        end_of_text_id: the token that ends each record, or None if the tokenizer has none.
        tokenizer_sha256: of the tokenizer's bytes.
        content_sha256: of users, splits and tokens, however they lie in files.
        sources: what each source says of itself (its kind, the split, package versions), that of
            the first `prepare` first.
        held_out_users, held_out_examples: the fractions asked for.
        drops: records dropped, by reason.
        example_drops: examples dropped from stored records, by reason.
        generation: its number.
        files: of each file of the generation, how it was written; see `userdp.data.user_store`.
        states: what the store held after each change, the last of which is now.
        loss_mask: whether the loss counts marked tokens alone (conversations).
        ownership: how records of several users were given to one: ``rule`` ("single",
            "first-owner" or "greedy"), the ``adjacency`` that a claim over this store must name,
            and under "greedy" the ``records_per_user`` that bounds each user's part.
        totals: records_read, records_stored, users, near_colliding_users (see `exact_counts`),
            examples, tokens, and per split ``{"users", "examples", "tokens"}`` under "splits".
    """

    seq_len: int
    vocab_size: int
    end_of_text_id: int | None
    tokenizer_sha256: str
    held_out_users: float = 0.0
    held_out_examples: float = 0.0
    loss_mask: bool = False
    format_version: int = FORMAT_VERSION
    store_id: str = ""
    content_sha256: str = ""
    generation: int = -1
    files: dict[str, Seal] = field(default_factory=dict)
    states: tuple[State, ...] = ()
    sources: tuple[dict[str, Any], ...] = ()
    drops: dict[str, int] = field(default_factory=dict)
    example_drops: dict[str, int] = field(default_factory=dict)
    totals: dict[str, Any] = field(default_factory=lambda: {"records_read": 0})
    ownership: dict[str, Any] = field(
        default_factory=lambda: {"rule": "single", "adjacency": str(Adjacency.ADD_OR_REMOVE)}
    )

    @property
    def state(self) -> State:
        """What the store holds now."""
        return self.states[-1]

    def only_erased_since(self, state: str) -> bool:
        """Whether somebody left, and nobody joined or wrote more, since the state of that id."""
        ids = [one.id for one in self.states]
        later = self.states[ids.index(state) + 1 :] if state in ids else ()
        return bool(later) and all(one.kind is StateKind.ERASED for one in later)

    @property
    def token_dtype(self) -> str:
        """The type of a token: "uint16" or "uint32"."""
        return token_dtype(self.vocab_size)

    @property
    def folder(self) -> str:
        """The folder of the generation, within the store's."""
        return generation_at(self.generation)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {"format": FORMAT_NAME, **asdict(self)}


def is_store(path: Path) -> bool:
    """Whether ``path`` is a user store, of any version."""
    return _raw(path) is not None


def read_meta(path: Path) -> StoreMeta:
    """The facts of the store at ``path``; `UseError` if it is none, or of another version."""
    raw = _raw(path)
    if raw is None:
        there = f"it has no {META} of one" if path.exists() else "nothing is there"
        raise UseError(
            f"{path} is not a user store: {there}",
            hint="make one with `userdp prepare PATH --out STORE`",
        )
    version = raw.get("format_version")
    if version != FORMAT_VERSION:
        raise UseError(
            f"the store at {path} has format version {version!r}; this userdp reads version "
            f"{FORMAT_VERSION} alone, as a misread store would train on the wrong people's text",
            hint="prepare it again from its source, or use the userdp that wrote it",
        )
    try:
        meta = decode(StoreMeta, {k: v for k, v in raw.items() if k != "format"}, what=META)
        if not meta.states or set(meta.totals.get("splits", ())) != set(Split):
            raise UseError(f"{META} lacks states or splits")
        return meta
    except UseError as error:
        raise UseError(
            f"the store at {path} is damaged: {error.message}",
            hint="prepare it again from its source",
        ) from error


def _raw(path: Path) -> dict[str, Any] | None:
    try:
        raw = parse((path / META).read_bytes())
    except (OSError, ValueError):
        return None
    return raw if isinstance(raw, dict) and raw.get("format") == FORMAT_NAME else None
