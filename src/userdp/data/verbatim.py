"""Long stretches of text that stand word for word in a store. Exact, so operator-only.

A differentially private model may still write a sentence that a person wrote: because many people
write it, or by chance. The check tells the operator before synthetic text is handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from userdp.core.vocabulary import require_count
from userdp.data.arrow_files import ends_of, members_of
from userdp.data.selection import mix64
from userdp.data.user_store import StoreSplit

_BLOCK_EXAMPLES = 2**14
_BASE = np.uint64(0x9E3779B97F4A7C15)


def longest_copies(
    split: StoreSplit,
    texts: Sequence[Sequence[int]],
    *,
    least: int,
    progress: Callable[[int], None] = lambda _: None,
) -> NDArray[np.int64]:
    """How long a stretch of each text stands in the split: int64 (texts,), in tokens.

    A stretch counts where each window of ``least`` tokens in it stands in some example, token by
    token; windows are found by a hash and compared in full, so there are no false ones.
    0 where no window does. Memory follows the texts; time the split's tokens times ``least``.

    Args:
        split: what is searched.
        texts: token ids, of the split's own tokenizer.
        least: tokens of the shortest stretch that counts, at least 2.
        progress: is called with the number of examples searched.
    """
    require_count("least", least, at_least=2)
    flat = np.fromiter(chain.from_iterable(texts), dtype=np.uint64)
    offsets = ends_of(np.array([len(text) for text in texts], dtype=np.int64))
    places = _window_places(offsets, least)
    if not len(places):
        return np.zeros(len(texts), dtype=np.int64)
    hashes = np.unique(_window_hashes(flat, least)[places])
    found: set[bytes] = set()
    for tokens, starts in _blocks(split, least, progress):
        hits = starts[np.isin(_window_hashes(tokens, least)[starts], hashes)]
        found |= {tokens[hit : hit + least].tobytes() for hit in hits}
    repeated = np.zeros(len(flat), dtype=bool)
    repeated[places] = [flat[at : at + least].tobytes() in found for at in places]
    return np.array(
        [_longest_run(repeated[a:b], least) for a, b in pairwise(offsets)],
        dtype=np.int64,
    )


def _blocks(
    split: StoreSplit, least: int, progress: Callable[[int], None]
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
    """Tokens of some examples, and where windows begin in them."""
    users, examples = members_of(split.counts)
    for begin in range(0, len(users), _BLOCK_EXAMPLES):
        here = slice(begin, begin + _BLOCK_EXAMPLES)
        rows = split.gather(users[here], examples[here])
        yield rows.tokens.astype(np.uint64), _window_places(rows.offsets, least)
        progress(min(begin + _BLOCK_EXAMPLES, len(users)))


def _window_places(offsets: NDArray[np.int64], least: int) -> NDArray[np.int64]:
    """Where windows of ``least`` tokens begin that lie within one row."""
    row, place = members_of(np.maximum(np.diff(offsets) - least + 1, 0))
    return offsets[row] + place


def _window_hashes(tokens: NDArray[np.uint64], least: int) -> NDArray[np.uint64]:
    """Of each window of ``least`` consecutive tokens: Σ h(t_{i+j}) b^(least-1-j) modulo 2**64."""
    count = max(len(tokens) - least + 1, 0)
    mixed, hashes = mix64(tokens + np.uint64(1)), np.zeros(count, dtype=np.uint64)
    for place in range(least):
        hashes = hashes * _BASE + mixed[place : place + count]
    return hashes


def _longest_run(repeated: NDArray[np.bool_], least: int) -> int:
    """The longest stretch of tokens of which each window was found."""
    if not repeated.any():
        return 0
    edges = np.flatnonzero(np.diff(np.concatenate([[False], repeated, [False]]).astype(np.int8)))
    return int((edges[1::2] - edges[::2]).max()) + least - 1
