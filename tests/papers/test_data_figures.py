"""Figures of the texts: counted again from the raw lines, and kept for the operator."""

from __future__ import annotations

import csv
import json
import random
import stat
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from papers.charles import figure_10, table_2
from papers.charles import table_1 as charles_table_1
from papers.chua import figure_5, figure_6, table_7
from papers.chua import table_1 as chua_table_1
from papers.harness import OF_STORES, Figure, reproduce
from userdp.data.overlap import OverlapRules
from userdp.data.prepare import prepare_store
from userdp.data.sources import SourceOptions, open_source
from userdp.data.store import UserStore
from userdp.data.strategy import Strategy
from userdp.data.tokenize import StoreTokenizer
from userdp.errors import UseError
from userdp.ledger import StoreLedger

SEQ_LEN = 16
WORDS = ["alpha", "beta", "gamma", "delta", "noise", "clip", "user", "store", "Ωmega", "zig-zag"]


def lines(users: int, seed: int) -> list[dict[str, str]]:
    """Records of 1 to 40 words; the first user has 40 of them, others 1 to 12."""
    draw = random.Random(seed)
    return [
        {"user": f"u{user}", "text": " ".join(draw.choices(WORDS, k=draw.randint(1, 40)))}
        for user in range(users)
        for _ in range(40 if user == 0 else draw.randint(1, 12))
    ]


def prepared(held: list[dict[str, str]], out: Path, *, seq_len: int, unseen: float = 0.0) -> Path:
    raw = out.with_suffix(".jsonl")
    raw.write_text("".join(f"{json.dumps(line)}\n" for line in held), encoding="utf-8")
    prepare_store(
        open_source([str(raw)], options=SourceOptions()),
        out,
        tokenizer=StoreTokenizer.load(),
        seq_len=seq_len,
        held_out_users=unseen,
        held_out_examples=0.0,
    )
    return out


@pytest.fixture(scope="module")
def raw() -> pd.DataFrame:
    """Each record of a text with its tokens, by the tokenizer itself."""
    frame = pd.DataFrame(lines(40, seed=1))
    frame["tokens"] = [len(ids) for ids in StoreTokenizer.load().encode(frame["text"].tolist())]
    return frame


@pytest.fixture(scope="module")
def stores(raw: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    held = raw[["user", "text"]].to_dict("records")
    folder = tmp_path_factory.mktemp("stores")
    return {"cut": prepared(held, folder / "cut", seq_len=SEQ_LEN, unseen=0.3)}


@pytest.fixture(scope="module")
def of_records(raw: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    held = raw[["user", "text"]].to_dict("records")
    folder = tmp_path_factory.mktemp("records")
    return {"whole": prepared(held, folder / "whole", seq_len=4096, unseen=0.3)}


def trained(store: Path) -> set[str]:
    opened = UserStore.open(store)
    ids = opened.user_ids()
    return {ids[row].decode() for row in opened.split("train").rows}


def counts_of(raw: pd.DataFrame, users: set[str], *, by_tokens: bool) -> pd.Series:
    """Examples of each user: ceil(tokens / length), one token less being none; or records."""
    mine = raw[raw["user"].isin(users)]
    whole, rest = np.divmod(mine["tokens"], SEQ_LEN)
    return (whole + (rest > 1) if by_tokens else mine["tokens"] * 0 + 1).groupby(mine["user"]).sum()


def test_charles_table_1_is_what_pandas_counts(raw, stores) -> None:
    train = trained(stores["cut"])
    rows = charles_table_1.rows(stores)
    assert [row["split"] for row in rows] == ["train", "held-out-users"]
    for row, users in zip(rows, (train, set(raw["user"]) - train), strict=True):
        counts = counts_of(raw, users, by_tokens=True)
        assert (row["users"], row["examples"]) == (len(counts), counts.sum())
        assert (row["min"], row["max"]) == (counts.min(), counts.max())
        assert row["median"] == counts.quantile(0.5, interpolation="lower")


def test_chua_table_1_counts_records_where_examples_are_long(raw, of_records) -> None:
    train = trained(of_records["whole"])
    counts = counts_of(raw, train, by_tokens=False)
    (row,) = chua_table_1.rows(of_records)
    assert row["training"] == counts.sum()
    assert row["evaluation"] == len(raw) - counts.sum()
    assert row["average"] == pytest.approx(counts.mean())
    assert (row["min"], row["max"]) == (counts.min(), counts.max())
    assert row["median"] == counts.quantile(0.5, interpolation="lower")


@pytest.mark.parametrize(("figure", "by_tokens"), [(figure_10, True), (figure_5, False)])
def test_histograms_have_each_user_in_the_bin_of_its_count(
    figure, by_tokens, raw, stores, of_records
) -> None:
    given = stores if by_tokens else of_records
    (store,) = given.values()
    counts = counts_of(raw, trained(store), by_tokens=by_tokens)
    binned = Counter(int(count).bit_length() for count in counts)
    for row in figure.rows(given):
        assert row["most"] == 2 * row["least"] - 1
        assert row["users"] == binned.pop(row["least"].bit_length(), 0)
    assert not binned


def overlap_texts(folder: Path) -> dict[str, Path]:
    """A public text of 30 documents, 7 of which are those of a private one, 3 of them edited."""
    draw = random.Random(5)
    documents = [" ".join(f"w{draw.randrange(900)}" for _ in range(120)) for _ in range(30)]
    near = [text.replace(text.split()[0], "edited", 1) for text in documents[:3]]
    mine = [*near, *documents[3:7], "nothing of the kind"]
    return {
        "public": prepared(
            [{"user": f"p{n}", "text": text} for n, text in enumerate(documents)],
            folder / "public",
            seq_len=4096,
        ),
        "mail": prepared(
            [{"user": f"u{n}", "text": text} for n, text in enumerate(mine)],
            folder / "mail",
            seq_len=4096,
            unseen=0.5,
        ),
    }


def test_charles_table_2_leaves_out_the_planted_overlap_of_all_splits(tmp_path: Path) -> None:
    pytest.importorskip("datasketch", reason="the extra dedup is not installed")
    texts = overlap_texts(tmp_path)
    (row,) = table_2.rows(texts)
    assert (row["examples"], row["private_examples"]) == (30, 8)
    assert row["deduplicated"] == 23
    (exact,) = table_2.rows(texts, rules=OverlapRules(similarity=1.0))
    assert exact["deduplicated"] == 26  # an edited document is no exact duplicate
    for missing in ({"mail": texts["mail"]}, {"public": texts["public"]}):
        with pytest.raises(UseError, match="pre-training"):
            table_2.rows(missing)


def test_chua_table_7_is_what_plain_sorting_selects(stores, monkeypatch) -> None:
    """Scores are planted: 1.0 to n, so that the perplexity of each selection is known."""
    store = UserStore.open(stores["cut"])
    split = store.split("train")
    total, k = int(split.counts.sum()), 3
    planted = np.random.default_rng(0).permutation(total).astype(np.float32) + 1
    monkeypatch.setattr(table_7, "_perplexities", lambda store, model: planted)
    rows = {row["selection"]: row for row in table_7.rows(stores, group_size=k)}
    lengths = [
        split.lengths([user] * count, range(count)) for user, count in enumerate(split.counts)
    ]
    scores = np.split(planted, np.cumsum(split.counts)[:-1])
    plain = {
        Strategy.LONGEST: [np.sort(of_user)[::-1][:k] for of_user in lengths],
        Strategy.SHORTEST: [np.sort(of_user)[:k] for of_user in lengths],
    }
    for strategy, chosen in plain.items():
        flat = np.concatenate(chosen)
        row = rows[str(strategy)]
        assert row["examples"] == len(flat)
        assert row["average_length"] == pytest.approx(flat.mean())
        assert row["fraction_below_limit"] == pytest.approx((flat < SEQ_LEN).mean())
    for strategy, sign in ((Strategy.HIGHEST_PERPLEXITY, -1), (Strategy.LOWEST_PERPLEXITY, 1)):
        flat = np.concatenate([of_user[np.argsort(sign * of_user)][:k] for of_user in scores])
        row = rows[str(strategy)]
        assert row["average_perplexity"] == pytest.approx(flat.mean())
        assert row["median_perplexity"] == pytest.approx(np.median(flat))
    assert rows[str(Strategy.RANDOM_CHUNK)]["average_perplexity"] is None


def test_chua_table_7_scores_with_a_model(tmp_path: Path) -> None:
    """As the same example alone: exp of the mean of -log p of each token, by the softmax itself."""
    torch = pytest.importorskip("torch")
    from userdp.training.models import read_model, resolve

    path = prepared([{"user": "u", "text": "noise and clip"}], tmp_path / "one", seq_len=64)
    row = table_7.rows({"one": path})[0]
    store = UserStore.open(path)
    (tokens,) = store.examples_of(0)
    ids = torch.tensor(tokens.astype(np.int64))[None]
    with torch.no_grad():
        logits = read_model(resolve("bundled")).eval()(input_ids=ids).logits[0, :-1].double()
    told = torch.softmax(logits, dim=-1)[torch.arange(ids.shape[1] - 1), ids[0, 1:]]
    assert row["average_perplexity"] == pytest.approx(
        float(torch.exp(-told.log().mean())), rel=1e-3
    )


@pytest.mark.slow
def test_chua_figure_6_steps_take_more_time_as_k_grows() -> None:
    rows = figure_6.rows(group_sizes=(1, 16), cohort_size=2, rounds=2)
    assert [row["examples"] for row in rows] == [2, 32]
    assert rows[1]["seconds_least"] > 2 * rows[0]["seconds_least"]


@pytest.mark.parametrize("figure", [Figure.CHARLES_TABLE_1, Figure.CHUA_FIGURE_5])
def test_exact_figures_are_the_operators_and_the_look_is_in_the_ledger(
    figure: Figure, tmp_path: Path
) -> None:
    store = prepared(lines(6, seed=3), tmp_path / "store", seq_len=SEQ_LEN)
    before = len(looks(store))
    done = reproduce(figure, tmp_path / "out", stores={"text": store})
    assert len(looks(store)) == before + 1
    assert done["operator_only"]
    for key in ("csv", "png"):
        path = Path(done[key])
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Path(done["png"]).read_bytes().startswith(b"\x89PNG")
    with Path(done["csv"]).open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == done["rows"]


def test_broken_twin_a_figure_without_its_look_is_caught(tmp_path: Path, monkeypatch) -> None:
    store = prepared(lines(3, seed=3), tmp_path / "store", seq_len=SEQ_LEN)
    monkeypatch.setattr("papers.stores.StoreLedger.look", lambda ledger, what: None)
    reproduce(Figure.CHARLES_TABLE_1, tmp_path / "out", stores={"text": store})
    assert looks(store) == []


def looks(store: Path) -> list[dict[str, object]]:
    path = StoreLedger(store).path
    if not path.exists():
        return []
    told = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [line for line in told if line.get("kind") == "look"]


@pytest.mark.parametrize("figure", sorted(OF_STORES))
def test_a_figure_of_stores_without_one_says_the_way_out(figure: Figure, tmp_path: Path) -> None:
    with pytest.raises(UseError, match="no store is given") as refused:
        reproduce(figure, tmp_path / "out")
    assert "--store" in str(refused.value.hint)
    assert not (tmp_path / "out").exists()


def test_a_store_given_to_a_figure_without_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UseError, match="reads no store"):
        reproduce(Figure.GANESH_FIGURE_2, tmp_path / "out", stores={"text": tmp_path})


def test_nothing_is_looked_at_where_one_store_cannot_be_opened(tmp_path: Path) -> None:
    store = prepared(lines(3, seed=4), tmp_path / "store", seq_len=SEQ_LEN)
    with pytest.raises(UseError):
        charles_table_1.rows({"good": store, "bad": tmp_path / "nothing"})
    assert looks(store) == []
