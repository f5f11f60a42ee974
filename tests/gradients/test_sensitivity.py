"""Invariant 3, sensitivity: one unit more or less moves the clipped sum by at most C.

Every claim is measured the same way: two whole runs, with and without one unit, subtracted in
float64. The broken twins at the end go through the same measurement and must be caught.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.tiny import Table, distance, largest_move, ragged, table_loss, tiny
from tests.speed import fast_then_slow
from userdp.gradients import ClippedSum, Units, causal_lm_loss, clipped_sum, trainable_parameters
from userdp.gradients.clipping import squared_norm


def reference(model: nn.Module, clip: float) -> Callable[[Units], ClippedSum]:
    return partial(clipped_sum, model, causal_lm_loss, l2_clip_norm=clip)


def chosen_gradients(dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    same = torch.full((64,), 0.3)
    rows = [
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
    return torch.stack(rows).to(dtype)


@pytest.mark.parametrize("clip", fast_then_slow([1.0, 1e-6, 1e6]))
@pytest.mark.parametrize("item_clip_norm", fast_then_slow([None, 0.1]))
@pytest.mark.parametrize("dtype", fast_then_slow([torch.float32, torch.float64, torch.bfloat16]))
def test_invariant_3_sensitivity_is_at_most_the_clip_norm_for_adversarial_gradients(
    dtype, item_clip_norm, clip
):
    model = Table(chosen_gradients(dtype))
    count = len(model.gradients)
    units = [[[k, 0]] for k in range(count)]
    units += [[[k, 0], [(k + 1) % count, 0], [k, 0]] for k in range(0, count, 2)]
    limits = {"l2_clip_norm": clip, "item_clip_norm": item_clip_norm}
    for micro_batch in (1, 2) if item_clip_norm is None else (1,):
        engine = partial(clipped_sum, model, table_loss, micro_batch=micro_batch, **limits)
        assert largest_move(engine, units) <= clip


@pytest.mark.slow
def test_invariant_3_sensitivity_covers_the_rounding_of_a_long_sum() -> None:
    """Equal directions and equal rounding errors: in float32 the summation alone breaks C."""
    model = Table(torch.full((1, 7), 0.3))
    units = [[[0, 0]]] * 3000
    clip = 1.0

    total = partial(clipped_sum, model, table_loss, l2_clip_norm=clip)
    assert largest_move(total, units, [0]) <= clip
    part = clip * (1 - 1e-5) / math.sqrt(7)  # broken twin: the same contributions, added in float32
    running = torch.zeros(7)
    moves = []
    for _ in range(3000):
        before = running.double()
        running = running + torch.full((7,), part)
        moves.append(float((running.double() - before).square().sum().sqrt()))
    assert max(moves) > clip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_unit_contributes_the_same_whoever_else_is_there(dtype):
    mine = ragged([3], seed=1, longest=5)
    others = ragged([2, 5], seed=2, shortest=12, longest=20)
    total = reference(tiny("llama", dtype), 1.0)
    alone, without = total(Units.from_rows(mine)), total(Units.from_rows(others))
    for place, rows in ((1, others[:1] + mine + others[1:]), (0, mine + others)):
        among = total(Units.from_rows(rows))
        assert among.norms[place] == alone.norms[0]  # to the last bit
        assert among.losses[place] == alone.losses[0]
        contribution = {name: among.value[name] - v for name, v in without.value.items()}
        assert distance(contribution, alone) < 1e-14


# Broken twins: engines with one mistake each, all seen by `largest_move`.

UnitLoss = Callable[[nn.Module, Units, Tensor, Tensor], Tensor]


def norm_of(gradient: list[Tensor]) -> float:
    return math.sqrt(squared_norm(gradient))


def twin(
    model: nn.Module, clip: float, loss: UnitLoss, norm: Callable[[list[Tensor]], float] = norm_of
) -> Callable[[Units], dict[str, Tensor]]:
    """One unit at a time, clipped by its ``norm``; ``loss`` sees the cohort and a unit's rows."""

    def engine(units: Units) -> dict[str, Tensor]:
        parameters = trainable_parameters(model)
        total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
        for begin, end in zip(units.offsets[:-1], units.offsets[1:], strict=True):
            here = loss(model, units, units.input_ids[begin:end], units.lengths[begin:end])
            gradient = list(torch.autograd.grad(here, list(parameters.values())))
            factor = min(1.0, clip * (1 - 1e-5) / max(norm(gradient), 1e-12))
            for into, part in zip(total.values(), gradient, strict=True):
                into.add_(part.double() * factor)
        return total

    return engine


def own_mean(model: nn.Module, cohort: Units, input_ids: Tensor, lengths: Tensor) -> Tensor:
    return causal_lm_loss(model, input_ids, lengths).mean()


def batch_mean(model: nn.Module, cohort: Units, input_ids: Tensor, lengths: Tensor) -> Tensor:
    own_tokens = (lengths - 1).clamp(min=1)
    batch_tokens = (cohort.lengths - 1).clamp(min=1).sum()
    return (causal_lm_loss(model, input_ids, lengths) * own_tokens).sum() / batch_tokens


def padded_mean(model: nn.Module, cohort: Units, input_ids: Tensor, lengths: Tensor) -> Tensor:
    losses = causal_lm_loss(model, input_ids, lengths) * (lengths - 1).clamp(min=1)
    return (losses / (input_ids.shape[1] - 1)).mean()


def mean_over_targets(
    model: nn.Module, cohort: Units, input_ids: Tensor, lengths: Tensor
) -> Tensor:
    """Large tokens are the targets: one user's scale the others' gradients."""
    marks, everybodys = input_ids > 3, cohort.input_ids > 3
    own_targets = marks[:, 1:].sum(1)
    losses = causal_lm_loss(model, input_ids, lengths, marks)
    return (losses * own_targets).sum() / everybodys[:, 1:].sum()


@pytest.mark.parametrize(
    ("loss", "clip"), [(batch_mean, 0.5), (padded_mean, 2.0), (mean_over_targets, 0.5)]
)
def test_invariant_3_twin_a_loss_over_the_tokens_the_targets_or_the_padding_of_the_batch_is_caught(
    loss, clip
):
    model = tiny(dtype=torch.float64)
    long = ragged([1], seed=5, shortest=30, longest=30)
    units = long + ragged([1] * 8, seed=6, shortest=3, longest=3)
    assert largest_move(twin(model, clip, own_mean), units) <= clip
    assert largest_move(twin(model, clip, loss), units) > 1.2 * clip


@pytest.mark.pitfall(number=12)
def test_invariant_3_twin_a_norm_without_the_tied_cross_term_is_caught():
    """Input and output embedding are one tensor: |a + b|² is not |a|² + |b|²."""
    tied, untied = tiny("gpt2-tied", torch.float64), tiny("gpt2-untied", torch.float64)
    state = tied.state_dict()
    untied.load_state_dict({name: state[name] for name in untied.state_dict()})
    units, clip = ragged([2, 2, 2, 2], seed=4), 0.5

    def engine(cohort: Units) -> dict[str, Tensor]:
        value = twin(untied, clip, own_mean)(cohort)
        value["transformer.wte.weight"] += value.pop("lm_head.weight")
        return value

    assert set(engine(Units.from_rows(units))) == set(trainable_parameters(tied))
    assert largest_move(reference(tied, clip), units) <= clip
    assert largest_move(engine, units) > 1.001 * clip


def test_invariant_3_twin_a_norm_in_half_precision_is_caught():
    def half(gradient: list[Tensor]) -> float:
        return math.sqrt(sum(float(g.bfloat16().square().sum()) for g in gradient))

    engine = twin(tiny(dtype=torch.float64), 0.5, own_mean, half)
    assert largest_move(engine, ragged([2] * 6, seed=4)) > 0.5


def test_invariant_3_twin_the_sum_of_a_units_rows_in_place_of_one_clip_per_unit_is_caught():
    """Clipping per row bounds a row, not a user: a user of k rows moves the sum by up to k C."""
    total, units = reference(tiny(dtype=torch.float64), 0.5), ragged([4, 1], seed=4)
    whole, rest = (total(Units.from_rows([[row] for u in part for row in u])) for part in
                   (units, units[1:]))  # fmt: skip
    assert distance(whole, rest) > 0.6


def test_the_measurement_itself_sees_a_sum_that_is_one_percent_too_large():
    total, units = reference(tiny(), 0.5), ragged([2, 2])

    def wrong(some: Units) -> dict[str, Tensor]:
        return {name: 1.01 * value for name, value in total(some).value.items()}

    assert largest_move(wrong, units) > 0.5 >= largest_move(total, units)
