"""What each process of `test_sharded` does."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from tests.gradients.campaign.families import build
from tests.gradients.tiny import ragged
from tests.training.toy import CONFIG
from userdp.gradients import Units, causal_lm_loss, clipped_sum, trainable_parameters
from userdp.gradients.engines import sharded
from userdp.gradients.shards import like, shard, whole
from userdp.training.causal_models import enable_checkpointing, new_model

CLIP = 0.5


def small_model() -> nn.Module:
    return new_model(replace(CONFIG, layers=2), vocab_size=32, seq_len=8).train()


def small_llama(layers: int) -> nn.Module:
    """Untied, with norms that multiply by vectors in Python, and shared keys and values."""
    shape = {"vocab_size": 32, "num_hidden_layers": layers, "max_position_embeddings": 8}
    return build("llama", **shape)


ROWS = ragged([1, 3, 2, 1, 4, 2], seed=1, longest=8, vocabulary=31)
ROWS[2] = [[7, 7, 7]] * 2  # whose loss is not finite


def some_units(numbers: Iterable[int] = range(len(ROWS))) -> Units:
    """Some of the units, as wide as all of them."""
    return Units.from_rows([ROWS[number] for number in numbers], width=8)


def poisoned(model: nn.Module, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The usual loss, but that three tokens 7 at its beginning make a row infinite.

    Made-up rows are full of a vocabulary's ends, and would be infinite too if one of these did.
    """
    losses = causal_lm_loss(model, input_ids, lengths)
    return losses * torch.where((input_ids[:, :3] == 7).all(1), torch.inf, 1.0)


def compares(checkpointing: bool, family: str = "gpt2") -> dict:
    """The sharded engine beside the reference, with a unit that is not finite, in one world."""
    model = small_model() if family == "gpt2" else small_llama(2 * (family == "llama"))
    units, bad = some_units(), 2
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
    found = sharded.clipped_sum(model, poisoned, some_units(mine), l2_clip_norm=CLIP, micro_batch=3)
    # In the order of the names, whatever wrappers call them.
    held = dict(zip(names, trainable_parameters(model).values(), strict=True))
    value = {name: whole(like(p, found.value[name])) for name, p in held.items()}
    return {
        "mine": mine,
        "norms": found.norms,
        "non_finite": found.non_finite,
        "bad": bad in mine,
        "oracle_norms": oracle.norms[mine],
        "apart": max(float((value[n] - oracle.value[n]).abs().max()) for n in names),
        "size": max(float(v.abs().max()) for v in oracle.value.values()),
        "grads": [name for name, p in held.items() if p.grad is not None],
    }
