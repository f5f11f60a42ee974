"""What the processes of `test_sharded` do; also what makes them wrong on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from tests.gradients.campaign.masks import Masks
from tests.training.toy import CONFIG
from userdp.core.errors import FailureError, UseError
from userdp.gradients import (
    Units,
    causal_lm_loss,
    clipped_sum,
    trainable_parameters,
)
from userdp.gradients.engines import sharded
from userdp.gradients.engines.following import Comparing
from userdp.gradients.shards import is_sharded, like, shard, whole
from userdp.training.models import enable_checkpointing, new_model

CLIP = 0.5


def some_of(units: Units, kept: Sequence[int]) -> Units:
    """Some of the units, as wide as all of them."""
    counts = units.offsets.diff()
    rows = torch.isin(torch.arange(len(units)), torch.tensor(kept)).repeat_interleave(counts)
    return Units(
        input_ids=units.input_ids[rows],
        lengths=units.lengths[rows],
        offsets=torch.tensor([0, *counts[list(kept)].tolist()]).cumsum(0),
        targets=None if units.targets is None else units.targets[rows],
    )


def small_model(dropout: float = 0.0) -> nn.Module:
    config = replace(CONFIG, layers=2, dropout=dropout)
    return new_model(config, vocab_size=32, seq_len=8).train()


def small_llama(layers: int = 2) -> nn.Module:
    """Untied, with norms that multiply by vectors in Python, and shared keys and values."""
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(shape)
    return model.train()


def random_units() -> Units:
    draw = np.random.default_rng(1)
    sizes = [1, 3, 2, 1, 4, 2]
    return Units.from_rows(
        [
            [draw.integers(31, size=draw.integers(2, 9)).tolist() for _ in range(size)]
            for size in sizes[:2]
        ]
        + [[[7, 7, 7]] * sizes[2]]
        + [
            [draw.integers(31, size=draw.integers(2, 9)).tolist() for _ in range(size)]
            for size in sizes[3:]
        ]
    )


def poisoned(model: nn.Module, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The usual loss, but that three tokens 7 at its beginning make a row infinite.

    Made-up rows are full of a vocabulary's ends, and would be infinite too if one of these did.
    """
    losses = causal_lm_loss(model, input_ids, lengths)
    return losses * torch.where((input_ids[:, :3] == 7).all(1), torch.inf, 1.0)


def named(model: nn.Module, names: list[str]) -> list[tuple[str, nn.Parameter]]:
    """The parameters in the order of ``names``, whatever wrappers call them."""
    return list(zip(names, trainable_parameters(model).values(), strict=True))


def compares(checkpointing: bool, family: str = "gpt2") -> dict:
    """The sharded engine beside the reference, with a unit that is not finite, in one world."""
    model = small_model() if family == "gpt2" else small_llama(layers=2 * (family == "llama"))
    units, bad = random_units(), 2
    if checkpointing:
        enable_checkpointing(model)
    apart = deepcopy(model)  # else what is asked of a model once would be known of it
    oracle = clipped_sum(apart, poisoned, units, l2_clip_norm=CLIP * (1 - 1e-3))
    names = list(oracle.value)
    shard(model)
    with torch.no_grad():  # leaves what no list of layers holds gathered, as an evaluation does
        model(units.input_ids[:1])
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = [unit for unit in range(len(units)) if unit % size == rank]
    part = some_of(units, mine)
    found = sharded.clipped_sum(model, poisoned, part, l2_clip_norm=CLIP, micro_batch=3)
    value = {name: whole(like(p, found.value[name])) for name, p in named(model, names)}
    return {
        "mine": mine,
        "norms": found.norms,
        "non_finite": found.non_finite,
        "bad": bad in mine,
        "oracle_norms": oracle.norms[mine],
        "apart": max(float((value[n] - oracle.value[n]).abs().max()) for n in names),
        "size": max(float(v.abs().max()) for v in oracle.value.values()),
        "grads": [name for name, p in named(model, names) if p.grad is not None],
    }


def narrow() -> dict:
    """The sharded engine over a layer that computes in bfloat16."""
    model, units = small_model(), random_units()
    block = model.transformer.h[0].mlp
    forward = block.forward

    def in_bfloat16(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return forward(x).float()

    block.forward = in_bfloat16
    try:
        sharded.clipped_sum(shard(model), causal_lm_loss, units, l2_clip_norm=CLIP)
    except UseError as error:
        return {"refused": str(error)}
    return {"refused": ""}


def refusals() -> dict[str, str]:
    """What a sharded model refuses, in words."""
    units = random_units()
    found = {}

    def refused(name: str, model: nn.Module, **options) -> None:
        try:
            sharded.clipped_sum(model, causal_lm_loss, units, l2_clip_norm=CLIP, **options)
        except (UseError, FailureError) as error:
            found[name] = f"{type(error).__name__}: {error}"
        if not all(map(is_sharded, model.parameters())):
            found["gathered"] += f" {name}"

    found["gathered"] = ""
    refused("items", shard(small_model()), item_clip_norm=1.0)
    coin = small_model()
    coin.transformer.ln_f.register_forward_hook(lambda module, inputs, out: out * torch.rand([]))
    refused("coin", shard(coin))
    twice = small_model()
    twice.transformer.h[0].ln_2 = twice.transformer.h[0].ln_1  # shared: known, and covered
    again = small_model()
    forward = again.transformer.ln_f.forward
    again.transformer.ln_f.forward = lambda x: forward(forward(x))
    refused("twice", shard(again))
    scaled = small_model()
    scaled.transformer.ln_f.register_forward_hook(
        lambda module, inputs, out: out * module.bias.sum()
    )
    refused("no rule", shard(scaled))
    sharded.clipped_sum(shard(twice), causal_lm_loss, units, l2_clip_norm=CLIP)
    honest = sharded.NormTape.squares_by_name
    sharded.NormTape.squares_by_name = lambda tape: {n: s / 4 for n, s in honest(tape).items()}
    refused("half norms", shard(small_model()))
    sharded.NormTape.squares_by_name = honest
    return found


def dropout_moves(broken: bool) -> tuple[list[float], float]:
    """The sharded engine under dropout: ‖S(D) - S(D∖u)‖/C under D's masks, for each u; and rows.

    ``broken``: the second pass draws new masks. A unit that is not finite is among them.
    """
    units, rank, size = one_token_each(), dist.get_rank(), dist.get_world_size()
    model = shard(small_model(dropout=0.5))
    torch.manual_seed(4 + rank)
    clip = 0.02

    def summed(kept: list[int]) -> torch.Tensor:
        mine = [unit for unit in kept if unit % size == rank]
        part = some_of(units, mine)
        found = sharded.clipped_sum(model, poisoned, part, l2_clip_norm=clip, micro_batch=4)
        parts = zip(trainable_parameters(model).values(), found.value.values(), strict=True)
        return torch.cat([whole(like(p, value)).flatten() for p, value in parts])

    everybody = list(range(len(units)))
    summed(everybody)
    if broken:  # after the check on made-up rows, which would have caught it
        sharded.NormTape = Forgetful
    with Masks(32) as masks:
        total = summed(everybody)
    moves = []
    for unit in everybody:
        with Masks(32, masks.noted):
            without = summed([other for other in everybody if other != unit])
        moves.append(float((total - without).norm()) / clip)
    return moves, float(total.norm())


class Forgetful(sharded.NormTape):
    """Adds what another pass over the same rows says, which draws masks of its own."""

    def __init__(self, task, shape, workspace, follow, *, form=None):
        super().__init__(task, shape, workspace, follow, form=form)
        self.shape = shape

    def run(self, units):
        self.units = units
        return super().run(units)

    def add_to(self, total, factors):
        with _disable_current_modes():  # unseen by the recorder
            torch.rand(1)  # the states of the first pass are gone
        follow = partial(Comparing, known=self.calls._known)
        other = Honest(self._task, self.shape, self.workspace, follow, form=self._form)
        other.run(self.units)
        other._bad = self._bad
        other.add_to(total, factors)


Honest = sharded.NormTape


def one_token_each() -> Units:
    """Units of one to three rows, each with a first token of its own; the third is bad."""
    draw = np.random.default_rng(1)
    first = iter(range(1, 31))
    sizes = [1, 3, 1, 2, 1, 2, 2]
    rows = [
        [[next(first), *draw.integers(1, 31, size=draw.integers(1, 7)).tolist()] for _ in range(n)]
        for n in sizes
    ]
    rows[2] = [[7, 7, 7]]
    return Units.from_rows(rows)


class NearTheEnd(nn.Module):
    """What passes backwards falls to 2^-115 and is raised again to 2^10."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(32, 4), nn.Linear(4, 4)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.linear(self.table(input_ids)) * 2.0**125 * 2.0**-115


def all_outputs(model: nn.Module, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    counted = torch.arange(input_ids.shape[1]) < lengths[:, None]
    return (model(input_ids).sum(2) * counted).sum(1)


def near_the_end(broken: bool) -> list[float]:
    """How long a unit alone is in the sum, in C, at clip norms that move its factor.

    ``broken``: the factors are in the losses.
    """
    torch.manual_seed(0)
    plain = NearTheEnd()
    units = Units.from_rows([[[1, 2, 3, 4]]])
    all_outputs(plain, units.input_ids, units.lengths).sum().backward()
    norm = float(torch.cat([p.grad.flatten() for p in plain.parameters()]).norm())
    plain.zero_grad(set_to_none=True)
    model = shard(plain)
    sharded.clipped_sum(model, all_outputs, units, l2_clip_norm=1.0)
    if broken:
        sharded.NormTape.add_to = _in_the_losses(sharded.NormTape.add_to)
    found = []
    for part in np.linspace(0.5, 4, 15):
        clip = part * 2.0**-34 * norm
        total = sharded.clipped_sum(model, all_outputs, units, l2_clip_norm=clip).value
        found.append(float(torch.cat([whole(v).flatten() for v in total.values()]).norm()) / clip)
    return found


def _in_the_losses(honest):
    def add_to(tape, total, factors):
        factor = next(iter(factors.values())).float().max()  # of the one unit
        tape._total = tape._total * factor
        honest(tape, total, {name: torch.ones_like(one) for name, one in factors.items()})

    return add_to


def lone_row() -> tuple[float, float]:
    """Norm and length in the sum of a unit of one row, alone in its pass, with checkpointing."""
    model, units = small_model(), Units.from_rows([[[1, 2, 3]]])
    enable_checkpointing(model)
    found = sharded.clipped_sum(
        shard(model), causal_lm_loss, units, l2_clip_norm=CLIP, micro_batch=1
    )
    parts = zip(trainable_parameters(model).values(), found.value.values(), strict=True)
    whole_sum = torch.cat([whole(like(p, value)).flatten() for p, value in parts])
    return float(found.norms[0]), float(whole_sum.norm())


def without_a_gradient() -> str:
    """What is said of a loss whose gradient is zero."""

    def loss(model: nn.Module, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return causal_lm_loss(model, input_ids, lengths) * 0.0

    units = Units.from_rows([[[1, 2, 3]]])
    try:
        sharded.clipped_sum(shard(small_model()), loss, units, l2_clip_norm=CLIP)
    except UseError as error:
        return str(error)
    return ""
