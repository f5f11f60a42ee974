"""Figures of the texts: counted again from the raw lines, and kept for the operator."""

from __future__ import annotations

import json
import random
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from papers import texts
from papers.__main__ import main
from papers.figures import FIGURES
from userdp.data.pipeline import prepare_store
from userdp.data.sources import SourceOptions, open_source
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore
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
def both(raw: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same text in examples of 16 tokens, and in whole records."""
    held, folder = raw[["user", "text"]].to_dict("records"), tmp_path_factory.mktemp("stores")
    return {
        name: prepared(held, folder / name, seq_len=seq_len, unseen=0.3)
        for name, seq_len in (("cut", SEQ_LEN), ("whole", 4096))
    }


@pytest.fixture(scope="module")
def stores(both) -> dict[str, Path]:
    return {"cut": both["cut"]}


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
    train, rows = trained(stores["cut"]), texts.charles_table_1(stores)
    assert [row["split"] for row in rows] == ["train", "held-out-users"]
    for row, users in zip(rows, (train, set(raw["user"]) - train), strict=True):
        counts = counts_of(raw, users, by_tokens=True)
        assert (row["users"], row["examples"]) == (len(counts), counts.sum())
        assert (row["min"], row["max"]) == (counts.min(), counts.max())
        assert row["median"] == counts.quantile(0.5, interpolation="lower")


def test_chua_table_1_counts_records_where_examples_are_long(raw, both) -> None:
    counts = counts_of(raw, trained(both["whole"]), by_tokens=False)
    (row,) = texts.chua_table_1({"whole": both["whole"]})
    assert row["training"] == counts.sum()
    assert row["evaluation"] == len(raw) - counts.sum()
    assert row["average"] == pytest.approx(counts.mean())
    assert (row["min"], row["max"]) == (counts.min(), counts.max())
    assert row["median"] == counts.quantile(0.5, interpolation="lower")


def test_exact_figures_are_the_operators_and_the_look_is_in_the_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = prepared(lines(6, seed=3), tmp_path / "store", seq_len=SEQ_LEN)
    for number, figure in enumerate(("charles-table-1", "chua-figure-5"), start=1):
        call = [figure, "--out", str(tmp_path / "out"), "--store", f"text={store}", "--json"]
        assert main(call) == 0
        done = json.loads(capsys.readouterr().out)
        assert len(StoreLedger(store).history().looks) == number
        for key in ("csv", "png"):
            assert stat.S_IMODE(Path(done[key]).stat().st_mode) == 0o600
        assert Path(done["png"]).read_bytes().startswith(b"\x89PNG")
        assert len(pd.read_csv(done["csv"])) == done["rows"]


def test_nothing_exact_goes_to_docs_and_a_figure_of_stores_wants_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_stores = [name for name, table in FIGURES.items() if table.get("stores")]
    assert len(of_stores) == 6
    for name in of_stores:
        assert main([name, "--out", str(tmp_path / "out")]) != 0
        assert "--store" in capsys.readouterr().err
        assert main([name, "--store", f"text={tmp_path}"]) != 0
        assert "--out" in capsys.readouterr().err
    assert main(["ganesh-figure-2", "--store", f"x={tmp_path}", "--out", str(tmp_path)]) != 0
    assert list(tmp_path.iterdir()) == []
