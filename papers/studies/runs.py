"""Private runs of a study, one after another: each row is on the disk as it ends, and none twice.

A run goes through `userdp.training.loop.train`, so that sampling, noise and ledger are those of
``userdp train``; its ε is recomputed from its ledger. Seeds are the operating system's, so that
repetitions are independent; there is no way to repeat one.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from userdp.data.store import StoreSplit
from userdp.gradients import Units, causal_lm_loss
from userdp.plans import Plan
from userdp.strict_json import parse
from userdp.training.config import TrainConfig
from userdp.training.personalization import LocalTraining, personalize, summary

Row = dict[str, Any]
_EVALUATION_BATCH = 32
_PERSONALIZED = 70
"""Held-out users, the first by hash, who adapt a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run.

    Args:
        key: what tells it from the others.
        plan: of the run.
        config: of the run.
        scores: of the store's examples, for selections by perplexity.
        claimed: whether the row tells ε; not of a run with next to no noise.
        local: how held-out users adapt the model, if that is measured.
    """

    key: Mapping[str, Any]
    plan: Plan
    config: TrainConfig
    scores: Path | None = None
    claimed: bool = True
    local: LocalTraining | None = None


def name_of(key: Mapping[str, Any]) -> str:
    """The key as text; equal for equal keys only."""
    return json.dumps(dict(key), sort_keys=True)


def read_rows(path: Path) -> list[Row]:
    """The rows so far; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(parse(line, finite=False))  # losses that diverged, and ε of what has none
        except ValueError:
            continue
    return rows


def append_row(path: Path, row: Row) -> None:
    """Write one line and wait for the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def missing(jobs: Iterable[Job], rows: Sequence[Row]) -> list[Job]:
    """The jobs without a row."""
    have = {name_of(row["key"]) for row in rows}
    return [job for job in jobs if name_of(job.key) not in have]


def run_all(
    jobs: Sequence[Job], *, store: Path, work: Path, results: Path, most_examples: int
) -> None:
    """Run what is missing; rows go to ``results``, one line each.

    Args:
        jobs: in the order to run them in.
        store: the user store.
        work: a folder for the run that is under way; emptied after each.
        results: JSON lines.
        most_examples: of each held-out user, to evaluate on.
    """
    left = missing(jobs, read_rows(results))
    begin = time.monotonic()
    for number, job in enumerate(left):
        append_row(results, run_one(job, store=store, work=work, most_examples=most_examples))
        spent = time.monotonic() - begin
        rest = spent / (number + 1) * (len(left) - number - 1)
        print(
            f"{number + 1}/{len(left)} {name_of(job.key)}: {spent:.0f} s, about {rest:.0f} s left",
            file=sys.stderr,
            flush=True,
        )


def held_out_loss(model: nn.Module, split: StoreSplit, most_examples: int) -> tuple[float, float]:
    """Nats per token, and the mean over users of each user's, on a part of all held-out users.

    Of each user the same at most ``most_examples`` examples for every model, so that nobody's
    thousand examples decide.
    """
    draw = np.random.default_rng(0)
    picked = [np.sort(draw.permutation(int(count))[:most_examples]) for count in split.counts]
    users = np.repeat(np.arange(len(picked)), [len(rows) for rows in picked])
    examples = np.concatenate(picked)
    order = np.argsort(-split.lengths(users, examples), kind="stable")
    sums, tokens = np.zeros(len(picked)), np.zeros(len(picked))
    model.eval()
    with torch.no_grad():
        for begin in range(0, len(order), _EVALUATION_BATCH):
            here = order[begin : begin + _EVALUATION_BATCH]
            rows = split.gather(users[here], examples[here])
            units = Units.from_flat(rows.tokens, rows.offsets, np.arange(len(here) + 1))
            losses = causal_lm_loss(model, units.input_ids, units.lengths).double().numpy()
            np.add.at(sums, users[here], losses * (rows.lengths - 1))
            np.add.at(tokens, users[here], rows.lengths - 1)
    return float(sums.sum() / tokens.sum()), float(np.mean(sums / tokens))


def _gains(model: nn.Module, split: StoreSplit, how: LocalTraining) -> list[Row]:
    """Mean losses on the half kept back, before and after local training, at each rate."""
    users = np.flatnonzero(split.counts >= 2)[:_PERSONALIZED]
    personalized = personalize(model, split, users, how)
    return [
        {"learning_rate": rate, **summary(personalized, which)}
        for which, rate in enumerate(how.learning_rate)
    ]


def run_one(job: Job, *, store: Path, work: Path, most_examples: int) -> Row:
    """Train, evaluate on held-out users, and read ε from the ledger."""
    from userdp.claims import claim
    from userdp.data.splits import Split
    from userdp.data.store import UserStore
    from userdp.training.loop import train
    from userdp.training.models import read_model

    out = work / "run"
    shutil.rmtree(out, ignore_errors=True)
    begin = time.monotonic()
    opened = UserStore.open(store)
    train(opened, job.plan, job.config, out=out, scores=job.scores, tensorboard=False)
    trained = time.monotonic() - begin
    split = opened.split(Split.HELD_OUT_USERS)
    model = read_model(str(out / "model"))
    loss, user_loss = held_out_loss(model, split, most_examples)
    gains = {} if job.local is None else {"personalization": _gains(model, split, job.local)}
    # Its own part, the last: runs on one store are compared here, each at the price of itself.
    guarantee = claim(out / "ledger.jsonl").parts[-1].guarantee() if job.claimed else None
    gradients = sum(
        line["rows"]
        for line in map(parse, (out / "operator.jsonl").read_text("utf-8").splitlines())
        if line["kind"] == "step"
    )
    shutil.rmtree(out)
    return {
        "key": dict(job.key),
        "loss": loss,
        "user_loss": user_loss,
        "epsilon": guarantee.epsilon if guarantee else None,
        "delta": guarantee.delta if guarantee else None,
        "accountant": guarantee.accountant if guarantee else None,
        "noise_multiplier": job.plan.noise.multiplier,
        "l2_clip_norm": job.plan.clip.l2_norm,
        "gradients": gradients,
        **gains,
        "seconds": round(trained, 2),
        "seconds_in_all": round(time.monotonic() - begin, 2),
    }
