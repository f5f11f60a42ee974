"""Makes the runs of designs: rates are chosen first, then every cell is measured; resumable.

A run goes through `userdp.training.loop.train`, so that sampling, noise and ledger are those of
``userdp train``; its ε is recomputed from its ledger. It trains a copy of its text's store, so that
hundreds of runs do not share a ledger: each is compared at the price of itself. Seeds are the
operating system's, so that repetitions are independent; there is no way to repeat one.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from benchmarks.rows import add_row, now, whole_rows
from papers.design import Declared, Design, Setting
from papers.losses import TUNE
from userdp.core.codec import encode, parse
from userdp.core.errors import UseError
from userdp.data.splits import Split
from userdp.data.user_store import StoreSplit, UserStore
from userdp.training.personalization import LocalTraining, personalize, summary
from userdp.training.store_losses import split_losses

Row = dict[str, Any]
RESULTS = Path(__file__).parents[1] / "docs/results/papers"
"""Where the rows of studies lie in a checkout, a file for each design."""
MOST_EXAMPLES = 16
"""Of a held-out user, to evaluate on: the same for every model."""
PERSONALIZED = 70
"""Held-out users, the first by hash, who adapt a model."""
LOCAL = LocalTraining(learning_rate=(0.001, 0.003, 0.01, 0.03), most_examples=16)
"""Local training of held-out users: four epochs of SGD (Charles et al. 2024, Appendix G.2)."""


def name_of(key: Mapping[str, Any]) -> str:
    """The key as text; equal for equal keys only."""
    return json.dumps(dict(key), sort_keys=True)


def key_of(setting: Setting, rate: float, run: str) -> Row:
    """What tells a run from all others of its design."""
    return {"setting": encode(setting), "rate": rate, "run": run}


def best_rate(design: Design, cells: Sequence[Setting], rows: Sequence[Row]) -> float | None:
    """The rate of least loss on the middle cell of a group; None while a trial is missing."""
    if len(design.rates) == 1:
        return design.rates[0]
    losses = {name_of(row["key"]): float(row["loss"]) for row in rows}
    trials = [
        (losses.get(name_of(key_of(cells[len(cells) // 2], rate, TUNE))), rate)
        for rate in design.rates
    ]
    known = [(loss, rate) for loss, rate in trials if loss is not None]
    return min(known)[1] if len(known) == len(trials) else None


def missing_runs(design: Design, rows: Sequence[Row]) -> list[tuple[Setting, float, str]]:
    """What can be run now and has no row: trials of rates, else measured runs.

    First runs of all cells come before second ones: a campaign that ends early has some of each.
    """
    trials: list[tuple[Setting, float, str]] = []
    measured: list[tuple[Setting, float, str]] = []
    for cells in design.groups():
        rate = best_rate(design, cells, rows)
        if rate is None:
            trials += [(cells[len(cells) // 2], one, TUNE) for one in design.rates]
        else:
            for setting in cells:
                measured += [(setting, rate, str(n)) for n in range(design.cells[setting])]
    have = {name_of(row["key"]) for row in rows}
    ordered = trials or sorted(measured, key=lambda run: int(run[2]))
    return [run for run in ordered if name_of(key_of(*run)) not in have]


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Where runs read and write.

    Args:
        work: the folder of the stores, by the texts' names, and of all that is under way.
        results: the folder of the rows.
        declared: constants of plans, by text.
        say: is told of every run.
    """

    work: Path
    results: Path
    declared: Mapping[str, Declared]
    say: Callable[[str], None]

    def rows(self, design: Design) -> list[Row]:
        """The rows of a design so far."""
        return list(whole_rows(self.results / f"{design.name}.jsonl"))

    def run(self, design: Design) -> None:
        """Run what a design lacks; a row is on the disk as each run ends.

        Raises:
            UseError: the store of a text is missing.
        """
        while runs := missing_runs(design, self.rows(design)):
            for number, (setting, rate, name) in enumerate(runs):
                row = run_one(self, setting, rate, name)
                stamp = {"design": design.digest, "date": now()}
                add_row(self.results / f"{design.name}.jsonl", {**row, **stamp})
                what = f"{design.name} {number + 1}/{len(runs)} {setting.text} {setting.method}"
                self.say(f"{what}: {row['loss']:.4f}, {row['seconds_in_all']:.0f} s")

    def store(self, text: str) -> UserStore:
        """A fresh copy of the store of a text."""
        original, copy = self.work / text, self.work / "store"
        if not original.exists():
            raise UseError(
                f"a run is missing, and there is no store of the text {text!r} in {self.work}",
                hint=f"userdp prepare {text}.jsonl.gz --seq-len 64 --held-out-examples 0 "
                f"--out {original}",
            )
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(original, copy)
        return UserStore.open(copy)

    def scores(self, setting: Setting) -> Path | None:
        """Losses of the text's examples under the bundled model, computed once.

        Not under the study's base: that was trained by userdp without privacy, on docstrings, and
        userdp does not know that they are nobody's.
        """
        from userdp.core.stages import Progress
        from userdp.training.store_losses import score_store

        if not setting.selection.scored:
            return None
        path = self.work / f"scores-{setting.text}.arrow"
        if not path.exists():
            store = UserStore.open(self.work / setting.text)
            score_store(store, "bundled", path, progress=Progress())
        return path


def held_out_loss(model: nn.Module, split: StoreSplit, most_examples: int) -> tuple[float, float]:
    """Nats per token, and the mean over users of each user's, on a part of all held-out users.

    Of each user the same at most ``most_examples`` examples for every model, so that nobody's
    thousand examples decide.
    """
    draw = np.random.default_rng(0)
    picked = [np.sort(draw.permutation(int(count))[:most_examples]) for count in split.counts]
    users = np.repeat(np.arange(len(picked)), [len(rows) for rows in picked])
    losses, targets = split_losses(model, split, users, np.concatenate(picked))
    sums = np.bincount(users, weights=losses * targets, minlength=len(picked))
    tokens = np.bincount(users, weights=targets, minlength=len(picked))
    return float(sums.sum() / tokens.sum()), float(np.mean(sums / tokens))


def run_one(campaign: Campaign, setting: Setting, rate: float, name: str) -> Row:
    """Train, evaluate on held-out users, and read ε from the ledger."""
    from papers.adam_bc import optimizer_named
    from userdp.claims import claim
    from userdp.training.causal_models import read_model
    from userdp.training.config import RunOptions
    from userdp.training.loop import train

    out = campaign.work / "run"
    shutil.rmtree(out, ignore_errors=True)
    plan = setting.plan(campaign.declared[setting.text])
    base = "bundled" if setting.base == "bundled" else str(RESULTS / "base/model")
    config = setting.config(base, rate)
    scores = campaign.scores(setting)
    store = campaign.store(setting.text)
    begin = time.monotonic()
    scale = plan.denominator * (plan.clip.l2_norm if plan.clip.divided else 1.0)
    build = partial(optimizer_named, name=setting.optimizer, noise_std=plan.noise_std / scale)
    train(store, plan, config, out=out, options=RunOptions(scores=scores), optimizer=build)
    trained = time.monotonic() - begin
    split = store.split(Split.HELD_OUT_USERS)
    model = read_model(str(out / "model"))
    loss, user_loss = held_out_loss(model, split, MOST_EXAMPLES)
    row: Row = {"key": key_of(setting, rate, name), "loss": loss, "user_loss": user_loss}
    if setting.personalized:
        users = np.flatnonzero(split.counts >= 2)[:PERSONALIZED]
        before, after, tokens = personalize(model, split, users, LOCAL)
        row["personalization"] = [
            {"learning_rate": local, **summary(before, own, tokens)}
            for local, own in zip(LOCAL.learning_rate, after, strict=True)
        ]
    told: Row = {"epsilon": None, "delta": None, "accountant": None}
    if setting.epsilon is not None:
        # The ledger's last part: runs on one store are each compared at the price of itself.
        guarantee = claim(out / "ledger.jsonl").parts[-1].guarantee()
        told = {field: getattr(guarantee, field) for field in told}
    lines = map(parse, (out / "operator.jsonl").read_text("utf-8").splitlines())
    gradients = sum(line["rows"] for line in lines if line["kind"] == "step")
    shutil.rmtree(out)
    return {
        **row,
        **told,
        "noise_multiplier": plan.noise.multiplier,
        "l2_clip_norm": plan.clip.l2_norm,
        "gradients": gradients,
        "seconds": round(trained, 2),
        "seconds_in_all": round(time.monotonic() - begin, 2),
    }
