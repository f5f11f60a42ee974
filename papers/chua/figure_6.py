"""Chua et al. 2024, Figure 6: what k costs in a step of User-wise DP-SGD at fixed users.

The paper shows seconds per epoch; an epoch has as many steps whatever k is, so a step tells the
same. Here it is processor time of a whole private step (charge, draw, gather, clip, noise, update)
of the bundled model, on users of made-up text who all hold more than the largest k.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from papers.sized import plan_of_size
from papers.table import Row
from userdp.data.prepare import prepare_store
from userdp.data.progress import Progress
from userdp.data.records import Record, Tally
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.reporting.drawing import panels, save
from userdp.sampling import FixedSizeUsers

USERS = 64
LENGTH = 64
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class MadeUpText:
    """A source of users with a long record each, of random letters: a token or more a word."""

    public = True
    several_owners = False
    loss_mask = False
    kind = "made up"
    size = None

    def __init__(self, examples: int) -> None:
        self._words = examples * LENGTH

    def facts(self) -> dict[str, Any]:
        """Nothing is to be told."""
        return {}

    def records(self, tally: Tally, progress: Progress) -> Iterator[Record]:
        """The users' records."""
        draw = random.Random(0)
        for user in range(USERS):
            tally.read()
            text = " ".join(draw.choices(_LETTERS, k=self._words))
            yield Record(f"user{user}".encode(), text.encode(), user)


def rows(
    *, group_sizes: Sequence[int] = (1, 2, 5, 10, 20), cohort_size: int = 8, rounds: int = 5
) -> list[Row]:
    """A row for each k: median, least and greatest processor seconds of a step.

    Every round has a step of each k, in turns, so that a busy machine slows all of them. A round
    before the first is not counted: in it the model is checked.

    Args:
        group_sizes: k.
        cohort_size: users of each step.
        rounds: that are counted.
    """
    with tempfile.TemporaryDirectory(prefix="userdp-") as name, ExitStack() as open_runs:
        folder = Path(name)
        prepare_store(
            MadeUpText(max(group_sizes)),
            folder / "store",
            tokenizer=StoreTokenizer.load(),
            seq_len=LENGTH,
            held_out_users=0.0,
            held_out_examples=0.0,
        )
        store = UserStore.open(folder / "store")
        steps = {
            k: _steps(store, folder / f"run-{k}", k, cohort_size, rounds + 1, open_runs)
            for k in group_sizes
        }
        seconds: dict[int, list[float]] = {k: [] for k in group_sizes}
        for _ in range(rounds + 1):
            for k, step in steps.items():
                begin = time.process_time()
                step()
                seconds[k].append(time.process_time() - begin)
    return [
        {
            "group_size": k,
            "users": cohort_size,
            "examples": k * cohort_size,
            "seconds": statistics.median(of_k[1:]),
            "seconds_least": min(of_k[1:]),
            "seconds_greatest": max(of_k[1:]),
            "rounds": rounds,
        }
        for k, of_k in seconds.items()
    ]


def _steps(
    store: UserStore, out: Path, group_size: int, cohort_size: int, steps: int, stack: ExitStack
) -> Callable[[], None]:
    """One step of a run of its own, at each call."""
    from userdp.training.config import TrainConfig
    from userdp.training.models import load_model
    from userdp.training.optimizers import build_optimizer
    from userdp.training.private import make_private

    config = TrainConfig(model="bundled", learning_rate=1e-4)
    model = load_model(config, store)
    optimizer = build_optimizer(model, config)
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
    run = stack.enter_context(make_private(model, optimizer, store, plan, out=out))
    private = iter(run)

    def step() -> None:
        next(private)
        optimizer.step()

    return step


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
    axis.set_ylabel("processor seconds of a step")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    users = rows[0]["users"]
    figure.suptitle(
        f"the cost of k at {users} users a step, Chua et al. 2024, Figure 6", fontsize=10
    )
    save(figure, path)
