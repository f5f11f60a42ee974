"""Which row each number belongs to: the claim of every rule, measured by changing one row."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.gradients.programs import ROWS, SIZES, Follow, Step, follow, step, written
from tests.speed import fast_then_slow
from userdp.gradients.certificate import operations, rows
from userdp.gradients.certificate.operations import PLACES
from userdp.gradients.certificate.places import CONSTANT, FIRST
from userdp.gradients.certificate.rows import Rows


def escapes(steps: list[Step], start: Tensor, dim: int = 0) -> tuple[bool, bool]:
    """Whether the result has a place; and whether a row's numbers reach beyond it.

    Rows lie in dimension ``dim`` of ``start``.
    """
    result, place = follow(steps, start, dim)
    if place is None:
        return False, False
    for row in range(ROWS):
        other = start.clone()
        other.select(dim, row).mul_(1.7).sub_(0.9)
        changed, _ = follow(steps, other, dim)
        if changed.shape != result.shape:
            return True, True
        differs = (changed != result) & ~(changed.isnan() & result.isnan())
        if place.dim is None or place.counts:
            if bool(differs.any()):
                return True, True
            continue
        owner = torch.arange(result.shape[place.dim]) // place.inner % ROWS
        shape = [1] * result.dim()
        shape[place.dim] = -1
        if bool((differs & (owner != row).view(shape)).any()):
            return True, True
    return True, False


def fuzz(count: int, *, until_caught: bool = False) -> tuple[int, int]:
    """Programs whose result has a place; those of them that a row escapes from."""
    placed = escaped = 0
    for seed in range(count):
        draw = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        sizes = draw.choices(SIZES, k=draw.randint(1, 3))
        dim = draw.choice([0, 0, *range(len(sizes) + 1)])
        sizes.insert(dim, ROWS)
        start = torch.randn(*sizes, generator=generator)
        steps = [step(draw) for _ in range(draw.randint(1, 4))]
        try:
            if not functools.reduce(lambda x, one: one(x), steps, start.clone()).numel():
                continue
        except (RuntimeError, IndexError, TypeError, ValueError):  # arguments that do not fit
            continue
        has, wrong = escapes(steps, start, dim)
        placed, escaped = placed + has, escaped + wrong
        if until_caught and escaped:
            break
    return placed, escaped


@pytest.mark.slow
def test_no_number_of_a_row_lies_outside_of_the_place_that_a_rule_gives_it() -> None:
    placed, escaped = fuzz(2000)
    assert placed > 200
    assert escaped == 0


@pytest.mark.parametrize(
    ("operations", "rule"),
    fast_then_slow(
        [
            ("cumsum _softmax", operations.elementwise),
            ("native_layer_norm", lambda call: call.first),
            ("select slice", lambda call: call.first),
            ("mm bmm", lambda call: call.first),
            ("view _unsafe_view", lambda call: call.first),
            ("sort topk", lambda call: call.first),
            ("transpose permute", lambda call: call.first),
            ("expand repeat", lambda call: call.first),
            ("cat stack", lambda call: call.first),
            ("index gather", lambda call: FIRST),
            ("embedding", lambda call: CONSTANT),
            ("sum mean max", lambda call: CONSTANT),
            ("copy_", lambda call: call.first),
        ],
        fast=4,
    ),
)
def test_twin_a_rule_that_looks_at_shapes_or_forgets_a_dimension_is_caught(
    operations, rule, monkeypatch
):
    for name in operations.split():
        monkeypatch.setitem(PLACES, name, rule)
    assert fuzz(20_000, until_caught=True)[1] > 0


def test_twin_a_place_that_outlives_a_write_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert escapes([written], torch.randn(ROWS, 2)) == (False, False)
    monkeypatch.setattr(
        Rows, "place_of", lambda self, tensor: getattr(tensor, rows._KEY, (None,))[0]
    )
    assert escapes([written], torch.randn(ROWS, 2)) == (True, True)


def proved(loss: Callable[[Tensor], Tensor]) -> bool:
    x, followed = torch.arange(1.0, 13).view(3, 4), Rows(3)
    followed.mark(x, FIRST)
    with Follow(followed):
        found = loss(x)
    return followed.prove(found)


def trained(x: Tensor) -> Tensor:
    return x * torch.ones(4, requires_grad=True)


def labels_made_of(x: Tensor) -> Tensor:
    """As labels are made: the tokens, and -100 where none counts."""
    labels = x[:, 1:].clone()
    labels[:, :1] = -100
    return labels.sum(1)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: x.sum(1),
        lambda x: x.sum(1) / x.shape[1],
        lambda x: x.sum(1) * 2 if torch.arange(3).sum() > 2 else x.sum(1),
        labels_made_of,
        lambda x: trained(x).sum(1),
    ],
)
def test_what_each_row_says_by_itself_is_proved(loss):
    assert proved(loss)


def statistics(x: Tensor) -> Tensor:
    """`F.batch_norm` writes its running mean, and torch does not count that."""
    mean, variance = torch.zeros(4), torch.ones(4)
    F.batch_norm(x, mean, variance, training=True, momentum=1.0)
    return (x + mean).sum(1)


def written_uncounted(x: Tensor) -> Tensor:
    """Nor what is written in inference mode."""
    with torch.inference_mode():
        z = torch.zeros_like(x)
        z[:, 1:] = x[:, :-1]
        mean = z.mean(0, keepdim=True)
    return (x * mean.clone()).sum(1)


class OverTheLargest(torch.autograd.Function):
    """The identity; its backward pass divides by the largest gradient of all rows."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0] / gradients[0].abs().max()


BY_NUMBERS: dict[str, Callable[[Tensor], float]] = {
    "item": lambda x: x.sum().item(),
    "int": lambda x: int(x.sum()),
    "len of a selection": lambda x: len(x[x > 2]),
    "shape of a selection": lambda x: x[x > 2].shape[0],
    "size of what is found": lambda x: (x > 2).nonzero().size(0),
    "tolist": lambda x: x.tolist()[0][0],
}
READERS: dict[str, Callable[[Tensor], object]] = {
    "a branch": lambda x: bool((x > 0).all()),
    "in": lambda x: 3.0 in x,
    "equal": lambda x: torch.equal(x, x + 0),
    "allclose": lambda x: torch.allclose(x, x + 1),
    "format": lambda x: f"{x.sum()}",
    "repr": repr,
    "numpy": lambda x: x.numpy(),
    "address": lambda x: x.data_ptr(),
    "how many of a selection": lambda x: len(x[x > 2].unbind()),
    "bytes of a selection": lambda x: x[x > 2].nbytes,
    "its graph": lambda x: (x.clone().requires_grad_() * 2).grad_fn,
    "a hook": lambda x: x.clone().requires_grad_().register_hook(lambda g: g / g.norm()),
}
WRITERS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "data": lambda constant, x: constant.data.copy_(x[0]),
    "NumPy": lambda constant, x: np.copyto(constant.numpy(), 2.0),
    "another tensor in its place": lambda constant, x: constant.set_(x[0].contiguous()),
}


def after_reading(x: Tensor, read: Callable[[Tensor], object]) -> Tensor:
    read(x)
    return x.sum(1)


def with_constant(x: Tensor, write: Callable[[Tensor, Tensor], object]) -> Tensor:
    constant = torch.zeros(4)
    write(constant, x)
    return (x + constant).sum(1)


UNPROVED: dict[str, Callable[[Tensor], Tensor]] = {
    "statistics of a batch": statistics,
    "a write that torch does not count": written_uncounted,
    "a backward pass of somebody's own": lambda x: cast(
        Tensor, OverTheLargest.apply(trained(x))
    ).sum(1),
    "a tensor that is given by name": lambda x: (x - torch.mean(input=x, dim=0)).sum(1),
    **{f"over {n}": lambda x, f=f: x.sum(1) / f(x) for n, f in BY_NUMBERS.items()},
    **{f"reads by {n}": partial(after_reading, read=f) for n, f in READERS.items()},
    **{f"hands out memory by {n}": partial(with_constant, write=f) for n, f in WRITERS.items()},
}


@pytest.mark.parametrize("kind", UNPROVED)
def test_what_tells_python_of_data_or_mixes_rows_unseen_is_not_proved(kind: str) -> None:
    assert not proved(UNPROVED[kind])


@pytest.mark.usefixtures("unknown_goes_on")
def test_twin_a_branch_that_may_be_read_gives_one_row_the_data_of_another(monkeypatch):
    monkeypatch.setattr(Rows, "_judge", lambda *args: None)
    monkeypatch.setattr(rows, "_HANGS_ON_DATA", set())
    assert proved(lambda x: x.sum(1) if (x > 0).all() else -x.sum(1))
