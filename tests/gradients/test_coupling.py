"""What couples rows is refused on rows that are nobody's; choices that jump are not for batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, MixtralConfig

from tests.gradients.batches import batched_sum, reason_alone
from tests.gradients.campaign import cases, losses, models
from tests.gradients.campaign.models import renew
from tests.gradients.tiny import distance, largest_move
from tests.speed import fast_then_slow
from userdp.core.errors import UseError
from userdp.gradients import Loss, Units, causal_lm_loss, get_engine
from userdp.gradients.certificate import rows
from userdp.gradients.certificate.coupling import require_rows_apart
from userdp.gradients.certificate.made_up import EQUAL, RAGGED, Shape, made_up
from userdp.gradients.engines import choice, passes
from userdp.gradients.engines.following import NotCoveredError

CLIP, VOCABULARY = 0.05, 61
UNITS = Units.from_rows([[[1, 2, 3, 4], [5, 6, 7]], [[2, 2, 1, 7, 3]]])


def renewed(model: nn.Module, seed: int = 0) -> nn.Module:
    renew(model, seed, scale=1.0)
    return model.train()


def counts_token_one(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Divided by how often a special token occurs in the batch."""
    return losses.own_rows(model, input_ids, lengths) / (input_ids == 1).sum().clamp(min=1)


class Capacity(nn.Module):
    """Experts of limited room: tokens that come late are dropped, whoever's the earlier are."""

    def __init__(self, room: int | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.router = nn.Linear(8, 2)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, VOCABULARY)
        self.room = room

    def forward(self, input_ids: Tensor, **_: object) -> object:
        flat = self.embedding(input_ids).flatten(0, 1)
        chosen = self.router(flat).argmax(-1)
        found = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero()[: self.room, 0]
            found = found.index_add(0, mine, expert(flat[mine]))
        return SimpleNamespace(logits=self.head(found).view(*input_ids.shape, -1))


class LooksAhead(models.Flattened):
    """Sees what stands in the padding."""

    def forward(self, input_ids: Tensor, position_ids: Tensor, use_cache: bool) -> Any:
        hidden = self.hidden(input_ids)
        return SimpleNamespace(logits=self.head(hidden + hidden.mean(1, keepdim=True)))


COUPLED: list[tuple[str, Callable[[], nn.Module], Loss]] = [
    *cases.KINDS["coupled"],
    ("a special token of the batch", models.Flattened, counts_token_one),
    ("experts of limited room", lambda: Capacity(3), causal_lm_loss),
    ("a look at the padding", LooksAhead, causal_lm_loss),
]


@pytest.mark.parametrize("engine", ["auto", "reference"])
@pytest.mark.parametrize(("name", "build", "loss"), COUPLED)
@pytest.mark.pitfall(number=18)
def test_invariant_3_a_statistic_of_the_batch_is_refused_by_every_engine(engine, name, build, loss):
    """Whoever was drawn: also where that is nobody."""
    model = renewed(build())
    for units in (UNITS, Units.from_rows([[[1, 2, 3]]]), Units.from_rows([])):
        with pytest.raises(UseError, match="on made-up rows") as error:
            get_engine(engine)(model, loss, units, l2_clip_norm=1.0)
    assert "own count of targets" in str(error.value.hint)


class TrainsOverBatch(models.Flattened):
    """Couples rows while it trains only."""

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        found = super().forward(input_ids, lengths)
        return found - found.mean(0) if self.training else found


class Noisy(models.Flattened):
    """Draws numbers that are no dropout."""

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        found = super().forward(input_ids, lengths)
        return found + torch.randn_like(found) if self.training else found


class Added(models.Flattened):
    """Two parameters of one gradient: autograd hands out one tensor for both."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.zeros(models.VOCABULARY))
        self.other = nn.Parameter(torch.zeros(models.VOCABULARY))

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        return super().forward(input_ids, lengths) + (self.one + self.other)


@pytest.mark.parametrize("build", [TrainsOverBatch, Noisy, Added])
def test_what_couples_no_rows_without_dropout_is_accepted(build):
    model, state = renewed(build()), torch.get_rng_state()
    require_rows_apart(model, losses.own_rows, masked=False)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_that_couples_rows_only_while_it_trains_has_each_unit_computed_alone() -> None:
    """Rows that are one unit's own may be coupled."""
    model = renewed(TrainsOverBatch())
    assert reason_alone(model, losses.own_rows, UNITS) is not None
    everybody, others = (
        get_engine("auto")(model, losses.own_rows, units, l2_clip_norm=CLIP)
        for units in (UNITS, UNITS.select(0, 1))
    )
    assert distance(everybody, others) <= CLIP


@pytest.mark.parametrize("masked", fast_then_slow([False, True]))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("build", fast_then_slow([models.gpt2, models.llama, models.qwen2]))
def test_the_built_in_loss_is_accepted_in_every_precision_and_with_dropout(build, dtype, masked):
    require_rows_apart(renewed(build()).to(dtype), causal_lm_loss, masked=masked)


def test_made_up_rows_are_the_models_own_tokens_and_fit_its_positions() -> None:
    model: Any = models.gpt2()
    units, again = (made_up(model, RAGGED[1], masked=True) for _ in range(2))
    assert int(units.input_ids.max()) < models.VOCABULARY
    assert units.targets is not None
    assert bool((units.target_counts() > 0).all())
    assert torch.equal(again.input_ids, units.input_ids)
    model.config.max_position_embeddings = model.config.n_positions = 6
    assert made_up(model, RAGGED[1], masked=False).lengths.tolist() == [6, 5, 6, 6]
    shapes: list[Shape] = [*RAGGED, EQUAL]
    for shape in shapes[:2]:
        assert sorted(shape.lengths) != list(shape.lengths) != sorted(shape.lengths)[::-1]


def test_invariant_3_twin_without_the_question_the_padded_width_moves_everybody(monkeypatch):
    """A loss over the width of the pass: a long row shortens what all the others add.

    If a pass were as wide as the longest row of all, that is.
    """
    monkeypatch.setattr(passes, "padded_width", lambda tokens: 10)
    monkeypatch.setattr(choice, "require_rows_apart", lambda *args, **options: None)
    monkeypatch.setattr(choice, "disagreement", lambda task: None)
    sum_of = partial(get_engine("auto"), renewed(models.Flattened(), 1), losses.over_width)
    short = [[[n, n + 1, 3]] for n in range(6)]
    rest, units = Units.from_rows(short), Units.from_rows([*short, [list(range(1, 10))]])
    clip = float(sum_of(rest, l2_clip_norm=1e6).norms.max())
    assert distance(*(sum_of(some, l2_clip_norm=clip) for some in (units, rest))) > 1.5 * clip


# Choices that jump: in a batch, who else is in the pass decides the last bits.


def routed(*, tied: bool = False) -> nn.Module:
    """Mixtral, whose experts are followed from row to row; only its attention trains.

    Where ``tied``, all logits of its routers are equal but for their last bits.
    """
    torch.manual_seed(7)
    config = MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2,
        bos_token_id=0, eos_token_id=0, experts_implementation="batched_mm",
    )  # fmt: skip
    model: nn.Module = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
            parameter.requires_grad_("self_attn" in name)
            if "down_proj" in name:
                parameter.mul_(20)  # what an expert says matters
            if tied and name.endswith("gate.weight"):
                for expert, bits in ((1, 2**-23), (2, -(2**-23)), (3, 2**-22)):
                    parameter[expert] = parameter[0] * (1 + bits)
    return model


def users(seed: int) -> list[list[list[int]]]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 40, (2,), generator=draw).tolist()
    return [[torch.randint(VOCABULARY, (length,), generator=draw).tolist()] for length in lengths]


def test_invariant_3_a_router_in_a_batch_is_not_followed() -> None:
    units = Units.from_rows(users(0))
    with pytest.raises(NotCoveredError, match="tipped by the rounding"):
        batched_sum(routed(), causal_lm_loss, units, l2_clip_norm=CLIP)
    # Without a limit to its room, an expert is the token's own matter; but it is chosen.
    free = Capacity(None)
    require_rows_apart(free, causal_lm_loss, masked=False)
    assert reason_alone(free, causal_lm_loss, units) is not None


def test_invariant_3_twin_a_choice_among_nearly_equal_experts_moves_others(monkeypatch):
    """Broken twin: rows are followed through the choice, and a user moves the sum by more than C.

    Leaving the other user out changes nothing but the shapes of products, and their last bits.
    """
    monkeypatch.setattr(rows, "steps", lambda call, result: False)
    total = partial(batched_sum, routed(tied=True), causal_lm_loss, l2_clip_norm=CLIP)
    assert any(largest_move(total, users(seed)) > 1.005 * CLIP for seed in range(40))
