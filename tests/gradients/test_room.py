"""Memory that runs out in a pass: passes are halved, and the sum is the one that was asked for."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from functools import partial
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.tiny import ragged, tiny
from tests.memory import ERRORS, Memory, MemoryLoss
from tests.speed import fast_then_slow
from userdp.core.errors import FailureError
from userdp.gradients import ClippedSum, Units, causal_lm_loss, clipped_sum, get_engine
from userdp.gradients.engines import ENGINES
from userdp.gradients.engines import engine as of_engines
from userdp.gradients.engines.engine import Task, _room
from userdp.gradients.model_randomness import known_randomness
from userdp.gradients.modes import keep_freed_memory

UNITS = Units.from_rows(ragged([3, 1, 2, 2, 1]))
MICRO_BATCH = 4


class Computed:
    """Sums of an engine, whose questions about model and loss were asked before.

    Under states of generators that are known, in place of the operating system's.
    """

    def __init__(self, name: str, *, dropout: float = 0.0) -> None:
        self.memory, self.model = Memory(), tiny(dropout=dropout)
        self._name, self._loss = name, MemoryLoss(self.memory)
        self.sum()
        self.sum()
        self.passes = len(self.memory.rows)

    def sum(self, micro_batch: int = MICRO_BATCH) -> ClippedSum:
        self.memory.rows.clear()
        limits = {"l2_clip_norm": 0.7, "micro_batch": micro_batch}
        with mock.patch.object(of_engines, "secret_randomness", partial(known_randomness, "masks")):
            return get_engine(self._name)(self.model, self._loss, UNITS, **limits)

    @property
    def room(self) -> int | None:
        return _room.of(self.model, self._loss).get("rows")

    def enough(self) -> None:
        """Memory has room again, and what was learned is forgotten."""
        self.memory.at, self.memory.most = None, 1 << 30
        _room.of(self.model, self._loss).clear()


WITHOUT_DROPOUT = [(name, 0.0) for name in ENGINES]


def same_bits(one: ClippedSum, other: ClippedSum) -> bool:
    values = all(torch.equal(v, other.value[name]) for name, v in one.value.items())
    same = torch.equal(one.norms, other.norms) and torch.equal(one.losses, other.losses)
    return values and same and one.non_finite == other.non_finite


@pytest.mark.parametrize(("name", "dropout"), fast_then_slow([("auto", 0.1), *WITHOUT_DROPOUT]))
def test_invariant_9_and_invariant_14_memory_that_runs_out_leaves_the_sum_of_half_as_large_passes(
    name, dropout
):
    """Bit for bit, masks too: nothing of the attempt that failed is in it, nobody is left out."""
    computed = Computed(name, dropout=dropout)
    exact = clipped_sum(computed.model, causal_lm_loss, UNITS, l2_clip_norm=0.7)
    for at in range(computed.passes):
        computed.memory.at = at
        found, half = computed.sum(), computed.room
        assert found.halvings == 1
        assert half is not None
        assert 1 <= half <= MICRO_BATCH // 2
        computed.enough()
        assert same_bits(found, computed.sum(half))
        if dropout:
            assert not same_bits(found, computed.sum())  # of another size, other masks
        else:
            for part, value in found.value.items():
                torch.testing.assert_close(value, exact.value[part], rtol=0, atol=3e-3)


@pytest.mark.parametrize("error", fast_then_slow(ERRORS))
def test_passes_are_halved_until_they_fit_and_stay_as_small(error):
    computed = Computed("auto")
    computed.memory.most, computed.memory.error = 1, ERRORS[error]
    first = computed.sum()
    assert first.halvings == 2
    assert computed.room == 1
    second = computed.sum()
    assert second.halvings == 0
    assert max(computed.memory.rows) == 1
    assert same_bits(first, second)


class Interrupted:
    """A loss that holds a number of a pass until that has ended, and then what it held before."""

    def __init__(self) -> None:
        self.held = 1.0
        self.fails: Iterator[bool] = iter(())

    def __call__(self, model: nn.Module, *batch: Tensor) -> Tensor:
        before, losses = self.held, causal_lm_loss(model, *batch)
        self.held = float(losses.detach().mean())
        if next(self.fails, False):
            raise MemoryError
        self.held = before
        return losses * before


def test_a_pass_has_the_memory_that_an_earlier_one_freed():
    keep_freed_memory()
    torch.ones(1 << 25)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(1 << 25)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 1000  # of 32,768 pages


@pytest.mark.parametrize("name", ENGINES)
def test_invariant_3_what_an_attempt_that_failed_left_is_put_back(name):
    """A number of somebody's rows would scale the gradients of everybody in the next."""
    loss = Interrupted()
    summed = partial(get_engine(name), tiny(), loss, UNITS, l2_clip_norm=0.7, micro_batch=4)
    summed()
    loss.fails = iter([True])
    assert summed().halvings == 1
    assert loss.held == 1.0


@pytest.mark.parametrize("name", fast_then_slow(ENGINES))
def test_a_pass_of_one_row_that_does_not_fit_is_told_with_the_way_out(name):
    computed = Computed(name)
    computed.memory.most = 0
    with pytest.raises(FailureError, match="memory ran out in a pass over one example") as error:
        computed.sum()
    assert "--set learning.activation_checkpointing=true" in (error.value.hint or "")
    assert error.value.__cause__ is error.value.__context__ is None


def goes_on_where_it_failed(patch: pytest.MonkeyPatch) -> None:
    """A broken twin: the second attempt adds to what the first one had summed."""
    kept: dict[str, Tensor] = {}
    right = Task.zero

    def zero(self: Task, *dtype: torch.dtype) -> ClippedSum:
        total = right(self, *dtype)
        for name, value in total.value.items():
            value += kept.get(name, 0)
        kept.update(total.value)
        return total

    patch.setattr(Task, "zero", zero)


def test_invariant_9_twin_a_sum_that_keeps_a_part_of_the_attempt_is_caught(monkeypatch):
    computed = Computed("auto")
    exact = computed.sum(MICRO_BATCH // 2)
    computed.memory.at = computed.passes - 1
    goes_on_where_it_failed(monkeypatch)
    assert not same_bits(computed.sum(), exact)
