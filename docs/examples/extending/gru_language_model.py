"""A model of any kind: a recurrent language model, in a plain PyTorch loop.

The model needs no interface: the loss is what calls it. It must keep rows apart (no BatchNorm), and
what the engines do not know, such as a GRU's fused kernel, is computed one user at a time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import userdp


class GruLanguageModel(nn.Module):
    """Embedding, GRU, and the embedding's transpose as output."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.memory = nn.GRU(width, width, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        """(rows, width) token ids → (rows, width, vocabulary) logits of the next token."""
        states, _ = self.memory(self.words(ids))
        return states @ self.words.weight.T


def next_token_loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Mean over each row's own tokens; what lies beyond a row's length is never read."""
    places = torch.arange(input_ids.shape[1], device=input_ids.device)
    real = places < lengths[:, None]
    ids = torch.where(real, input_ids, 0)
    logits = model(ids[:, :-1])
    each = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return torch.where(real[:, 1:], each, 0.0).sum(1) / (lengths - 1).clamp(min=1)


def train(store: userdp.UserStore, plan: userdp.Plan, out: str) -> GruLanguageModel:
    """Train by the plan; the weights satisfy what `userdp.claim(out)` says."""
    model = GruLanguageModel(store.meta.vocab_size, width=16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    alone = userdp.PrivateOptions(engine="reference")
    with userdp.make_private(
        model, optimizer, store, plan, out=out, loss=next_token_loss, options=alone
    ) as private:
        for _ in private:
            optimizer.step()
    return model
