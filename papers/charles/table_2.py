"""Charles et al. 2024, Table 2: pre-training examples left once overlap is removed.

The text of pre-training is the store called ``public``; all others are what is fine-tuned on. An
example is a document here: prepare the stores with examples as long as the longest record
(``--seq-len 8192``), so that no cut hides an overlap. Stores hold no URLs, so the paper's second
stage (`userdp.data.overlap`, ``userdp dedup --domain``) removes nothing and has no column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from papers.drawing import draw_table
from papers.stores import open_stores
from papers.table import Row
from userdp.data.overlap import OverlapCounts, OverlapRules, PrivateTexts, remove_overlap
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.errors import UseError

PUBLIC = "public"
"""The name of the store of the text of pre-training."""


def rows(stores: Mapping[str, Path], *, rules: OverlapRules | None = None) -> list[Row]:
    """One row: the training examples of the public store after each stage. Operator-only.

    Private are the examples of all splits of all other stores.

    Args:
        stores: by their names.
        rules: what counts as overlap; Lee et al.'s by default.

    Raises:
        UseError: no store is called public, or it is the only one.
    """
    if PUBLIC not in stores or len(stores) < 2:
        raise UseError(
            "the overlap is that of a pre-training text with others, and "
            + ("there is no other" if PUBLIC in stores else f"no store is called {PUBLIC!r}"),
            hint=f"--store {PUBLIC}=DIR for the pre-training text, and --store NAME=DIR for each "
            "text that is fine-tuned on",
        )
    opened = open_stores(stores)
    corpus = opened.pop(PUBLIC)
    private = PrivateTexts(
        (text for store in opened.values() for split in Split for text in texts(store, split)),
        rules or OverlapRules(),
    )
    told: list[OverlapCounts] = []
    documents = ({"text": text} for text in texts(corpus, Split.TRAIN))
    for _ in remove_overlap(documents, private, counts=told.append):
        pass
    (counts,) = told
    return [
        {
            "dataset": PUBLIC,
            "split": str(Split.TRAIN),
            "private_examples": len(private),
            "examples": counts.documents,
            "candidates": counts.candidates,
            "deduplicated": counts.after_duplicates,
        }
    ]


def texts(store: UserStore, split: Split) -> Iterator[str]:
    """The text of each example of a split, user after user."""
    encoder = StoreTokenizer.load(store.tokenizer_path).encoder
    part = store.split(split)
    for user, count in enumerate(part.counts.tolist()):
        held = part.gather(np.full(count, user), np.arange(count))
        yield from encoder.decode_batch([held.row(row).tolist() for row in range(count)])


draw = partial(
    draw_table, title="overlap removal, Charles et al. 2024, Table 2", operator_only=True
)
"""The table as a picture."""
