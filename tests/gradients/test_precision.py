"""Narrow precision is seen wherever it is entered."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.tiny import distance, length, row_squares
from userdp.gradients import ClippedSum, Loss, Units
from userdp.gradients.clipping import squared_norm
from userdp.gradients.engines import get_engine, reference, uses
from userdp.gradients.engines.engine import Engine
from userdp.gradients.engines.task import Task
from userdp.gradients.precision import dtypes_of

CLIP = 1e-3
NARROW = [torch.bfloat16, torch.float16]
WIDTH = 8


def aimed_alike(task: Task) -> ClippedSum:
    """Unit by unit, clipped where batches aim."""
    return reference.sum_of_units(task.but(l2_clip_norm=task.aim))


one_at_a_time = Engine(aimed_alike)


class Model(nn.Module):
    """Looks tokens up, turns them, adds up; ``kind`` says where it computes in fewer bits."""

    def __init__(self, kind: str = "", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.kind, self.dtype = kind, dtype
        self.table = nn.Embedding(11, WIDTH)
        self.turn = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.table

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        if self.kind == "a cast by hand":
            x = x.to(self.dtype).float()
        # A made-up row does not tell what is done only where some row begins with token 7.
        seven = self.kind == "sometimes" and bool((tokens[:, 0] == 7).any())
        inside = seven or self.kind == "a submodule"  # where the model is entered there is none
        with torch.autocast("cpu", dtype=self.dtype, enabled=inside):
            x = self.turn(x)
        if self.kind == "attention":  # products without parameters
            x = x.to(self.dtype)[:, None]
            # Causal, so that a row's padding, which others decide, is seen by nobody.
            x = F.scaled_dot_product_attention(x, x, x, is_causal=True)[:, 0]
        answer: Tensor = self.out(x.float().tanh())
        return answer


def loss_in(dtype: torch.dtype) -> Loss:
    def loss(model: nn.Module, tokens: Tensor, lengths: Tensor) -> Tensor:
        logits = model(tokens)
        real = torch.arange(tokens.shape[1]) < lengths[:, None]
        with torch.autocast("cpu", dtype=dtype):
            ones = torch.ones(WIDTH, 1)
            squares = (logits @ ones)[..., 0].float().square()
            return (squares * real).sum(1) / lengths.clamp(min=1)

    return loss


def some_units(count: int = 4, first: int = 0) -> Units:
    rows = [[[(first + 3 * u + t) % 6 for t in range(4 + u % 2)]] for u in range(count)]
    return Units.from_rows(rows)


KINDS = ["a submodule", "a cast by hand", "attention", "the loss"]


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("kind", KINDS)
def test_narrow_types_are_seen_wherever_they_are_entered(kind: str, dtype: torch.dtype) -> None:
    model = Model(kind, dtype)
    loss = loss_in(dtype) if kind == "the loss" else row_squares
    engine = get_engine("auto")
    engine(model, loss, some_units(3), l2_clip_norm=CLIP)  # compared with the reference here
    one = engine(model, loss, some_units(1), l2_clip_norm=CLIP)
    assert float(one.norms) > CLIP
    assert length(one) == pytest.approx(CLIP * (1 - 1e-3), rel=1e-4)
    assert dtype in dtypes_of(model, loss, masked=False)


def test_full_precision_is_not_taken_for_narrow() -> None:
    model = Model()
    assert dtypes_of(model, row_squares, masked=False) == {torch.float32}
    assert Task(model=model, loss=row_squares, units=some_units(), l2_clip_norm=1.0).aim == 1 - 1e-3


class Scaled(nn.Module):
    """A fixed feature of each token, times one trained scale for each of many columns."""

    def __init__(self) -> None:
        super().__init__()
        # As bfloat16 rounds them, the squares of these are 0.7% too small.
        self.register_buffer("features", torch.full((8, 8192), 1 + 15 / 4096))
        self.scale = nn.Parameter(torch.ones(8192))

    def forward(self, ids: Tensor) -> Tensor:
        return (nn.functional.embedding(ids, self.features) * self.scale).sum(2)


def own_mean(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    real = torch.arange(input_ids.shape[1]) < lengths[:, None]
    return (real * model(input_ids)).sum(1) / lengths.clamp(min=1)


def most_of_one_unit() -> float:
    """The largest norm of one unit's contribution over some clip norms, in clip norms."""
    torch.set_float32_matmul_precision("medium")
    try:
        norms = []
        for step in range(6):
            clip = 0.5 + 0.07 * step
            units = Units.from_rows([[[0, 1]], [[2, 3]]])
            with_two = get_engine("auto")(Scaled(), own_mean, units, l2_clip_norm=clip)
            norms.append(math.sqrt(squared_norm(with_two.value.values())) / clip / 2)
        return max(norms)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_invariant_3_norms_and_sums_have_all_bits_whatever_products_have(monkeypatch):
    assert most_of_one_unit() <= 1

    def by_product(gradients: Tensor) -> Tensor:
        rows = gradients.reshape(len(gradients), 1, -1)
        return torch.bmm(rows, rows.transpose(1, 2))[:, 0, 0].double()

    monkeypatch.setattr(uses, "squares", by_product)
    twin = most_of_one_unit()
    torch.set_float32_matmul_precision("medium")
    short = float(by_product(torch.full((1, 8192), 1 + 15 / 4096))) / (1 + 15 / 4096) ** 2
    torch.set_float32_matmul_precision("highest")
    assert twin > 1.0005 or short > 0.999 * 8192  # few processors have such products


@pytest.mark.parametrize("dtype", NARROW)
def test_a_pass_that_turns_narrow_is_computed_one_unit_at_a_time_at_the_same_aim(dtype):
    model, engine = Model("sometimes", dtype), get_engine("auto")
    engine(model, row_squares, some_units(3), l2_clip_norm=CLIP)
    rows = Units.from_rows([[[1, 2, 3, 4]], [[7, 2, 3, 1]], [[5, 0, 3, 2]]])
    found = engine(model, row_squares, rows, l2_clip_norm=CLIP)
    alone = one_at_a_time(model, row_squares, rows, l2_clip_norm=CLIP)
    assert distance(found, alone) < 1e-12 * CLIP
    others = Units.from_rows([[[1, 2, 3, 4]], [[5, 0, 3, 2]]])
    without = engine(model, row_squares, others, l2_clip_norm=CLIP)
    assert distance(found, without) <= CLIP
    only = one_at_a_time(model, row_squares, Units.from_rows([[[7, 2, 3, 1]]]), l2_clip_norm=CLIP)
    apart = [found.value[n] - v - only.value[n] for n, v in without.value.items()]
    assert math.sqrt(squared_norm(apart)) < 1e-5 * CLIP  # the others did not move
