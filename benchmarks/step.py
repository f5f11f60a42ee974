"""Time a private step against an ordinary one, and against Opacus.

    python -m benchmarks.step [--quick] [--json] [--clock cpu] [--allocator keep] [--only KEY ...]

GPT-2 style decoders (T = 128, vocabulary 8192, float32), 64 sequences in units of G. The base of
every ratio is the ordinary forward and backward pass over the same 64 sequences in one batch;
``plain in parts`` is the same in passes of 8, to tell what smaller passes alone are worth. Methods
run interleaved, one round after another; a ratio is the median over rounds of time / time of the
same round's base, with a bootstrap 90% interval. Peak memory is that of a fresh process per method,
above what it holds after its imports. ``--clock cpu`` takes the processor time of all threads: for
machines that others use as well. ``--allocator keep`` tells glibc to keep freed memory, which takes
the page faults of large buffers out of all methods alike.

Opacus (``pip install --no-deps opacus opt_einsum``: it would move torch) gets the same model with
Linear in place of Conv1D and an output layer of its own: it supports neither Conv1D nor tied
tensors. fastDP and jax_privacy are not run here: the one needs a
checkout, the other is for JAX models; their rows say so.

The key ``full_step`` stands for `benchmarks.full_step`: a whole private step beside its clipping
alone; ``--quick`` leaves it out unless it is named.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

from userdp.gradients import Units, causal_lm_loss, clipped_sum, trainable_parameters
from userdp.gradients.engines import get_engine

CLIP = 1.0
LENGTH, VOCABULARY = 128, 8192
Step = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model and group size."""

    key: str
    width: int
    layers: int
    group: int
    rank: int | None = None


SETTINGS = [
    Setting(key="full_g4", width=256, layers=4, group=4),
    Setting(key="full_g1", width=256, layers=4, group=1),
    Setting(key="lora_g4", width=256, layers=4, group=4, rank=8),
    Setting(key="lora_g1", width=256, layers=4, group=1, rank=8),
    Setting(key="full_d1024_g4", width=1024, layers=2, group=4),
    Setting(key="full_d1024_g1", width=1024, layers=2, group=1),
]
OURS = ["auto", "reference", "vmap"]
OTHERS = ["opacus per-sample", "opacus ghost"]
MISSING = {
    "fastDP": "needs a checkout and an untied model",
    "jax_privacy": "is for JAX models",
}


def build(setting: Setting, *, device: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=LENGTH,
            n_embd=setting.width,
            n_layer=setting.layers,
            n_head=setting.width // 64,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    if setting.rank is not None:
        import peft

        names = ["c_attn", "c_proj", "c_fc"]
        config = peft.LoraConfig(r=setting.rank, target_modules=names, fan_in_fan_out=True)
        model = peft.get_peft_model(model, config)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.02)
    return model.to(device).train()


def cohort(setting: Setting, sequences: int, device: str) -> Units:
    generator = torch.Generator().manual_seed(1)
    return Units(
        input_ids=torch.randint(0, VOCABULARY, (sequences, LENGTH), generator=generator).to(device),
        lengths=torch.full((sequences,), LENGTH).to(device),
        offsets=torch.arange(0, sequences + 1, setting.group),
    )


def plain(model: nn.Module, units: Units, *, rows: int) -> Step:
    parameters = list(trainable_parameters(model).values())
    count = len(units.lengths)

    def step() -> None:
        for p in parameters:
            p.grad = None
        for begin in range(0, count, rows):
            here = slice(begin, begin + rows)
            (
                causal_lm_loss(model, units.input_ids[here], units.lengths[here]).sum() / count
            ).backward()

    return step


def ours(model: nn.Module, units: Units, name: str) -> Step:
    engine = get_engine(name)
    micro_batch = len(units.lengths)
    return lambda: engine(model, causal_lm_loss, units, l2_clip_norm=CLIP, micro_batch=micro_batch)


def with_linear(model: nn.Module) -> nn.Module:
    """The same function without Conv1D and with an output layer of its own, for Opacus."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Conv1D):
                layer = nn.Linear(*child.weight.shape)
                layer.weight = nn.Parameter(child.weight.detach().T.contiguous())
                layer.bias = nn.Parameter(child.bias.detach().clone())
                setattr(parent, name, layer)
    head = model.get_submodule("lm_head")
    assert isinstance(head, nn.Linear)
    head.weight = nn.Parameter(head.weight.detach().clone())
    return model


class Contiguous(nn.Module):
    """Opacus flattens what an embedding is given with ``view``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, position_ids: Tensor, **options: Any) -> object:
        return self.model(
            input_ids=input_ids.contiguous(), position_ids=position_ids.contiguous(), **options
        )


def opacus_per_sample(model: nn.Module, units: Units, group: int) -> Step:
    from opacus.grad_sample import GradSampleModule

    wrapped = GradSampleModule(Contiguous(with_linear(model)), loss_reduction="sum")
    parameters = [p for p in wrapped.parameters() if p.requires_grad]

    def step() -> list[Tensor]:
        wrapped.zero_grad()
        causal_lm_loss(wrapped, units.input_ids, units.lengths).sum().backward()
        gradients = []
        for p in parameters:  # Opacus hangs `grad_sample` on parameters, unknown to their type
            each = p.grad_sample  # type: ignore[attr-defined]
            gradients.append(each.view(-1, group, *each.shape[1:]).mean(1) if group > 1 else each)
        norms = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
        factors = (CLIP / norms).clamp(max=1)
        found = [torch.einsum("u,u...->...", factors, g) for g in gradients]
        for p in parameters:
            p.grad_sample = None  # type: ignore[attr-defined]
        return found

    return step


def opacus_ghost(model: nn.Module, units: Units) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        Contiguous(with_linear(model)),
        max_grad_norm=CLIP,
        use_ghost_clipping=True,
        loss_reduction="sum",
    )

    def step() -> None:
        wrapped.zero_grad()
        losses = causal_lm_loss(wrapped, units.input_ids, units.lengths)
        losses.sum().backward(retain_graph=True)
        wrapped.zero_grad()
        factors = wrapped.get_clipping_coef()
        wrapped.disable_hooks()
        (factors * losses).sum().backward()
        wrapped.enable_hooks()

    return step


def make(method: str, setting: Setting, model: nn.Module, units: Units) -> Step:
    if method == "plain":
        return plain(model, units, rows=len(units.lengths))
    if method == "plain in parts":
        return plain(model, units, rows=8)
    if method == "opacus per-sample":
        return opacus_per_sample(model, units, setting.group)
    if method == "opacus ghost":
        return opacus_ghost(model, units)
    return ours(model, units, method)


def methods_of(setting: Setting, *, quick: bool) -> list[str]:
    if quick:
        return ["plain", "auto"] if setting.rank else ["plain", "auto", "opacus per-sample"]
    found = ["plain", "plain in parts", *OURS]
    if setting.rank is None and setting.width == 256:
        found += OTHERS[: 1 if setting.group > 1 else 2]
    return found


def clock(kind: str, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if kind == "cpu" else time.perf_counter()


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Median and its bootstrap 90% interval."""
    draws = np.random.default_rng(0).choice(ratios, size=(2000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.05, 0.95])
    return float(np.median(ratios)), float(low), float(high)


def exactness(model: nn.Module, units: Units) -> float:
    """Largest relative difference of a norm from the reference's in float64, over two units."""
    few = units.select(0, 2)
    wide = copy.deepcopy(model).double()
    exact = clipped_sum(wide, causal_lm_loss, few, l2_clip_norm=CLIP).norms
    found = get_engine("auto")(model, causal_lm_loss, few, l2_clip_norm=CLIP).norms
    return float(((found - exact) / exact).abs().max())


def measure(
    setting: Setting, methods: list[str], args: argparse.Namespace, deadline: float
) -> dict[str, Any]:
    model = build(setting, device=args.device)
    units = cohort(setting, args.sequences, args.device)
    skipped: dict[str, str] = {}
    steps: dict[str, Step] = {}
    for method in methods:
        if method.startswith("opacus") and util.find_spec("opacus") is None:
            skipped[method] = "opacus is not installed"
            continue
        steps[method] = make(method, setting, model, units)
    times: dict[str, list[float]] = {method: [] for method in steps}
    for round_ in range(args.runs + 1):
        for method, step in steps.items():
            begin = clock(args.clock, args.device)
            step()
            if round_:  # without the first, which warms up and checks the engine
                times[method].append(clock(args.clock, args.device) - begin)
        if args.verbose:
            line = {m: round(statistics.median(t), 3) for m, t in times.items() if t}
            print(setting.key, round_, line, file=sys.stderr, flush=True)
        if time.monotonic() > deadline and times["plain"]:
            break
    base = times["plain"]
    ratios = {
        method: interval([t / b for t, b in zip(found, base, strict=True)])
        for method, found in times.items()
    }
    return {
        "setting": setting.key,
        "rounds": len(base),
        "base_seconds": statistics.median(base),
        "ratios": ratios,
        "times": times,
        "exactness": None if args.quick else exactness(model, units),
        "skipped": skipped | MISSING,
    }


def peak_memory(setting: Setting, method: str, args: argparse.Namespace) -> float:
    """Bytes at the peak of one step in a fresh process, above its imports."""
    command = [sys.executable, "-m", "benchmarks.step", "--child", setting.key, method]
    command += ["--device", args.device, "--sequences", str(args.sequences)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(out.strip().splitlines()[-1])


def child(key: str, method: str, args: argparse.Namespace) -> None:
    setting = next(s for s in SETTINGS if s.key == key)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    step = make(
        method,
        setting,
        build(setting, device=args.device),
        cohort(setting, args.sequences, args.device),
    )
    step()
    if args.device == "cuda":
        print(torch.cuda.max_memory_allocated())
    else:
        print(memory("VmHWM") - before)


def memory(name: str) -> int:
    """Bytes of this process; `getrusage` would begin with the parent's peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def flat(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Keys that say what they are."""
    found: dict[str, Any] = {}
    for result in results:
        key = result["setting"]
        ratios = result["ratios"]
        middle, low, high = ratios["auto"]
        found[f"ratio_{key}"] = middle
        found[f"ratio_{key}_low"], found[f"ratio_{key}_high"] = low, high
        if "plain in parts" in ratios:
            found[f"ratio_{key}_to_plain_in_parts"] = middle / ratios["plain in parts"][0]
        for name in OTHERS:
            if name in ratios:
                label = name.replace(" ", "_").replace("-", "_")
                found[f"speedup_{label}_{key}"] = ratios[name][0] / middle
        if "memory" in result:
            base = result["memory"]["plain"]
            for method, size in result["memory"].items():
                found[f"peak_memory_{method.replace(' ', '_').replace('-', '_')}_{key}"] = (
                    size / base
                )
        if result["exactness"] is not None:
            found[f"norm_error_{key}"] = result["exactness"]
        found[f"rounds_{key}"] = result["rounds"]
    return found


def show(results: list[dict[str, Any]], whole: dict[str, Any], console: Console) -> None:
    table = Table("setting", "method", "ratio", "90% interval", "peak memory", box=None)
    for result in results:
        for method, (middle, low, high) in result["ratios"].items():
            memory = result.get("memory", {})
            share = f"{memory[method] / memory['plain']:.2f}" if method in memory else ""
            name = f"{result['setting']} ({result['rounds']} rounds)" if method == "plain" else ""
            table.add_row(name, method, f"{middle:.2f}", f"{low:.2f} to {high:.2f}", share)
    if results:
        console.print(table)
        for name, reason in results[0]["skipped"].items():
            console.print(f"{name} not run: {reason}")
    if whole:
        console.print(
            f"whole step / clipping alone: {whole['ratio_full_step']:.3f} "
            f"({whole['ratio_full_step_low']:.3f} to {whole['ratio_full_step_high']:.3f}, "
            f"{whole['rounds_full_step']} rounds)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end within 50 s on 2 cores")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="each round's medians on stderr")
    parser.add_argument("--runs", type=int, default=15, help="rounds after the warm-up")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3600, help="stop a setting after this")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--allocator", choices=["default", "keep"], default="default")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--only", nargs="*", default=None, help="keys of settings, or full_step")
    parser.add_argument("--methods", nargs="*", default=None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child, args)
        return
    if args.allocator == "keep" and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        size = str(1 << 40)
        keep = {"MALLOC_TRIM_THRESHOLD_": size, "MALLOC_MMAP_THRESHOLD_": size}
        command = [sys.executable, "-m", "benchmarks.step", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env={**os.environ, **keep}, check=False).returncode)
    settings = [s for s in SETTINGS if args.only is None or s.key in args.only]
    if args.quick:
        settings = [s for s in settings if s.width == 256]
        args.sequences, args.runs, args.seconds = (
            min(args.sequences, 16),
            8,
            16 / max(1, len(settings)),
        )
    whole: dict[str, Any] = {}
    if "full_step" in args.only if args.only is not None else not args.quick:
        from benchmarks import full_step

        seconds = 10 if args.quick else args.seconds
        whole = full_step.measure(args, time.monotonic() + seconds)
    results = []
    for setting in settings:
        methods = args.methods or methods_of(setting, quick=args.quick)
        result = measure(setting, methods, args, time.monotonic() + args.seconds)
        if not args.no_memory and not args.quick:
            result["memory"] = {
                method: peak_memory(setting, method, args)
                for method in methods
                if method not in result["skipped"]
            }
        results.append(result)
    if args.json:
        facts = {
            "device": args.device,
            "clock": args.clock,
            "allocator": args.allocator,
            "sequences": args.sequences,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        print(json.dumps({**flat(results), **whole, **facts}))
    show(results, whole, Console(stderr=args.json))


if __name__ == "__main__":
    main()
