"""The analogue of Chua et al. 2024, Table 7, on any user store: what each selection chooses.

    python -m benchmarks.selections STORE [--group-size 10] [--model PATH] [--json]

For each strategy at most ``group_size`` examples per training user: their average length in tokens,
average perplexity under the bundled base model (public text), and the part shorter than the limit.
Operator-only: exact figures of the store's text.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from userdp.data.scores import read_scores
from userdp.data.selections import Strategy, build_selector, select_once
from userdp.data.store import UserStore

FIXED = (
    Strategy.RANDOM,
    Strategy.LONGEST,
    Strategy.SHORTEST,
    Strategy.HIGHEST_PERPLEXITY,
    Strategy.LOWEST_PERPLEXITY,
)


def perplexities(store: UserStore, model: str) -> np.ndarray:
    """exp(mean loss) of each training example, in the order of users and examples."""
    from userdp.api.progress import shown
    from userdp.training.scores import score_store

    with tempfile.TemporaryDirectory() as folder, shown() as bar:
        out = Path(folder) / "scores.arrow"
        score_store(store, model, out, progress=bar)
        return read_scores(out, store)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--group-size", type=int, default=10)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    store = UserStore.open(options.store)
    split = store.split("train")
    scores = perplexities(store, options.model)
    first = np.cumsum(split.counts) - split.counts
    table = {}
    for strategy in FIXED:
        counts, chosen = select_once(split, options.group_size, strategy=strategy, scores=scores)
        users = np.repeat(np.arange(len(counts)), counts)
        ranks = np.arange(len(users)) - np.repeat(np.cumsum(counts) - counts, counts)
        examples = chosen.map(users, ranks)
        lengths = split.lengths(users, examples)
        table[str(strategy)] = {
            "average_length": float(lengths.mean()),
            "average_perplexity": float(scores[first[users] + examples].mean()),
            "median_perplexity": float(np.median(scores[first[users] + examples])),
            "fraction_below_limit": float((lengths < store.meta.seq_len).mean()),
            "examples": len(users),
        }
    selector = build_selector(
        split, options.group_size, strategy=Strategy.RANDOM_CHUNK, seq_len=store.meta.seq_len
    )
    rows = selector.select(np.arange(len(split.counts)), np.random.default_rng(0)).rows
    table[str(Strategy.RANDOM_CHUNK)] = {
        "average_length": float(rows.lengths.mean()),
        "fraction_below_limit": float((rows.lengths < store.meta.seq_len).mean()),
        "examples": len(rows),
    }
    if options.json:
        print(json.dumps(table))
    else:
        for name, row in table.items():
            print(f"{name:20}", {key: round(value, 3) for key, value in row.items()})


if __name__ == "__main__":
    main()
