"""Invariant 3, sensitivity: one unit more or less moves the clipped sum by at most C.

Every claim is measured the same way: two whole sums, with and without one unit, are subtracted in
float64. `HAZARDS` lists ordinary rows and models by which a unit could move the sum further, each
with the defence that prevents it. Each is tried twice: as it is, and as a broken twin without that
defence, in which the same measurement must see more than C. Scripts that keep a state or change
after some passes are `test_influence`'s.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import peft
import pytest
import torch
from torch import Tensor, nn

from tests.gradients.batches import counted_reference
from tests.gradients.campaign.accidents import Mining
from tests.gradients.campaign.families import VOCABULARY, build
from tests.gradients.tiny import (
    Logits,
    Rows,
    Small,
    Table,
    largest_move,
    ragged,
    table_loss,
    tiny,
)
from tests.speed import fast_then_slow
from userdp.core.errors import UseError
from userdp.gradients import ClippedSum, Loss, Units, causal_lm_loss, clipped_sum, get_engine
from userdp.gradients.certificate import rows
from userdp.gradients.engines import batched, choice, passes, rounding
from userdp.gradients.engines.passes import PassShape, units_by_shape
from userdp.gradients.engines.rules import linear


class Setup(NamedTuple):
    """A model, a loss, a cohort, a clip norm, who is left out, and the width of a store's rows."""

    model: nn.Module
    loss: Loss
    rows: Rows
    clip: float
    out: Sequence[int]
    width: int = 0

    def largest_move(self) -> float:
        """The most that one unit moves the sum, over C."""
        sum_of = partial(get_engine("auto"), self.model, self.loss, l2_clip_norm=self.clip)
        return largest_move(sum_of, self.rows, self.out, width=self.width) / self.clip


@dataclass(frozen=True, kw_only=True)
class Hazard:
    """Rows or a model by which one unit could move the sum by more than C.

    Attributes:
        setups: with which it is tried.
        undefended: what takes the defence away: an object, an attribute, another value.
        moved: without the defence one unit moves the sum by more than this, over C.
        way: "alone" where units are computed one by one, "refused", or "batched".
    """

    setups: Callable[[], Iterator[Setup]]
    undefended: Sequence[tuple[object, str, object]]
    moved: float
    way: str


def interpolated(model: Any, tokens: Tensor, vectors: Tensor) -> Logits:
    """Squeezes positions into those it was made for, by the width of the pass (Chen 2023)."""
    width = tokens.shape[1]
    places = torch.arange(width, dtype=torch.float32) * min(1.0, 16 / width)
    angles = places[:, None] * torch.exp(-torch.arange(16) / 4.0)
    return Logits(model.out(torch.tanh(vectors + torch.cat([angles.sin(), angles.cos()], 1))))


def long_row() -> Iterator[Setup]:
    """One of 60 tokens, where the model's configuration says 16."""
    model = Small(interpolated, vocabulary=50, width=32, seed=0, out=lambda: nn.Linear(32, 50))
    numbers = {"max_position_embeddings": 16, "vocab_size": 50}
    model.config = SimpleNamespace(**numbers, to_dict=lambda: numbers)
    cohort = [
        ragged([1], seed=place, shortest=length, longest=length, vocabulary=50)[0]
        for place, length in enumerate([60, *[14, 12] * 6])
    ]
    yield Setup(model, causal_lm_loss, cohort, 0.1, (0,))


def rounded_by_shape(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """As on a processor that adds up a product's terms in an order that its rows decide."""

    def rounded(*arguments: Tensor, **options: Any) -> Tensor:
        found = product(*arguments, **options)
        return found * (1 + (found[..., 0].numel() + torch.arange(found.shape[-1])) % 3 * 2**-23)

    return rounded


@contextmanager
def products_that_round_by_shape() -> Iterator[None]:
    """Many processors do. One with AMX did so for one or two rows alone, and showed no hazard."""
    with pytest.MonkeyPatch.context() as patched:
        for where, name in ((nn.functional, "linear"), (torch, "addmm")):
            patched.setattr(where, name, rounded_by_shape(getattr(where, name)))
        yield


def grown_weights() -> Iterator[Setup]:
    """The engine met the model at weights at which the width of a pass changes few bits."""
    model: Any = build("gpt2", n_layer=4, n_embd=64)
    draw = random.Random(2)
    lengths = [32, *(draw.randint(2, 12) for _ in range(24))]
    cohort = [[[draw.randrange(VOCABULARY) for _ in range(length)]] for length in lengths]
    get_engine("auto")(model, causal_lm_loss, Units.from_rows(cohort[:3]), l2_clip_norm=0.7)
    for layer in model.transformer.h:
        layer.attn.c_attn.weight.data.mul_(1e4)
    yield Setup(model, causal_lm_loss, cohort, 0.7, (0,), 32)


def as_wide_as_the_longest(units: Units, *options: Any) -> dict[PassShape, list[int]]:
    """Passes in place of those of fixed shapes."""
    longest = int(units.lengths.max())
    with patch.object(passes, "padded_width", lambda tokens: longest):
        return units_by_shape(units, *options)


UNUSUAL = 48
"""A token that no made-up row has."""


def scaled(scale: float) -> Loss:
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(input_ids.shape[1]) < lengths[:, None]
        found = (model(input_ids).tanh().mean(2) * real).sum(1) / lengths
        return found * torch.where((input_ids == UNUSUAL).any(1), scale, 1.0)

    return loss


def far_over() -> Iterator[Setup]:
    """A unit whose gradient is up to 1e38 times as long as the clip norm."""
    model = Small(
        lambda m, tokens, vectors: m.head(vectors),
        vocabulary=50, width=64, seed=0, head=lambda: nn.Linear(64, 64, bias=False),
    )  # fmt: skip
    model.table.requires_grad_(False)
    model.table.weight.mul_(0.3)
    model.table.weight[UNUSUAL] *= 100
    cohort = [*([[n, n + 1, 3]] for n in range(6)), [[UNUSUAL, UNUSUAL, 5, 6, 7]]]
    for exponent in range(0, 32, 2):
        yield Setup(model, scaled(10.0 ** (30 + exponent / 4)), cohort, 1e-8, (6,))


def tied_router() -> Iterator[Setup]:
    """Mixtral, all logits of whose routers are equal but for their last bits.

    Leaving one of two users out changes nothing but the shapes of products, and these bits.
    """
    model = build("mixtral", experts_implementation="batched_mm").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("self_attn" in name)
            if "down_proj" in name:
                parameter.mul_(20)  # what an expert says matters
            if name.endswith("gate.weight"):
                for expert, bits in ((1, 2**-23), (2, -(2**-23)), (3, 2**-22)):
                    parameter[expert] = parameter[0] * (1 + bits)
    for seed in range(40):
        cohort = ragged([1, 1], seed=seed, shortest=3, longest=39, vocabulary=61)
        yield Setup(model, causal_lm_loss, cohort, 0.05, (0, 1))


HAZARDS: dict[str, Hazard] = {
    "a row beyond the model's positions": Hazard(
        setups=long_row,
        undefended=[
            (choice, "most_tokens", lambda model: 1 << 30),
            (passes, "padded_width", lambda tokens: 60),
        ],
        moved=1.1,
        way="alone",
    ),
    "a gradient that is far too long": Hazard(
        setups=far_over,
        undefended=[
            (batched, "multiplicable", lambda factors: torch.stack(list(factors)).all(0)),
            (linear, "_LARGEST_SIDE", math.inf),
            (rounding, "wide", Tensor.double),  # float32 norms end before such factors
        ],
        moved=1.01,
        way="batched",
    ),
    "weights that grow": Hazard(
        setups=grown_weights,
        undefended=[(batched, "units_by_shape", as_wide_as_the_longest)],
        moved=1.5,
        way="batched",
    ),
    "a router that last bits tip": Hazard(
        setups=tied_router,
        undefended=[
            (choice, "require_rows_apart", lambda *args, **options: None),
            (choice, "disagreement", lambda task: None),
            (rows, "steps", lambda call, result: False),
        ],
        moved=1.5,
        way="refused",
    ),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_invariant_3_a_hazard_moves_the_sum_by_at_most_the_clip_norm(name: str) -> None:
    way = HAZARDS[name].way
    told = pytest.raises(UseError, match="on made-up rows") if way == "refused" else nullcontext()
    with products_that_round_by_shape(), counted_reference() as alone, told:
        assert all(one.largest_move() <= 1 for one in HAZARDS[name].setups())
    assert sum(alone) or way != "alone"


@pytest.mark.parametrize("name", HAZARDS)
def test_invariant_3_twin_a_hazard_without_its_defence_is_caught(name, monkeypatch):
    hazard = HAZARDS[name]
    for where, attribute, value in hazard.undefended:
        monkeypatch.setattr(where, attribute, value)
    with products_that_round_by_shape():
        assert any(one.largest_move() > hazard.moved for one in hazard.setups())


def shares_passes(model: nn.Module, loss: Loss) -> bool:
    """Whether none of eight units is computed by itself."""
    eight = Units.from_rows(ragged([1] * 8, seed=1, shortest=8, longest=8))
    with counted_reference() as alone:
        get_engine("auto")(model, loss, eight, l2_clip_norm=0.05, micro_batch=4)
    return not any(alone)


def test_invariant_3_a_schedule_that_begins_later_is_computed_one_by_one_from_then_on() -> None:
    model, loss = build("gpt2"), Mining(1 << 30)
    for after in (1 << 30, 0, 1 << 30):
        loss.after = after
        assert shares_passes(model, loss) is (after > 0)


def test_adapters_that_are_exchanged_between_steps_are_certified_anew() -> None:
    kinds = {"r": 2, "fan_in_fan_out": True, "init_lora_weights": False}
    first, other = (peft.LoraConfig(target_modules=[one], **kinds) for one in ("c_attn", "c_fc"))
    model: Any = peft.get_peft_model(build("gpt2"), first)
    model.add_adapter("other", other)
    for name in ("default", "other", "default"):
        model.set_adapter(name)
        assert shares_passes(model, causal_lm_loss)


# The measurement, and gradients at the ends of what floating point holds.


def test_the_measurement_sees_a_sum_one_percent_too_large_and_a_clip_of_each_row() -> None:
    cohort, clip = ragged([4, 2], seed=4), 0.5
    total = partial(clipped_sum, tiny(), causal_lm_loss, l2_clip_norm=clip)
    assert largest_move(total, cohort) <= clip

    def one_percent(units: Units) -> dict[str, Tensor]:
        return {name: 1.01 * value for name, value in total(units).value.items()}

    def each_row(units: Units) -> ClippedSum:
        return total(replace(units, offsets=torch.arange(len(units.lengths) + 1)))

    assert largest_move(one_percent, cohort) > clip
    assert largest_move(each_row, cohort) > 1.2 * clip


def chosen_gradients(dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    same = torch.full((64,), 0.3)
    gradients = [
        same,
        same,
        same * 1e30,  # its square overflows in float32
        same * -1e30,
        same * 1e-30,
        torch.full((64,), 1e-45),  # the smallest denormal
        torch.full((64,), torch.nan),
        torch.full((64,), torch.inf),
        torch.zeros(64),
        torch.cat([torch.tensor([-torch.inf]), torch.zeros(63)]),
        torch.cat([torch.tensor([3e38]), torch.full((63,), 1e-40)]),
        torch.randn(64, generator=generator) * 1e6,
    ]
    return torch.stack(gradients).to(dtype)


@pytest.mark.parametrize("clip", fast_then_slow([1.0, 1e-6, 1e6]))
@pytest.mark.parametrize("item_clip_norm", fast_then_slow([None, 0.1]))
@pytest.mark.parametrize("dtype", fast_then_slow([torch.float32, torch.float64, torch.bfloat16]))
def test_invariant_3_sensitivity_is_at_most_the_clip_norm_for_adversarial_gradients(
    dtype, item_clip_norm, clip
):
    model = Table(chosen_gradients(dtype))
    count = len(model.gradients)
    cohort = [[[k, 0]] for k in range(count)]
    cohort += [[[k, 0], [(k + 1) % count, 0], [k, 0]] for k in range(0, count, 2)]
    limits = {"l2_clip_norm": clip, "item_clip_norm": item_clip_norm, "micro_batch": 2}
    assert largest_move(partial(clipped_sum, model, table_loss, **limits), cohort) <= clip
