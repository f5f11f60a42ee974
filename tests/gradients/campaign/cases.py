"""Random cases: a tiny model, a loss, two to eight units of one to three rows, and a clip norm.

They aim at shapes that coincide: counts of targets that the number of rows divides, one target in
each row, as many selected tokens as the pass has, experts that get all tokens, rows as many as
positions. Each kind is a list of models and losses. Of models that draw, the masks are those that
the engine itself drew over D, recorded row by row, and replayed over D∖u.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from tests.gradients.campaign import losses, models
from tests.gradients.campaign.measure import Influence, engine_of, influence, prepared
from tests.gradients.tiny import Answer
from userdp.gradients import Loss, Units, causal_lm_loss, clipped_sum

Source = tuple[str, Callable[[], nn.Module], Loss]

VOCABULARY = models.VOCABULARY
FIRST = 13
"""Smaller tokens are rows' first ones, and nothing else: a row is known by it."""


def _toy(answer: Answer, **parts: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return partial(models.toy, answer, **parts)


_LINEAR = partial(nn.Linear, models.WIDTH, models.WIDTH)
_NORM_ON_SELECTED = _toy(
    models.norm_on_selected, norm=lambda: nn.LayerNorm(models.WIDTH), second=_LINEAR
)
_EXPERTS_FIRST = _toy(
    models.experts_first, router=lambda: nn.Linear(models.WIDTH, 3), expert=_LINEAR
)
_MASKED: Sequence[Source] = (
    ("gpt2, built-in loss", models.gpt2, causal_lm_loss),
    ("llama, built-in loss", models.llama, causal_lm_loss),
    ("qwen2, built-in loss", models.qwen2, causal_lm_loss),
    ("gpt2, head on the marked", lambda: models.OnSelected(models.gpt2()), losses.on_selected),
    ("toy, head on the marked", _toy(models.head_on_selected), losses.on_selected),
    ("toy, two heads on the marked", _NORM_ON_SELECTED, losses.on_selected),
)
_FLATTENED: Sequence[Source] = (
    ("gpt2, built-in loss", models.gpt2, causal_lm_loss),
    ("toy, valid tokens flattened", _toy(models.head_on_selected), losses.on_selected),
    ("toy, ids flattened", _toy(models.flattened_ids), losses.own_rows),
    ("toy, all flattened", _toy(models.flattened), losses.own_rows),
    ("toy, positions first", _toy(models.positions_first), losses.own_rows),
    ("toy, last token of each row", _toy(models.pooled), losses.own_rows),
    ("toy, rows sorted by length", _toy(models.sorted_by_length), losses.own_rows),
)
_ROUTED: Sequence[Source] = (
    ("mixtral, 2 of 2 experts", lambda: models.mixtral(2, 2), causal_lm_loss),
    ("mixtral, 1 of 3 experts", lambda: models.mixtral(3, 1), causal_lm_loss),
    ("mixtral, adapters of attention", models.mixtral_attention, causal_lm_loss),
    ("toy, 1 of 2 experts", lambda: models.routed(2, 1), losses.own_rows),
    ("toy, 2 of 2 experts", lambda: models.routed(2, 2), losses.own_rows),
    ("toy, experts first", _EXPERTS_FIRST, losses.own_rows),
)
_SHARING, _ALONE = (
    tuple(
        (f"{kind}, {rate}", partial(models.drawing, kind, rate), causal_lm_loss)
        for kind in kinds
        for rate in (0.1, 0.5)
    )
    for kinds in (models.SHARING, models.ALONE)
)

KINDS: Mapping[str, Sequence[Source]] = {
    "masked": _MASKED,
    "flattened": _FLATTENED,
    "routed": _ROUTED,
    "dropout": (*4 * _SHARING, *_ALONE),
}


def measured(kind: str, number: int, engine: str) -> Influence:
    """Whether one unit moves the sum of an engine by more than C, in case ``number`` of a kind.

    The same each time. Odd cases have rows of equal length. C is a share of the median norm of the
    units, by the reference with a clip that is far away.
    """
    rows = "equal" if number % 2 else "ragged"
    draw = random.Random(f"{kind} {rows} {number}")
    sources = _SHARING if (kind, engine) == ("dropout", "sharded") else KINDS[kind]
    name, build, loss = draw.choice(sources)
    model = _model(name, build, engine)
    models.renew(model, draw.randrange(1 << 30), scale=draw.choice([0.3, 1.0]))
    marked, draws = kind == "masked", kind == "dropout"
    units = cohort(draw, rows, marked=marked)
    out = draw.sample(range(len(units)), 2) if draws else [draw.randrange(len(units))]
    clip = draw.choice([0.05, 0.5, 1.0, 3.0])
    if engine != "sharded":  # its gradients are never formed for one unit
        clip *= max(float(clipped_sum(model, loss, units, l2_clip_norm=1e6).norms.median()), 1e-3)
    clipped = partial(
        engine_of(engine),
        model,
        loss,
        l2_clip_norm=clip,
        micro_batch=draw.randint(4, 9) if draws else 32,
        item_clip_norm=clip if draws and engine != "sharded" and draw.random() < 0.2 else None,
    )
    # What the engine concludes of the model on friendly shapes says nothing about the next.
    clipped(_friendly(marked))
    return influence(clipped, units, clip=clip, out=out, vocabulary=VOCABULARY)


_models: dict[tuple[str, str], nn.Module] = {}


def _model(name: str, build: Callable[[], nn.Module], engine: str) -> nn.Module:
    """One model of each name: an engine asks what it asks of a model once, then weights change."""
    if (name, engine) not in _models:
        _models[name, engine] = prepared(build(), engine)
    return _models[name, engine]


def cohort(draw: random.Random, rows: str, *, marked: bool) -> Units:
    """Two to four units of one to three rows; or up to eight of one, aimed at a coincidence.

    Aimed cohorts are ragged, and their number of rows divides the count of their targets.
    """
    sizes = [draw.choice([1, 1, 2, 3]) for _ in range(draw.randint(2, 4))]
    if rows == "equal":
        length = draw.choice([2, 2, 3, 4, sum(sizes) + 1, 8])
        lengths = [length] * sum(sizes)
    elif draw.random() < 0.5:
        sizes = [1] * draw.randint(3, 8)
        lengths = [draw.randint(2, 9) for _ in sizes]
        lengths[0] += -sum(length - 1 for length in lengths) % len(lengths)
    else:
        lengths = [draw.randint(2, 9) for _ in range(sum(sizes))]
    width = max(lengths)
    ids = torch.tensor([[draw.randrange(FIRST, VOCABULARY) for _ in range(width)] for _ in lengths])
    ids[:, 0] = torch.arange(1, 1 + len(lengths))
    targets = None
    if marked:
        targets = torch.tensor([[draw.random() < 0.6 for _ in range(width)] for _ in lengths])
        style = draw.choice(["any", "all", "one each"])
        if style == "all":
            targets[:] = True
        if style == "one each":
            targets[:] = False
        for row, length in enumerate(lengths):
            targets[row, draw.randrange(1, length)] = True
        _make_divisible(targets, lengths)
    return Units(
        input_ids=ids,
        lengths=torch.tensor(lengths),
        offsets=torch.tensor([0, *sizes]).cumsum(0),
        targets=targets,
    )


def _make_divisible(targets: Tensor, lengths: Sequence[int]) -> None:
    """Mark more tokens until the number of rows divides their count, if there are enough."""
    places = [(row, place) for row, length in enumerate(lengths) for place in range(1, length)]
    for place in places:
        if sum(int(targets[p]) for p in places) % len(lengths) == 0:
            return
        targets[place] = True


def _friendly(marked: bool) -> Units:
    """Equal rows, of which every token counts."""
    ids = torch.arange(15).view(3, 5) % VOCABULARY
    return Units(
        input_ids=ids,
        lengths=torch.full((3,), 5),
        offsets=torch.tensor([0, 2, 3]),
        targets=torch.ones_like(ids, dtype=torch.bool) if marked else None,
    )
