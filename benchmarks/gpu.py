"""Everything that wants a GPU, in one command of at most 8 minutes.

    python -m benchmarks.gpu --out docs/results/gpu.json [--seconds 450] [--again]
    python -m benchmarks.gpu --out gpu.json --device cpu --tiny      # the same code, in seconds

Needs torch, transformers, numpy and, for the LoRA parts, peft. Parts:

``exact_float32``, ``exact_bfloat16``  Every engine on small models of four families (tied and
    untied), in float32 and with activations in bfloat16: the largest relative error of a unit's
    norm against the reference engine, in float64 (float32; passed up to 1e-5) or under the same
    autocast (bfloat16; passed up to 5e-2, since the activations themselves round there); and by how
    much leaving one unit out moved the clipped sum, over C: it must not exceed 1.
``decoder_g1`` ... ``decoder_g64``  The 350 M decoder of Charles et al. 2024 (24 layers, d = 1024,
    vocabulary 50,257, T = 128), 128 sequences in units of G, in both precisions.
``lora_gpt2``, ``lora_gpt2-medium``, ``lora_gpt2-large``  LoRA of rank 32 on GPT-2 sizes, 1024
    sequences of 128 tokens in passes, as in Chua et al. 2024, Table 12; units of 1 and 4.
``sharded_g1``, ``sharded_g4``  The decoder taken apart by FSDP2, over one process: the
    two-pass engine beside the ordinary pass over the same sharded model.
``noise``  A noise source over 350 M numbers.

A ratio is the median over interleaved rounds of a method's time over that of the ordinary forward
and backward pass over the same sequences in passes of the same size. Peak memory is the device
allocator's, above what the model holds. Weights are random: no download. Each part has a share of
the time, and its result is written as it comes; a second call does what is left or failed.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from userdp.gradients import (
    ENGINES,
    ClippedSum,
    Loss,
    NoiseSource,
    Units,
    causal_lm_loss,
    get_engine,
    trainable_parameters,
)
from userdp.gradients.clipping import squared_norm
from userdp.gradients.engines import two_pass
from userdp.gradients.shards import shard
from userdp.training.config import Precision, TrainConfig
from userdp.training.lora import add_adapters
from userdp.training.losses import build_loss

SCHEMA = "userdp.gpu/1"
GPT2_SIZES = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-large": (36, 1280, 20)}
GROUPS = (1, 4, 16, 64)
BY_COST = (Precision.BFLOAT16, Precision.FLOAT32)
Result = dict[str, Any]


def gpt2(*, layers: int, width: int, heads: int, vocabulary: int, length: int) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=vocabulary,
        n_positions=length,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def small_models() -> dict[str, nn.Module]:
    """Four families, tied and untied, with and without rotary positions."""
    torch.manual_seed(0)
    rotary: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 32,
    }
    return {
        "gpt2, tied": gpt2(layers=2, width=32, heads=4, vocabulary=96, length=32),
        "llama, untied": transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**rotary, num_key_value_heads=2, tie_word_embeddings=False)
        ),
        "qwen2, tied": transformers.Qwen2ForCausalLM(
            transformers.Qwen2Config(**rotary, num_key_value_heads=2, tie_word_embeddings=True)
        ),
        "gpt-neox, untied": transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**rotary)),
    }


def cohort(sequences: int, group: int, *, length: int, vocabulary: int, device: str) -> Units:
    generator = torch.Generator().manual_seed(1)
    return Units(
        input_ids=torch.randint(vocabulary, (sequences, length), generator=generator),
        lengths=torch.full((sequences,), length),
        offsets=torch.arange(0, sequences + 1, group),
    ).to(device)


def loss_of(precision: Precision, model: nn.Module) -> Loss:
    return build_loss(TrainConfig(precision=precision), model)


# Exactness


def exact(precision: Precision, args: argparse.Namespace, deadline: float) -> Result:
    """Norm errors and largest moves of every engine on every small model."""
    rows: list[Result] = []
    for family, model in small_models().items():
        if args.tiny and not family.startswith("gpt2"):
            continue
        model = model.to(args.device).eval()
        units = cohort(16, 4, length=24, vocabulary=96, device=args.device)
        loss = loss_of(precision, model)
        reference = get_engine("reference")
        if precision is Precision.FLOAT32:
            wide = copy.deepcopy(model).double()
            norms = reference(wide, causal_lm_loss, units, l2_clip_norm=1.0).norms
        else:
            norms = reference(model, loss, units, l2_clip_norm=1.0).norms
        bound = float(norms.min()) / 2  # bites, so that the largest move is C up to the margin
        for name in ENGINES:
            everybody = get_engine(name)(model, loss, units, l2_clip_norm=bound)
            moves = [
                apart(
                    everybody,
                    get_engine(name)(model, loss, without(units, k), l2_clip_norm=bound),
                )
                for k in range(1 if args.tiny else len(units))
            ]
            error = float(((everybody.norms - norms) / norms).abs().max())
            most = max(moves) / bound
            tolerance = 1e-5 if precision is Precision.FLOAT32 else 5e-2
            rows.append(
                {
                    "model": family,
                    "engine": name,
                    "norm_error": error,
                    "largest_move": most,
                    "passed": error <= tolerance and most <= 1,
                }
            )
    return {"rows": rows, "passed": all(row["passed"] for row in rows)}


def without(units: Units, out: int) -> Units:
    keep = torch.ones(len(units.lengths), dtype=torch.bool)
    keep[int(units.offsets[out]) : int(units.offsets[out + 1])] = False
    sizes = units.offsets.diff()
    sizes = torch.cat([sizes[:out], sizes[out + 1 :]])
    rows = keep.to(units.lengths.device)
    return Units(
        input_ids=units.input_ids[rows],
        lengths=units.lengths[rows],
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
    )


def apart(one: ClippedSum, other: ClippedSum) -> float:
    differences: list[Tensor] = [one.value[n].double() - v for n, v in other.value.items()]
    return math.sqrt(squared_norm(differences))


# Time and memory


def plain(model: nn.Module, loss: Loss, units: Units, micro_batch: int) -> None:
    parameters = list(trainable_parameters(model).values())
    count = len(units.lengths)
    for parameter in parameters:
        parameter.grad = None
    for begin in range(0, count, micro_batch):
        here = slice(begin, begin + micro_batch)
        (loss(model, units.input_ids[here], units.lengths[here]).sum() / count).backward()


def compare(
    model: nn.Module,
    precision: Precision,
    units: Units,
    engines: list[str],
    args: argparse.Namespace,
    deadline: float,
    *,
    micro_batch: int,
) -> Result:
    """Median seconds, ratios to plain and peak memory of ``engines``, interleaved."""
    loss = loss_of(precision, model)

    def clipping(name: str) -> Callable[[], object]:
        engine = two_pass.clipped_sum if name == "two-pass" else get_engine(name)
        return lambda: engine(model, loss, units, l2_clip_norm=1.0, micro_batch=micro_batch)

    steps: dict[str, Callable[[], object]] = {
        "plain": lambda: plain(model, loss, units, micro_batch),
        **{name: clipping(name) for name in engines},
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    memory: dict[str, int] = {}
    for round_ in range((1 if args.tiny else 7) + 1):
        for name, step in steps.items():
            for parameter in model.parameters():
                parameter.grad = None
            if args.device == "cuda":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
            begin = time.perf_counter()
            step()
            if args.device == "cuda":
                torch.cuda.synchronize()
                memory[name] = torch.cuda.max_memory_allocated() - held
            if round_:  # the first warms up and checks the engine
                times[name].append(time.perf_counter() - begin)
        if round_ and time.monotonic() > deadline:
            break
    ratios = {
        name: [t / b for t, b in zip(found, times["plain"], strict=True)]
        for name, found in times.items()
    }
    return {
        "precision": str(precision),
        "group_size": int(units.offsets[1]),
        "sequences": len(units.lengths),
        "micro_batch": micro_batch,
        "rounds": len(times["plain"]),
        "seconds": {name: statistics.median(found) for name, found in times.items()},
        "ratio": {name: statistics.median(found) for name, found in ratios.items()},
        "ratio_least": {name: min(found) for name, found in ratios.items()},
        "ratio_most": {name: max(found) for name, found in ratios.items()},
        "peak_memory_bytes": memory,
    }


def decoder(group: int, args: argparse.Namespace, deadline: float) -> Result:
    layers, width, vocabulary, length, sequences = 24, 1024, 50257, 128, 128
    if args.tiny:
        layers, width, vocabulary, length = 2, 32, 96, 16
    heads = max(2, width // 64)
    model = gpt2(layers=layers, width=width, heads=heads, vocabulary=vocabulary, length=length)
    model = model.to(args.device).train()
    units = cohort(sequences, group, length=length, vocabulary=vocabulary, device=args.device)
    rows = []
    share = (deadline - time.monotonic()) / 2
    skipped = []
    for precision in BY_COST:
        if rows and time.monotonic() > deadline:
            skipped.append(str(precision))
            continue
        until = time.monotonic() + share
        engines = ["auto", "reference"] if group > 1 else ["auto"]
        rows.append(compare(model, precision, units, engines, args, until, micro_batch=64))
    count = sum(p.numel() for p in model.parameters())
    return {"parameters": count, "rows": rows, "skipped": skipped}


def sharded(group: int, args: argparse.Namespace, deadline: float) -> Result:
    layers, width, vocabulary, length, sequences = 24, 1024, 50257, 128, 128
    if args.tiny:
        layers, width, vocabulary, length = 2, 32, 96, 16
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "nccl" if args.device == "cuda" else "gloo",
            init_method=f"file://{folder}/meet",
            rank=0,
            world_size=1,
        )
        try:
            heads = max(2, width // 64)
            model = gpt2(
                layers=layers, width=width, heads=heads, vocabulary=vocabulary, length=length
            )
            model = shard(model.to(args.device).train())
            units = cohort(
                sequences, group, length=length, vocabulary=vocabulary, device=args.device
            )
            precision = BY_COST[0]
            row = compare(model, precision, units, ["two-pass"], args, deadline, micro_batch=64)
        finally:
            torch.distributed.destroy_process_group()
    return {"rows": [row]}


def lora(size: str, args: argparse.Namespace, deadline: float) -> Result:
    layers, width, heads = GPT2_SIZES[size]
    vocabulary, length, sequences, micro_batch = 50257, 128, 1024, 64
    if args.tiny:
        layers, width, heads, vocabulary, length, sequences = 1, 32, 2, 96, 16, 16
    base = gpt2(layers=layers, width=width, heads=heads, vocabulary=vocabulary, length=length)
    model = add_adapters(base, TrainConfig(lora_rank=4 if args.tiny else 32))
    with torch.no_grad():  # adapters are born as zeros, which leaves half of them no gradient
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    model = model.to(args.device).train()
    rows = []
    share = (deadline - time.monotonic()) / 4
    skipped = []
    for precision in BY_COST:
        for group in (1, 4):
            if rows and time.monotonic() > deadline:
                skipped.append(f"{precision}, G = {group}")
                continue
            until = time.monotonic() + share
            units = cohort(
                sequences, group, length=length, vocabulary=vocabulary, device=args.device
            )
            rows.append(
                compare(model, precision, units, ["auto"], args, until, micro_batch=micro_batch)
            )
    trained = sum(p.numel() for p in trainable_parameters(model).values())
    return {"trained_parameters": trained, "rows": rows, "skipped": skipped}


def noise(args: argparse.Namespace, deadline: float) -> Result:
    count = 10**5 if args.tiny else 350 * 10**6
    value = {"w": torch.zeros(count, dtype=torch.float64, device=args.device)}
    source = NoiseSource()
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        source.add_(value, 1.0)
        if args.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return {"numbers": count, "seconds": statistics.median(seconds)}


# The run


def parts(args: argparse.Namespace) -> dict[str, tuple[float, Callable[[float], Result]]]:
    """Each part: its weight in the time that is left, and what does it before a deadline."""
    found: dict[str, tuple[float, Callable[[float], Result]]] = {}
    for precision in (Precision.FLOAT32, Precision.BFLOAT16):
        found[f"exact_{precision}"] = (1, partial(exact, precision, args))
    for group in GROUPS:
        found[f"decoder_g{group}"] = (2, partial(decoder, group, args))
    for size in GPT2_SIZES:
        found[f"lora_{size}"] = (2, partial(lora, size, args))
    for group in (1, 4):
        found[f"sharded_g{group}"] = (2, partial(sharded, group, args))
    found["noise"] = (0.5, partial(noise, args))
    return found


def run(args: argparse.Namespace) -> Result:
    """Do the parts that ``args.out`` lacks; write it, and its table, after each."""
    setup = {
        "schema": SCHEMA,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else args.device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "float32_matmul": torch.get_float32_matmul_precision(),
        "tiny": args.tiny,
    }
    document: Result = {**setup, "parts": {}}
    if args.out.exists() and not args.again:
        kept = json.loads(args.out.read_text())
        if {key: kept.get(key) for key in setup} == setup:
            document = kept
    wanted = parts(args)
    end = time.monotonic() + args.seconds
    for place, (name, (weight, work)) in enumerate(wanted.items()):
        if "error" not in document["parts"].get(name, {"error": "not run"}):
            continue
        left = end - time.monotonic()
        # No part begins that could not warm up: what is left is for the next call.
        if left < (0 if args.tiny else 15):
            document["parts"].setdefault(name, {"error": "no time left: call again"})
            continue
        rest = sum(w for w, _ in list(wanted.values())[place:])
        begin = time.monotonic()
        try:
            result = work(begin + left * weight / rest)
        except (RuntimeError, ImportError, ValueError) as error:  # the other parts still run
            result = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"}
        document["parts"][name] = {**result, "part_seconds": round(time.monotonic() - begin, 2)}
        write(args.out, json.dumps(document, indent=1) + "\n")
        write(args.out.with_suffix(".md"), markdown(document))
        if args.device == "cuda":
            torch.cuda.empty_cache()
        print(f"{name}: {document['parts'][name]['part_seconds']} s", flush=True)
    write(args.out, json.dumps(document, indent=1) + "\n")
    write(args.out.with_suffix(".md"), markdown(document))
    return document


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


def markdown(document: Result) -> str:
    """The document as tables."""
    lines = [f"# On {document['device']}, torch {document['torch']}", ""]
    if document["tiny"]:
        lines += ["Tiny models: this shows that the code runs, and no time.", ""]
    lines += [
        "| part | model | engine | norm error | largest move / C | |",
        "|---|---|---|---|---|---|",
    ]
    for name, part in document["parts"].items():
        for row in part.get("rows", []) if name.startswith("exact") else []:
            lines.append(
                f"| {name} | {row['model']} | {row['engine']} | {row['norm_error']:.1e} | "
                f"{row['largest_move']:.5f} | {'passed' if row['passed'] else 'FAILED'} |"
            )
    lines += [
        "",
        "| part | precision | G | engine | seconds | ratio to plain | peak memory | rounds |",
    ]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for name, part in document["parts"].items():
        for row in part.get("rows", []) if not name.startswith("exact") else []:
            memory = row["peak_memory_bytes"]
            for engine, seconds in row["seconds"].items():
                peak = f"{memory[engine] / 2**30:.2f} GiB" if engine in memory else "–"
                lines.append(
                    f"| {name} | {row['precision']} | {row['group_size']} | {engine} | "
                    f"{seconds:.4f} | {row['ratio'][engine]:.3f} "
                    f"[{row['ratio_least'][engine]:.3f}, {row['ratio_most'][engine]:.3f}] | "
                    f"{peak} | {row['rounds']} |"
                )
    lines.append("")
    if "seconds" in (found := document["parts"].get("noise", {})):
        lines += [f"Noise over {found['numbers']:,} numbers: {found['seconds']:.3f} s.", ""]
    for name, part in document["parts"].items():
        if part.get("skipped"):
            lines += [f"{name}: no time left for {'; '.join(part['skipped'])}.", ""]
        if "error" in part:
            lines += [f"{name} did not run: {part['error']}", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON; a table goes beside it")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="tiny models: only runs the code")
    parser.add_argument("--seconds", type=float, default=450)
    parser.add_argument("--again", action="store_true", help="forget what the file holds")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; --device cpu --tiny runs the same code")
    document = run(args)
    failed = [n for n, part in document["parts"].items() if part.get("passed") is False]
    raise SystemExit(f"not exact: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
