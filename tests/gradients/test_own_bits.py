"""In a pass of fixed shape a unit's bits are its own, in bfloat16 too: whoever shares the pass."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.batches import counted_reference, reason_alone
from tests.gradients.campaign.families import VOCABULARY, build
from tests.gradients.tiny import Rows, distance, largest_move, ragged
from tests.speed import fast_then_slow
from userdp.gradients import ClippedSum, Units, causal_lm_loss, get_engine
from userdp.gradients.engines import certify, passes
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.passes import Pass, PassShape
from userdp.gradients.engines.rules import linear
from userdp.gradients.engines.uses import Form
from userdp.gradients.model_randomness import known_randomness, secret_randomness

CLIP = 1e-3


def gpt2() -> nn.Module:
    return build("gpt2", n_embd=32)


def llama() -> nn.Module:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return build("llama", hidden_size=32, intermediate_size=48, **heads)


MODELS: list[Callable[[], nn.Module]] = [gpt2, llama]


def in_bfloat16(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return causal_lm_loss(model, input_ids, lengths)


LOSSES = [in_bfloat16, causal_lm_loss]


def some_rows(count: int, *, width: int = 40, seed: int = 0) -> Rows:
    """Units of one to three rows, of 2 to ``width`` tokens."""
    sizes = random.Random(seed).choices((1, 2, 3), k=count)
    return ragged(sizes, seed=seed, longest=width, vocabulary=VOCABULARY)


def units_of(rows: Rows, *, width: int = 40) -> Units:
    """As wide as a store's rows, whoever was drawn."""
    return Units.from_rows(rows, width=width)


def summed(name: str, model: nn.Module, loss: Any, rows: Rows) -> ClippedSum:
    return get_engine(name)(model, loss, units_of(rows), l2_clip_norm=CLIP, micro_batch=8)


@pytest.mark.parametrize("build", fast_then_slow(MODELS))
@pytest.mark.parametrize("loss", fast_then_slow(LOSSES))
@pytest.mark.parametrize("name", fast_then_slow(["auto", "reference"]))
def test_invariant_3_a_units_bits_are_the_same_whoever_is_there(name, loss, build):
    model, rows = build(), some_rows(24)
    assert reason_alone(model, loss, units_of(rows)) is None
    for others in (rows[::-1], rows[:1], [*some_rows(9, seed=1), *rows[5:]], rows[3:11]):
        norms = dict(zip(map(str, others), summed(name, model, loss, others).norms, strict=True))
        for unit, norm in zip(rows, summed(name, model, loss, rows).norms, strict=True):
            assert norms.get(str(unit), norm) == norm  # to the last bit


@pytest.mark.parametrize("build", fast_then_slow(MODELS))
def test_invariant_3_in_bfloat16_one_of_many_alike_moves_the_sum_by_at_most_the_clip_norm(build):
    """All would move in one direction: 199 units moved by 0.27 C where batches were ragged."""
    sum_of = partial(get_engine("auto"), build(), in_bfloat16, l2_clip_norm=CLIP, micro_batch=8)
    assert largest_move(sum_of, some_rows(3) * 40, (0, 1, 60, 119)) <= CLIP


def test_who_shares_a_pass_is_drawn_and_all_orders_come_equally_often() -> None:
    """So that a unit more changes who is in two passes: the law that the proof couples."""
    seen: Counter[tuple[int, ...]] = Counter()
    with known_randomness("the order of the units"):
        for _ in range(2400):
            cut = passes.passes_of(range(4), PassShape(2, 1, 3), (0, 1))
            assert [len(one.numbers) for one in cut] == [2, 2]
            seen[sum((one.numbers for one in cut), ())] += 1
    assert len(seen) == 24
    assert all(abs(count - 100) < 50 for count in seen.values())  # 5 standard deviations


@pytest.mark.parametrize("width", [3, 16])
def test_invariant_3_a_pass_holds_the_units_that_it_names_in_their_places(width: int) -> None:
    """In every order of up to four of five units, as they lie there or not."""
    lengths = [3, 1, 2, 3, 2]
    rows = [[[10 * unit + 1] * length, [10 * unit + 2]] for unit, length in enumerate(lengths)]
    units = units_of(rows, width=width)
    for taken in (1, 2, 3, 4):
        for numbers in itertools.permutations(range(5), taken):
            found = Pass(numbers, tuple(range(taken)), PassShape(4, 2, 3)).of(units)
            filled = [*numbers, *[numbers[0]] * (4 - taken)]
            expected = units_of([rows[unit] for unit in filled], width=3)
            assert torch.equal(found.offsets, expected.offsets)
            assert torch.equal(found.lengths, expected.lengths)
            own = torch.arange(3) < found.lengths[:, None]
            assert torch.equal(found.input_ids * own, expected.input_ids * own)


def test_twin_passes_as_large_as_who_is_there_are_caught(monkeypatch):
    honest = Pass.of

    def as_they_come(one: Pass, units: Units) -> Units:
        shape = one.shape._replace(units=len(one.numbers))
        return honest(Pass(one.numbers, tuple(range(len(one.numbers))), shape), units)

    model, rows = gpt2(), some_rows(24)
    summed("auto", model, in_bfloat16, rows)  # whose bits are found to be their own
    with counted_reference() as alone:
        summed("auto", model, in_bfloat16, rows)
    assert sum(alone) == 0
    monkeypatch.setattr(Pass, "of", as_they_come)
    with counted_reference() as alone:  # these passes are none that was certified
        summed("auto", model, in_bfloat16, rows)
    assert sum(alone) > 0


def test_invariant_3_a_unit_that_raises_leaves_everybody_elses_bits_alone() -> None:
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        if bool((input_ids[:, 0] == 9).any()):
            raise ValueError("nine")
        return in_bfloat16(model, input_ids, lengths)

    model, rows = llama(), ragged([1, 2, 3] * 4, longest=20, vocabulary=9)
    without = summed("auto", model, loss, rows)
    with_it = summed("auto", model, loss, [*rows, [[9, 1, 2]]])
    assert with_it.failed == 1
    assert torch.equal(with_it.norms[:-1], without.norms)
    assert distance(with_it, without) <= 1e-5 * CLIP


def test_invariant_3_infinities_that_a_kernel_lets_through_leave_everybody_elses_bits_alone(
    monkeypatch,
):
    """Some processors read the next row, times 0, in a product over an odd number of columns.

    Here each product does so, of whatever units lie side by side, on every processor.
    """

    def reads_the_next_unit(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
        formed = honest_formed(left, right, out)
        return formed.add_(0 * formed.sum((1, 2), keepdim=True).roll(-1, 0))

    monkeypatch.setattr(linear, "form_gradients", reads_the_next_unit)
    draw = torch.Generator().manual_seed(5)
    rows = [
        [(1 + torch.randint(VOCABULARY - 1, (12,), generator=draw)).tolist()] for _ in range(32)
    ]
    bad = [[0] * 12]

    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(input_ids.shape[1]) < lengths[:, None]
        counted = ((input_ids != 0) & real).sum(1)
        return in_bfloat16(model, input_ids, lengths) / counted

    model = gpt2()
    assert VOCABULARY % 2
    without = summed("auto", model, loss, rows)
    for number in range(8):
        with secret_randomness(f"order {number}"):
            with_it = summed("auto", model, loss, [*rows, bad])
        assert with_it.non_finite == 1
        assert torch.equal(with_it.norms[:-1], without.norms)
        assert distance(with_it, without) <= 1e-5 * CLIP


def place_counts(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """A broken twin: a product whose rounding hangs on the place."""
    formed = honest_formed(left, right, out)
    return formed.mul_(1 + 2.0**-20 * (torch.arange(len(formed)).view(-1, 1, 1) == 1))


honest_formed = linear.form_gradients


def test_places_of_other_bits_hold_copies_and_too_few_leave_each_unit_alone(monkeypatch):
    """As on accelerators in bfloat16: a place that rounds otherwise than the next is not used."""

    def places(units: int) -> tuple[int, ...] | str:
        task = Task(
            model=gpt2(),
            loss=in_bfloat16,
            units=units_of(some_rows(12)),
            l2_clip_norm=CLIP,
            micro_batch=8,
        )
        found = certify.certificate(task, PassShape(units, 2, 32), Form.FORMED)
        return found if isinstance(found, str) else found.places

    assert places(4) == (0, 1, 2, 3)
    monkeypatch.setattr(linear, "form_gradients", place_counts)
    assert places(4) == (2, 3)
    assert "last bits" in places(3)
