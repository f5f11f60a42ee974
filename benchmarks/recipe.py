"""The preset's learning rate and schedule: a grid of short runs, and the regret of each setting.

    python -m benchmarks.recipe run --data ../shared/data    # goes on where it stopped
    python -m benchmarks.recipe report                       # tables in Markdown

Everything but rate and schedule is the preset's for the declared population: group size, clip norm,
steps, and the noise on a step's mean, σ C / M. What is computed is the update of ``userdp train``
(each user's mean gradient clipped, the sum over a denominator, Gaussian noise, the product's own
optimizer and schedule) without ledger and certificate: **simulated**, no claim covers such a run.

To cost minutes it differs in two things. The mean of a step is that of ``USERS`` people and not of
M, while the noise is that of M: the noise is 3 to 27 times as long as a clipped gradient (its norm
is σ C √d / M, d = 2.6 million), and a mean of four people strays from the mean of all by at most
0.5 C. And examples have ``SEQ_LEN`` tokens. Settings of one cell share people and noise, by a
seed, so that their differences are those of the settings.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.rows import add_row, now, whole_rows
from papers.runs import held_out_loss
from userdp.data.prepare import prepare_store
from userdp.data.sources import open_source
from userdp.data.splits import Split
from userdp.data.store import StoreSplit, UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.gradients import Units, causal_lm_loss
from userdp.plans.preset import Preset, preset
from userdp.training.config import Schedule, TrainConfig
from userdp.training.models import BASE_MODEL, read_model
from userdp.training.optimizers import build_optimizer, learning_rate, set_learning_rate

Cell = tuple[Any, ...]  # text, ε, population

TEXTS = ("commits", "shakespeare")
EPSILONS = (1, 4, 8)
POPULATIONS = (2_000, 20_000)
SEQ_LEN = 32
USERS = 4
EVALUATED_EXAMPLES = 4  # of each held-out user

# The design, fixed before the first run. Every cell is trained with RATES; at ε = 4 also with
# OTHERS, which ask whether decay and warm-up pay. In cells where every one of RATES was run, the
# regret of a rate is its loss less the cell's least among RATES; the rate of the least mean regret
# is taken. Linear decay pays if at 3e-3 its mean loss over the cells of ε = 4 is below that of the
# better constant rate by GAIN; a warm-up pays if it is below linear decay's at 3e-3 by GAIN.
# Else the simpler schedule is kept.
LINEAR = TrainConfig(schedule=Schedule.LINEAR)
RATES = {f"linear {rate:g}": replace(LINEAR, learning_rate=rate) for rate in (1.5e-3, 3e-3, 6e-3)}
OTHERS = {
    "constant 0.0005": TrainConfig(learning_rate=5e-4),
    "constant 0.0015": TrainConfig(learning_rate=1.5e-3),
    "constant 0.003": TrainConfig(learning_rate=3e-3),
    "warm-up 10, linear 0.003": replace(LINEAR, learning_rate=3e-3, warmup_steps=10),
}
GAIN = 0.01
DECAYING = "linear 0.003"
ORDER = ((4, 0), (1, 1), (8, 0), (4, 1), (1, 0), (8, 1))  # ε, population: balanced if cut short


def jobs() -> list[dict[str, Any]]:
    """At most 60, cell by cell, the two texts in turn: all of RATES before OTHERS."""
    return [
        {"text": text, "epsilon": epsilon, "population": POPULATIONS[which], "setting": name}
        for settings in (RATES, OTHERS)
        for epsilon, which in ORDER
        for text in TEXTS
        for name in settings
        if settings is RATES or epsilon == 4
    ]


def store_of(text: str, data: Path, work: Path) -> UserStore:
    """The store of a text, made where there is none."""
    if not (work / text).exists():
        source = open_source([str(data / f"{text}.jsonl.gz")], kind="jsonl")
        tokenizer = StoreTokenizer.load()
        prepare_store(source, work / text, tokenizer=tokenizer, seq_len=SEQ_LEN)
    return UserStore.open(work / text)


def train(split: StoreSplit, chosen: Preset, config: TrainConfig, seed: int) -> torch.nn.Module:
    """The bundled model after the preset's steps with this rate and schedule."""
    plan = chosen.plan()
    noise_std = plan.sum_noise_multiplier / plan.denominator * plan.clip.l2_norm
    people, noise = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    model = read_model(str(BASE_MODEL)).train()
    optimizer = build_optimizer(model, config)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for step in range(1, plan.steps + 1):
        set_learning_rate(optimizer, learning_rate(config, step=step, steps=plan.steps))
        for p in parameters:
            p.grad = noise_std * torch.randn(p.shape, generator=noise)
        for user in people.choice(len(split.counts), USERS, replace=False):
            examples = people.permutation(int(split.counts[user]))[: chosen.group_size]
            rows = split.gather(np.full(len(examples), user), examples)
            units = Units.from_flat(rows.tokens, rows.offsets, np.arange(len(examples) + 1))
            loss = causal_lm_loss(model, units.input_ids, units.lengths).mean()
            grads = torch.autograd.grad(loss, parameters)
            norm = math.sqrt(sum(float(grad.square().sum()) for grad in grads))
            for p, grad in zip(parameters, grads, strict=True):
                p.grad.add_(grad, alpha=min(1.0, plan.clip.l2_norm / norm) / USERS)
        optimizer.step()
    return model


def run(data: Path, work: Path, results: Path) -> None:
    """Every run without a row, each on the disk as it ends."""
    have = [row["key"] for row in whole_rows(results)]
    base: dict[str, float] = {}
    for number, key in enumerate(jobs()):
        if key in have:
            continue
        begin, text = time.monotonic(), key["text"]
        store = store_of(text, data, work)
        held_out = store.split(Split.HELD_OUT_USERS)
        if text not in base:
            base[text] = held_out_loss(read_model(str(BASE_MODEL)), held_out, EVALUATED_EXAMPLES)[1]
        chosen = preset(epsilon=key["epsilon"], population=key["population"])
        config = (RATES | OTHERS)[key["setting"]]
        seed = 100 * key["epsilon"] + TEXTS.index(text) + 2 * POPULATIONS.index(key["population"])
        model = train(store.split(Split.TRAIN), chosen, config, seed)
        loss = held_out_loss(model, held_out, EVALUATED_EXAMPLES)[1]
        seconds = round(time.monotonic() - begin, 1)
        row = {"key": key, "base": base[text], "loss": loss, "seconds": seconds, "date": now()}
        add_row(results, row)
        print(f"{number + 1}/{len(jobs())} {key}: {base[text] - loss:.4f}, {seconds} s", flush=True)


def gains_of(rows: Iterable[dict[str, Any]]) -> dict[Cell, dict[str, float]]:
    """Of each cell, how far each setting brought the loss below the public base's."""
    cells: dict[Cell, dict[str, float]] = {}
    for row in rows:
        *cell, setting = (row["key"][name] for name in ("text", "epsilon", "population", "setting"))
        cells.setdefault(tuple(cell), {})[setting] = row["base"] - row["loss"]
    return cells


def mean_regrets(cells: Mapping[Cell, Mapping[str, float]]) -> dict[str, tuple[float, int]]:
    """Of each setting, the mean regret over the cells with every one of RATES, and their number."""
    regrets: dict[str, list[float]] = {}
    for gains in (gains for gains in cells.values() if RATES.keys() <= gains.keys()):
        best = max(gains[name] for name in RATES)
        for name, gain in gains.items():
            regrets.setdefault(name, []).append(best - gain)
    return {name: (statistics.fmean(found), len(found)) for name, found in regrets.items()}


def chosen_setting(cells: Mapping[Cell, Mapping[str, float]]) -> str:
    """By the design's rule, as far as the runs go: a constant rate, or the best of RATES."""
    behind: dict[str, list[float]] = {}
    for gains in (gains for gains in cells.values() if DECAYING in gains):
        for name in (name for name in gains if name.startswith("constant")):
            behind.setdefault(name, []).append(gains[DECAYING] - gains[name])
    means = {name: statistics.fmean(found) for name, found in behind.items()}
    best = min(means, key=means.__getitem__)
    regrets = mean_regrets(cells)
    return best if means[best] < GAIN else min(RATES, key=lambda name: regrets[name])


def table(cells: Mapping[Cell, Mapping[str, float]]) -> str:
    """The gain of each setting in each cell, and its mean regret, as Markdown."""
    names, means = list(RATES | OTHERS), mean_regrets(cells)
    lines = [f"| text | ε | population | {' | '.join(names)} |", "|---" * (3 + len(names)) + "|"]
    for cell, gains in sorted(cells.items()):
        shown = (f"{gains[name]:.3f}" if name in gains else "" for name in names)
        lines.append(f"| {' | '.join(map(str, cell))} | {' | '.join(shown)} |")
    regret = ("{:+.3f} ({} cells)".format(*means[name]) if name in means else "" for name in names)
    return "\n".join([*lines, f"| mean regret | | | {' | '.join(regret)} |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=("run", "report"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--work", type=Path, default=Path("runs/recipe"))
    parser.add_argument("--results", type=Path, default=Path("docs/results/recipe.jsonl"))
    options = parser.parse_args()
    if options.stage == "run":
        run(options.data, options.work, options.results)
    else:
        print(table(gains_of(whole_rows(options.results))))


if __name__ == "__main__":
    main()
