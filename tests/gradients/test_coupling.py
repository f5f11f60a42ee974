"""A loss or a model that couples rows is refused by every engine, on rows that are nobody's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.gradients.batches import reason_alone
from tests.gradients.campaign import losses, models
from tests.gradients.campaign.models import renew
from tests.gradients.tiny import distance
from tests.speed import fast_then_slow
from userdp.core.errors import UseError
from userdp.gradients import Loss, Units, causal_lm_loss, get_engine
from userdp.gradients.certificate.coupling import require_rows_apart
from userdp.gradients.certificate.made_up import EQUAL, RAGGED, Shape, made_up
from userdp.gradients.engines import choice, passes

CLIP = 0.01
ENGINES = ["auto", "reference"]
UNITS = Units.from_rows([[[1, 2, 3, 4], [5, 6, 7]], [[2, 2, 1, 7, 3]]])


class TrainsOverBatch(models.Flattened):
    """Couples rows while it trains only."""

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        found = super().forward(input_ids, lengths)
        return found - found.mean(0) if self.training else found


def counts_token_one(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Divided by how often a special token occurs in the batch."""
    return losses.own_rows(model, input_ids, lengths) / (input_ids == 1).sum().clamp(min=1)


COUPLED: list[tuple[Callable[[], nn.Module], Loss]] = [
    (models.gpt2, losses.over_batch_tokens),
    (models.HeadOnSelected, losses.selected_over_batch),
    (models.Flattened, losses.over_rows),
    (models.Flattened, losses.over_width),
    (models.Flattened, losses.over_mean_length),
    (models.Flattened, losses.softmax_over_rows),
    (models.Flattened, losses.gradient_over_batch),
    (models.Flattened, counts_token_one),
    (models.BatchMean, losses.own_rows),
]


@pytest.mark.parametrize("name", fast_then_slow(ENGINES))
@pytest.mark.parametrize(("build", "loss"), COUPLED)
@pytest.mark.pitfall(number=18)
def test_invariant_3_a_statistic_of_the_batch_is_refused_by_every_engine(build, loss, name):
    model = build().train()
    renew(model, 0, scale=1.0)
    for units in (UNITS, Units.from_rows([[[1, 2, 3]]]), Units.from_rows([])):
        with pytest.raises(UseError, match="on made-up rows") as error:
            get_engine(name)(model, loss, units, l2_clip_norm=1.0)
    assert "own count of targets" in str(error.value.hint)


def test_a_model_that_couples_rows_only_while_it_trains_has_each_unit_computed_alone() -> None:
    """It is asked without dropout; rows that are one unit's own may be coupled."""
    model = TrainsOverBatch().train()
    renew(model, 0, scale=1.0)
    assert reason_alone(model, losses.own_rows, UNITS) is not None
    everybody = get_engine("auto")(model, losses.own_rows, UNITS, l2_clip_norm=CLIP)
    others = get_engine("auto")(model, losses.own_rows, UNITS.select(0, 1), l2_clip_norm=CLIP)
    assert distance(everybody, others) <= CLIP


@pytest.mark.parametrize("masked", fast_then_slow([False, True]))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("build", fast_then_slow([models.gpt2, models.llama, models.qwen2]))
def test_the_built_in_loss_is_accepted_in_every_precision_and_with_dropout(build, dtype, masked):
    model = build()
    renew(model, 0, scale=1.0)
    require_rows_apart(model.to(dtype).train(), causal_lm_loss, masked=masked)


def test_randomness_that_is_no_dropout_is_not_taken_for_coupling() -> None:
    class Noisy(models.Flattened):
        def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
            found = super().forward(input_ids, lengths)
            return found + torch.randn_like(found) if self.training else found

    model = Noisy().train()
    state = torch.get_rng_state()
    require_rows_apart(model, losses.own_rows, masked=False)
    assert torch.equal(torch.get_rng_state(), state)


def test_two_parameters_with_one_gradient_are_not_taken_for_coupling() -> None:
    """Autograd hands out one tensor for both: taking it off in place would take it off twice."""

    class Added(models.Flattened):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Parameter(torch.zeros(models.VOCABULARY))
            self.other = nn.Parameter(torch.zeros(models.VOCABULARY))

        def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
            return super().forward(input_ids, lengths) + (self.one + self.other)

    require_rows_apart(Added(), losses.own_rows, masked=False)


def test_made_up_rows_are_the_models_own_tokens_and_fit_its_positions() -> None:
    model = models.gpt2()
    units = made_up(model, RAGGED[1], masked=True)
    assert int(units.input_ids.max()) < models.VOCABULARY
    assert units.targets is not None
    assert bool((units.target_counts() > 0).all())
    assert torch.equal(made_up(model, RAGGED[1], masked=True).input_ids, units.input_ids)
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
    model, engine = models.Flattened(), get_engine("auto")
    renew(model, 1, scale=1.0)
    short = [[[n, n + 1, 3]] for n in range(6)]
    rest, units = Units.from_rows(short), Units.from_rows([*short, [list(range(1, 10))]])
    clip = float(engine(model, losses.over_width, rest, l2_clip_norm=1e6).norms.max())
    sums = (engine(model, losses.over_width, some, l2_clip_norm=clip) for some in (units, rest))
    assert distance(*sums) > 1.5 * clip


def test_a_model_that_looks_ahead_of_padding_is_refused() -> None:
    class LooksAhead(models.Flattened):
        def forward(self, input_ids: Tensor, position_ids: Tensor, use_cache: bool) -> Any:
            hidden = self.hidden(input_ids)
            return SimpleNamespace(logits=self.head(hidden + hidden.mean(1, keepdim=True)))

    model = LooksAhead()
    renew(model, 0, scale=1.0)
    with pytest.raises(UseError, match="on made-up rows"):
        get_engine("auto")(model, causal_lm_loss, UNITS, l2_clip_norm=CLIP)


@pytest.mark.parametrize("engine", ENGINES)
def test_invariant_3_a_loss_that_reduces_over_processes_is_refused(engine: str) -> None:
    """In one process the mean is the row's own: only the call tells what two would compute."""

    def over_processes(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        found = losses.own_rows(model, input_ids, lengths)
        mean = found.detach().clone()
        dist.all_reduce(mean)
        return found * mean

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(UseError, match="asks other processes"):
            get_engine(engine)(models.Flattened(), over_processes, UNITS, l2_clip_norm=CLIP)
    finally:
        dist.destroy_process_group()
