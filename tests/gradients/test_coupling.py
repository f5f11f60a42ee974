"""Models and losses of which no engine could keep users apart are refused, on made-up rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.batches import reason_alone
from tests.gradients.campaign import losses, models
from tests.gradients.campaign.accidents import ACCIDENTS, Accident
from tests.gradients.campaign.families import build as build_family
from tests.gradients.campaign.measure import engine_of, prepared
from tests.gradients.tiny import largest_move
from userdp.core.errors import UseError
from userdp.gradients import ENGINES, Loss, Units, causal_lm_loss, get_engine
from userdp.gradients.certificate.made_up import RAGGED, Shape, circumstances, made_up

ROWS = [[[1, 2, 3, 4], [5, 6, 7]], [[2, 2, 1, 7, 3]]]
EXPERTS = partial(models.routed, 2, 1)
STATISTICS = [
    nn.BatchNorm1d(4),
    nn.BatchNorm1d(4).eval(),
    nn.BatchNorm1d(4, track_running_stats=False),
    nn.SyncBatchNorm(4),
    nn.InstanceNorm1d(4, track_running_stats=True),
]


def toy(change: Callable[[Any, Tensor], Tensor], **parts: Callable[[], nn.Parameter]) -> nn.Module:
    """A table and a head, whose logits are changed."""
    return models.toy(lambda m, tokens, vectors, lengths: change(m, m.head(vectors)), **parts)


def renewed(model: nn.Module) -> nn.Module:
    models.renew(model, 0, scale=1.0)
    return model.train()


def refused(
    says: str, model: Callable[[], nn.Module] = models.gpt2, loss: Loss = causal_lm_loss
) -> Accident:
    return Accident(
        model=lambda: renewed(model()), loss=lambda: loss, allowed=("refused",), says=says
    )


def counts_token_one(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Divided by how often a special token occurs in the batch."""
    return losses.own_rows(model, input_ids, lengths) / (input_ids == 1).sum().clamp(min=1)


HIDDEN = {"generator": torch.Generator()}


def own_coins(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """From a generator that only the operation shows."""
    coin = torch.rand(len(input_ids), generator=HIDDEN["generator"])
    return causal_lm_loss(model, input_ids, lengths) * coin


COUPLES = "on made-up rows"
REFUSED: dict[str, Accident] = {
    **{name: accident for name, accident in ACCIDENTS.items() if accident.says},
    **{
        loss.__name__: refused(COUPLES, partial(models.toy, models.flattened), loss)
        for loss in (
            counts_token_one,
            losses.over_rows,
            losses.over_width,
            losses.over_mean_length,
            losses.gradient_over_batch,
        )
    },
    "a loss over the batch's tokens": refused(COUPLES, loss=losses.over_batch_tokens),
    "a mean of the batch": refused(
        COUPLES, partial(models.toy, models.batch_mean), losses.own_rows
    ),
    "experts of limited room": refused(COUPLES, partial(EXPERTS, room=3), losses.own_rows),
    "a look at the padding": refused(
        COUPLES,
        lambda: toy(lambda m, logits: logits + logits.mean(1, keepdim=True)),
        losses.own_rows,
    ),
    "coins of a generator of its own": refused("of its own", loss=own_coins),
    **{
        str(layer): refused(
            "statistics over the batch", partial(nn.Sequential, nn.Embedding(8, 4), layer)
        )
        for layer in STATISTICS
    },
}


@pytest.mark.pitfall(number=18)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", REFUSED)
def test_invariant_3_what_no_engine_can_compute_is_refused_whoever_was_drawn(name, engine):
    """Also where that is nobody."""
    one = REFUSED[name]
    model, loss = one.model(), one.loss()
    for rows in (ROWS, [[[1, 2, 3]]], []):
        with pytest.raises(UseError, match=one.says) as error:
            get_engine(engine)(model, loss, Units.from_rows(rows), l2_clip_norm=1.0)
        assert one.says != COUPLES or "own count of targets" in str(error.value.hint)


@pytest.mark.parametrize("name", [name for name, one in REFUSED.items() if one.says == COUPLES])
def test_invariant_3_rows_that_are_coupled_are_refused_by_the_sharded_engine_too(name: str) -> None:
    model, loss = prepared(REFUSED[name].model(), "sharded"), REFUSED[name].loss()
    with pytest.raises(UseError):
        engine_of("sharded")(model, loss, Units.from_rows(ROWS), l2_clip_norm=1.0)


def while_it_trains() -> nn.Module:
    """Rows are coupled in training mode only."""
    return toy(lambda m, logits: logits - logits.mean(0) if m.training else logits)


@pytest.mark.parametrize("build", [while_it_trains, EXPERTS])
def test_rows_that_only_training_or_a_choice_couples_are_computed_unit_by_unit(build):
    """Rows that are one unit's own may be coupled."""
    model = renewed(build())
    assert reason_alone(model, losses.own_rows, Units.from_rows(ROWS)) is not None
    summed = partial(get_engine("auto"), model, losses.own_rows, l2_clip_norm=0.05)
    assert largest_move(summed, ROWS) <= 0.05


# The rows that are nobody's.


def test_made_up_rows_are_tokens_that_the_model_predicts_and_fit_its_positions() -> None:
    model: Any = models.gpt2()
    units, again = (made_up(model, RAGGED[1], masked=True) for _ in range(2))
    assert int(units.input_ids.max()) < models.VOCABULARY
    assert bool((units.target_counts() > 0).all())
    assert torch.equal(again.input_ids, units.input_ids)
    model.config.max_position_embeddings = model.config.n_positions = 6
    assert made_up(model, RAGGED[1], masked=False).lengths.tolist() == [6, 5, 6, 6]
    # Moshi's table holds one token more, which begins a row: a loss would look for it in vain.
    moshi = build_family("moshi")
    assert moshi.get_input_embeddings().num_embeddings > moshi.config.vocab_size
    units = made_up(moshi, Shape((2, 2), (6, 4, 4, 6)), masked=False)
    assert int(units.input_ids.max()) < moshi.config.vocab_size


def test_an_answer_found_on_one_device_is_none_about_another() -> None:
    model = models.gpt2()

    def here() -> object:
        return circumstances(model, dict(model.named_parameters()), masked=False)

    before = here()
    assert before == here()
    model.to("meta")
    assert before != here()
