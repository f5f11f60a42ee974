"""Numbers that several processes own between them, and the exchanges of their sums."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.speed import fast_then_slow
from tests.training.worlds import run_world
from userdp.training import distributed
from userdp.training.distributed import current_world
from userdp.training.shares import share, stretch


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


SHAPES = [{"a": (3, 5), "b": (1,), "c": (2, 2, 2)}, {"a": (1,)}, {"a": (7, 1), "b": (4,)}]


def exchanged(store, out, message: int) -> list[tuple[dict, dict, dict]]:
    """Of each set of shapes: what this process had, what it owned of the sum, and all at last."""
    distributed._MESSAGES = message
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
        world.shares_to_all(tensors)
        found.append((given, own, tensors))
    return found


@pytest.mark.parametrize(
    ("size", "message"), fast_then_slow([(3, 4), (1, 4), (2, 1 << 24), (4, 1), (2, 3)])
)
def test_sums_go_to_their_owners_and_what_owners_have_goes_to_all(tmp_path, size, message):
    """To the last bit the float64 sum in the order of ranks, whatever the messages' length."""
    results = run_world(size, exchanged, tmp_path / "world", tmp_path, tmp_path, message)
    for case in range(len(SHAPES)):
        given, own, last = zip(*(result[case] for result in results), strict=True)
        for name, first in given[0].items():
            total = first.clone()
            for other in given[1:]:
                total += other[name]
            pieces = torch.cat([part[name] for part in own if name in part])
            assert torch.equal(pieces, total.flatten())
            assert all(torch.equal(one[name], total + 1) for one in last)
