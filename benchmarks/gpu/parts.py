"""The parts, their shares of the time, and the run that does those which are left."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
import transformers

from benchmarks.gpu.by_k import by_k
from benchmarks.gpu.commands import commands
from benchmarks.gpu.compiled import beside_compiled
from benchmarks.gpu.exactness import exact
from benchmarks.gpu.memory import memory
from benchmarks.gpu.noise import noise
from benchmarks.gpu.ratios import GROUPS, decoder, lora, sharded
from benchmarks.gpu.reads import reads
from benchmarks.gpu.report import markdown, write
from benchmarks.gpu.setting import GPT2_SIZES, Result, Setting
from benchmarks.gpu.training import trained
from benchmarks.gpu.tuning import forms, limits, products
from userdp.training.config import Precision

SCHEMA = "userdp.gpu/2"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part.

    Args:
        work: what does it, before a deadline.
        weight: its share of the time that is left, beside the others'.
        least: seconds without which it does not begin: what is left is for the next call.
    """

    work: Callable[[Setting, float], Result]
    weight: float
    least: float = 15


def all_parts() -> dict[str, Part]:
    """Exactness first: without it no time means anything."""
    found: dict[str, Part] = {}
    wide, narrow = Precision.FLOAT32, Precision.BFLOAT16
    for precision in (wide, narrow):
        found[f"exact_{precision}"] = Part(work=partial(exact, precision), weight=1, least=60)
    found["training"] = Part(work=trained, weight=1, least=60)
    found["commands"] = Part(work=commands, weight=2, least=60)
    for group in GROUPS:
        found[f"decoder_g{group}"] = Part(work=partial(decoder, group, wide), weight=2)
    for size in GPT2_SIZES:
        found[f"lora_{size}"] = Part(work=partial(lora, size, wide), weight=2)
    for fixed in ("users", "gradients"):
        found[f"k_{fixed}"] = Part(work=partial(by_k, fixed), weight=1)
    for what in ("batch", "model"):
        found[f"memory_{what}"] = Part(work=partial(memory, what), weight=3, least=60)
    for group in (1, 4):
        found[f"sharded_g{group}"] = Part(work=partial(sharded, group), weight=1)
    found["reads"] = Part(work=reads, weight=0.5)
    found["products"] = Part(work=products, weight=0.5)
    found["forms"] = Part(work=forms, weight=0.5)
    found["passes"] = Part(work=limits, weight=1, least=30)
    found["noise"] = Part(work=noise, weight=0.5)
    # One unit a pass: slow, where units are small.
    for group in GROUPS:
        found[f"decoder_g{group}_{narrow}"] = Part(work=partial(decoder, group, narrow), weight=1)
    for size in GPT2_SIZES:
        found[f"lora_{size}_{narrow}"] = Part(work=partial(lora, size, narrow), weight=1)
    # Compiling cannot be cut short, so that this may overrun its share: it comes last.
    found["compiled"] = Part(work=beside_compiled, weight=3, least=150)
    return found


def is_left(part: Result | None) -> bool:
    """Whether a part has yet to run: it never did, failed, or left rows out for want of time."""
    return part is None or "error" in part or bool(part.get("skipped"))


def run(
    setting: Setting,
    out: Path,
    *,
    limit: float,
    again: bool = False,
    only: Sequence[str] | None = None,
) -> Result:
    """Do the parts that ``out`` lacks; write it, and its tables, after each.

    Args:
        setting: where.
        out: the JSON document; the tables go beside it.
        limit: seconds for all parts together.
        again: forget what ``out`` holds.
        only: names of parts; None: all.
    """
    kept = {
        "schema": SCHEMA,
        "device": torch.cuda.get_device_name() if setting.on_gpu else setting.device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "float32_matmul": torch.get_float32_matmul_precision(),
        "tiny": setting.tiny,
        "memory_gib": setting.memory_gib,
    }
    document: Result = {**kept, "date": f"{datetime.now(UTC):%Y-%m-%d}", "parts": {}}
    if out.exists() and not again:
        found = json.loads(out.read_text())
        if {key: found.get(key) for key in kept} == kept:
            document = {**found, "date": document["date"]}
    done: Result = document["parts"]
    left = {
        name: part
        for name, part in all_parts().items()
        if (only is None or name in only) and is_left(done.get(name))
    }
    end = time.monotonic() + limit
    for place, (name, part) in enumerate(left.items()):
        remaining = end - time.monotonic()
        if remaining < (0 if setting.tiny else part.least):
            done.setdefault(name, {"error": "no time left: call again"})
            continue
        rest = sum(other.weight for other in list(left.values())[place:])
        begin = time.monotonic()
        try:
            result = part.work(setting, begin + remaining * part.weight / rest)
        except (RuntimeError, ImportError, ValueError) as error:  # the other parts still run
            result = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"}
        took = round(time.monotonic() - begin, 2)
        done[name] = {**result, "part_seconds": took, "date": document["date"]}
        save(document, out)
        if setting.on_gpu:  # hooks and graphs are cycles, and the memory parts want it all
            gc.collect()
            torch.cuda.empty_cache()
        print(f"{name}: {done[name]['part_seconds']} s", flush=True)
    save(document, out)
    return document


def save(document: Result, out: Path) -> None:
    write(out, json.dumps(document, indent=1) + "\n")
    write(out.with_suffix(".md"), markdown(document))
