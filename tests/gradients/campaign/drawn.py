"""Random models that draw in training, random ragged cohorts and settings.

The masks are those that the engine itself drew over D, recorded row by row, and replayed over D∖u.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.campaign import families
from tests.gradients.campaign.engines import engine_of, prepared
from tests.gradients.campaign.measure import Influence, influence
from userdp.gradients import ClippedSum, Units, causal_lm_loss
from userdp.gradients import clipped_sum as reference

VOCABULARY = families.VOCABULARY
LONGEST = 9
BATCHED = ("gpt2", "llama", "tokens", "embeddings")
"""Models each of whose random numbers belongs to one row: several units share a pass."""
ALONE = ("rrelu", "positions", "layerdrop", "always", "weights")
"""Models whose units are computed alone; sharded, they are refused."""
BATCHED_SHARE = 0.93
"""Of the cases; a few more are not batched because no two of their units fit in a pass."""

Rows = list[list[list[int]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One setting, all of which a seed gives."""

    seed: int
    engine: str
    model: str
    rate: float
    sizes: tuple[int, ...]
    ragged: bool
    micro_batch: int
    items: bool
    checkpointing: bool


def random_case(engine: str, seed: int) -> Case:
    """The ``seed``-th case of an engine."""
    draw = random.Random(f"{engine} {seed}")
    in_parts = engine == "sharded"
    usual = draw.randint(1, 3)  # units of as many rows share a pass
    return Case(
        seed=seed,
        engine=engine,
        model=draw.choice(BATCHED if in_parts or draw.random() < BATCHED_SHARE else ALONE),
        rate=draw.choice((0.1, 0.5)),
        sizes=(
            usual,
            usual,
            *(draw.choice((usual, draw.randint(1, 3))) for _ in range(draw.randint(0, 3))),
        ),
        ragged=draw.random() < 0.6,
        micro_batch=draw.randint(5, 9) if draw.random() < 0.9 else draw.randint(1, 4),
        items=draw.random() < 0.2 and not in_parts,
        checkpointing=draw.random() < 0.3,
    )


def run_case(case: Case, leave_out: int = 2) -> Influence:
    """A case, with a few units left out, one at a time."""
    torch.manual_seed(case.seed)
    model = build_model(case.model, rate=case.rate)
    if case.checkpointing and case.model in ("gpt2", "llama"):
        # A method of transformers' models, of which `nn.Module` tells the type checker nothing.
        model.gradient_checkpointing_enable()  # type: ignore[operator]
    units = Units.from_rows(build_rows(case.sizes, seed=case.seed, ragged=case.ragged))
    probe = reference(model, causal_lm_loss, units, l2_clip_norm=1e9)
    # A clip that bites for most: else nothing is at stake.
    clip = float(probe.norms.sort().values[len(units) // 3]) * 0.9
    engine, model = engine_of(case.engine), prepared(model, case.engine)

    def clipped(some: Units) -> ClippedSum:
        return engine(
            model,
            causal_lm_loss,
            some,
            l2_clip_norm=clip,
            item_clip_norm=clip if case.items else None,
            micro_batch=case.micro_batch,
        )

    out = random.Random(case.seed).sample(range(len(units)), min(leave_out, len(units)))
    return influence(clipped, units, clip=clip, out=out, vocabulary=VOCABULARY)


def build_rows(sizes: tuple[int, ...], *, seed: int = 0, ragged: bool = True) -> Rows:
    """Random rows of at least two tokens; each begins with a token of its own."""
    draw = random.Random(seed)
    first = iter(range(1, VOCABULARY))
    return [
        [
            [next(first)]
            + [
                draw.randrange(1, VOCABULARY)
                for _ in range(draw.randint(1, LONGEST - 1) if ragged else LONGEST - 1)
            ]
            for _ in range(size)
        ]
        for size in sizes
    ]


def build_model(kind: str, *, rate: float = 0.1) -> nn.Module:
    """A small model in training mode that draws in one of many ways.

    GPT-2 has three kinds of ``nn.Dropout``; Llama has none at all: a number in the attention.
    """
    if kind in ("gpt2", "llama"):
        return _spread(families.build(kind, dropout=rate))
    return _spread(Toy(kind, rate)).train()


def _spread(model: nn.Module) -> nn.Module:
    """Weights large enough that masks matter."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


class Toy(nn.Module):
    """Tokens and positions through two layers; ``kind`` says what is drawn."""

    def __init__(self, kind: str, rate: float) -> None:
        super().__init__()
        self.kind, self.rate = kind, rate
        self.tokens = nn.Embedding(VOCABULARY, 12)
        self.places = nn.Embedding(16, 12)
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(2))
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, VOCABULARY)

    def get_input_embeddings(self) -> nn.Module:
        return self.tokens

    def forward(self, input_ids: Tensor, position_ids: Tensor, use_cache: bool) -> Tensor:
        h, places = self.tokens(input_ids), self.places(position_ids)
        if self.kind == "positions":  # one mask for all rows of the pass
            places = places * F.dropout(torch.ones_like(places[:1]), self.rate, self.training)
        if self.kind == "embeddings":  # of positions, for each row anew
            places = F.dropout(places, self.rate, self.training)
        h = h + places
        if self.kind == "always":  # in evaluation mode too
            h = F.dropout(h, self.rate, training=True)
        if self.kind == "tokens":  # whole channels of a row
            h = h * F.dropout(torch.ones_like(h[:, :1]), self.rate, self.training)
        for layer in self.layers:
            coin = torch.rand([]) if self.kind == "layerdrop" else torch.ones([])
            if self.training and coin < self.rate:
                continue
            if self.kind == "weights":
                weight = F.dropout(layer.weight, self.rate, self.training)
                out = F.linear(h, weight, layer.bias)
            else:
                out = layer(h)
            h = h + (F.rrelu(out, training=self.training) if self.kind == "rrelu" else out.tanh())
        # The loss reads ``.logits`` alone, of whatever it is handed, as of a transformers model.
        return Logits(self.head(self.norm(h)))


@dataclass
class Logits:
    """What a causal language model answers with."""

    logits: Tensor
