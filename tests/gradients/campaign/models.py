"""Tiny models: real architectures, and hand-made ones with a shape that a rule could take wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.gradients.campaign.families import build

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


class Toy(nn.Module):
    """An embedding, a layer, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def hidden(self, input_ids: Tensor) -> Tensor:
        return torch.tanh(self.body(self.embedding(input_ids)))


class HeadOnSelected(Toy):
    """The usual ``head(hidden[mask])``."""

    def forward(self, input_ids: Tensor, selected: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(input_ids)[selected])
        return logits


class NormOnSelected(Toy):
    """A norm and two layers over selected tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: Tensor, selected: Tensor) -> Tensor:
        hidden = self.norm(self.hidden(input_ids)[selected])
        logits: Tensor = self.head(torch.tanh(self.second(hidden)))
        return logits


class Flattened(Toy):
    """Rows and positions flattened for the layers, rows first."""

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        rows, positions = input_ids.shape
        flat = self.embedding(input_ids).view(rows * positions, WIDTH)
        logits: Tensor = self.head(torch.tanh(self.body(flat)))
        return logits.view(rows, positions, -1)


class FlattenedIds(Toy):
    """The table is looked up with flattened tokens."""

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        rows, positions = input_ids.shape
        flat = self.embedding(input_ids.reshape(-1))
        logits: Tensor = self.head(torch.tanh(self.body(flat)))
        return logits.view(rows, positions, -1)


class PositionsFirst(Toy):
    """Positions are flattened before rows, or stand before them: rows may be as many."""

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        rows, positions = input_ids.shape
        turned = torch.tanh(self.body(self.embedding(input_ids).transpose(0, 1)))
        flat: Tensor = self.head(turned.reshape(-1, WIDTH))
        return flat.view(positions, rows, -1).transpose(0, 1)


class Pooled(Toy):
    """The head sees one token of each row."""

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        hidden = self.hidden(input_ids)
        last = torch.arange(input_ids.shape[1]) == (lengths - 2).clamp(min=0)[:, None]
        pooled: Tensor = self.head(hidden[last])  # (rows, vocabulary)
        return pooled[:, None].expand(-1, input_ids.shape[1], -1)


class Sorted(Toy):
    """Rows are sorted by length for a layer, and put back."""

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        order = lengths.argsort()
        hidden = self.hidden(input_ids[order])
        logits: Tensor = self.head(hidden)
        return logits[order.argsort()]


class Routed(Toy):
    """Each expert sees the tokens that the router sends it, in the router's order."""

    def __init__(self, experts: int, chosen: int) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(experts))
        self.chosen = chosen

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        rows, positions = input_ids.shape
        flat = self.hidden(input_ids).view(-1, WIDTH)
        weights, picked = self.router(flat).softmax(-1).topk(self.chosen, dim=-1)
        found = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rank, token = torch.where((picked == number).T)
            out = expert(flat[token]) * weights[token, rank, None]
            found = found.index_add(0, token, out)
        logits: Tensor = self.head(torch.tanh(found))
        return logits.view(rows, positions, -1)


class ExpertsFirst(Toy):
    """(experts, tokens, width): there may be as many experts as rows."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.expert = nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        rows, positions = input_ids.shape
        flat = self.hidden(input_ids).view(-1, WIDTH)
        weights = self.router(flat).softmax(-1).T[..., None]
        mixed = (self.expert(weights * flat) * weights).sum(0)
        logits: Tensor = self.head(torch.tanh(mixed))
        return logits.view(rows, positions, -1)


class BatchMean(Toy):
    """Subtracts what the batch has in common."""

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        hidden = self.hidden(input_ids)
        logits: Tensor = self.head(hidden - hidden.mean((0, 1)))
        return logits


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
