"""Invariant 3, sensitivity: one unit more or less moves the clipped sum by at most C.

Every claim is measured the same way: two whole runs, with and without one unit, subtracted in
float64. The broken twins at the end go through the same measurement and must be caught.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.counted import each
from tests.gradients.tables import Table, table_loss
from tests.speed import fast_then_slow
from userdp.gradients import ClippedSum, Units, causal_lm_loss, clipped_sum, trainable_parameters
from userdp.gradients.clipping import squared_norm

MakeModel = Callable[..., nn.Module]
MakeRows = Callable[..., list[list[list[int]]]]
Rows = list[list[list[int]]]
Engine = Callable[[Rows], dict[str, Tensor]]


def distance(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """L2 distance in float64; NaN if anything is not finite."""
    return math.sqrt(squared_norm(one[name].double() - two[name].double() for name in one))


def largest_move(engine: Engine, units: Rows) -> float:
    """The most that leaving out any one unit moves the sum; inf where it is not a number."""
    everybody = engine(units)
    moves = [
        distance(everybody, engine(units[:left_out] + units[left_out + 1 :]))
        for left_out in range(len(units))
    ]
    return max(move if math.isfinite(move) else math.inf for move in moves)


def reference(
    model: nn.Module,
    clip: float,
    *,
    item_clip_norm: float | None = None,
    micro_batch: int = 32,
) -> Engine:
    return lambda units: (
        clipped_sum(
            model,
            causal_lm_loss,
            Units.from_rows(units),
            l2_clip_norm=clip,
            item_clip_norm=item_clip_norm,
            micro_batch=micro_batch,
        ).value
    )


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
    dtype: torch.dtype, item_clip_norm: float | None, clip: float
) -> None:
    model = Table(chosen_gradients(dtype))
    count = len(model.gradients)
    units = [[[k, 0]] for k in range(count)]
    units += [[[k, 0], [(k + 1) % count, 0], [k, 0]] for k in range(0, count, 2)]
    for micro_batch in (1, 2) if item_clip_norm is None else (1,):

        def engine(units: Rows, micro_batch: int = micro_batch) -> dict[str, Tensor]:
            return clipped_sum(
                model,
                table_loss,
                Units.from_rows(units),
                l2_clip_norm=clip,
                item_clip_norm=item_clip_norm,
                micro_batch=micro_batch,
            ).value

        assert largest_move(engine, units) <= clip


@pytest.mark.slow
def test_invariant_3_sensitivity_covers_the_rounding_of_a_long_sum() -> None:
    """Equal directions and equal rounding errors: in float32 the summation alone breaks C."""
    model = Table(torch.full((1, 7), 0.3))
    units = [[[0, 0]]] * 3000
    clip = 1.0

    def total(rows: Rows) -> ClippedSum:
        return clipped_sum(model, table_loss, Units.from_rows(rows), l2_clip_norm=clip)

    everybody = total(units)
    assert distance(everybody.value, total(units[1:]).value) <= clip
    part = clip * (1 - 1e-5) / math.sqrt(7)  # broken twin: the same contributions, added in float32
    running = torch.zeros(7)
    moves = []
    for _ in range(3000):
        before = running.double()
        running = running + torch.full((7,), part)
        moves.append(float((running.double() - before).square().sum().sqrt()))
    assert max(moves) > clip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_unit_contributes_the_same_whoever_else_is_there(
    dtype: torch.dtype, make_model: MakeModel, make_rows: MakeRows
) -> None:
    model = make_model("llama", dtype)
    mine = make_rows([3], seed=1, longest=5)
    others = make_rows([2, 5], seed=2, shortest=12, longest=20)
    alone = clipped_sum(model, causal_lm_loss, Units.from_rows(mine), l2_clip_norm=1.0)
    among = [
        clipped_sum(model, causal_lm_loss, Units.from_rows(rows), l2_clip_norm=1.0)
        for rows in (others[:1] + mine + others[1:], mine + others)
    ]
    without = clipped_sum(model, causal_lm_loss, Units.from_rows(others), l2_clip_norm=1.0)
    assert among[0].norms[1] == alone.norms[0]  # to the last bit
    assert among[1].norms[0] == alone.norms[0]
    assert among[0].losses[1] == alone.losses[0]
    for result in among:
        contribution = {name: result.value[name] - without.value[name] for name in alone.value}
        assert distance(contribution, alone.value) < 1e-14


# Broken twins: engines with one mistake each, all seen by `largest_move`.


def flat_gradient(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(trainable_parameters(model).values())))


def add_clipped(total: list[Tensor], gradient: list[Tensor], clip: float) -> None:
    """A correct clip (in float64), so that only the twin's own mistake shows."""
    factor = min(1.0, clip * (1 - 1e-5) / math.sqrt(squared_norm(gradient)))
    for into, part in zip(total, gradient, strict=True):
        into.add_(part.double() * factor)


def twin(
    model: nn.Module, clip: float, unit_loss: Callable[[Units, Tensor, Tensor], Tensor]
) -> Engine:
    """One unit at a time, well clipped; ``unit_loss`` sees the whole cohort and a unit's rows."""

    def engine(rows: Rows) -> dict[str, Tensor]:
        units = Units.from_rows(rows)
        parameters = trainable_parameters(model)
        total = [torch.zeros_like(p, dtype=torch.float64) for p in parameters.values()]
        for begin, end in zip(units.offsets[:-1], units.offsets[1:], strict=True):
            loss = unit_loss(units, units.input_ids[begin:end], units.lengths[begin:end])
            add_clipped(total, flat_gradient(loss, model), clip)
        return dict(zip(parameters, total, strict=True))

    return engine


def one_long_among_short(make_rows: MakeRows) -> Rows:
    long = make_rows([1], seed=5, shortest=30, longest=30)
    return long + make_rows([1] * 8, seed=6, shortest=3, longest=3)


def test_invariant_3_twin_a_loss_over_the_tokens_of_the_batch_is_caught(
    make_model: MakeModel, make_rows: MakeRows
) -> None:
    model = make_model("gpt2-tied", torch.float64)
    units = one_long_among_short(make_rows)

    def batch_mean(cohort: Units, input_ids: Tensor, lengths: Tensor) -> Tensor:
        own_tokens = (lengths - 1).clamp(min=1)
        batch_tokens = (cohort.lengths - 1).clamp(min=1).sum()
        return (causal_lm_loss(model, input_ids, lengths) * own_tokens).sum() / batch_tokens

    def own_mean(cohort: Units, input_ids: Tensor, lengths: Tensor) -> Tensor:
        return causal_lm_loss(model, input_ids, lengths).mean()

    clip = 0.5
    assert largest_move(twin(model, clip, own_mean), units) <= clip
    assert largest_move(twin(model, clip, batch_mean), units) > 1.2 * clip


def test_invariant_3_twin_padding_in_the_denominator_is_caught(
    make_model: MakeModel, make_rows: MakeRows
) -> None:
    model = make_model("gpt2-tied", torch.float64)
    units = one_long_among_short(make_rows)

    def padded_mean(cohort: Units, input_ids: Tensor, lengths: Tensor) -> Tensor:
        own_tokens = (lengths - 1).clamp(min=1)
        losses = causal_lm_loss(model, input_ids, lengths) * own_tokens
        return (losses / (input_ids.shape[1] - 1)).mean()

    clip = 2.0
    assert largest_move(twin(model, clip, padded_mean), units) > 1.2 * clip


@pytest.mark.pitfall(number=12)
def test_invariant_3_twin_a_norm_without_the_tied_cross_term_is_caught(
    make_model: MakeModel, make_rows: MakeRows
) -> None:
    """Input and output embedding are one tensor: |a + b|² is not |a|² + |b|²."""
    tied = make_model("gpt2-tied", torch.float64)
    untied = make_model("gpt2-untied", torch.float64)
    state = tied.state_dict()
    untied.load_state_dict({name: state[name] for name in untied.state_dict()})
    units = make_rows([2, 2, 2, 2], seed=4)
    clip = 0.5

    def engine(rows: Rows) -> dict[str, Tensor]:
        cohort = Units.from_rows(rows)
        names = list(trainable_parameters(untied))
        total = [torch.zeros_like(p, dtype=torch.float64) for p in untied.parameters()]
        for input_ids, lengths, _ in map(Units.cut, each(cohort)):
            loss = causal_lm_loss(untied, input_ids, lengths).mean()
            add_clipped(total, flat_gradient(loss, untied), clip)
        value = dict(zip(names, total, strict=True))
        value["transformer.wte.weight"] += value.pop("lm_head.weight")
        return value

    assert set(engine(units)) == set(trainable_parameters(tied))
    assert largest_move(reference(tied, clip), units) <= clip
    assert largest_move(engine, units) > 1.001 * clip


def test_invariant_3_twin_a_norm_in_half_precision_is_caught(
    make_model: MakeModel, make_rows: MakeRows
) -> None:
    model = make_model("gpt2-tied", torch.float64)
    units = make_rows([2] * 6, seed=4)
    clip = 0.5

    def engine(rows: Rows) -> dict[str, Tensor]:
        parameters = trainable_parameters(model)
        total = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in parameters.items()}
        for input_ids, lengths, _ in map(Units.cut, each(Units.from_rows(rows))):
            gradient = flat_gradient(causal_lm_loss(model, input_ids, lengths).mean(), model)
            half = sum(float(g.bfloat16().square().sum()) for g in gradient)
            for into, part in zip(total.values(), gradient, strict=True):
                into.add_(part * min(1.0, clip * (1 - 1e-5) / math.sqrt(half)))
        return total

    assert largest_move(engine, units) > clip


def test_invariant_3_twin_the_sum_of_a_units_rows_in_place_of_one_clip_per_unit_is_caught(
    make_model: MakeModel, make_rows: MakeRows
) -> None:
    """Clipping per row bounds a row, not a user: a user of k rows moves the sum by up to k C."""
    model = make_model("gpt2-tied", torch.float64)
    units = make_rows([4, 1], seed=4)
    per_row = reference(model, 0.5)
    assert largest_move(lambda rows: per_row([[row] for unit in rows for row in unit]), units) > 0.6


def test_the_measurement_itself_sees_a_sum_that_is_one_percent_too_large(
    make_model: MakeModel, make_rows: MakeRows
) -> None:
    model = make_model()
    units = Units.from_rows(make_rows([2, 2]))
    result = clipped_sum(model, causal_lm_loss, units, l2_clip_norm=0.5)
    wrong = replace(result, value={n: 1.01 * v for n, v in copy.copy(result.value).items()})
    alone = clipped_sum(model, causal_lm_loss, units.select(0, 1), l2_clip_norm=0.5)
    wrong_alone = {n: 1.01 * v for n, v in alone.value.items()}
    assert distance(wrong.value, wrong_alone) > 0.5 >= distance(result.value, alone.value)
