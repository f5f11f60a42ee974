"""Modules of one's own, as tutorials and notebooks have them."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

from tests.training.ordinary.script import (
    ALONE,
    BATCHES,
    HEADS,
    LONGEST,
    WIDTH,
    Language,
    Script,
    bodies,
    next_tokens,
    script,
)


@script(BATCHES)
def a_table_of_bigrams(vocabulary):
    return Script(model=nn.Embedding(vocabulary, vocabulary), loss=next_tokens)


class Encoder(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, dim_feedforward=32, dropout=dropout, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.layers(x, mask=mask, is_causal=True)


class MinGPT(nn.Module):
    """A block with a mask in a buffer, attention by hand, and dropout."""

    def __init__(self, dropout=0.1):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
        self.register_buffer("mask", torch.tril(torch.ones(LONGEST, LONGEST))[None, None])

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (
            part.view(rows, length, HEADS, width // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm(x)).split(width, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        y = self.dropout(F.softmax(scores, dim=-1)) @ v
        y = y.transpose(1, 2).contiguous().view(rows, length, width)
        x = x + self.dropout(self.out(y))
        return x + self.mlp(self.norm2(x))


class Rotary(MinGPT):
    """Places by turning pairs of numbers; the table is kept in an attribute once it is made."""

    def __init__(self):
        super().__init__()
        self.table = {}

    def forward(self, x):
        length = x.shape[1]
        if length not in self.table:
            angles = torch.arange(length)[:, None] / torch.arange(1, 1 + WIDTH // 2)
            self.table[length] = angles.cos(), angles.sin()
        (cos, sin), (a, b) = self.table[length], x.chunk(2, dim=-1)
        return super().forward(torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1))


@functools.lru_cache(maxsize=32)
def cached_mask(length):
    return torch.full((length, length), float("-inf")).triu(1)


class Masked(MinGPT):
    def forward(self, x):
        scores = self.norm(x) @ x.transpose(1, 2) + cached_mask(x.shape[1])
        return x + self.out(F.softmax(scores, dim=-1) @ x)


class Counts(MinGPT):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class StochasticDepth(MinGPT):
    """The whole layer is left out, by one coin for all rows."""

    def forward(self, x):
        return x if self.training and torch.rand(()) < 0.3 else super().forward(x)


class Checkpointed(MinGPT):
    reentrant = False

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=self.reentrant)


class CheckpointedWithReentrance(Checkpointed):
    reentrant = True


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells = kind(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.cells(x)[0]


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Conv1d(WIDTH, WIDTH, 3)

    def forward(self, x):
        return self.filter(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2).relu()


@script(BATCHES)
def weights_tied_by_hand(vocabulary):
    model = Language(vocabulary, MinGPT(0.0))
    model.head.weight = model.tokens.weight
    return Script(model=model, loss=next_tokens)


class Normed(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        rows, length, width = x.shape
        return self.norm(x.reshape(rows * length, width)).relu().view(x.shape)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(WIDTH))
        self.table = nn.Parameter(torch.randn(LONGEST, WIDTH))

    def forward(self, x):
        return x * (1 + self.scale) + self.table[: x.shape[1]]


bodies(
    BATCHES,
    nn_TransformerEncoder=Encoder,
    minGPT_with_dropout=lambda: nn.Sequential(MinGPT(), MinGPT()),
    rotary_table_kept_in_an_attribute=Rotary,
    a_mask_cached_by_lru_cache=Masked,
    a_module_that_counts_its_calls=Counts,
    checkpointing=Checkpointed,
    causal_convolutions=lambda: nn.Sequential(Convolved(), Convolved()),
    weight_norm=lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    positions_made_of_parameters=Scaled,
)
bodies(
    ALONE,
    nn_LSTM=lambda: Recurrent(nn.LSTM),
    nn_GRU=lambda: Recurrent(nn.GRU),
    stochastic_depth=StochasticDepth,
    group_norm=lambda: Normed(nn.GroupNorm(2, WIDTH)),
)
bodies("use_reentrant", checkpointing_with_reentrance=CheckpointedWithReentrance)
bodies("batch", nn_BatchNorm=lambda: Normed(nn.BatchNorm1d(WIDTH)))


@script(BATCHES)
def torch_compile(vocabulary):
    return Script(model=torch.compile(Language(vocabulary, MinGPT(0.0))), loss=next_tokens)


@script(BATCHES)
def half_of_the_layers_frozen(vocabulary):
    model = Language(vocabulary, nn.Sequential(MinGPT(), MinGPT()))
    model.tokens.requires_grad_(False)
    model.body[0].requires_grad_(False)
    return Script(model=model, loss=next_tokens, optimizer=lambda m: AdamW(m.parameters(), lr=1e-3))
