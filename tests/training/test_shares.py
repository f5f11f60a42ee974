"""Numbers that several processes own between them, and the exchanges of their sums."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.speed import fast_then_slow
from tests.training.worlds import run_world
from userdp.gradients import NoiseSource
from userdp.training import distributed
from userdp.training.distributed import World, current_world
from userdp.training.shares import Row, share, stretch


@given(numbers=st.integers(0, 200), size=st.integers(1, 9))
def test_every_number_has_one_owner(numbers, size):
    owned = [range(*stretch(numbers, rank, size)) for rank in range(size)]
    assert [number for part in owned for number in part] == list(range(numbers))
    assert all(len(part) <= -(-numbers // size) for part in owned)


@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=5), size=st.integers(1, 5))
def test_shares_are_views_of_every_number_once(lengths, size):
    tensors = {f"p{n}": torch.zeros(length, 1) for n, length in enumerate(lengths)}
    for rank in range(size):
        for own in share(tensors, rank, size).values():
            own += 1
    assert all(bool((tensor == 1).all()) for tensor in tensors.values())


@given(
    lengths=st.lists(st.integers(0, 6), max_size=5),
    begin=st.integers(0, 30),
    width=st.integers(0, 9),
)
def test_a_stretch_of_a_row_is_read_and_written_in_its_place(lengths, begin, width):
    count = sum(lengths)
    whole = torch.arange(1.0, count + 1)
    tensors = [part.clone() for part in whole.split(lengths)] if lengths else []
    row, out = Row(tensors), torch.full((width + 2,), -1.0)
    row.read(begin, begin + width, out)
    inside = whole[begin : begin + width]
    assert out.tolist() == [*inside.tolist(), *[0.0] * (width + 2 - len(inside))]
    row.write(begin, begin + width, -torch.arange(1.0, width + 1))
    whole[begin : begin + width] = -torch.arange(1.0, len(inside) + 1)
    assert [number for tensor in tensors for number in tensor.tolist()] == whole.tolist()


SHAPES = [{"a": (3, 5), "b": (1,), "c": (2, 2, 2)}, {"a": (1,)}, {"a": (7, 1), "b": (4,)}]


def exchanged(
    store, out, message: int, dtype: torch.dtype, broken: str | None
) -> list[tuple[dict, dict, dict]]:
    """Of each set of shapes: what this process had, what it owned of the sum, and all at last."""
    distributed._MESSAGES = message
    if broken is not None:
        BREAK[broken]()
    world, found = current_world(), []
    generator = torch.Generator().manual_seed(world.rank)
    for shapes in SHAPES:
        tensors = {
            name: torch.randn(shape, generator=generator, dtype=torch.float64) * 1e3**world.rank
            for name, shape in shapes.items()
        }
        given = {name: tensor.clone() for name, tensor in tensors.items()}
        world.sum_to_shares(tensors)
        own = {name: part.clone() for name, part in world.own_share(tensors).items()}
        for part in world.own_share(tensors).values():
            part += 1
        world.shares_to_all(tensors, dtype=dtype)
        found.append((given, own, tensors))
    return found


def require_exact(results: list, dtype: torch.dtype) -> None:
    """To the last bit the float64 sum in the order of ranks, and its owner's number for all."""
    for case in range(len(SHAPES)):
        given, own, last = zip(*(result[case] for result in results), strict=True)
        for name, first in given[0].items():
            total = first.clone()
            for other in given[1:]:
                total += other[name]
            pieces = torch.cat([part[name] for part in own if name in part])
            assert torch.equal(pieces, total.flatten()), "a sum is not that of all processes"
            handed = total + 1 if len(results) == 1 else (total + 1).to(dtype).double()
            assert all(torch.equal(one[name], handed) for one in last), "not the owner's number"


@pytest.mark.parametrize(
    ("size", "message", "dtype"),
    fast_then_slow(
        [
            (3, 4, torch.float32),
            (1, 4, torch.float64),
            (2, 1 << 20, torch.float64),
            (4, 1, torch.float32),
            (2, 3, torch.float64),
        ]
    ),
)
def test_sums_go_to_their_owners_and_what_owners_have_goes_to_all(tmp_path, size, message, dtype):
    """Whatever the messages' length, and however many are on their way."""
    world = tmp_path / "world"
    results = run_world(size, exchanged, world, tmp_path, tmp_path, message, dtype, None)
    require_exact(results, dtype)


def _message_never_taken() -> None:
    honest, counted = World._arrived, itertools.count()

    def arrived(self, work, take):
        honest(self, work, (lambda: None) if next(counted) == 1 else take)

    World._arrived = arrived


def _owner_keeps_its_bits() -> None:
    honest = World.shares_to_all

    def keeping(self, tensors, **how):
        before = {name: part.clone() for name, part in self.own_share(tensors).items()}
        honest(self, tensors, **how)
        for name, part in self.own_share(tensors).items():
            part.copy_(before[name])

    World.shares_to_all = keeping


BREAK = {
    "a message that is never taken": _message_never_taken,
    "an owner that keeps its bits": _owner_keeps_its_bits,
}


@pytest.mark.parametrize(
    ("broken", "seen"),
    fast_then_slow(
        [
            ("a message that is never taken", "not that of all"),
            ("an owner that keeps its bits", "not the owner's"),
        ]
    ),
)
def test_twin_an_exchange_that_loses_a_message_or_a_bit_is_caught(tmp_path, broken, seen):
    world = tmp_path / "world"
    results = run_world(2, exchanged, world, tmp_path, tmp_path, 4, torch.float32, broken)
    with pytest.raises(AssertionError, match=seen):
        require_exact(results, torch.float32)


def float32_loses(noisy: torch.Tensor, std: float) -> bool:
    """Whether float32 rounds any number of at most 8 ``std``."""
    small = noisy[noisy.abs() <= 8 * std]
    return not torch.equal(small.float().double(), small)


@given(std=st.floats(1e-30, 1e30), clean=st.floats(-12, 12), seed=st.integers(0, 2**32))
def test_float32_carries_every_noisy_number_of_at_most_eight_deviations(std, clean, seed):
    value = {"w": torch.full((50,), clean * std, dtype=torch.float64)}
    NoiseSource(unsafe_noise_seed=seed).add_(value, std)
    assert not float32_loses(value["w"], std)


def test_twin_float32_does_not_carry_numbers_off_the_grid():
    assert float32_loses(torch.randn(50, dtype=torch.float64), 1.0)
