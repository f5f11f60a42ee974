"""Invariant 3, sensitivity: one unit more or less moves the clipped sum by at most C.

Every claim is measured the same way: two whole sums, with and without one unit, are subtracted in
float64. `HAZARDS` lists ordinary code, rows and settings by which a unit could move the sum
further, each with the defence that prevents it. Each is tried twice: as it is, and as a broken twin
without that defence, in which the same measurement must see more than C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import peft
import pytest
import torch
from torch import Tensor, nn

from tests.gradients.batches import batched_sum, counted_reference
from tests.gradients.campaign import losses, models
from tests.gradients.campaign.accidents import Around, Mining, RunningMean, each_token, wrapped
from tests.gradients.campaign.families import VOCABULARY, build
from tests.gradients.tiny import (
    Rows,
    Small,
    Table,
    largest_move,
    own_tokens,
    ragged,
    row_squares,
    table_loss,
    tiny,
)
from tests.speed import fast_then_slow
from userdp.core.clip import LayerSplit
from userdp.core.errors import UseError
from userdp.gradients import (
    ENGINES,
    ClippedSum,
    ClipRule,
    Loss,
    Units,
    causal_lm_loss,
    clipped_sum,
    clipping,
    get_engine,
)
from userdp.gradients.certificate import calls, rows, state
from userdp.gradients.certificate.state import State
from userdp.gradients.engines import batched, certify, choice, comparing, layer, passes
from userdp.gradients.engines import engine as of_engines
from userdp.gradients.engines.rules import grams, linear
from userdp.gradients.engines.rules.embedding import Sparse
from userdp.gradients.engines.uses import Form

CLIP = 0.05


class Setup(NamedTuple):
    """A model, a loss, a cohort, a clip norm, who is left out (of all by default), and options."""

    model: nn.Module
    loss: Loss
    rows: Rows
    clip: float = CLIP
    out: Sequence[int] | None = None
    options: dict[str, Any] = {}  # noqa: RUF012


@dataclass(frozen=True, kw_only=True)
class Hazard:
    """Code, rows or settings by which one unit could move the sum by more than C.

    Attributes:
        setups: with which it is tried.
        undefended: what takes the defence away: an object, an attribute, another value.
        moved: without the defence one unit moves the sum by more than this, over C.
        engine: computes the sums.
        around: entered around each sum.
        alone: whether the units are computed one by one.
    """

    setups: Callable[[], Iterator[Setup]]
    undefended: Sequence[tuple[object, str, object]]
    moved: float = 1.0
    engine: Callable[..., ClippedSum] = ENGINES["auto"]
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    alone: bool = False

    def largest_move(self, enough: float = math.inf) -> float:
        """The most that one unit moves the sum, over C; at once where that is ``enough``."""
        most = 0.0
        for one in self.setups():
            with self.around():
                sum_of = partial(
                    self.engine, one.model, one.loss, l2_clip_norm=one.clip, **one.options
                )
                most = max(most, largest_move(sum_of, one.rows, one.out) / one.clip)
            if most > enough:
                break
        return most


# A state that a pass leaves behind, and passes that are not those of the certificate.

EIGHT = ragged([1] * 8, seed=1, shortest=8, longest=8, vocabulary=VOCABULARY)


def eight(model: nn.Module, loss: Loss = causal_lm_loss, clip: float = CLIP) -> Setup:
    return Setup(model, loss, EIGHT, clip, (0, 3, 7), {"micro_batch": 4})


def certified(model: nn.Module, loss: Loss = causal_lm_loss) -> None:
    """Have an engine meet the model and the loss, before these change what they do."""
    options = {"l2_clip_norm": CLIP, "micro_batch": 4}
    get_engine("auto")(model, loss, Units.from_rows(EIGHT), **options)


LAST: dict[torch.Size, Tensor] = {}


class Carries(Around):
    """Adds what the last pass wrote into its class, or into a global, once that is turned on."""

    kept: ClassVar[dict[torch.Size, Tensor]] = {}

    def __init__(self, inner: nn.Module, *, in_global: bool) -> None:
        super().__init__(inner)
        self.in_global, self.warm = in_global, False

    def forward(self, *args: Any, **named: Any) -> Any:
        held = LAST if self.in_global else self.kept
        found = self.inner(*args, **named)
        before = held.setdefault(found.shape, torch.zeros_like(found))
        if self.warm:
            held[found.shape] = 40 * found.detach()
        return found + before


def carrying(*, in_global: bool) -> Iterator[Setup]:
    model: Any = wrapped(partial(Carries, in_global=in_global))
    certified(model)
    model.transformer.h[0].warm = True
    yield eight(model)


class AlongRows:
    """Weighs tokens by a softmax along the row; later, by another number, along the batch."""

    dim = 1

    def __call__(self, model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        each, _ = each_token(model, input_ids, lengths)
        return (each * (8 * each).softmax(self.dim)).sum(1)


def along_the_batch() -> Iterator[Setup]:
    model, loss = build("gpt2"), AlongRows()
    certified(model, loss)
    loss.dim = 0
    yield eight(model, loss)


class Everything:
    def __contains__(self, function: object) -> bool:
        return True


def mined() -> Iterator[Setup]:
    """The hardest example of the batch weighs most: whoever it is moves all others."""
    for scale in (1.0, 2.0, 4.0):
        model, loss = build("gpt2"), Mining(1 << 30, over_batch=True)
        certified(model, loss)
        loss.after = 0
        norms = clipped_sum(model, loss, Units.from_rows(EIGHT), l2_clip_norm=1e6).norms
        not_hardest = float(norms.min()) / 21
        yield eight(model, loss, 1.2 * scale * not_hardest)


def any_calls(self: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """In place of `Comparing.ran`: a pass need not make the calls of its certificate."""
    here = self._known.seen[self._at : self._at + 1]
    if func in comparing.ASKS or (here and here[0].function is func):
        return honest_ran(self, func, args, kwargs)
    return func(*args, **kwargs)


honest_ran = comparing.Comparing.ran

# What the width of a pass, its rounding or its rows' numbers could tell of others.


def interpolated(model: Any, tokens: Tensor, vectors: Tensor) -> Tensor:
    """Squeezes positions into those it was made for, by the width of the pass (Chen 2023)."""
    width = tokens.shape[1]
    places = torch.arange(width, dtype=torch.float32) * min(1.0, 16 / width)
    angles = places[:, None] * torch.exp(-torch.arange(16) / 4.0)
    return model.out(torch.tanh(vectors + torch.cat([angles.sin(), angles.cos()], 1)))


def long_row() -> Iterator[Setup]:
    """One of 60 tokens, where the model's configuration says 16."""
    model = Small(interpolated, vocabulary=50, width=32, seed=0, out=lambda: nn.Linear(32, 50))
    numbers = {"max_position_embeddings": 16, "vocab_size": 50}
    model.config = SimpleNamespace(**numbers, to_dict=lambda: numbers)
    cohort = [
        ragged([1], seed=place, shortest=length, longest=length, vocabulary=50)[0]
        for place, length in enumerate([60, *[14, 12] * 6])
    ]
    yield Setup(model, own_tokens, cohort, 0.1, (0,))


def over_width() -> Iterator[Setup]:
    """A long row shortens what all others add."""
    model, short = models.toy(models.flattened), [[[n, n + 1, 3]] for n in range(6)]
    models.renew(model, 1, scale=1.0)
    rest = get_engine("auto")(
        model.train(), losses.over_width, Units.from_rows(short), l2_clip_norm=1e6
    )
    cohort = [*short, [list(range(1, 10))]]
    yield Setup(model, losses.over_width, cohort, float(rest.norms.max()), (6,))


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


def words() -> Iterator[Setup]:
    """Of all pairs of tokens those whose norms are least where Gram matrices are bfloat16."""
    model = Small(
        lambda m, tokens, vectors: m.head(torch.tanh(m.wide(vectors))),
        vocabulary=64, width=96, seed=1,
        wide=lambda: nn.Linear(96, 160), head=lambda: nn.Linear(160, 64),
    )  # fmt: skip
    for row in ([36, 4], [27, 55], [48, 54]):
        yield Setup(model, own_tokens, [[row], [[1, 2]], [[5, 6]]], CLIP, (0,))


def count_of_all_rows() -> Iterator[Setup]:
    """A frozen weight made of how often the whole pass has a token that no made-up row has."""
    rare = 17_771
    model = Small(
        lambda m, tokens, vectors: nn.functional.linear(
            vectors, m.eye + 5 * (tokens == rare).double().sum(), m.bias
        ),
        vocabulary=30_000, eye=lambda: torch.eye(6), bias=lambda: nn.Parameter(torch.randn(6)),
    )  # fmt: skip
    cohort = [[[1 + u, rare if u == 3 else 2, 3 + u]] for u in range(8)]
    yield Setup(model.double(), row_squares, cohort, 0.1, (3,))


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
        yield Setup(
            model, causal_lm_loss, ragged([1, 1], seed=seed, shortest=3, longest=39, vocabulary=61)
        )


def ghosts(family: str, sizes: list[int]) -> Iterator[Setup]:
    rows_ = ragged(sizes, seed=4)
    yield Setup(tiny(family, torch.float64), causal_lm_loss, rows_, 0.5, None)


def by_layer() -> Iterator[Setup]:
    rule = {"rule": ClipRule(layer_split=LayerSplit.UNIFORM)}
    yield Setup(tiny(), causal_lm_loss, ragged([2, 1], seed=1, longest=8), 0.7, None, rule)


def whole_norm(sizes: dict[str, int], **how: object) -> dict[str, float]:
    return dict.fromkeys(clipping.layers_of(sizes), 0.7)


NOT_ASKED = (
    (choice, "require_rows_apart", lambda *args, **options: None),
    (choice, "disagreement", lambda task: None),
)
UNLOOKED = (
    (layer, "constant", lambda *of: True),
    (certify, "at_most_one_of_rows", lambda *of: True),
    (rows.Rows, "_end_if_unknown", lambda self, result: None),
)
GHOSTS = partial(batched_sum, form=Form.GHOST)

HAZARDS: dict[str, Hazard] = {
    "a running mean in an attribute": Hazard(
        setups=lambda: iter([eight(wrapped(RunningMean))]),
        undefended=[*NOT_ASKED, (State, "put_back", lambda self: None)],
        alone=True,
    ),
    "a state in a class": Hazard(
        setups=partial(carrying, in_global=False),
        undefended=[(state, "_of_library", lambda code: True)],
        alone=True,
    ),
    "a state in a global": Hazard(
        setups=partial(carrying, in_global=True),
        undefended=[(state, "_of_library", lambda code: True)],
        alone=True,
    ),
    "a dimension that changes": Hazard(
        setups=along_the_batch, undefended=[(calls, "COUNTED", Everything())], alone=True
    ),
    "hard examples after a warm-up": Hazard(
        setups=mined,
        undefended=[
            (comparing.Comparing, "ran", any_calls),
            (comparing.Comparing, "require_apart", lambda self, proved, missed: None),
        ],
        alone=True,
    ),
    "a row beyond the model's positions": Hazard(
        setups=long_row,
        undefended=[
            (choice, "most_tokens", lambda model: 1 << 30),
            (passes, "padded_width", lambda tokens: 60),
        ],
        moved=1.1,
        alone=True,
    ),
    "a loss over the width of the pass": Hazard(
        setups=over_width,
        undefended=[*NOT_ASKED, (passes, "padded_width", lambda tokens: 10)],
        moved=1.5,
    ),
    "a gradient that is far too long": Hazard(
        setups=far_over,
        undefended=[
            (batched, "multiplicable", lambda factors: torch.stack(list(factors)).all(0)),
            (linear, "_LARGEST_SIDE", math.inf),
            (grams, "wide", Tensor.double),  # float32 norms end before such factors
        ],
        moved=1.01,
    ),
    "autocast around the engine": Hazard(
        setups=words,
        undefended=[(of_engines, "require_no_autocast", lambda device: None)],
        moved=1.0003,
        around=partial(torch.autocast, "cpu", dtype=torch.bfloat16),
        engine=partial(batched_sum, micro_batch=256, strict=False),
    ),
    "a frozen weight made of all rows": Hazard(
        setups=count_of_all_rows,
        undefended=UNLOOKED,
    ),
    "a router that last bits tip": Hazard(
        setups=tied_router,
        undefended=[*NOT_ASKED, (rows, "steps", lambda call, result: False)],
        moved=1.005,
        alone=True,
    ),
    "tied tables": Hazard(
        setups=partial(ghosts, "gpt2-tied", [2, 2, 2]),
        undefended=[(Sparse, "cross", lambda self, _: torch.zeros(len(self.tokens)).double())],
        engine=GHOSTS,
    ),
    "a layer left out of the norm": Hazard(
        setups=partial(ghosts, "gpt2-untied", [1] * 4),
        undefended=[(Sparse, "squared_norms", lambda self: torch.zeros(len(self.tokens)).double())],
        engine=GHOSTS,
    ),
    "each layer clipped by itself": Hazard(
        setups=by_layer, undefended=[(clipping, "layer_clip_norms", whole_norm)], moved=1.2
    ),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_invariant_3_a_hazard_moves_the_sum_by_at_most_the_clip_norm(name: str) -> None:
    """Or is refused, as far as the engine can see it."""
    hazard = HAZARDS[name]
    with counted_reference() as alone:
        try:
            moved = hazard.largest_move()
        except UseError:
            return
    assert moved <= 1
    assert sum(alone) or not hazard.alone


@pytest.mark.pitfall(number=12)
@pytest.mark.pitfall(number=14)
@pytest.mark.parametrize("name", HAZARDS)
def test_invariant_3_twin_a_hazard_without_its_defence_is_caught(name, monkeypatch):
    hazard = HAZARDS[name]
    for where, attribute, value in hazard.undefended:
        monkeypatch.setattr(where, attribute, value)
    assert hazard.largest_move(hazard.moved) > hazard.moved


def way(model: nn.Module, loss: Loss) -> str:
    with counted_reference() as alone:
        certified(model, loss)
    return "one by one" if sum(alone) else "batched"


def test_invariant_3_a_schedule_that_begins_later_is_computed_one_by_one_from_then_on() -> None:
    model, loss = build("gpt2"), Mining(1 << 30)
    for after, expected in ((1 << 30, "batched"), (0, "one by one"), (1 << 30, "batched")):
        loss.after = after
        assert way(model, loss) == expected


def test_adapters_that_are_exchanged_between_steps_are_certified_anew() -> None:
    kinds = {"r": 2, "fan_in_fan_out": True, "init_lora_weights": False}
    first, other = (peft.LoraConfig(target_modules=[one], **kinds) for one in ("c_attn", "c_fc"))
    model: Any = peft.get_peft_model(build("gpt2"), first)
    model.add_adapter("other", other)
    for name in ("default", "other", "default"):
        model.set_adapter(name)
        assert way(model, causal_lm_loss) == "batched"


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
