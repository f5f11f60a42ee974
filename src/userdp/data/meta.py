"""`StoreMeta`: the facts about a store, in meta.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

from userdp.codec import decode
from userdp.data.format import (
    FORMAT_NAME,
    FORMAT_VERSION,
    MAX_SEQ_LEN,
    META,
    MIN_SEQ_LEN,
    MOST_SEGMENTS,
    segment_name,
)
from userdp.data.splits import Split
from userdp.data.states import State, states_in
from userdp.errors import UseError
from userdp.strict_json import parse

_OF_OWNERSHIP = ("rule", "adjacency")
_OF_TOTALS = ("records_read", "records_stored", "users", "examples", "tokens")
_OF_SPLIT = ("users", "examples", "tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreMeta:
    """What a store says about itself. Operator-only, except ``store_id`` and the tokenizer's hash.

    Args:
        format_version: of the layout in `userdp.data.format`.
        store_id: random, 32 hex digits; says nothing about the data, so it may be published.
        seq_len: most tokens of an example.
        vocab_size: greatest token id of the tokenizer, plus one.
        token_dtype: "uint16" or "uint32".
        end_of_text_id: the token that ends each record, or None if the tokenizer has none.
        tokenizer_sha256: of tokenizer.json's bytes.
        content_sha256: of users, splits and tokens, however they lie in files.
        sources: what each source says of itself (its kind, the split, package versions), that of
            the first `prepare` first.
        held_out_users, held_out_examples: the fractions asked for.
        drops: records dropped, by reason.
        example_drops: examples dropped from stored records, by reason.
        generation: of the index; 0 when prepared, one more with each change.
        segments: how many there are.
        revisions: how often compaction rewrote a segment, by its number; it is left out if never.
        holes: some segments hold text of nobody in the index: an erasure is not finished.
        states: what the store held after each change, the last of which is now.
        loss_mask: whether the loss counts marked tokens alone (conversations).
        ownership: how records of several users were given to one: ``rule`` ("single",
            "first-owner" or "greedy"), the ``adjacency`` that a claim over this store must name,
            and under "greedy" the ``records_per_user`` that bounds each user's part.
        files: each file's ``bytes`` and ``sha256``, by its path in the store.
        totals: records_read, records_stored, users, near_colliding_users (see `near_ids`),
            examples, tokens, and per split ``{"users", "examples", "tokens"}`` under "splits".
    """

    format_version: int
    store_id: str
    seq_len: int
    vocab_size: int
    token_dtype: str
    end_of_text_id: int | None
    tokenizer_sha256: str
    content_sha256: str
    sources: list[dict[str, Any]]
    held_out_users: float
    held_out_examples: float
    drops: dict[str, int]
    example_drops: dict[str, int]
    totals: dict[str, Any]
    generation: int
    segments: int
    loss_mask: bool
    ownership: dict[str, Any]
    files: dict[str, dict[str, Any]]
    revisions: dict[str, int] = field(default_factory=dict)
    holes: bool = False
    states: tuple[State, ...] = ()

    @property
    def state(self) -> State:
        """What the store holds now."""
        return self.states[-1]

    def segment_folder(self, number: int) -> str:
        """The name of a segment's folder."""
        return segment_name(number, self.revisions.get(str(number), 0))

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {"format": FORMAT_NAME, **asdict(self)}


def is_store(path: Path) -> bool:
    """Whether ``path`` is a user store, of any version."""
    return _raw(path) is not None


def read_meta(path: Path) -> StoreMeta:
    """The facts of the store at ``path``; `UseError` if it is none, or of another version."""
    if not path.exists():
        raise UseError(
            f"no store at {path}: nothing is there",
            hint="make one with `userdp prepare PATH --out STORE`",
        )
    raw = _raw(path)
    if raw is None:
        raise UseError(
            f"{path} is not a user store: it has no {META} of one",
            hint="make one with `userdp prepare PATH --out STORE`",
        )
    version = raw.get("format_version")
    if version != FORMAT_VERSION:
        raise UseError(
            f"the store at {path} has format version {version!r}; this userdp reads version "
            f"{FORMAT_VERSION} alone, as a misread store would train on the wrong people's text",
            hint="prepare it again from its source, or use the userdp that wrote it",
        )
    known = fields(StoreMeta)
    needed = [one.name for one in known if one.default is one.default_factory is MISSING]
    missing = [name for name in needed if name not in raw]
    if missing:
        raise UseError(
            f"the store at {path} is damaged: {META} lacks {', '.join(missing)}",
            hint="prepare it again from its source",
        )
    defaults = {one.name: _default(one) for one in known if one.name not in raw}
    values = {one.name: raw[one.name] for one in known if one.name in raw} | defaults
    try:
        meta = decode(StoreMeta, {**values, "states": states_in(raw)}, what=META)
        _require_sense(meta)
    except UseError as error:
        raise UseError(
            f"the store at {path} is damaged: {error.message}",
            hint="prepare it again from its source",
        ) from error
    return meta


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def _require_sense(meta: StoreMeta) -> None:
    """`UseError` unless the numbers are such as a writer writes, and no file lies elsewhere."""
    wrong = [
        name
        for name, right in {
            "seq_len": MIN_SEQ_LEN <= meta.seq_len <= MAX_SEQ_LEN,
            "vocab_size": 0 < meta.vocab_size <= 2**32,
            "token_dtype": meta.token_dtype in ("uint16", "uint32"),
            "generation": 0 <= meta.generation <= MOST_SEGMENTS,
            "segments": 0 <= meta.segments <= MOST_SEGMENTS,
            "revisions": all(0 <= one <= MOST_SEGMENTS for one in meta.revisions.values()),
            "states": meta.states and meta.state.segments == meta.segments,
            "ownership": all(isinstance(meta.ownership.get(one), str) for one in _OF_OWNERSHIP),
        }.items()
        if not right
    ]
    if wrong:
        raise UseError(f"{META} says what no store has of {', '.join(wrong)}")
    for name, facts in meta.files.items():
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts or "\0" in name or not place.parts:
            raise UseError(f"{META} names {name!r:.80}, which is no place in a store")
        if decode(int, facts.get("bytes"), what=f"the size of {name!r:.80}") < 0:
            raise UseError(f"{META} says that {name!r:.80} has {facts['bytes']} bytes")
        decode(str, facts.get("sha256"), what=f"the digest of {name!r:.80}")
    counts = {"totals": meta.totals} | dict(_splits_of(meta.totals))
    for where, values in counts.items():
        for name in _OF_TOTALS if where == "totals" else _OF_SPLIT:
            decode(int, values.get(name), what=f"{name} of {where} in {META}")


def _splits_of(totals: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    splits = decode(dict[str, dict[str, Any]], totals.get("splits"), what=f"the splits in {META}")
    for split in Split:
        if split not in splits:
            raise UseError(f"{META} says nothing of the split {split}")
        yield str(split), splits[split]


def _raw(path: Path) -> dict[str, Any] | None:
    try:
        raw = parse((path / META).read_bytes())
    except (OSError, ValueError):
        return None
    return raw if isinstance(raw, dict) and raw.get("format") == FORMAT_NAME else None
