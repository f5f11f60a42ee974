"""Time a whole private step against its clipping alone.

    python -m benchmarks.full_step [--json] [--clock cpu] [--runs N] [--seconds S] [--device D]

The run: a generated store (512 users of 4 to 8 examples of 128 tokens, vocabulary 8192), a GPT-2
style decoder (d = 256, 4 layers, float32), Poisson cohorts of 16 users in expectation with at most
4 examples each, AdamW. A full step is what `PrivateRun` and the optimizer do: charge the ledger and
sync it, draw, gather, clip, add noise, divide, watch for movement, update. In the same round the
same engine clips a cohort of equal shape and random tokens, and nothing else; which of the two goes
first alternates. ``ratio_full_step`` is the median over rounds of step / clip, with a bootstrap 90%
interval. ``share_noise`` and its like are medians of a part's time over the clip's.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.step.measure import clock, interval
from benchmarks.step.models import SETTINGS, build
from benchmarks.words import write_tokenizer
from userdp.data.prepare import prepare_store
from userdp.data.progress import Progress
from userdp.data.records import Record, Tally
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.gradients import Units, causal_lm_loss, get_engine
from userdp.plans.sized import plan_of_size
from userdp.sampling import PoissonUsers
from userdp.training.config import TrainConfig
from userdp.training.optimizers import build_optimizer
from userdp.training.private import make_private
from userdp.training.private_run import PrivateRun

LENGTH, VOCABULARY, GROUP, USERS, COHORT = 128, 8192, 4, 512, 16


class RandomWords:
    """A source of users whose examples are ``LENGTH`` tokens long, one word each."""

    public = False
    several_owners = False
    loss_mask = False
    kind = "random words"
    size = None

    def facts(self) -> dict[str, Any]:
        return {}

    def records(self, tally: Tally, progress: Progress) -> Iterator[Record]:
        draw = random.Random(0)
        order = 0
        for user in range(USERS):
            for _ in range(draw.randint(GROUP, 2 * GROUP)):
                words = (f"w{draw.randrange(VOCABULARY - 2)}" for _ in range(LENGTH - 1))
                tally.read()
                yield Record(f"user{user}".encode(), " ".join(words).encode(), order)
                order += 1


def generated_store(folder: Path) -> UserStore:
    words = [f"w{number}" for number in range(VOCABULARY - 2)]
    prepare_store(
        RandomWords(),
        folder / "store",
        tokenizer=StoreTokenizer.load(write_tokenizer(folder / "tokenizer.json", words)),
        seq_len=LENGTH,
        held_out_users=0.0,
        held_out_examples=0.0,
    )
    return UserStore.open(folder / "store")


@contextmanager
def timed_part(
    run: PrivateRun, names: dict[str, str], now: Callable[[], float], into: dict[str, list[float]]
) -> Iterator[None]:
    """Note how long each part of ``run`` takes; ``names`` maps a label to an attribute."""

    def wrap(label: str, honest: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            begin = now()
            found = honest(*arguments, **options)
            into[label].append(now() - begin)
            return found

        return timed

    for label, path in names.items():
        *owners, last = path.split(".")
        owner: Any = run
        for part in owners:
            owner = getattr(owner, part)
        into[label] = []
        setattr(owner, last, wrap(label, getattr(owner, last)))
    yield


PARTS = {
    "ledger": "_run.ledger.attempt",
    "draw": "_sampler.draw",
    "gather": "_collator",
    "clip": "_clip",
    "noise": "_noise.add_",
}


def measure(args: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """The keys that the module's docstring names."""
    setting = next(s for s in SETTINGS if s.key == "full_g4")
    model: nn.Module = build(setting, device=args.device)

    def now() -> float:
        return clock(args.clock, args.device)

    engine = get_engine("auto")
    generator = torch.Generator().manual_seed(1)
    steps: list[float] = []
    clips: list[float] = []
    updates: list[float] = []
    parts: dict[str, list[float]] = {}
    micro_batch = COHORT * GROUP
    plan = plan_of_size(
        PoissonUsers,
        population=USERS,
        size=COHORT,
        group_size=GROUP,
        steps=args.runs + 1,
        l2_clip_norm=1.0,
        target_delta=1e-5,
        noise_multiplier=1.0,
    )
    with tempfile.TemporaryDirectory(prefix="userdp-bench-") as folder:
        store = generated_store(Path(folder))
        optimizer = build_optimizer(model, TrainConfig(learning_rate=1e-4))

        def clip(sizes: list[int]) -> float:
            offsets = torch.tensor([0, *sizes]).cumsum(0)
            rows = int(offsets[-1])
            units = Units(
                input_ids=torch.randint(VOCABULARY, (rows, LENGTH), generator=generator),
                lengths=torch.full((rows,), LENGTH),
                offsets=offsets,
            ).to(args.device)
            begin = now()
            engine(model, causal_lm_loss, units, l2_clip_norm=1.0, micro_batch=micro_batch)
            return now() - begin

        with make_private(
            model, optimizer, store, plan, out=Path(folder) / "run", micro_batch=micro_batch
        ) as run:
            sampler_draw = run._sampler.draw
            pending = [sampler_draw() for _ in range(plan.steps)]
            sizes = [cohort.units * [GROUP] for cohort in pending]
            turns = iter(pending)

            def draw_known() -> Any:
                sampler_draw()  # the draw costs what it costs; the cohort was known before
                return next(turns)

            # The clip beside it needs a cohort of equal shape, so the draw is replaced in this
            # run; the ignore is for replacing a method, which is what is meant.
            run._sampler.draw = draw_known
            with timed_part(run, PARTS, now, parts):
                private = iter(run)

                def full() -> float:
                    begin = now()
                    next(private)
                    between = now()
                    optimizer.step()
                    end = now()
                    updates.append(end - between)
                    return end - begin

                for round_ in range(plan.steps):
                    if round_ % 2:
                        alone, whole = clip(sizes[round_]), full()
                    else:
                        whole, alone = full(), clip(sizes[round_])
                    clips.append(alone)
                    steps.append(whole)
                    if args.verbose:
                        print(f"{round_} {whole / alone:.3f}", file=sys.stderr, flush=True)
                    if time.monotonic() > deadline and round_ > 1:
                        break
    # The first round warms up and checks the engine.
    ratios = [s / c for s, c in zip(steps[1:], clips[1:], strict=True)]
    middle, low, high = interval(ratios)
    shares = {
        f"share_{name}": statistics.median(t / c for t, c in zip(found[1:], clips[1:], strict=True))
        for name, found in {**parts, "update": updates}.items()
        if name != "clip"
    }
    return {
        "ratio_full_step": middle,
        "ratio_full_step_low": low,
        "ratio_full_step_high": high,
        "rounds_full_step": len(ratios),
        "seconds_clip_alone": statistics.median(clips[1:]),
        **shares,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="each round's ratio on stderr")
    parser.add_argument("--runs", type=int, default=15, help="rounds after the warm-up")
    parser.add_argument("--seconds", type=float, default=600, help="stop after this")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    found = measure(args, time.monotonic() + args.seconds)
    if args.json:
        print(json.dumps({**found, "device": args.device, "clock": args.clock}))
    else:
        for key, value in found.items():
            print(f"{key:24} {value:.4g}")


if __name__ == "__main__":
    main()
