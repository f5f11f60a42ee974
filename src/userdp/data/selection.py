"""Which examples of a user a step uses (ULS), or the whole run (ELS): the strategies of Chua et al.

======================  ==========================================================================
`Strategy`              at most G of a user's examples
======================  ==========================================================================
``RANDOM``              ULS: drawn anew each step, without replacement; ELS: by the user's hash
``LONGEST``             most tokens first
``SHORTEST``            fewest tokens first
``HIGHEST_PERPLEXITY``  greatest score first; scores from `read_scores`
``LOWEST_PERPLEXITY``   least score first
``RANDOM_CHUNK``        G chunks of ``seq_len`` tokens from random places of all of the user's
                        tokens, crossing the borders of records; ULS alone
``RESAMPLED``           random, and users of fewer than G are filled up by drawing with replacement:
                        the baseline of their paper, where every user has exactly k; ULS alone
======================  ==========================================================================

Users of fewer than G examples give what they have (but under ``RESAMPLED``): nothing is padded.

Guarantee (invariant 11): what is chosen of a user depends on that user's examples and scores, the
user's hash, and randomness that no data decides; ties go by the hash of (user, example). Scores
must come from a model of public data: then the user-level sensitivity of a step is untouched.

Example-level sampling caps each user at G examples before training begins (Charles et al. 2024,
Algorithm 1): each user's examples are ranked by the strategy, and the first min(n_u, G) stay. Under
``RANDOM`` all are equal, so that the hashes of (user, example) alone decide: a uniform choice over
hashes. The selection is public randomness: it amplifies nothing, and no privacy claim rests on it.

**Scores** are a number for each example of a split (its perplexity), which `training` computes with
a model of public data. Their file is an Arrow IPC file beside the store with one column ``score``,
float32, a row for each example, in the order of users and of examples within each; it names the
content of the store that it belongs to. Scores are exact functions of private records, and so their
operator's. An erasure removes the files of scores of its store: they hold the person's, and no
other state of it reads them.

Source: Chua et al. 2024, Sections 4.1 and 5.1.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from userdp.core.errors import UseError, kind_of
from userdp.core.vocabulary import require_count
from userdp.data.selection_strategies import Strategy
from userdp.data.splits import Split
from userdp.data.store_contents import (
    TokenRows,
    ends_of,
    members_of,
    numbers,
    read_arrow,
    write_arrow,
)
from userdp.data.user_store import StoreSplit, UserStore, require_places

_BLOCK = 2**21
"""About so many examples are ranked at once."""
_GREATEST = (Strategy.LONGEST, Strategy.HIGHEST_PERPLEXITY)


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedSelection:
    """At most G examples per user, the same at every step. See `select_once`.

    Args:
        counts: int64 (users,), examples kept: min(n_u, G).
        ranked: int64 (counts.sum(),), the chosen examples, user after user, best first.
        starts: int64 (users,), where each user's begin in ``ranked``.
        left_out: examples over the cap, over all users. Operator-only.
    """

    counts: NDArray[np.int64]
    ranked: NDArray[np.int64]
    starts: NDArray[np.int64]
    left_out: int

    def map(self, users: ArrayLike, ranks: ArrayLike) -> NDArray[np.int64]:
        """The example index of rank ``ranks[r]`` in the selection of user ``users[r]``.

        Args:
            users: int64 (rows,), in [0, users).
            ranks: int64 (rows,), in [0, counts[user]); distinct ranks give distinct examples.

        Raises:
            IndexError: a rank or user is out of range.
        """
        user, rank = require_places(users, ranks, self.counts, what="rank")
        chosen: NDArray[np.int64] = self.ranked[self.starts[user] + rank]
        return chosen


def select_once(
    split: StoreSplit,
    group_size: int,
    *,
    strategy: Strategy = Strategy.RANDOM,
    scores: NDArray[np.float32] | None = None,
) -> FixedSelection:
    """The selection of example-level sampling: capped counts, and the map from rank to example.

    Args:
        split: of the store; ``RANDOM`` needs counts and user hashes only.
        group_size: G, at least 1; users with fewer examples keep all.
        strategy: all but ``RANDOM_CHUNK`` and ``RESAMPLED``, which `draw_rows` draws anew.
        scores: float32 (examples,), for strategies by perplexity; see `read_scores`.

    Returns:
        ``counts`` for a sampler, whose draws ``map`` turns into arguments of `StoreSplit.gather`.

    Source: Charles et al. 2024, Algorithm 1 (the cap); Chua et al. 2024, Section 4.1.
    """
    if strategy.per_step_only:
        raise UseError(
            f"the selection {strategy} draws anew at each step, and example-level sampling once",
            hint="use it with user-level sampling",
        )
    if strategy.scored and (scores is None or len(scores) != int(split.counts.sum())):
        got = "there are none" if scores is None else "these are of another number"
        raise UseError(
            f"the selection {strategy} needs a score for each example, and {got}",
            hint="`userdp store score STORE --out FILE`, then --set run.scores=FILE",
        )
    counts = np.minimum(split.counts, require_count("group_size", group_size))
    return FixedSelection(
        counts=counts,
        ranked=_ranked(split, counts, strategy, scores),
        starts=np.cumsum(counts) - counts,
        left_out=int(split.counts.sum() - counts.sum()),
    )


def draw_rows(
    split: StoreSplit,
    users: ArrayLike,
    generator: np.random.Generator,
    *,
    strategy: Strategy,
    group_size: int,
    seq_len: int,
) -> tuple[TokenRows, NDArray[np.int64]]:
    """Rows of users drawn anew, for a step of user-level sampling.

    ``RESAMPLED``: uniform without replacement, filled up with replacement. ``RANDOM_CHUNK``: at
    independent places that leave a chunk whole; a user of at most ``seq_len`` tokens gives one
    row with all of them, since every chunk of it would be the same.

    Guarantee: the rows of a user depend on that user and on ``generator`` alone; each user gives at
    most G rows. Cost follows the rows.

    Args:
        split: of the store.
        users: int64 (cohort,), each in [0, len(counts)); none twice.
        generator: draws.
        strategy: ``RANDOM_CHUNK`` or ``RESAMPLED``.
        group_size: G, at least 1.
        seq_len: tokens of a chunk; the store's ``meta.seq_len``.

    Returns:
        The rows; and int64 (cohort + 1,): the k-th user's rows are offsets[k]:offsets[k + 1].
    """
    drawn = np.asarray(users, dtype=np.int64)
    if strategy is Strategy.RANDOM_CHUNK:
        spare = np.maximum(split.token_counts[drawn] - seq_len, 0)
        sizes = np.where(spare == 0, 1, group_size)
        begins = generator.integers(0, np.repeat(spare, sizes) + 1)
        return split.gather_tokens(np.repeat(drawn, sizes), begins, seq_len), ends_of(sizes)

    def resampled(count: int) -> NDArray[np.int64]:
        if count > group_size:
            return generator.choice(count, group_size, replace=False, shuffle=False)
        return np.append(np.arange(count), generator.integers(0, count, group_size - count))

    parts = [resampled(int(n)) for n in split.counts[drawn]]
    examples = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    rows = split.gather(np.repeat(drawn, group_size), examples)
    return rows, np.arange(len(drawn) + 1) * group_size


def _ranked(
    split: StoreSplit,
    kept: NDArray[np.int64],
    strategy: Strategy,
    scores: NDArray[np.float32] | None,
) -> NDArray[np.int64]:
    """The best ``kept[u]`` examples of each user, users in blocks, so that memory is bounded."""
    ends = np.cumsum(split.counts)
    out, first = [np.zeros(0, dtype=np.int64)], 0
    while first < len(kept):
        base = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, base + _BLOCK, side="right")))
        counts = split.counts[first:last]
        user, example = members_of(counts)
        user += first
        if strategy is Strategy.RANDOM:
            key = np.zeros(len(user))
        elif strategy.scored and scores is not None:
            key = scores[base : base + len(user)].astype(np.float64)
        else:
            key = split.lengths(user, example).astype(np.float64)
        key = -key if strategy in _GREATEST else key
        key[np.isnan(key)] = np.inf  # a score that could not be computed comes last
        hashes = split.user_hashes[user]
        tie = mix64(hashes[:, 0] ^ mix64(example.astype(np.uint64) + hashes[:, 1]))
        order = np.lexsort((tie, key, user))
        out.append(example[order][example < np.repeat(kept[first:last], counts)])
        first = last
    return np.concatenate(out)


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers that spreads each input bit over all output bits.

    Source: the finaliser of SplitMix64 (Steele, Lea and Flood 2014), variant 13 of Stafford.
    """
    mixed = values ^ (values >> np.uint64(30))
    mixed = mixed * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


_SCORES = pa.schema([("score", pa.float32())])
_CONTENT, _SPLIT, _LINEAGE = b"content_sha256", b"split", b"lineage"


def write_scores(
    path: Path,
    store: UserStore,
    scores: NDArray[np.float32],
    split: Split = Split.TRAIN,
    *,
    lineage: str = "",
) -> None:
    """Write the scores of a split.

    Args:
        path: of the new file; mode 0600; written whole or not at all.
        store: whose examples they are.
        scores: float32, one number per example of ``split`` in its order. NaN where a score could
            not be computed.
        split: which.
        lineage: what the model descends from that computed them, as JSON (`userdp.claims.lineage`).

    Raises:
        UseError: there are more or fewer scores than examples.
    """
    if len(scores) != int(store.split(split).counts.sum()):
        raise UseError(f"another number of scores came for the examples of {split}")
    facts = {_CONTENT: store.meta.content_sha256, _SPLIT: str(split), _LINEAGE: lineage}
    columns = _SCORES.with_metadata({key: value.encode() for key, value in facts.items()})
    write_arrow(path, pa.record_batch([pa.array(scores, pa.float32())], columns))


def read_scores(path: Path, store: UserStore, split: Split = Split.TRAIN) -> NDArray[np.float32]:
    """The scores of a split: float32 (examples,).

    Raises:
        UseError: the file is none of scores, or belongs to another store or split; scores of other
            text would choose the wrong examples.
    """
    scores, facts = _read(path)
    if (facts[_CONTENT].decode(), facts[_SPLIT].decode()) != (store.meta.content_sha256, split):
        raise UseError(
            f"the scores in {path} are not those of split {split} of the store at {store.path}",
            hint="compute them again for this store",
        )
    return scores


def is_scores(path: Path) -> bool:
    """Whether a file of scores lies there, and not something else that was put there since."""
    with suppress(UseError):
        _read(path)
        return True
    return False


def _read(path: Path) -> tuple[NDArray[np.float32], dict[bytes, bytes]]:
    """What a file of scores holds, and says of itself; `UseError` if it cannot be read."""
    try:
        rows = read_arrow(path, _SCORES)
    except OSError as error:
        raise UseError(f"cannot read the scores in {path}: {kind_of(error)}") from error
    except UseError as error:
        raise UseError(f"{path} is not a file of scores: {error.message}") from error
    facts = dict(rows.schema.metadata or {})
    if not {_CONTENT, _SPLIT, _LINEAGE} <= facts.keys():
        raise UseError(f"{path} is not a file of scores: it names no store")
    return numbers(rows["score"]), facts


def lineage_of_scores(path: Path) -> str:
    """What the model descends from that computed the scores in a file; empty if it does not say.

    Raises:
        UseError: the file is none of scores.
    """
    return _read(path)[1][_LINEAGE].decode()
