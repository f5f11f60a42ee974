"""Models and losses that couple rows are refused, on rows that are nobody's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.batches import reason_alone
from tests.gradients.campaign import cases, losses, models
from tests.gradients.campaign.families import build as build_family
from tests.gradients.campaign.models import renew
from tests.gradients.tiny import VOCABULARY, Logits, Small, largest_move
from tests.speed import fast_then_slow
from userdp.core.errors import UseError
from userdp.gradients import Loss, Units, causal_lm_loss, get_engine
from userdp.gradients.certificate.coupling import require_rows_apart
from userdp.gradients.certificate.made_up import RAGGED, Shape, circumstances, made_up

ROWS = [[[1, 2, 3, 4], [5, 6, 7]], [[2, 2, 1, 7, 3]]]
UNITS = Units.from_rows(ROWS)


def renewed(model: nn.Module) -> nn.Module:
    renew(model, 0, scale=1.0)
    return model.train()


def with_head(change: Callable[[Any, Tensor], Tensor], **parts: Any) -> Small:
    """A table and a head, whose logits are changed."""
    return Small(
        lambda m, tokens, vectors: Logits(change(m, m.head(vectors))),
        head=lambda: nn.Linear(6, VOCABULARY),
        **parts,
    )


def experts(room: int | None) -> Small:
    """Of limited room: tokens that come late are dropped, whoever's the earlier ones are."""

    def answer(model: Any, tokens: Tensor, vectors: Tensor) -> Logits:
        flat = vectors.flatten(0, 1)
        chosen, found = model.router(flat).argmax(-1), torch.zeros_like(flat)
        for number, expert in enumerate(model.experts):
            mine = (chosen == number).nonzero()[:room, 0]
            found = found.index_add(0, mine, expert(flat[mine]))
        return Logits(model.head(found).view(*tokens.shape, -1))

    return Small(
        answer,
        router=lambda: nn.Linear(6, 2),
        experts=lambda: nn.ModuleList(nn.Linear(6, 6) for _ in range(2)),
        head=lambda: nn.Linear(6, VOCABULARY),
    )


def counts_token_one(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Divided by how often a special token occurs in the batch."""
    return losses.own_rows(model, input_ids, lengths) / (input_ids == 1).sum().clamp(min=1)


COUPLED: list[tuple[str, Callable[[], nn.Module], Loss]] = [
    *cases.KINDS["coupled"],
    ("a special token of the batch", partial(models.toy, models.flattened), counts_token_one),
    ("experts of limited room", lambda: experts(3), causal_lm_loss),
    (
        "a look at the padding",
        lambda: with_head(lambda m, logits: logits + logits.mean(1, keepdim=True)),
        causal_lm_loss,
    ),
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


def while_it_trains() -> Small:
    """Rows are coupled in training mode only."""
    return with_head(lambda m, logits: logits - logits.mean(0) if m.training else logits)


def noisy() -> Small:
    """Draws numbers that are no dropout."""
    return with_head(lambda m, logits: logits + torch.randn_like(logits))


def added() -> Small:
    """Two parameters of one gradient: autograd hands out one tensor for both."""

    def bias() -> nn.Parameter:
        return nn.Parameter(torch.zeros(VOCABULARY))

    return with_head(lambda m, logits: logits + (m.one + m.other), one=bias, other=bias)


@pytest.mark.parametrize("build", [while_it_trains, noisy, added, lambda: experts(None)])
def test_what_couples_no_rows_without_dropout_is_accepted(build):
    model, state = renewed(build()), torch.get_rng_state()
    require_rows_apart(model, causal_lm_loss, masked=False)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("build", [while_it_trains, lambda: experts(None)])
def test_rows_that_only_training_or_a_choice_couples_are_computed_unit_by_unit(build):
    """Rows that are one unit's own may be coupled."""
    model = renewed(build())
    assert reason_alone(model, causal_lm_loss, UNITS) is not None

    def summed(units: Units) -> Any:
        return get_engine("auto")(model, causal_lm_loss, units, l2_clip_norm=0.05)

    assert largest_move(summed, ROWS) <= 0.05


@pytest.mark.parametrize("masked", fast_then_slow([False, True]))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("build", fast_then_slow([models.gpt2, models.llama, models.qwen2]))
def test_the_built_in_loss_is_accepted_in_every_precision_and_with_dropout(build, dtype, masked):
    require_rows_apart(renewed(build()).to(dtype), causal_lm_loss, masked=masked)


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
