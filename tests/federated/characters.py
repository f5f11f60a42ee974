"""Shakespeare by characters, as in LEAF: a tokenizer of single characters and a stacked LSTM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

from userdp.data.tokenize import StoreTokenizer
from userdp.federated.models import build_model
from userdp.federated.plan import ModelSpec
from userdp.gradients import Loss
from userdp.vocabulary import require_count

CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's alphabet for Shakespeare, public; token 0 stands for every other character."""


def character_tokenizer() -> StoreTokenizer:
    """A token for each of `CHARACTERS`, from 1."""
    vocabulary = {"[UNK]": 0, **{one: number for number, one in enumerate(CHARACTERS, start=1)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    # Oniguruma spells "a point is any character" with m.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?m)."), "isolated")
    return StoreTokenizer(
        encoder=tokenizer,
        markup_encoder=tokenizer,
        content=tokenizer.to_str().encode(),
        vocab_size=len(vocabulary),
        end_of_text_id=None,
    )


@dataclass(frozen=True, kw_only=True)
class CharacterLSTM(ModelSpec):
    """The stacked LSTM as a model of federations.

    Args:
        width: hidden units.
    """

    kind: ClassVar[str] = "character-lstm"

    width: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("width", self.width, at_most=10**6)


class StackedLSTM(nn.Module):
    """Two LSTM layers over characters and two linear layers at the end.

    The cells are written with `nn.Linear`, so that every engine knows each item's gradient.
    """

    def __init__(self, *, vocabulary: int, width: int, layers: int = 2) -> None:
        super().__init__()
        self.width = width
        self.embed = nn.Embedding(vocabulary, 8)
        sizes = [8] + [width] * (layers - 1)
        self.inputs = nn.ModuleList(nn.Linear(size, 4 * width) for size in sizes)
        self.states = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in sizes)
        self.dense = nn.Linear(width, width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """(rows, length) → (rows, length, vocabulary)."""
        x = self.embed(tokens)
        for taken_in, carried in zip(self.inputs, self.states, strict=True):
            gates_in = taken_in(x)
            h = x.new_zeros(x.shape[0], self.width)
            c = x.new_zeros(x.shape[0], self.width)
            outputs = []
            for t in range(x.shape[1]):
                i, f, g, o = (gates_in[:, t] + carried(h)).chunk(4, dim=-1)
                c = torch.sigmoid(f + 1.0) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
                outputs.append(h)
            x = torch.stack(outputs, dim=1)
        logits: Tensor = self.out(F.relu(self.dense(x)))
        return logits


def text_loss(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    """Mean cross-entropy of each row's next characters."""
    logits = model(rows[:, :-1])
    targets = rows[:, 1:]
    places = torch.arange(targets.shape[1], device=rows.device)
    counted = places[None, :] < (lengths - 1)[:, None]
    each = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), reduction="none"
    ).view(targets.shape)
    return torch.where(counted, each, 0.0).sum(1) / counted.sum(1).clamp(min=1)


@build_model.register
def _(spec: CharacterLSTM) -> tuple[nn.Module, Loss]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        return StackedLSTM(vocabulary=spec.vocab_size, width=spec.width), text_loss
