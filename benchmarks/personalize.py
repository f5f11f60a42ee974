"""Personalizing many users at once beside one user after another: the same numbers, in one run.

    python -m benchmarks.personalize [--store STORE] [--users 200] [--quick] [--json]

Both sides adapt the bundled model to the same halves of the same users (four epochs of plain SGD)
and measure the other halves. Two forms: all weights, and adapters of rank 8. Without ``--store``
the users are made of random tokens, of unequal sizes and lengths. Each side is timed whole; the
sides alternate, and the ratio is taken within a round.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from userdp.data.splits import Split
from userdp.data.store import TokenRows, UserStore
from userdp.gradients import Units, causal_lm_loss, row_losses, trainable_parameters
from userdp.training.config import TrainConfig
from userdp.training.lora import add_adapters
from userdp.training.models import read_model, resolve
from userdp.training.personalization import (
    LocalTraining,
    LocalUser,
    Personalized,
    local_users,
    personalize,
    traceable,
)


def one_after_another(
    model: nn.Module, split: Any, users: Sequence[LocalUser], how: LocalTraining
) -> Personalized:
    """Copy the weights, train with torch's own SGD, measure, put them back; user by user."""
    own = list(trainable_parameters(model).values())
    start = [p.detach().clone() for p in own]
    optimizer = torch.optim.SGD(own, lr=how.learning_rate)
    before, after, tokens = [], [], []
    for user in users:
        train = rows_of(split, user.user, user.train)
        first, count = mean_loss(model, split, user)
        for batch in user.batches:
            places = torch.from_numpy(batch[batch >= 0])
            width = int(train.lengths[places].max())
            losses = row_losses(
                causal_lm_loss,
                model,
                train.input_ids[places, :width],
                train.lengths[places],
                None if train.targets is None else train.targets[places, :width],
            )
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
        before.append(first)
        after.append(mean_loss(model, split, user)[0])
        tokens.append(count)
        with torch.no_grad():
            for p, value in zip(own, start, strict=True):
                p.copy_(value)
    return Personalized(
        users=np.array([user.user for user in users]),
        before=np.array(before),
        after=np.array(after),
        tokens=np.array(tokens),
    )


def rows_of(split: Any, user: int, examples: np.ndarray) -> Units:
    rows = split.gather(np.full(len(examples), user), examples)
    return Units.from_flat(rows.tokens, rows.offsets, np.array([0, len(examples)]), rows.targets)


@torch.no_grad()
def mean_loss(model: nn.Module, split: Any, user: LocalUser) -> tuple[float, int]:
    rows = rows_of(split, user.user, user.test)
    losses = row_losses(causal_lm_loss, model, rows.input_ids, rows.lengths, rows.targets).double()
    counts = rows.target_counts()
    return float((losses * counts).sum() / counts.sum().clamp(min=1)), int(counts.sum())


class RandomSplit:
    """Users of random tokens: sizes and lengths as skewed as people's are."""

    def __init__(self, users: int, *, vocabulary: int = 4096, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.counts = np.clip(draw.lognormal(1.8, 0.7, users), 2, 24).astype(np.int64)
        self.user_hashes = draw.integers(2**63, size=(users, 2)).astype(np.uint64)
        self._first = np.concatenate([[0], np.cumsum(self.counts)])
        lengths = np.clip(draw.lognormal(3.3, 0.6, int(self._first[-1])), 4, 128).astype(np.int64)
        self._rows = [draw.integers(1, vocabulary, size=n) for n in lengths]

    def lengths(self, users: np.ndarray, examples: np.ndarray) -> np.ndarray:
        return np.array([len(self._rows[k]) for k in self._first[users] + examples])

    def gather(self, users: np.ndarray, examples: np.ndarray) -> TokenRows:
        rows = [self._rows[k] for k in self._first[users] + examples]
        return TokenRows(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))


def clock() -> float:
    """Processor time with one thread, steady on a busy machine; else the time on the wall."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def compare(
    split: Any, how: LocalTraining, *, lora: bool, most: int, rounds: int
) -> dict[str, Any]:
    """Seconds of both sides in each round, their ratio, and how far their numbers differ."""
    users = local_users(split, how)[0][:most]
    alone = read_model(resolve("bundled"))
    if lora:
        alone = add_adapters(alone, TrainConfig(lora_rank=8))
    alone = alone.eval()
    together = traceable(copy.deepcopy(alone))
    one_after_another(alone, split, users[:2], how)
    personalize(together, split, users[:2], how)
    batched, single, apart, relative = [], [], 0.0, 0.0
    for _ in range(rounds):
        begin = clock()
        found = personalize(together, split, users, how)
        middle = clock()
        expected = one_after_another(alone, split, users, how)
        single.append(clock() - middle)
        batched.append(middle - begin)
        difference = np.abs(found.after - expected.after)
        apart = max(apart, float(difference.max()))
        relative = max(relative, float((difference / expected.after).max()))
    return {
        "users": len(users),
        "seconds_batched": round(statistics.median(batched), 3),
        "seconds_one_by_one": round(statistics.median(single), 3),
        "ratio": round(statistics.median(b / a for a, b in zip(batched, single, strict=True)), 3),
        "largest_difference_of_loss": apart,
        "largest_relative_difference": relative,
        "mean_gain": float((found.before - found.after).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=LocalTraining().batch_size)
    parser.add_argument("--parallel", type=int, default=LocalTraining().parallel)
    parser.add_argument("--forms", nargs="+", default=["full", "lora"], choices=["full", "lora"])
    parser.add_argument("--quick", action="store_true", help="20 users")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    most = 20 if given.quick else given.users
    if given.store:
        split: Any = UserStore.open(given.store).split(Split.HELD_OUT_USERS)
    else:
        split = RandomSplit(most)
    how = LocalTraining(batch_size=given.batch_size, parallel=given.parallel)
    result: dict[str, Any] = {"threads": given.threads, "batch_size": how.batch_size}
    for form in given.forms:
        rounds = 1 if given.quick else given.rounds
        found = compare(split, how, lora=form == "lora", most=most, rounds=rounds)
        result[f"ratio_{form}"] = found["ratio"]
        result[form] = found
        if not given.json:
            print(form, json.dumps(found))
    if given.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
