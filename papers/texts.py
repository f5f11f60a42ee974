"""Figures that count what user stores hold: exact, so operator-only.

A store counts examples. Where its examples are longer than its longest record (``userdp prepare
--seq-len 8192``), an example is a record: so are Chua et al.'s figures of records made, and the
overlap of Charles et al., Table 2, where no cut may hide one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from papers.drawing import Figure, Row, draw_table, panels, save
from userdp.core.errors import UseError
from userdp.core.files import OPERATOR_FILE
from userdp.data.exact_counts import describe
from userdp.data.overlap import OverlapCounts, OverlapRules, PrivateTexts, remove_overlap
from userdp.data.selection import draw_rows, read_scores, select_once
from userdp.data.selection_strategies import Strategy
from userdp.data.splits import Split
from userdp.data.store_contents import members_of
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger

PUBLIC = "public"
"""The name of the store of the text of pre-training."""


def open_stores(stores: Mapping[str, Path]) -> dict[str, UserStore]:
    """The stores by their names.

    Guarantee: all of them can be opened, or none is looked at. Each ledger then says that somebody
    saw exact numbers, before this returns: a constant that is recorded later may have been chosen
    by them.

    Raises:
        UseError: a folder holds no store.
    """
    opened = {name: UserStore.open(path, fixed_graph=True) for name, path in stores.items()}
    for path in stores.values():
        StoreLedger(path).look("papers")
    return opened


def charles_table_1(stores: Mapping[str, Path]) -> list[Row]:
    """Examples, users, and examples per user, by store and split that has users.

    ``median`` is the least number of examples that at least half of the users do not exceed.
    """
    return [
        {
            "dataset": name,
            "split": split,
            "examples": part["examples"],
            "users": part["users"],
            **{key: part["examples_per_user"][key] for key in ("min", "median", "max")},
        }
        for name, store in open_stores(stores).items()
        for split, part in describe(store)["splits"].items()
        if part["users"]
    ]


def chua_table_1(stores: Mapping[str, Path]) -> list[Row]:
    """Records for training and evaluation by store; the columns per unit are of training units."""
    table = []
    for name, store in open_stores(stores).items():
        splits = describe(store)["splits"]
        train = splits[Split.TRAIN]
        table.append(
            {
                "dataset": name,
                "training": train["examples"],
                "evaluation": sum(part["examples"] for part in splits.values()) - train["examples"],
                "average": train["mean_examples_per_user"],
                **{key: train["examples_per_user"].get(key) for key in ("max", "min", "median")},
            }
        )
    return table


def histograms(stores: Mapping[str, Path]) -> list[Row]:
    """A row for each store and bin: how many training users hold ``least`` to ``most`` examples.

    Bins are powers of two, from 1 to the last one that has users.
    """
    return [
        {"dataset": name, "least": least, "most": most, "users": users}
        for name, store in open_stores(stores).items()
        for least, most, users in describe(store)["splits"][Split.TRAIN]["histogram"]
    ]


def draw_histograms(rows: Sequence[Row], path: Path, *, title: str, unit: str) -> None:
    """A panel for each store, both axes logarithmic."""
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    figure, axes = panels(len(names), height=3.2)
    for axis, name in zip(axes, names, strict=True):
        part = [row for row in rows if row["dataset"] == name]
        edges = [part[0]["least"], *(row["most"] + 1 for row in part)]
        axis.stairs([row["users"] for row in part], edges, baseline=0.5, fill=True)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_ylim(bottom=0.5)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel(f"{unit} of a user")
        axis.set_ylabel("users")
        axis.grid(alpha=0.3)
    save(figure, path, title=title, mode=OPERATOR_FILE)


def charles_table_2(stores: Mapping[str, Path], *, rules: OverlapRules | None = None) -> list[Row]:
    """One row: the training examples of the store `PUBLIC` after each stage.

    Private are the examples of all splits of all other stores. Stores hold no URLs, so the paper's
    second stage (``userdp dedup --domain``) removes nothing and has no column.

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
    counts = OverlapCounts()
    documents = ({"text": text} for text in texts(corpus, Split.TRAIN))
    for _ in remove_overlap(documents, private, counts=counts):
        pass
    return [
        {
            "dataset": PUBLIC,
            "split": str(Split.TRAIN),
            "private_examples": len(private),
            "examples": counts.documents,
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


def chua_table_7(
    stores: Mapping[str, Path], *, group_size: int = 10, model: str = "bundled"
) -> list[Row]:
    """Length and perplexity of what each selection chooses of a store's training users.

    k = 10 is the paper's. Random chunks have no perplexity here (nor a row there): they cross the
    borders of the examples that are scored.

    Args:
        stores: by their names.
        group_size: k, most examples of a user.
        model: of public text, whose perplexity of an example is meant; as `TrainConfig` takes it.
    """
    fixed = [one for one in Strategy if not one.per_step_only]
    table: list[Row] = []
    for name, store in open_stores(stores).items():
        scores = _perplexities(store, model)
        split = store.split(Split.TRAIN)
        first = np.cumsum(split.counts) - split.counts
        for strategy in fixed:
            chosen = select_once(split, group_size, strategy=strategy, scores=scores)
            users, ranks = members_of(chosen.counts)
            examples = chosen.map(users, ranks)
            part = _selected(split.lengths(users, examples), store, scores[first[users] + examples])
            table.append({"dataset": name, "selection": str(strategy), **part})
        chunks, _ = draw_rows(
            split, np.arange(len(split.counts)), np.random.default_rng(0),
            strategy=Strategy.RANDOM_CHUNK, group_size=group_size, seq_len=store.meta.seq_len,
        )  # fmt: skip
        part = _selected(chunks.lengths, store, None)
        table.append({"dataset": name, "selection": str(Strategy.RANDOM_CHUNK), **part})
    return table


def _selected(
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
    from userdp.training.store_losses import score_store

    with tempfile.TemporaryDirectory(prefix="userdp-") as folder:
        out = Path(folder) / "scores.arrow"
        score_store(store, model, out)
        return read_scores(out, store)


FIGURES = {
    "charles-figure-10": Figure(
        rows=histograms,
        draw=partial(
            draw_histograms,
            title="examples per user, Charles et al. 2024, Figure 10",
            unit="examples",
        ),
    ),
    "charles-table-1": Figure(
        rows=charles_table_1,
        draw=partial(draw_table, title="examples per user, Charles et al. 2024, Table 1"),
    ),
    "charles-table-2": Figure(
        rows=charles_table_2,
        draw=partial(draw_table, title="overlap removal, Charles et al. 2024, Table 2"),
    ),
    "chua-figure-5": Figure(
        rows=histograms,
        draw=partial(
            draw_histograms,
            title="records per privacy unit, Chua et al. 2024, Figure 5",
            unit="records",
        ),
    ),
    "chua-table-1": Figure(
        rows=chua_table_1,
        draw=partial(draw_table, title="records per privacy unit, Chua et al. 2024, Table 1"),
    ),
    "chua-table-7": Figure(
        rows=chua_table_7,
        draw=partial(draw_table, title="what a selection chooses, Chua et al. 2024, Table 7"),
    ),
}
