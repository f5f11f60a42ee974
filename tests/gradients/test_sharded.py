"""The sharded engine: the reference's norms and sum, on a model that no process holds whole.

Where one process shows it, this one is the world.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.gradients import sharded_jobs as jobs
from tests.gradients.campaign.measure import prepared
from tests.gradients.tiny import Small, length, row_sums
from tests.training.processes import run_world
from userdp.core.errors import FailureError, UseError
from userdp.gradients import ClippedSum, Loss, Units, causal_lm_loss
from userdp.gradients.engines import sharded
from userdp.gradients.shards import is_sharded
from userdp.training.causal_models import enable_checkpointing

NormTape = sharded.NormTape


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "checkpointing", "family"),
    [
        (1, False, "no layers"),  # all is gathered at once
        (2, False, "gpt2"),
        (2, True, "gpt2"),
        (2, True, "llama"),
    ],
)
def test_invariant_6_norms_and_sum_are_the_references_and_a_unit_that_is_not_finite_adds_zero(
    tmp_path, size, checkpointing, family
):
    results = run_world(size, jobs.compares, tmp_path, checkpointing, family)
    assert sorted(unit for one in results for unit in one["mine"]) == list(range(6))
    for one in results:
        finite = one["oracle_norms"].isfinite()
        torch.testing.assert_close(
            one["norms"][finite], one["oracle_norms"][finite], rtol=1e-5, atol=0
        )
        assert one["apart"] < 1e-6 < one["size"]
        assert one["grads"] == []
        assert one["non_finite"] == int(one["bad"])


def summed(
    model: nn.Module,
    units: Units,
    loss: Loss = causal_lm_loss,
    clip: float = jobs.CLIP,
    **options: Any,
) -> ClippedSum:
    """By a world of one process, whose part is the whole sum."""
    if not any(map(is_sharded, model.parameters())):
        model = prepared(model, "sharded")
    return sharded.clipped_sum(model, loss, units, l2_clip_norm=clip, **options)


def without_a_gradient(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Equal sums of nothing would certify any rule, and there is no reference to fall back to."""
    return causal_lm_loss(model, input_ids, lengths) * 0.0


def twice(model: Any) -> None:
    forward = model.transformer.ln_f.forward
    model.transformer.ln_f.forward = lambda x: forward(forward(x))


def narrow(model: Any) -> None:
    block = model.transformer.h[0].mlp
    forward = block.forward

    def in_bfloat16(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return forward(x).float()

    block.forward = in_bfloat16


def hooked(model: Any, hook: Callable[[Any, Any, Tensor], Tensor]) -> None:
    model.transformer.ln_f.register_forward_hook(hook)


REFUSED: dict[str, tuple[Callable[[nn.Module], None], dict[str, Any], str]] = {
    "clipped examples": (lambda model: None, {"item_clip_norm": 1.0}, "item_clip_norm"),
    "a coin": (
        partial(hooked, hook=lambda module, inputs, out: out * torch.rand([])),
        {},
        "not followed through rand",
    ),
    "a layer that is used twice": (twice, {}, "used more than once"),
    "a use without a rule": (
        partial(hooked, hook=lambda module, inputs, out: out * module.bias.sum()),
        {},
        "no per-unit rule for its bias",
    ),
    "fewer bits": (narrow, {}, "fewer bits than float32"),
    "no gradient": (lambda model: None, {"loss": without_a_gradient}, "zero or not finite"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_need_each_units_gradient_is_refused_before_data_is_read(kind):
    change, options, words = REFUSED[kind]
    model = jobs.small_model()
    change(model)
    with pytest.raises((UseError, FailureError), match=words):
        summed(model, jobs.some_units(), **options)
    assert all(map(is_sharded, model.parameters()))  # else layers would keep the weights of before


def test_twin_wrong_norms_are_caught_and_a_shared_layer_is_covered(monkeypatch):
    shared: Any = jobs.small_model()
    shared.transformer.h[0].ln_2 = shared.transformer.h[0].ln_1
    summed(shared, jobs.some_units())
    honest = NormTape.squares_by_name
    monkeypatch.setattr(
        NormTape, "squares_by_name", lambda tape: {n: s / 4 for n, s in honest(tape).items()}
    )
    with pytest.raises(UseError, match="disagree on made-up rows"):
        summed(jobs.small_model(), jobs.some_units())


def test_a_row_alone_in_its_pass_may_be_computed_again() -> None:
    """Nothing labels what one row saves, as everything is that row's; it was refused."""
    model = jobs.small_model()
    enable_checkpointing(model)
    found = summed(model, Units.from_rows([[[1, 2, 3]]]), micro_batch=1)
    assert found.norms[0] > jobs.CLIP
    assert length(found) == pytest.approx(jobs.CLIP, rel=2e-3)


# Factors push nothing over the end of float32.


def near_the_end(model: Any, tokens: Tensor, vectors: Tensor) -> Tensor:
    """What passes backwards falls to 2^-115 and is raised again to 2^10."""
    found: Tensor = model.linear(vectors) * 2.0**125 * 2.0**-115
    return found


def test_invariant_3_factors_push_nothing_over_the_end_of_float32(monkeypatch):
    """Broken twin: the second way through the graph begins at the factors times the losses."""
    model, units = (
        Small(near_the_end, linear=lambda: nn.Linear(6, 6)),
        Units.from_rows([[[1, 2, 3, 4]]]),
    )
    row_sums(model, units.input_ids, units.lengths).sum().backward()
    norm = float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())
    model.zero_grad(set_to_none=True)

    def longest() -> float:
        """The most that the unit is long in the sum, in C, at clip norms that move its factor."""
        clips = [part * 2.0**-34 * norm for part in np.linspace(0.5, 4, 15)]
        return max(length(summed(model, units, row_sums, clip)) / clip for clip in clips)

    assert 0.99 < longest() <= 1
    honest = NormTape.add_to

    def in_the_losses(tape, total, factors):
        factor = next(iter(factors.values())).float().max()  # of the one unit
        tape._total = tape._total * factor
        honest(tape, total, {name: torch.ones_like(one) for name, one in factors.items()})

    monkeypatch.setattr(NormTape, "add_to", in_the_losses)
    assert longest() > 1.3
