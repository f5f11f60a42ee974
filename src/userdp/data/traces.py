"""What one person's text looks like in bytes: what a scan looks for after an erasure.

A person's examples are cut into *windows* of `WINDOW` tokens (a shorter example is one window), and
those that other people wrote too are left out, since they stay theirs. Of each window the scan
looks for the token ids (as 16, 32 and 64 bit numbers and as JSON) and for the text (as UTF-8 and as
JSON writes it), and it looks for the person's id and its public-salt hash. A copy of any stretch of
twice a window's length holds a whole window, wherever the stretch begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.data.hashing import user_hash
from userdp.data.patterns import KEY, Patterns
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer

WINDOW = 16
_SHORTEST = 4
"""Fewest tokens of a window: fewer stand in other text by chance."""
_SHORTEST_TEXT = 24
"""Fewest bytes of a window's text: shorter ones stand in vocabularies and file headers."""


@dataclass(frozen=True, slots=True)
class Traces:
    """The bytes to look for. Operator-only: it holds a person's text; never written to a file.

    Args:
        patterns: strings of bytes.
        windows: stretches of text that nobody else wrote.
        shared: stretches that somebody else wrote too, which are not looked for.
        short: examples too short to be told from other text.
        id_searched: the id is long enough to be looked for.
    """

    patterns: Patterns
    windows: int
    shared: int
    short: int
    id_searched: bool


def traces_of(store: UserStore, row: int) -> Traces:
    """What to look for once the user at ``row`` was erased from ``store``; reads all its tokens."""
    user = store.user_ids()[row]
    windows: set[tuple[int, ...]] = set()
    short = 0
    for tokens in store.examples_of(row):
        if len(tokens) < _SHORTEST:
            short += 1
        else:
            windows.update(_cut(tokens))
    shared = _of_others(store, row, windows)
    kept = windows - shared
    patterns: set[bytes] = set()
    tokenizer = StoreTokenizer.load(store.tokenizer_path)
    wide = store.meta.vocab_size > 2**16
    for window in kept:
        patterns.update(_of_tokens(window, wide=wide))
        patterns.update(_of_text(tokenizer.encoder.decode(list(window)), _SHORTEST_TEXT))
    names = list(_of_text(user.decode("utf-8", errors="replace"), KEY)) if len(user) >= KEY else []
    hashed = user_hash(user)
    patterns.update(names, (hashed, hashed.hex().encode()))
    return Traces(
        patterns=Patterns(patterns),
        windows=len(kept),
        shared=len(shared),
        short=short,
        id_searched=bool(names),
    )


def _cut(tokens: NDArray[Any]) -> Iterator[tuple[int, ...]]:
    """Windows one after another; the last one ends with the example."""
    size = min(WINDOW, len(tokens))
    for begin in (*range(0, len(tokens) - size, size), len(tokens) - size):
        yield tuple(tokens[begin : begin + size].tolist())


def _of_others(store: UserStore, row: int, windows: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """The windows that stand in examples of somebody else."""
    kind = np.dtype(store.meta.token_dtype).newbyteorder("<")
    as_bytes = {np.array(window, dtype=kind).tobytes(): window for window in windows}
    sought = Patterns(as_bytes)
    found: set[tuple[int, ...]] = set()
    for tokens, extents in store.segment_extents(row):
        for at, pattern in sought.find(np.ascontiguousarray(tokens).view(np.uint8)):
            first, rest = divmod(at, kind.itemsize)
            if rest:  # between two tokens
                continue
            last = first + len(pattern) // kind.itemsize
            if not any(begin < last and first < end for begin, end in extents):
                found.add(as_bytes[pattern])
    return found


def _of_tokens(window: tuple[int, ...], *, wide: bool) -> Iterator[bytes]:
    for kind in ("<u4", "<i8") if wide else ("<u2", "<u4", "<i8"):
        yield np.array(window).astype(kind).tobytes()
    for between in (", ", ","):
        yield between.join(map(str, window)).encode()


def _of_text(text: str, least: int) -> Iterator[bytes]:
    stripped = text.strip()
    for form in (
        stripped,
        json.dumps(stripped)[1:-1],
        json.dumps(stripped, ensure_ascii=False)[1:-1],
    ):
        encoded = form.encode()
        if len(encoded) >= least:
            yield encoded
