"""Is every engine right on this device? Norms and sensitivity, on models in which all can be told.

Small models of four families (tied and untied), in float32 and with activations in bfloat16: the
largest relative error of a unit's norm against the reference engine, in float64 (float32; passed up
to 1e-5) or under the same autocast (bfloat16; passed up to 5e-2, since the activations themselves
round there); and by how much leaving one unit out moved the clipped sum, over C: it must not
exceed 1. The first family is also handed over under `torch.compile`, in which an engine must not
lose a gradient: there the sum itself is held against the plain model's, and its distance takes the
place of the largest move.
"""

from __future__ import annotations

import copy
import math
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn

from benchmarks.decoders import Shape, cohort, gpt2
from benchmarks.gpu.setting import Result, Setting, loss_of
from userdp.gradients import ENGINES, ClippedSum, Units, causal_lm_loss, get_engine
from userdp.gradients.clip_factors import squared_norm
from userdp.training.config import Precision

SMALL = Shape(layers=2, width=32, heads=4, vocabulary=96, length=24)
TOLERANCE = {Precision.FLOAT32: 1e-5, Precision.BFLOAT16: 5e-2}


def small_models(device: str) -> dict[str, nn.Module]:
    """Four families, tied and untied, with and without rotary positions."""
    rotary: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 32,
    }
    found = {"gpt2, tied": gpt2(SMALL)}
    torch.manual_seed(0)
    found["llama, untied"] = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**rotary, num_key_value_heads=2, tie_word_embeddings=False)
    )
    found["qwen2, tied"] = transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(**rotary, num_key_value_heads=2, tie_word_embeddings=True)
    )
    found["gpt-neox, untied"] = transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(**rotary)
    )
    return {family: model.to(device).eval() for family, model in found.items()}


def exact(precision: Precision, setting: Setting, deadline: float) -> Result:
    """Norm errors and largest moves of every engine on every small model."""
    rows: list[Result] = []
    for family, model in small_models(setting.device).items():
        if setting.tiny and not family.startswith("gpt2"):
            continue
        units = cohort(16, 4, SMALL, device=setting.device)
        loss = loss_of(precision, model)
        if precision is Precision.FLOAT32:
            wide = copy.deepcopy(model).double()
            oracle = get_engine("reference")(wide, causal_lm_loss, units, l2_clip_norm=1.0)
        else:
            oracle = get_engine("reference")(model, loss, units, l2_clip_norm=1.0)
        bound = float(oracle.norms.min()) / 2  # bites, so that the largest move is C
        for name in ENGINES:
            everybody = get_engine(name)(model, loss, units, l2_clip_norm=bound)
            moves = [
                apart(
                    everybody,
                    get_engine(name)(model, loss, without(units, k), l2_clip_norm=bound),
                )
                for k in range(1 if setting.tiny else len(units))
            ]
            error = float(((everybody.norms - oracle.norms) / oracle.norms).abs().max())
            most = max(moves) / bound
            rows.append(
                {
                    "model": family,
                    "engine": name,
                    "norm_error": error,
                    "largest_move": most,
                    "passed": error <= TOLERANCE[precision] and most <= 1,
                }
            )
        if family.startswith("gpt2") and not (setting.tiny and precision is Precision.BFLOAT16):
            rows.append(under_compile(model, precision, units, bound, setting))
    return {"rows": rows, "passed": all(row["passed"] for row in rows)}


def under_compile(
    model: nn.Module, precision: Precision, units: Units, bound: float, setting: Setting
) -> Result:
    """`auto` over the model under `torch.compile`, after it was compiled, beside the plain one."""
    wrapped = compiled(model, setting)
    loss = loss_of(precision, model)
    loss(wrapped, units.input_ids, units.lengths).sum().backward()
    ours = get_engine("auto")(wrapped, loss, units, l2_clip_norm=bound)
    plain = get_engine("auto")(model, loss, units, l2_clip_norm=bound)
    prefix = "_orig_mod."
    value = {name.removeprefix(prefix): part for name, part in ours.value.items()}
    gap = math.sqrt(squared_norm(value[n].double() - v for n, v in plain.value.items()))
    error = float(((ours.norms - plain.norms) / plain.norms).abs().max())
    close = TOLERANCE[precision]
    return {
        "model": "gpt2, tied, compiled",
        "engine": "auto",
        "norm_error": error,
        "largest_move": gap / bound,
        "passed": error <= close and gap <= close * bound * len(units),
    }


def compiled(model: nn.Module, setting: Setting) -> nn.Module:
    """Under `torch.compile`; on a CPU traced alone, since generating code takes minutes there."""
    backend = "inductor" if setting.on_gpu else "eager"
    return cast(nn.Module, torch.compile(model, backend=backend))  # typed as any callable


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
