"""Tiny models: real architectures, and hand-made ones with a shape that a rule could take wrong."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.campaign.families import build
from tests.gradients.tiny import Answer, Logits, Small

VOCABULARY, WIDTH = 31, 8
_GATED = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 1}


def gpt2() -> nn.Module:
    return build("gpt2", vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=1).eval()


def llama() -> nn.Module:
    return build("llama", **_GATED).eval()


def qwen2() -> nn.Module:
    return build("qwen2", **_GATED, tie_word_embeddings=True).eval()


def mixtral(experts: int, chosen: int) -> nn.Module:
    routed = {"num_local_experts": experts, "num_experts_per_tok": chosen}
    return build("mixtral", **_GATED, **routed).eval()


def mixtral_attention() -> nn.Module:
    """Only attention trains, behind and before frozen experts, as with adapters."""
    model = mixtral(2, 2)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("_proj" in name and "self_attn" in name)
    return model


class OnSelected(nn.Module):
    """A language model whose head sees only the tokens that count."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, selected: Tensor) -> Tensor:
        hidden = self.model.transformer(input_ids=input_ids).last_hidden_state
        logits: Tensor = self.model.lm_head(hidden[selected])
        return logits


# Toys: an embedding, a layer, a head. They are given tokens, their vectors, and lengths (or, where
# the loss is `losses.on_selected`, which places count), and answer with logits.


def toy(answer: Answer, **parts: Any) -> nn.Module:
    """A toy that answers with ``answer``; ``parts`` are further layers."""
    body, head = partial(nn.Linear, WIDTH, WIDTH), partial(nn.Linear, WIDTH, VOCABULARY)
    return Small(answer, vocabulary=VOCABULARY, width=WIDTH, body=body, head=head, **parts)


def hidden(m: Any, vectors: Tensor) -> Tensor:
    return torch.tanh(m.body(vectors))


def head_on_selected(m: Any, tokens: Tensor, vectors: Tensor, selected: Tensor) -> Any:
    """The usual ``head(hidden[mask])``."""
    return m.head(hidden(m, vectors)[selected])


def norm_on_selected(m: Any, tokens: Tensor, vectors: Tensor, selected: Tensor) -> Any:
    """A norm and two layers over selected tokens."""
    return m.head(torch.tanh(m.second(m.norm(hidden(m, vectors)[selected]))))


def flattened(m: Any, tokens: Tensor, vectors: Tensor, lengths: Tensor) -> Any:
    """Rows and positions flattened for the layers, rows first."""
    return m.head(hidden(m, vectors.flatten(0, 1))).view(*tokens.shape, -1)


def flattened_ids(m: Any, tokens: Tensor, vectors: Tensor, lengths: Tensor) -> Any:
    """The table is looked up with flattened tokens."""
    return m.head(hidden(m, m.table(tokens.reshape(-1)))).view(*tokens.shape, -1)


def positions_first(m: Any, tokens: Tensor, vectors: Tensor, lengths: Tensor) -> Any:
    """Positions are flattened before rows, or stand before them: rows may be as many."""
    flat = m.head(hidden(m, vectors.transpose(0, 1)).reshape(-1, WIDTH))
    return flat.view(*tokens.T.shape, -1).transpose(0, 1)


def pooled(m: Any, tokens: Tensor, vectors: Tensor, lengths: Tensor) -> Any:
    """The head sees one token of each row."""
    last = torch.arange(tokens.shape[1]) == (lengths - 2).clamp(min=0)[:, None]
    return m.head(hidden(m, vectors)[last])[:, None].expand(-1, tokens.shape[1], -1)


def sorted_by_length(m: Any, tokens: Tensor, vectors: Tensor, lengths: Tensor) -> Any:
    """Rows are sorted by length for a layer, and put back."""
    order = lengths.argsort()
    return m.head(hidden(m, vectors[order]))[order.argsort()]


def routed(experts: int, chosen: int, room: int | None = None) -> nn.Module:
    """Each expert sees the tokens that the router sends it, in the router's order.

    Of limited ``room``: tokens that come late are dropped, whoever's the earlier ones are.
    """

    def answer(m: Any, tokens: Tensor, vectors: Tensor, lengths: Tensor) -> Any:
        flat = hidden(m, vectors).view(-1, WIDTH)
        weights, picked = m.router(flat).softmax(-1).topk(chosen, dim=-1)
        found = torch.zeros_like(flat)
        for number, expert in enumerate(m.experts):
            rank, token = (at[:room] for at in torch.where((picked == number).T))
            found = found.index_add(0, token, expert(flat[token]) * weights[token, rank, None])
        return m.head(torch.tanh(found)).view(*tokens.shape, -1)

    return toy(
        answer,
        router=lambda: nn.Linear(WIDTH, experts),
        experts=lambda: nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(experts)),
    )


def experts_first(m: Any, tokens: Tensor, vectors: Tensor, lengths: Tensor) -> Any:
    """(experts, tokens, width): there may be as many experts as rows."""
    flat = hidden(m, vectors).view(-1, WIDTH)
    weights = m.router(flat).softmax(-1).T[..., None]
    return m.head(torch.tanh((m.expert(weights * flat) * weights).sum(0))).view(*tokens.shape, -1)


def batch_mean(m: Any, tokens: Tensor, vectors: Tensor, lengths: Tensor) -> Any:
    """Subtracts what the batch has in common."""
    found = hidden(m, vectors)
    return m.head(found - found.mean((0, 1)))


# Models that draw in training.

SHARING = ("gpt2", "llama", "checkpointed gpt2", "checkpointed llama", "tokens", "embeddings")
"""Each of their random numbers belongs to one row: several units share a pass."""
ALONE = ("rrelu", "positions", "layerdrop", "always", "weights")
"""Their units are computed alone."""


def drawing(kind: str, rate: float) -> nn.Module:
    """A model in training mode that draws in one of many ways, at weights at which masks matter.

    GPT-2 has three kinds of ``nn.Dropout``; Llama has none at all: a number in the attention.
    """
    family = kind.removeprefix("checkpointed ")
    model: Any
    if family in ("gpt2", "llama"):
        model = build(family, vocab_size=VOCABULARY, dropout=rate)
        if kind != family:
            model.gradient_checkpointing_enable()
    else:
        model = Small(
            partial(_drawn, kind=kind, rate=rate), vocabulary=VOCABULARY, width=12,
            places=lambda: nn.Embedding(16, 12), norm=lambda: nn.LayerNorm(12),
            layers=lambda: nn.ModuleList(nn.Linear(12, 12) for _ in range(2)),
            head=lambda: nn.Linear(12, VOCABULARY),
        ).train()  # fmt: skip
    renew(model, 7, scale=1.0)
    return model


def _drawn(m: Any, tokens: Tensor, h: Tensor, *, kind: str, rate: float) -> Logits:
    """Tokens and positions through two layers; ``kind`` says what is drawn."""
    places = m.places(torch.arange(tokens.shape[1]).expand_as(tokens))
    if kind == "positions":  # one mask for all rows of the pass
        places = places * F.dropout(torch.ones_like(places[:1]), rate, m.training)
    if kind == "embeddings":  # of positions, for each row anew
        places = F.dropout(places, rate, m.training)
    h = h + places
    if kind == "always":  # in evaluation mode too
        h = F.dropout(h, rate, training=True)
    if kind == "tokens":  # whole channels of a row
        h = h * F.dropout(torch.ones_like(h[:, :1]), rate, m.training)
    for layer in m.layers:
        coin = torch.rand([]) if kind == "layerdrop" else torch.ones([])
        if m.training and coin < rate:
            continue
        if kind == "weights":
            out = F.linear(h, F.dropout(layer.weight, rate, m.training), layer.bias)
        else:
            out = layer(h)
        h = h + (F.rrelu(out, training=m.training) if kind == "rrelu" else out.tanh())
    return Logits(m.head(m.norm(h)))


def renew(model: nn.Module, seed: int, *, scale: float) -> None:
    """Other weights, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            part: Tensor = getattr(parameter, "_local_tensor", parameter)
            spread = scale / (1 if part.dim() < 2 else part.shape[-1] ** 0.5)
            part.copy_(spread * torch.randn(part.shape, generator=generator))
            if part.dim() == 1:
                part.add_(0.5)
