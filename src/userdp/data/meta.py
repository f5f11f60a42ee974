"""`StoreMeta`: the facts about a store, in meta.json."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from userdp.data.format import FORMAT_NAME, FORMAT_VERSION, META, segment_name
from userdp.data.states import State, states_from
from userdp.errors import UseError


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
    held = {one.name: raw[one.name] for one in known if one.name in raw}
    return StoreMeta(**{**held, "states": states_from(raw)})


def _raw(path: Path) -> dict[str, Any] | None:
    try:
        raw = json.loads((path / META).read_bytes())
    except (OSError, ValueError):
        return None
    return raw if isinstance(raw, dict) and raw.get("format") == FORMAT_NAME else None
