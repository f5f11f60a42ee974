"""Random cases: a tiny model, a loss, two to eight units of one to three rows, and a clip norm.

They aim at shapes that coincide: counts of targets that the number of rows divides, one target in
each row, as many selected tokens as the pass has, experts that get all tokens, rows as many as
positions. Each kind is a list of models and losses.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.gradients.campaign import losses, models
from tests.gradients.campaign.engines import engine_of, prepared
from tests.gradients.campaign.measure import Influence, influence
from userdp.gradients import ClippedSum, Loss, Units, causal_lm_loss, clipped_sum


@dataclass(frozen=True, kw_only=True)
class Case:
    """What an engine is given.

    Args:
        name: of the model and loss.
        model: its weights are this case's.
        loss: per-row loss.
        units: the cohort D.
        left_out: the unit u.
        share: C over the median norm of the units (of the reference, with a clip that is far away).
        before: a cohort of friendly shapes that an engine is given first where the model is new to
            it: what it concludes there says nothing about the next.
    """

    name: str
    model: nn.Module
    loss: Loss
    units: Units
    left_out: int
    share: float
    before: Units


Source = tuple[str, Callable[[], nn.Module], Loss]

VOCABULARY = models.VOCABULARY
FIRST = 13
"""Smaller tokens are rows' first ones, and nothing else: a row is known by it."""

_MASKED: Sequence[Source] = (
    ("gpt2, built-in loss", models.gpt2, causal_lm_loss),
    ("llama, built-in loss", models.llama, causal_lm_loss),
    ("qwen2, built-in loss", models.qwen2, causal_lm_loss),
    ("gpt2, head on the marked", lambda: models.OnSelected(models.gpt2()), losses.on_selected),
    ("toy, head on the marked", models.HeadOnSelected, losses.on_selected),
    ("toy, two heads on the marked", models.NormOnSelected, losses.on_selected),
)
_FLATTENED: Sequence[Source] = (
    ("gpt2, built-in loss", models.gpt2, causal_lm_loss),
    ("toy, valid tokens flattened", models.HeadOnSelected, losses.on_selected),
    ("toy, ids flattened", models.FlattenedIds, losses.own_rows),
    ("toy, all flattened", models.Flattened, losses.own_rows),
    ("toy, positions first", models.PositionsFirst, losses.own_rows),
    ("toy, last token of each row", models.Pooled, losses.own_rows),
    ("toy, rows sorted by length", models.Sorted, losses.own_rows),
)
_ROUTED: Sequence[Source] = (
    ("mixtral, 2 of 2 experts", lambda: models.mixtral(2, 2), causal_lm_loss),
    ("mixtral, 1 of 3 experts", lambda: models.mixtral(3, 1), causal_lm_loss),
    ("mixtral, adapters of attention", models.mixtral_attention, causal_lm_loss),
    ("toy, 1 of 2 experts", lambda: models.Routed(2, 1), losses.own_rows),
    ("toy, 2 of 2 experts", lambda: models.Routed(2, 2), losses.own_rows),
    ("toy, experts first", models.ExpertsFirst, losses.own_rows),
)
_COUPLED: Sequence[Source] = (
    ("gpt2, batch's tokens", models.gpt2, losses.over_batch_tokens),
    ("toy, batch's tokens", models.HeadOnSelected, losses.selected_over_batch),
    ("toy, rows", models.Flattened, losses.over_rows),
    ("toy, width", models.Flattened, losses.over_width),
    ("toy, mean length", models.Flattened, losses.over_mean_length),
    ("toy, softmax over rows", models.Flattened, losses.softmax_over_rows),
    ("toy, batch mean inside", models.BatchMean, losses.own_rows),
    ("toy, gradients over the batch", models.Flattened, losses.gradient_over_batch),
)


KINDS: Mapping[str, Sequence[Source]] = {
    "masked": _MASKED,
    "flattened": _FLATTENED,
    "routed": _ROUTED,
    "coupled": _COUPLED,
}


def case(kind: str, number: int, engine: str) -> Case:
    """Case ``number`` of a kind: the same each time. Odd ones have rows of equal length.

    Args:
        kind: of `KINDS`.
        number: of the case.
        engine: for which the model is made.
    """
    rows = "equal" if number % 2 else "ragged"
    draw = random.Random(f"{kind} {rows} {number}")
    name, build, loss = draw.choice(KINDS[kind])
    model = _model(name, build, engine)
    models.renew(model, draw.randrange(1 << 30), scale=draw.choice([0.3, 1.0]))
    units = cohort(draw, rows, marked=kind == "masked")
    return Case(
        name=name,
        model=model,
        loss=loss,
        units=units,
        left_out=draw.randrange(len(units)),
        share=draw.choice([0.05, 0.5, 1.0, 3.0]),
        before=_friendly(kind == "masked"),
    )


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


_met: set[tuple[str, int]] = set()


def measured(case: Case, engine: str) -> Influence:
    """Whether one unit moves the sum of an engine that has met a friendly cohort by more than C.

    Raises:
        UseError: the loss or the model couples rows; said before any sum.
    """
    compute = engine_of(engine)
    clip = case.share
    if engine != "sharded":  # its gradients are never formed for one unit
        far = clipped_sum(case.model, case.loss, case.units, l2_clip_norm=1e6)
        clip *= max(float(far.norms.median()), 1e-3)

    def clipped(units: Units) -> ClippedSum:
        return compute(case.model, case.loss, units, l2_clip_norm=clip)

    if (engine, id(case.model)) not in _met:  # models are kept
        _met.add((engine, id(case.model)))
        clipped(case.before)
    out, vocabulary = (case.left_out,), VOCABULARY
    return influence(clipped, case.units, clip=clip, out=out, vocabulary=vocabulary)
