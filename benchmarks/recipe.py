"""The preset's constants: a grid of short runs on public text, and the gain of each setting.

    python -m benchmarks.recipe run                          # goes on where it stopped
    python -m benchmarks.recipe run --question check --data FOLDER
    python -m benchmarks.recipe report                       # tables in Markdown

What is run stands in ``benchmarks/recipe.toml``, question by question; a question is committed
before its first row, and each row carries the SHA-256 of the file as it was then
(``scripts/designs_precede.py`` compares).

A run is the update of ``userdp train`` (each user's mean gradient clipped, the sum over a
denominator, Gaussian noise, the product's own optimizer and schedule) without ledger and
certificate: **simulated**, no claim covers it. To cost seconds, the mean of a step is that of
``users`` people and not of M, and examples have 32 tokens; the noise is that of M. So the cost of a
run does not depend on M, and M enters by the noise-batch ratio r = σ / M only. The mean of few
people has noise of its own, which harms more than its length says, since gradients lie where the
loss is curved most: with two people a step the gain fell short by about 35 nats over the number of
examples that a run had seen, whatever its steps (question "steps"). So each run of the later
questions sees about 1,200. Settings that share a text, a seed and steps share people, and the noise
up to its size.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from benchmarks.public_texts import read_base, store_of
from benchmarks.rows import add_row, now, whole_rows
from papers.adam_bc import optimizer_named
from papers.plans import plan_of_size
from papers.runs import held_out_loss
from userdp.accounting import Accountant
from userdp.data.splits import Split
from userdp.data.user_store import StoreSplit
from userdp.gradients import Units, causal_lm_loss, trainable_parameters
from userdp.plans.preset_defaults import preset
from userdp.plans.resolve_plan import PlanFields, resolve
from userdp.plans.small_delta import delta_for
from userdp.sampling import PoissonExamples, PoissonUsers, Sampling
from userdp.training.config import OptimizerName, Schedule, TrainConfig
from userdp.training.lora import choose_trained
from userdp.training.optimizers import (
    LITTLE_NOISE,
    WeightAverage,
    following_factor,
    learning_rate,
    set_learning_rate,
)

DESIGN = Path(__file__).with_suffix(".toml")
ROWS = Path("docs/results/recipe-rows.jsonl")
EARLIER = frozenset({"signal", "follow", "trust"})  # asked by earlier versions of the design
EVALUATED_EXAMPLES = 2  # of each held-out user
AVERAGING = 0.95  # decay of the moving average of the weights, which is looked at beside the last


class Method(StrEnum):
    """How the units of a step are made of people's examples.

    ``ULS``: of each user drawn, the mean gradient of G examples. ``USER_WISE``: of G that follow
    one another (Chua et al. 2024). ``ELS``: single examples, of at most G that each user keeps.
    ``GROUP_PRIVACY``: of the G longest, and priced by the best lemma (ibid., Algorithm 1).
    """

    ULS = "uls"
    USER_WISE = "user-wise"
    ELS = "els"
    GROUP_PRIVACY = "group-privacy"


_LAWS: dict[Method, tuple[type[Sampling], Accountant]] = {
    Method.ULS: (PoissonUsers, Accountant.CONTOUR),
    Method.USER_WISE: (PoissonUsers, Accountant.CONTOUR),
    Method.ELS: (PoissonExamples, Accountant.CONTOUR),
    Method.GROUP_PRIVACY: (PoissonExamples, Accountant.GROUP_PRIVACY),
}


@cache
def _noise_ratio(sampling: type[Sampling], size: float, **budget: Any) -> float:
    plan = plan_of_size(sampling, size, **budget)
    return plan.sum_noise_multiplier / plan.denominator


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One run.

    Args:
        question: of the design, to which the run belongs.
        text: see `benchmarks.public_texts.store_of`.
        model: see `benchmarks.public_texts.base_model`.
        ratio: r = σ / M, the noise on a coordinate of the mean in parts of C; None where a budget
            says it.
        epsilon: with ``population``, ``cohort`` and ``steps`` the budget that says r, by the
            preset's sampling and accounting.
        population: the declared number of users.
        cohort: M, of examples B.
        steps: T.
        group: G.
        rate: the peak learning rate.
        schedule: after the warm-up.
        warmup: steps.
        optimizer: the optimizer.
        rank: of adapters; 0 trains all weights.
        clip: C.
        users: units in whose place the cohort's mean stands.
        seed: of people and noise.
        method: how a unit is made, and priced.
        examples: the declared number of examples after the cap of G, where examples are drawn.
        still: weights that do not learn: "attention" (position embeddings and what makes queries,
            keys and values: the default of ``userdp train``) or "positions" (of a GPT-2 shape).
    """

    question: str
    text: str
    model: str = "bundled"
    ratio: float | None = None
    epsilon: float | None = None
    population: int | None = None
    cohort: int | None = None
    steps: int = 100
    group: int = 1
    rate: float | None = None
    schedule: str = "linear"
    warmup: int = 0
    optimizer: str = "adamw"
    rank: int = 0
    clip: float = 0.1
    users: int = 24
    seed: int = 0
    method: Method = Method.ULS
    examples: int | None = None
    still: str = ""

    @property
    def noise_ratio(self) -> float:
        """r = σ / M, of a step of examples σ / B."""
        if self.ratio is not None:
            return self.ratio
        assert self.epsilon is not None, self.question
        assert self.population is not None, self.question
        assert self.cohort is not None, self.question
        sampling, accountant = _LAWS[self.method]
        return _noise_ratio(
            sampling,
            self.cohort,
            population=self.examples or self.population,
            group_size=self.group,
            steps=self.steps,
            l2_clip_norm=1.0,
            target_epsilon=self.epsilon,
            target_delta=delta_for(self.population),
            accountant=accountant,
        )

    @property
    def config(self) -> TrainConfig:
        """How it learns."""
        return TrainConfig(
            learning_rate=self.rate,
            schedule=Schedule(self.schedule),
            warmup_steps=self.warmup,
            optimizer=OptimizerName.SGD if self.optimizer == "sgd" else OptimizerName.ADAMW,
            lora_rank=self.rank or None,
            train_all=self.still != "attention",
        )

    @property
    def key(self) -> dict[str, Any]:
        """What differs from the defaults, as a row has it."""
        values = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return {name: value for name, value, default in values if value != default}


def settings(design: Path = DESIGN) -> Iterator[Setting]:
    """The runs of the design, in its order: of each block the product of its lists.

    A list of tables under ``cases`` holds fields that go together, and in place of the block's own.
    """
    for block in tomllib.loads(design.read_text("utf-8"))["runs"]:
        cases = block.pop("cases", [{}])
        axes = [value if isinstance(value, list) else [value] for value in block.values()]
        for case in cases:
            for values in itertools.product(*axes):
                chosen = dict(zip(block, values, strict=True)) | case
                yield Setting(**chosen | {"method": Method(chosen.get("method", "uls"))})


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What was measured of the gradients on the way: means over the steps."""

    norm: float
    clipped: float
    signal: float
    factors: list[float]


def train(
    split: StoreSplit, base: nn.Module, setting: Setting
) -> tuple[nn.Module, WeightAverage, Seen]:
    """The trained model, a moving average of its weights, and what was seen of its gradients."""
    noise_std, config = setting.noise_ratio * setting.clip, setting.config
    people = np.random.default_rng(setting.seed)
    noise = torch.Generator().manual_seed(setting.seed)
    model = choose_trained(base, config)
    if setting.still == "positions":
        model.get_submodule("transformer.wpe").requires_grad_(False)
    optimizer = optimizer_named(model, config, name=setting.optimizer, noise_std=noise_std)
    average = WeightAverage(model, AVERAGING)
    parameters = list(trainable_parameters(model).values())
    draw = units_of(split, setting, people)
    norms, squares = [], []
    factors: list[float] = []
    for step in range(1, setting.steps + 1):
        sums = [torch.zeros_like(p) for p in parameters]
        for user, examples in draw():
            rows = split.gather(np.full(len(examples), user), examples)
            drawn = Units.from_flat(rows.tokens, rows.offsets, np.arange(len(examples) + 1))
            loss = causal_lm_loss(model, drawn.input_ids, drawn.lengths).mean()
            grads = torch.autograd.grad(loss, parameters)
            norms.append(_norm(grads))
            factor = min(1.0, setting.clip / norms[-1]) if norms[-1] else 0.0
            for one, grad in zip(sums, grads, strict=True):
                one.add_(grad, alpha=factor)
        # Of K gradients of length 1 that share a part s: E‖sum‖² = K + K (K - 1) s².
        square = (_norm(sums) / setting.clip) ** 2
        squares.append((square - setting.users) / (setting.users * (setting.users - 1)))
        for p, one in zip(parameters, sums, strict=True):
            p.grad = one.div_(setting.users)
            p.grad.add_(torch.randn(p.shape, generator=noise), alpha=noise_std)
        rate = learning_rate(config, step=step, steps=setting.steps)
        if config.schedule is Schedule.FOLLOWING:
            public = {"noise_std": noise_std, "l2_norm": setting.clip}
            factors.append(following_factor(optimizer, **public))
            rate *= factors[-1]
        set_learning_rate(optimizer, rate)
        optimizer.step()
        average.update()
    clipped = statistics.fmean(norm > setting.clip for norm in norms)
    signal = math.sqrt(max(0.0, statistics.fmean(squares)))
    seen = Seen(norm=statistics.median(norms), clipped=clipped, signal=signal, factors=factors)
    return model, average, seen


def units_of(
    split: StoreSplit, setting: Setting, people: np.random.Generator
) -> Callable[[], Iterator[tuple[int, NDArray[np.int64]]]]:
    """What draws the units of a step: of each its user and its examples."""
    counts, group = split.counts, setting.group

    def of_users() -> Iterator[tuple[int, NDArray[np.int64]]]:
        for user in people.choice(len(counts), setting.users, replace=False):
            if setting.method is Method.USER_WISE:
                first = int(people.integers(max(1, int(counts[user]) - group + 1)))
                yield user, np.arange(first, min(first + group, int(counts[user])))
            else:
                yield user, people.permutation(int(counts[user]))[:group]

    if not setting.examples:
        return of_users
    kept: list[tuple[int, NDArray[np.int64]]] = []
    for user, count in enumerate(counts):
        order = people.permutation(int(count))
        if setting.method is Method.GROUP_PRIVACY:
            lengths = split.lengths(np.full(count, user), np.arange(count))
            order = np.argsort(-lengths, kind="stable")
        kept += [(user, one[None]) for one in order[:group]]
    return lambda: (kept[place] for place in people.choice(len(kept), setting.users, replace=False))


def _norm(tensors: Sequence[Tensor]) -> float:
    """The length of tensors taken together."""
    return float(torch.stack(torch._foreach_norm(tensors)).norm())


def run(options: argparse.Namespace) -> None:
    """Every run without a row, each on the disk as it ends."""
    digest = sha256(DESIGN.read_bytes()).hexdigest()
    have = [row["key"] for row in whole_rows(options.rows)]
    wanted = [one for one in settings() if one.question.startswith(options.question)]
    wanted.sort(key=lambda one: one.rate is None)
    bases: dict[tuple[str, str], float] = {}
    for number, setting in enumerate(wanted):
        if setting.rate is None:
            setting = replace(setting, rate=best_rate(setting, whole_rows(options.rows)))
        if setting.key in have:
            continue
        while options.wait_while and options.wait_while.exists():
            time.sleep(5)
        begin, place = time.monotonic(), (setting.text, setting.model)
        store = store_of(setting.text, options.data, options.work)
        held_out = store.split(Split.HELD_OUT_USERS)
        base = read_base(setting.model, options.work)
        if place not in bases:
            bases[place] = held_out_loss(base, held_out, EVALUATED_EXAMPLES)[1]
        model, average, seen = train(store.split(Split.TRAIN), base.train(), setting)
        gains = {"last": bases[place] - held_out_loss(model, held_out, EVALUATED_EXAMPLES)[1]}
        with average.applied():
            loss = held_out_loss(model, held_out, EVALUATED_EXAMPLES)[1]
        gains["average"] = bases[place] - loss
        row = {
            "key": setting.key,
            "base": round(bases[place], 4),
            "gain": {name: round(gain, 4) for name, gain in gains.items()},
            "ratio": float(f"{setting.noise_ratio:.4g}"),
            "norm": round(seen.norm, 3),
            "clipped": round(seen.clipped, 3),
            "signal": round(seen.signal, 3),
            "factors": [round(factor, 2) for factor in seen.factors[4::5]],
            "seconds": round(time.monotonic() - begin, 1),
            "design": digest,
            "date": now(),
        }
        add_row(options.rows, row)
        print(f"{number + 1}/{len(wanted)} {setting.key}: {row['gain']} {seen}", flush=True)


def best_rate(setting: Setting, rows: Iterable[dict[str, Any]]) -> float:
    """The rate with the highest gain of seed 0, of runs that are else the same."""
    same = replace(setting, rate=None, seed=0).key
    gains = {
        row["key"]["rate"]: row["gain"]["last"]
        for row in rows
        if {name: value for name, value in row["key"].items() if name != "rate"} == same
    }
    return max(gains, key=lambda rate: gains[rate])


def tables(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Of each question its table in Markdown: the gain of each setting on each text."""
    questions: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for row in rows:
        own = dict(row["key"])
        question, text = own.pop("question"), own.pop("text")
        own = {name: value for name, value in own.items() if name != "users"}
        words = ", ".join(
            f"{name} {value:g}" if isinstance(value, int | float) else f"{value}"
            for name, value in own.items()
        )
        questions.setdefault(question, {}).setdefault(words, {})[text] = row["gain"]
    for question, found in questions.items():
        texts = list(dict.fromkeys(text for gains in found.values() for text in gains))
        lines = ["| setting | " + " | ".join(texts) + " |", "|---|" + "---:|" * len(texts)]
        for words, gains in found.items():
            shown = (
                f"{gains[text]['last']:.3f} ({gains[text]['average']:.3f})" if text in gains else ""
                for text in texts
            )
            lines.append(f"| {words} | {' | '.join(shown)} |")
        yield question, "\n".join(lines)


def cells(rows: Iterable[dict[str, Any]]) -> str:
    """Of each text, ε and population: how far the default is behind the best setting, in nats."""
    found: dict[tuple[str, float, int], dict[str, float]] = {}
    for row in rows:
        key = {"schedule": "linear", "group": 1, "steps": 100} | row["key"]
        if not key["question"].startswith(("cells", "check")) or "epsilon" not in key:
            continue
        words = "{schedule} {rate:g}, G {group}, M {cohort}, T {steps}".format(**key)
        words += ", attention still" if "still" in key else ""
        gains = found.setdefault((key["text"], key["epsilon"], key["population"]), {})
        gains[words] = row["gain"]["last"]
        gains[f"{words}, average"] = row["gain"]["average"]
    lines = ["| text | ε | people | settings | default | best | | behind |", "|---|" + "---:|" * 7]
    for (text, epsilon, population), gains in sorted(found.items()):
        chosen = preset(epsilon=epsilon, population=population)
        default = (
            f"following {chosen.learning_rate:g}, G {chosen.group_size}, "
            f"M {chosen.cohort_size}, T {chosen.steps}, attention still"
        )
        plan, _ = resolve(chosen=PlanFields(epsilon=epsilon, population=population))
        if plan.sum_noise_multiplier / plan.denominator <= LITTLE_NOISE:
            default += ", average"
        if default in gains:
            best = max(gains, key=lambda words: gains[words])
            numbers = f"{gains[default]:.3f} | {gains[best]:.3f} | {best}"
            lines.append(
                f"| {text} | {epsilon:g} | {population:,} | {len(gains)} | {numbers} | "
                f"{gains[best] - gains[default]:.3f} |"
            )
    return "\n".join(lines)


def whole_tool(rows: Iterable[dict[str, Any]]) -> str:
    """Of each text and ε: the default's mean gain, and how much more than each method's it is.

    With the half-width of a 95% interval over the seeds that were measured, in pairs; ``*`` where
    it holds no zero.
    """
    gains: dict[tuple[str, float], dict[str, dict[int, float]]] = {}
    for row in rows:
        key = {"method": "uls", "group": 1, "seed": 0} | row["key"]
        former = key.get("schedule") == "following" and "still" not in key
        if key["question"].startswith("whole tool") and key["seed"] and not former:
            words = "default" if "still" in key else "{method}, G {group}"
            cell = gains.setdefault((key["text"], key["epsilon"]), {})
            cell.setdefault(words.format(**key), {})[key["seed"]] = row["gain"]["last"]
    methods = sorted({name for cell in gains.values() for name in cell} - {"default"})
    lines = [
        f"| text | ε | default | {' | '.join(methods)} |",
        "|---|" + "---:|" * (len(methods) + 2),
    ]
    for (text, epsilon), cell in sorted(gains.items()):
        ours = cell["default"]
        shown = [f"{statistics.fmean(ours.values()):.3f}"]
        for method in methods:
            more = [ours[seed] - gain for seed, gain in cell[method].items()]
            mean, half = statistics.fmean(more), t_interval(more)
            shown.append(f"{mean:+.3f} ± {half:.3f}{'*' if abs(mean) > half else ''}")
        lines.append(f"| {text} | {epsilon:g} | {' | '.join(shown)} |")
    return "\n".join(lines)


def t_interval(values: Sequence[float]) -> float:
    """Half the width of the 95% interval of a mean, by Student's t."""
    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=("run", "report"))
    parser.add_argument("--question", default="", help="only questions whose names begin so")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--work", type=Path, default=Path("runs/recipe"))
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--wait-while", type=Path, help="begin no run while this file is there")
    options = parser.parse_args()
    if options.stage == "run":
        run(options)
    else:
        rows = list(whole_rows(options.rows))
        for question, table in tables(rows):
            print(f"**{question}**\n\n{table}\n")
        print(f"**The default beside the best setting**\n\n{cells(rows)}\n")
        print(f"**The default beside the papers' methods**\n\n{whole_tool(rows)}")


if __name__ == "__main__":
    main()
