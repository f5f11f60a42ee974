"""Time the clipped sum of a step beside plain training in equally small passes.

    python -m benchmarks.step [--rounds N] [--only KEY ...] [--against CHECKOUT] [--json]

GPT-2 style decoders (four layers of width 256, vocabulary 8,192) and sequences of 128 tokens in
users of G. Plain training takes passes of 8 sequences, as large as the batched engine's on a CPU.
All methods run one after another in each round, in processor time of all threads; a ratio is the
median over rounds of time / time of plain training in the same round, with a bootstrap 90%
interval. ``--against`` times another checkout's engines in the same rounds, in a process of its
own. A setting ends when its share of ``--seconds`` is over.

On a busy machine processor time is steadier than the clock, and still up to 5% too long.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.decoders import Shape, cohort, gpt2

LENGTH, VOCABULARY, PASS, CLIP = 128, 8192, 8, 1.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model, its precision and the sequences of each user."""

    key: str
    group: int = 4
    width: int = 256
    layers: int = 4
    vocabulary: int = VOCABULARY
    rank: int | None = None
    bfloat16: bool = False
    dropout: float = 0.0

    @property
    def shape(self) -> Shape:
        return Shape(
            layers=self.layers,
            width=self.width,
            heads=self.width // 64,
            vocabulary=self.vocabulary,
            length=LENGTH,
        )


SETTINGS = [
    Setting(key="full_g4"),
    Setting(key="full_g1", group=1),
    Setting(key="lora_g4", rank=8),
    Setting(key="full_g4_bfloat16", bfloat16=True),
    Setting(key="full_g4_dropout", dropout=0.1),
]
PAPER = Setting(key="paper_g1", group=1, width=1024, layers=24, vocabulary=50257)
"""354 million parameters; only where it is named."""


def build(setting: Setting, *, device: str = "cpu") -> nn.Module:
    """The setting's model, in training mode."""
    model = gpt2(setting.shape, device=device)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = setting.dropout
    if setting.rank is not None:
        import peft

        names = ["c_attn", "c_proj", "c_fc"]
        config = peft.LoraConfig(r=setting.rank, target_modules=names, fan_in_fan_out=True)
        model = peft.get_peft_model(model, config)
    return model.train()


def methods(setting: Setting, sequences: int, *, opacus: bool) -> dict[str, Callable[[], object]]:
    """What is timed, by name; plain training first."""
    from userdp.gradients import causal_lm_loss, get_engine

    model = build(setting)
    units = cohort(sequences, setting.group, setting.shape, device="cpu")
    parameters = [p for p in model.parameters() if p.requires_grad]

    def loss(
        model: nn.Module, input_ids: Tensor, lengths: Tensor, targets: Tensor | None = None
    ) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=setting.bfloat16):
            return causal_lm_loss(model, input_ids, lengths, targets)

    def plain() -> None:
        for parameter in parameters:
            parameter.grad = None
        for begin in range(0, sequences, PASS):
            rows = slice(begin, begin + PASS)
            losses = loss(model, units.input_ids[rows], units.lengths[rows])
            (losses.sum() / sequences).backward()

    engine = get_engine("auto")
    known = inspect.signature(type(engine).__call__).parameters
    once = {"parts": 1} if "parts" in known else {}  # one sum, as a run asks for it

    def ours() -> object:
        return engine(model, loss, units, l2_clip_norm=CLIP, micro_batch=sequences, **once)

    found: dict[str, Callable[[], object]] = {"plain": plain, "userdp": ours}
    if opacus and setting.rank is None and not (setting.bfloat16 or setting.dropout):
        from benchmarks import opacus_steps

        step = opacus_steps.per_sample(
            opacus_steps.supported(model), group=setting.group, l2_clip_norm=CLIP
        )
        found["opacus"] = lambda: step(units)
    return found


def serve(setting: Setting, sequences: int, *, opacus: bool) -> None:
    """In a process of its own: for each line of input a round, and its times as a line of JSON."""
    steps = methods(setting, sequences, opacus=opacus)
    for _ in sys.stdin:
        times = {}
        for name, step in steps.items():
            begin = time.process_time()
            step()
            times[name] = time.process_time() - begin
        print(json.dumps(times), flush=True)


class Worker:
    """A process that times a checkout's engines."""

    def __init__(self, source: Path, setting: Setting, options: argparse.Namespace) -> None:
        command = [sys.executable, "-m", "benchmarks.step", "--child", setting.key]
        command += ["--sequences", str(options.sequences), *(["--opacus"] * options.opacus)]
        root = str(Path(__file__).parents[1])
        paths = [str(source / "src"), root, os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            command,
            cwd=root,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "OMP_WAIT_POLICY": "PASSIVE",
                "GOMP_SPINCOUNT": "0",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def round(self) -> dict[str, float]:
        """Processor seconds of each method, once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process that is timed ended")
        times: dict[str, float] = json.loads(line)
        return times

    def end(self) -> None:
        self._process.communicate()


def measure(setting: Setting, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Ratios of one setting by method; those of another checkout end in ``before``."""
    here = Path(__file__).parents[1]
    workers = {"": Worker(here, setting, options)}
    if options.against is not None:
        workers[" before"] = Worker(options.against.resolve(), setting, options)
    deadline = time.monotonic() + seconds
    ratios: dict[str, list[float]] = {}
    base: list[float] = []
    try:
        for number in range(options.rounds + 1):
            for suffix, worker in workers.items():
                times = worker.round()
                if number:  # the first warms up and asks what is asked once
                    base.append(times["plain"])
                    for name in times.keys() - {"plain"}:
                        ratios.setdefault(name + suffix, []).append(times[name] / times["plain"])
            if number and time.monotonic() > deadline:
                break
    finally:
        for worker in workers.values():
            worker.end()
    if options.against is not None:
        pairs = zip(ratios["userdp"], ratios["userdp before"], strict=True)
        ratios["userdp less before"] = [now - before for now, before in pairs]
    return {
        "setting": setting.key,
        "rounds": len(ratios["userdp"]),
        "plain_seconds": statistics.median(base),
        "ratios": {name: interval(found) for name, found in ratios.items()},
    }


def interval(values: list[float]) -> tuple[float, float, float]:
    """Median and its bootstrap 90% interval."""
    draws = np.random.default_rng(0).choice(values, size=(2000, len(values)))
    low, high = np.quantile(np.median(draws, axis=1), [0.05, 0.95])
    return float(np.median(values)), float(low), float(high)


def show(results: list[dict[str, Any]]) -> None:
    table = Table("setting", "rounds", "plain, s", "method", "ratio", "90% interval", box=None)
    for result in results:
        first = (result["setting"], str(result["rounds"]), f"{result['plain_seconds']:.2f}")
        for name, (middle, low, high) in sorted(result["ratios"].items()):
            table.add_row(*first, name, f"{middle:.3f}", f"{low:.3f} to {high:.3f}")
            first = ("", "", "")
    Console().print(table)


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step", description=__doc__.splitlines()[0]
    )
    known = {setting.key: setting for setting in [*SETTINGS, PAPER]}
    parser.add_argument("--rounds", type=int, default=15, help="after the one that warms up")
    parser.add_argument("--seconds", type=float, default=600, help="of all settings together")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--only", nargs="+", choices=list(known), help="keys of settings")
    parser.add_argument("--against", type=Path, help="a checkout whose engines are timed too")
    parser.add_argument("--opacus", action="store_true", help="time Opacus too, if it is installed")
    parser.add_argument("--json", action="store_true", help="one object in place of the table")
    parser.add_argument("--child", choices=list(known), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        serve(known[options.child], options.sequences, opacus=options.opacus)
        return
    settings = [known[key] for key in options.only] if options.only else SETTINGS
    results = []
    for setting in settings:
        results.append(measure(setting, options, options.seconds / len(settings)))
        if not options.json:
            show(results[-1:])
    if options.json:
        facts = {"threads": torch.get_num_threads(), "torch": torch.__version__}
        print(json.dumps({"settings": results, **facts}))


if __name__ == "__main__":
    main()
