"""Tiny models, ragged units, and how far one unit moves a sum: what most tests here begin from."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from tests.gradients.campaign import families
from userdp.gradients import ClippedSum, Units
from userdp.gradients.clip_factors import squared_norm

logging.set_verbosity_error()

VOCABULARY = 23
Rows = list[list[list[int]]]
Sum = ClippedSum | Mapping[str, Tensor]

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2-tied": ("gpt2", {"n_layer": 1}),
    "gpt2-untied": ("gpt2", {"n_layer": 1, "tie_word_embeddings": False}),
    "llama": ("llama", {"num_hidden_layers": 1}),
    "gpt-neox": ("gpt_neox", {"num_hidden_layers": 1}),
    "qwen2": ("qwen2", {"num_hidden_layers": 1, "tie_word_embeddings": True}),
}
"""Of `families.build`: a family, and what is changed of its configuration."""


def tiny(
    family: str = "gpt2-tied", dtype: torch.dtype = torch.float32, *, dropout: float = 0.0
) -> Any:
    """A tiny model of a family, with weights large enough to be interesting.

    In evaluation mode, but where it has dropout.
    """
    name, changes = FAMILIES[family]
    model = families.build(name, vocab_size=VOCABULARY, dropout=dropout, **changes)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.to(dtype).train(dropout > 0)


def ragged(
    sizes: Iterable[int],
    *,
    seed: int = 0,
    shortest: int = 2,
    longest: int = 9,
    vocabulary: int = VOCABULARY,
) -> Rows:
    """Random rows of tokens, so many for each unit."""
    draw = random.Random(seed)
    return [
        [
            [draw.randrange(vocabulary) for _ in range(draw.randint(shortest, longest))]
            for _ in range(size)
        ]
        for size in sizes
    ]


def masked(rows: Rows, *, seed: int = 0, part: float = 0.5) -> Units:
    """Units whose tokens are marked at random; some rows have no mark at all."""
    units = Units.from_rows(rows)
    held = torch.arange(units.input_ids.shape[1]) < units.lengths[:, None]
    marks = held & (torch.rand(held.shape, generator=torch.Generator().manual_seed(seed)) < part)
    marks[-1] = False
    return replace(units, targets=marks)


Part = nn.Module | nn.Parameter | Tensor
Answer = Callable[..., Any]


@dataclass
class Logits:
    """What a causal language model answers with: all that the built-in loss reads."""

    logits: Tensor


class Small(nn.Module):
    """Looks tokens up in a table, and answers with a function of what it finds.

    Args:
        answer: is given the model, the tokens, their vectors, and what else stands beside tokens.
        vocabulary: of the table.
        width: of the table.
        seed: of all weights.
        parts: make what else the function uses, by its name in the model; tensors become buffers.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        vocabulary: int = VOCABULARY,
        width: int = 6,
        seed: int = 3,
        **parts: Callable[[], Part],
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.answer, self.table = answer, nn.Embedding(vocabulary, width)
        for name, make in parts.items():
            part = make()
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.table

    def forward(self, input_ids: Tensor, *beside: Tensor, **options: object) -> Any:
        return self.answer(self, input_ids, self.table(input_ids), *beside)


class Table(nn.Module):
    """A model whose gradient for a row is a chosen vector: the row's first token picks it."""

    def __init__(self, gradients: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(gradients.shape[1], dtype=gradients.dtype))
        self.gradients = gradients

    def forward(self, input_ids: Tensor) -> Tensor:
        # The weight is 0: a product would make 0 * inf = NaN of the loss, as real models do.
        return (self.gradients[input_ids[:, 0]] * self.weight).sum(1)


def table_loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    losses: Tensor = model(input_ids)
    return losses


def row_squares(model: Callable[[Tensor], Tensor], tokens: Tensor, lengths: Tensor) -> Tensor:
    """Each row's mean square over its own tokens, of a model that answers with numbers for each."""
    squares = model(tokens).flatten(2).tanh().sum(2).square()
    real = torch.arange(tokens.shape[1]) < lengths[:, None]
    return (squares * real).sum(1) / lengths.clamp(min=1)


def row_sums(model: nn.Module, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Each row's mean sum of the numbers with which the model answers for its own tokens."""
    real = torch.arange(tokens.shape[1]) < lengths[:, None]
    found: Tensor = (model(tokens).sum(2) * real).sum(1) / lengths.clamp(min=1)
    return found


def distance(one: Sum, other: Sum) -> float:
    """Between two sums, in L2 and float64; infinite where it is not a number."""
    first, second = (s.value if isinstance(s, ClippedSum) else s for s in (one, other))
    apart = math.sqrt(
        squared_norm(part.double() - second[name].double() for name, part in first.items())
    )
    return apart if math.isfinite(apart) else math.inf


def length(found: Sum) -> float:
    """Of a whole sum."""
    value = found.value if isinstance(found, ClippedSum) else found
    return math.sqrt(squared_norm(value.values()))


def largest_move(
    sum_of: Callable[[Units], Sum], rows: Rows, out: Iterable[int] | None = None, *, width: int = 0
) -> float:
    """The most that leaving out one unit (of ``out``; of all) moves a sum: invariant 3's oracle.

    Two whole sums, with and without the unit, are subtracted in float64. ``width`` is that of a
    store's rows, whoever was drawn.
    """
    everybody = sum_of(Units.from_rows(rows, width=width))
    rest = (rows[:unit] + rows[unit + 1 :] for unit in (range(len(rows)) if out is None else out))
    return max(distance(everybody, sum_of(Units.from_rows(left, width=width))) for left in rest)
