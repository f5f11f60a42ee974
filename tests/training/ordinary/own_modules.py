"""Modules of one's own, as tutorials and notebooks have them."""

from __future__ import annotations

import functools
import math
import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.training.ordinary.script import (
    ALONE,
    BATCHES,
    HEADS,
    LONGEST,
    WIDTH,
    Language,
    Script,
    next_tokens,
    script,
)


def causal(length: int, device: torch.device) -> Tensor:
    return torch.triu(torch.ones(length, length, device=device), 1).bool()


def of(vocabulary: int, body: nn.Module) -> Script:
    return Script(model=Language(vocabulary, body), loss=next_tokens)


@script(BATCHES)
def a_table_of_bigrams(vocabulary: int) -> Script:
    return Script(model=nn.Embedding(vocabulary, vocabulary), loss=next_tokens)


class MultiHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        mask = causal(x.shape[1], x.device)
        found: Tensor = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return found


@script(BATCHES)
def nn_MultiheadAttention(vocabulary: int) -> Script:
    return of(vocabulary, MultiHead())


class Encoder(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, dim_feedforward=32, dropout=dropout, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        found: Tensor = self.layers(x, mask=mask, is_causal=True)
        return found


@script(BATCHES)
def nn_TransformerEncoder(vocabulary: int) -> Script:
    return of(vocabulary, Encoder())


class MinGPT(nn.Module):
    """A block with a mask in a buffer, attention by hand, and dropout."""

    mask: Tensor

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
        self.register_buffer("mask", torch.tril(torch.ones(LONGEST, LONGEST))[None, None])

    def forward(self, x: Tensor) -> Tensor:
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
        found: Tensor = x + self.mlp(self.norm2(x))
        return found


@script(BATCHES)
def minGPT_with_dropout(vocabulary: int) -> Script:
    return of(vocabulary, nn.Sequential(MinGPT(), MinGPT()))


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return found


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Llamalike(nn.Module):
    """RMSNorm, SwiGLU and rotary positions, whose table is kept in an attribute once it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = RMSNorm(), RMSNorm()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(WIDTH, 24, bias=False), nn.Linear(WIDTH, 24, bias=False)
        self.down = nn.Linear(24, WIDTH, bias=False)
        self.table: dict[int, tuple[Tensor, Tensor]] = {}

    def rotary(self, length: int) -> tuple[Tensor, Tensor]:
        if length not in self.table:
            each = WIDTH // HEADS
            rates = 1.0 / 10000 ** (torch.arange(0, each, 2).float() / each)
            angles = torch.outer(torch.arange(length).float(), rates).repeat(1, 2)
            self.table[length] = angles.cos(), angles.sin()
        return self.table[length]

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        cos, sin = self.rotary(length)
        h = self.norm(x)
        q, k, v = (
            part(h).view(rows, length, HEADS, -1).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True
        )
        x = x + self.o(y.transpose(1, 2).reshape(rows, length, WIDTH))
        h = self.norm2(x)
        found: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return found


@script(BATCHES)
def rotary_table_kept_in_an_attribute(vocabulary: int) -> Script:
    return of(vocabulary, Llamalike())


@functools.lru_cache(maxsize=32)
def cached_mask(length: int) -> Tensor:
    return torch.full((length, length), float("-inf")).triu(1)


class Masked(MinGPT):
    def forward(self, x: Tensor) -> Tensor:
        scores = self.norm(x) @ x.transpose(1, 2) + cached_mask(x.shape[1])
        found: Tensor = x + self.out(F.softmax(scores, dim=-1) @ x)
        return found


@script(BATCHES)
def a_mask_cached_by_lru_cache(vocabulary: int) -> Script:
    return of(vocabulary, Masked())


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(WIDTH, WIDTH), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        found: Tensor = self.layer(x).relu()
        return found


@script(BATCHES)
def a_module_that_counts_its_calls(vocabulary: int) -> Script:
    return of(vocabulary, Counts())


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cells = kind(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.cells(x)[0]
        return found


@script(ALONE)
def nn_LSTM(vocabulary: int) -> Script:
    return of(vocabulary, Recurrent(nn.LSTM))


@script(ALONE)
def nn_GRU(vocabulary: int) -> Script:
    return of(vocabulary, Recurrent(nn.GRU))


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Conv1d(WIDTH, WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.filter(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2).relu()
        return found


@script(BATCHES)
def causal_convolutions(vocabulary: int) -> Script:
    return of(vocabulary, nn.Sequential(Convolved(), Convolved()))


@script(BATCHES)
def weights_tied_by_hand(vocabulary: int) -> Script:
    model = Language(vocabulary, MinGPT(0.0))
    model.head.weight = model.tokens.weight
    return Script(model=model, loss=next_tokens)


class Alibi(MinGPT):
    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        slopes = -(places[:, None] - places).abs() / 8
        scores = self.norm(x) @ x.transpose(1, 2) + slopes
        scores = scores.masked_fill(causal(x.shape[1], x.device), -torch.inf)
        found: Tensor = x + self.out(F.softmax(scores, dim=-1) @ x)
        return found


@script(BATCHES)
def alibi_slopes(vocabulary: int) -> Script:
    return of(vocabulary, Alibi())


class Dropped(nn.Module):
    """Stochastic depth: a whole layer is left out, by one coin for all rows."""

    def __init__(self, coin: Any) -> None:
        super().__init__()
        self.layer, self.coin = MinGPT(0.0), coin

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.coin() < 0.3:
            return x
        found: Tensor = self.layer(x)
        return found


def a_coin() -> float:
    return float(torch.rand(()))


@script(ALONE)
def stochastic_depth_by_torch(vocabulary: int) -> Script:
    return of(vocabulary, Dropped(a_coin))


@script(ALONE)
def stochastic_depth_by_random(vocabulary: int) -> Script:
    return of(vocabulary, Dropped(random.random))


@script("batch")
def nn_BatchNorm(vocabulary: int) -> Script:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.norm(x.transpose(1, 2)).transpose(1, 2)
            return found

    return of(vocabulary, Normed())


@script(ALONE)
def group_norm(vocabulary: int) -> Script:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.act = nn.GroupNorm(2, WIDTH), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            rows, length, width = x.shape
            found: Tensor = self.act(self.norm(x.reshape(rows * length, width)))
            return found.view(rows, length, width)

    return of(vocabulary, Normed())


class SoftExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        every = torch.stack([expert(x) for expert in self.experts], dim=-1)
        found: Tensor = (every * shares[..., None, :]).sum(-1)
        return found


@script(BATCHES)
def experts_that_are_all_asked(vocabulary: int) -> Script:
    return of(vocabulary, SoftExperts())


class TopExpert(SoftExperts):
    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, WIDTH)
        best = self.gate(flat).argmax(-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            mine = (best == number).nonzero().flatten()
            out = out.index_add(0, mine, expert(flat[mine]))
        return out.view_as(x)


@script(ALONE)
def experts_by_a_router(vocabulary: int) -> Script:
    return of(vocabulary, TopExpert())


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.block, self.reentrant = MinGPT(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return found


@script(BATCHES)
def checkpointing(vocabulary: int) -> Script:
    return of(vocabulary, Checkpointed(reentrant=False))


@script("use_reentrant")
def checkpointing_with_reentrance(vocabulary: int) -> Script:
    return of(vocabulary, Checkpointed(reentrant=True))


@script(BATCHES)
def weight_norm(vocabulary: int) -> Script:
    return of(vocabulary, nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)))


@script(BATCHES)
def torch_compile(vocabulary: int) -> Script:
    compiled: Any = torch.compile(Language(vocabulary, MinGPT(0.0)))
    return Script(model=compiled, loss=next_tokens)


@script(BATCHES)
def half_of_the_layers_frozen(vocabulary: int) -> Script:
    model = Language(vocabulary, nn.Sequential(MinGPT(), MinGPT()))
    model.tokens.requires_grad_(False)
    model.body[0].requires_grad_(False)
    return Script(
        model=model,
        loss=next_tokens,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
    )


@script(BATCHES)
def positions_made_of_parameters(vocabulary: int) -> Script:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.zeros(WIDTH))
            self.table = nn.Parameter(torch.randn(LONGEST, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return x * (1 + self.scale) + self.table[: x.shape[1]]

    return of(vocabulary, Scaled())
