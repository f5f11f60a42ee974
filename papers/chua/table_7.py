"""Chua et al. 2024, Table 7: length and perplexity of what each selection chooses.

k = 10 is the paper's. Random chunks have no perplexity here (nor a row there): they cross the
borders of the examples that are scored.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from papers.drawing import draw_table
from papers.stores import open_stores
from papers.table import Row
from userdp.data.scores import read_scores
from userdp.data.selections import build_selector, select_once
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.data.strategy import Strategy

FIXED = (
    Strategy.RANDOM,
    Strategy.LONGEST,
    Strategy.SHORTEST,
    Strategy.HIGHEST_PERPLEXITY,
    Strategy.LOWEST_PERPLEXITY,
)


def rows(stores: Mapping[str, Path], *, group_size: int = 10, model: str = "bundled") -> list[Row]:
    """A row for each store and selection, over the training users. Exact, so operator-only.

    Args:
        stores: by their names.
        group_size: k, most examples of a user.
        model: of public text, whose perplexity of an example is meant; as `TrainConfig` takes it.
    """
    table: list[Row] = []
    for name, store in open_stores(stores).items():
        scores = _perplexities(store, model)
        table += [
            {"dataset": name, "selection": str(strategy), **part}
            for strategy, part in _selected(store, group_size, scores)
        ]
    return table


def _selected(
    store: UserStore, group_size: int, scores: NDArray[np.float32]
) -> list[tuple[Strategy, Row]]:
    split = store.split(Split.TRAIN)
    first = np.cumsum(split.counts) - split.counts
    table: list[tuple[Strategy, Row]] = []
    for strategy in FIXED:
        counts, chosen = select_once(split, group_size, strategy=strategy, scores=scores)
        users = np.repeat(np.arange(len(counts)), counts)
        ranks = np.arange(len(users)) - np.repeat(np.cumsum(counts) - counts, counts)
        examples = chosen.map(users, ranks)
        lengths = split.lengths(users, examples)
        table.append((strategy, _row(lengths, store, scores[first[users] + examples])))
    chunks = build_selector(
        split, group_size, strategy=Strategy.RANDOM_CHUNK, seq_len=store.meta.seq_len
    ).select(np.arange(len(split.counts)), np.random.default_rng(0))
    return [*table, (Strategy.RANDOM_CHUNK, _row(chunks.rows.lengths, store, None))]


def _row(
    lengths: NDArray[np.int64], store: UserStore, perplexities: NDArray[np.float32] | None
) -> Row:
    known = None if perplexities is None else perplexities.astype(np.float64)
    return {
        "examples": len(lengths),
        "average_length": float(lengths.mean()),
        "average_perplexity": None if known is None else float(np.nanmean(known)),
        "median_perplexity": None if known is None else float(np.nanmedian(known)),
        "fraction_below_limit": float((lengths < store.meta.seq_len).mean()),
    }


def _perplexities(store: UserStore, model: str) -> NDArray[np.float32]:
    """Of each training example, in the order of users and examples."""
    from userdp.training.scores import score_store

    with tempfile.TemporaryDirectory(prefix="userdp-") as folder:
        out = Path(folder) / "scores.arrow"
        score_store(store, model, out)
        return read_scores(out, store)


draw = partial(
    draw_table, title="what a selection chooses, Chua et al. 2024, Table 7", operator_only=True
)
"""The table as a picture."""
