"""Chua et al. 2024, Figure 6: what k costs in a step of User-wise DP-SGD at fixed users.

The paper shows seconds per epoch; an epoch has as many steps whatever k is, so a step tells the
same. Here a step is of the bundled model, on users of made-up text who all hold more than the
largest k.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from papers.drawing import Figure, Row
from papers.plans import plan_of_size
from userdp.data.prepare import prepare_store
from userdp.data.sources import open_source
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.reporting.drawing import panels, save
from userdp.sampling import FixedSizeUsers
from userdp.strict_json import parse
from userdp.training.config import TrainConfig
from userdp.training.loop import train

USERS = 64
LENGTH = 64
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def rows(
    *, group_sizes: Sequence[int] = (1, 2, 5, 10, 20), cohort_size: int = 8, steps: int = 5
) -> list[Row]:
    """A row for each k: median, least and greatest seconds of a step.

    A step before the first is not counted: in it the model is checked.

    Args:
        group_sizes: k.
        cohort_size: users of each step.
        steps: that are counted.
    """
    with tempfile.TemporaryDirectory(prefix="userdp-") as name:
        store = _made_up_store(Path(name), examples=max(group_sizes))
        seconds = {
            k: _seconds(store, Path(name) / f"run-{k}", k, cohort_size, steps + 1)[1:]
            for k in group_sizes
        }
    return [
        {
            "group_size": k,
            "users": cohort_size,
            "examples": k * cohort_size,
            "seconds": statistics.median(of_k),
            "seconds_least": min(of_k),
            "seconds_greatest": max(of_k),
            "steps": steps,
        }
        for k, of_k in seconds.items()
    ]


def _seconds(
    store: UserStore, out: Path, group_size: int, cohort_size: int, steps: int
) -> list[float]:
    """How long each step of a run took."""
    plan = plan_of_size(
        FixedSizeUsers,
        cohort_size,
        population=USERS,
        group_size=group_size,
        steps=steps,
        l2_clip_norm=1.0,
        target_delta=1e-5,
        noise_multiplier=1.0,
        least_population=USERS - 1,  # beside any one
    )
    train(store, plan, TrainConfig(model="bundled", learning_rate=1e-4), out=out)
    lines = map(parse, (out / "operator.jsonl").read_text("utf-8").splitlines())
    return [float(line["seconds"]) for line in lines if line["kind"] == "step"]


def _made_up_store(folder: Path, *, examples: int) -> UserStore:
    """Users with a long record each, of random letters: a token or more a word."""
    draw = random.Random(0)
    texts = (" ".join(draw.choices(_LETTERS, k=examples * LENGTH)) for _ in range(USERS))
    lines = [json.dumps({"user": f"u{user}", "text": text}) for user, text in enumerate(texts)]
    (folder / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    prepare_store(
        open_source([str(folder / "texts.jsonl")]),
        folder / "store",
        tokenizer=StoreTokenizer.load(),
        seq_len=LENGTH,
        held_out_users=0.0,
        held_out_examples=0.0,
    )
    return UserStore.open(folder / "store")


def draw(rows: Sequence[Row], path: Path) -> None:
    """Seconds over k, from least to greatest, beside time in proportion to k."""
    figure, (axis,) = panels(1, width=5.5)
    sizes, middle = [r["group_size"] for r in rows], [r["seconds"] for r in rows]
    below = [r["seconds"] - r["seconds_least"] for r in rows]
    above = [r["seconds_greatest"] - r["seconds"] for r in rows]
    axis.errorbar(sizes, middle, yerr=[below, above], fmt="o-", capsize=3, label="a private step")
    slope = math.fsum(middle) / math.fsum(sizes)
    axis.plot(sizes, [slope * k for k in sizes], ":", color="tab:gray", label="in proportion to k")
    axis.set_xticks(sizes)
    axis.set_xlabel("k, examples of a user")
    axis.set_ylabel("seconds of a step")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    title = f"the cost of k at {rows[0]['users']} users a step, Chua et al. 2024, Figure 6"
    figure.suptitle(title, fontsize=10)
    save(figure, path)


FIGURES = {"chua-figure-6": Figure(rows=rows, draw=draw)}
