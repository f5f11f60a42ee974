"""`Case`, and the kinds of cases by name: add a kind by adding a function to `KINDS`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.influence import losses, models
from userdp.gradients import Loss, Units, causal_lm_loss


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
_BATCH_NORMALISED: Sequence[Source] = (
    ("gpt2, batch's tokens", models.gpt2, losses.over_batch_tokens),
    ("toy, batch's tokens", models.HeadOnSelected, losses.selected_over_batch),
    ("toy, rows", models.Flattened, losses.over_rows),
    ("toy, width", models.Flattened, losses.over_width),
    ("toy, mean length", models.Flattened, losses.over_mean_length),
    ("toy, softmax over rows", models.Flattened, losses.softmax_over_rows),
    ("toy, batch mean inside", models.BatchMean, losses.own_rows),
    ("toy, gradients over the batch", models.Flattened, losses.gradient_over_batch),
)


def case(kind: str, rows: str, seed: int, *, wrap: Callable[[nn.Module], nn.Module]) -> Case:
    """Case number ``seed`` of a kind.

    Args:
        kind: of `KINDS`.
        rows: "ragged" or "equal".
        seed: of everything random in it; the same case each time.
        wrap: what an engine wants done to a new model, such as sharding it.
    """
    draw = random.Random(f"{kind} {rows} {seed}")
    return KINDS[kind](draw, rows, wrap)


def _from(sources: Sequence[Source], *, marked: bool) -> Maker:
    def make(draw: random.Random, rows: str, wrap: Callable[[nn.Module], nn.Module]) -> Case:
        name, build, loss = draw.choice(sources)
        model = _model(name, build, wrap)
        renew(model, draw.randrange(1 << 30), scale=draw.choice([0.3, 1.0]))
        units = cohort(draw, rows, marked=marked)
        return Case(
            name=name,
            model=model,
            loss=loss,
            units=units,
            left_out=draw.randrange(len(units)),
            share=draw.choice([0.05, 0.5, 1.0, 3.0]),
            before=_friendly(marked),
        )

    return make


Maker = Callable[[random.Random, str, Callable[[nn.Module], nn.Module]], Case]

KINDS: Mapping[str, Maker] = {
    "masked": _from(_MASKED, marked=True),
    "flattened": _from(_FLATTENED, marked=False),
    "routed": _from(_ROUTED, marked=False),
    "batch-normalised": _from(_BATCH_NORMALISED, marked=False),
}

_models: dict[tuple[str, object], nn.Module] = {}


def _model(
    name: str, build: Callable[[], nn.Module], wrap: Callable[[nn.Module], nn.Module]
) -> nn.Module:
    """One model of each name: an engine asks what it asks of a model once, then weights change."""
    key = (name, wrap)
    if key not in _models:
        _models[key] = wrap(build())
    return _models[key]


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
    ids = torch.tensor([[draw.randrange(VOCABULARY) for _ in range(width)] for _ in lengths])
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


def without(units: Units, unit: int) -> Units:
    """All units but one."""
    begin, end = int(units.offsets[unit]), int(units.offsets[unit + 1])
    kept = [row for row in range(len(units.lengths)) if not begin <= row < end]
    sizes = [int(size) for n, size in enumerate(units.offsets.diff()) if n != unit]
    return Units(
        input_ids=units.input_ids[kept],
        lengths=units.lengths[kept],
        offsets=torch.tensor([0, *sizes]).cumsum(0),
        targets=None if units.targets is None else units.targets[kept],
    )
