"""Programs at random, of functions that models use or might, followed row by row."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from userdp.gradients.certificate.places import Place
from userdp.gradients.certificate.rows import Rows

ROWS = 3
Step = Callable[[Tensor], Tensor]
SIZES = (1, 2, 3, 4, 6)


class Follow(TorchFunctionMode):
    def __init__(self, followed: Rows) -> None:
        super().__init__()
        self.rows = followed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.rows.run(func, args, kwargs or {})


def constant(*shape: int) -> Tensor:
    """A constant that the followed code makes for itself."""
    numbers = torch.arange(float(torch.Size(shape).numel())) * 0.7
    return numbers.reshape(*shape).cos() + 2


NAMED = (
    *(
        "transpose",
        "movedim",
        "flatten",
        "unsqueeze",
        "squeeze",
        "select",
        "unbind",
        "split",
        "tril",
    ),
    *("sum", "mean", "max", "norm", "cumsum", "softmax", "sort", "argsort", "topk", "flip", "roll"),
    *("repeat_interleave", "diff", "tril"),
)
"""Methods that take whole numbers; of a tuple of tensors the first is taken."""


def named(name: str, *numbers: int) -> Step:
    def run(x: Tensor) -> Tensor:
        found = getattr(x, name)(*numbers)
        return found if isinstance(found, Tensor) else cast(Tensor, found[0])

    return run


def step(draw: random.Random) -> Step:
    """A function that models use, or might, with arguments at random; it may not fit."""
    i, j = (draw.randrange(-3, 4) for _ in range(2))
    size, seed = draw.choice(SIZES), draw.randrange(1 << 30)
    order = draw.sample(range(4), 4)
    index = [draw.randrange(ROWS) for _ in range(draw.randint(1, 4))]

    def some(x: Tensor) -> Any:
        here = random.Random(seed)
        parts = [slice(None), slice(1, None), 0, None, slice(None, None, 2), Ellipsis]
        return tuple(here.choice(parts[: 5 + (n == 0)]) for n in range(here.randint(1, 4)))

    choices: list[Step] = [
        *(named(name, i, *[j] * (seed % 2)) for name in NAMED),
        lambda x: x.permute([n for n in order if n < x.dim()]),
        lambda x: x.reshape(random.Random(seed).sample(x.shape, x.dim())),
        lambda x: x.unflatten(i, (-1, size)),
        lambda x: x.expand(size, *x.shape),
        lambda x: x.repeat(*[1 + (n == abs(i)) for n in range(x.dim())]),
        lambda x: x.narrow(i, 0, 1),
        lambda x: x[some(x)],
        lambda x: x[..., [0, -1]],
        lambda x: x[index],
        lambda x: x[torch.arange(x.shape[0]), (x.flatten(1)[:, 0] > 1).long()],
        lambda x: x[(x.flatten(1)[:, 0] * 7).long() % x.shape[0]],
        lambda x: x.gather(i, (x > 1).long()),
        lambda x: x.index_select(i, torch.arange(1)),
        lambda x: F.embedding((x * 3).long().abs() % 9, constant(9, 4)),
        lambda x: torch.cat([x, x + 1], i),
        lambda x: torch.cat([x, constant(*x.shape)], i),
        lambda x: torch.stack([x] * ROWS, i),
        lambda x: F.pad(x, (0, 0, 1, 0)),
        lambda x: torch.maximum(x, x.transpose(i, j)),
        lambda x: x * constant(*x.shape[-1:]),
        lambda x: x - x.mean(i, keepdim=True),
        lambda x: x / x.sum(),
        lambda x: torch.where(x > 1, x, constant(*x.shape)),
        lambda x: x.masked_fill(x > 1, 0.5),
        lambda x: F.normalize(x, dim=i),
        lambda x: F.layer_norm(x, x.shape[-1:]),
        lambda x: F.conv1d(x, constant(2, x.shape[1], 1), padding=1),
        lambda x: torch.einsum("abc,cd->adb", x, constant(x.shape[-1], 2)),
        lambda x: torch.einsum("aab->ab", x),
        lambda x: torch.linalg.solve_triangular(x @ x.mT + torch.eye(x.shape[-2]), x, upper=False),
        lambda x: x @ constant(x.shape[-1], size),
        lambda x: constant(size, x.shape[-2]) @ x,
        lambda x: x @ x.mT,
        lambda x: torch.addmm(constant(size), x, constant(x.shape[1], size)),
        lambda x: F.linear(x, constant(size, x.shape[-1]), constant(size)),
        lambda x: F.scaled_dot_product_attention(x, x + 1, x, is_causal=True),
        lambda x: F.cross_entropy(x, (x[:, 0] > 1).long(), reduction="none"),
        lambda x: F.dropout(constant(*x.shape), 0.5).sum(i) + x.sum(i),
        lambda x: F.dropout1d(x, 0.5),
        written,
        lambda x: constant(*x.shape).add_(x),
        lambda x: x.clone().mul_(x.mean(i, keepdim=True)),
        lambda x: assigned(some(x), x[some(x)], into=torch.zeros(x.shape)),
        lambda x: assigned(some(x), x.transpose(i, j), into=torch.zeros(x.shape)),
        lambda x: assigned(some(x), constant(1), into=x + 1),
        lambda x: assigned(..., x, into=torch.zeros(2, *x.shape)),
        lambda x: added(lambda t: t[some(x)], x[some(x)], into=x.clone()),
        lambda x: added(lambda t: t.transpose(i, j), x, into=x.clone()),
        lambda x: copied(lambda t: t[some(x)], x[some(x)], into=torch.zeros(x.shape)),
        lambda x: copied(lambda t: t.transpose(i, j), x, into=torch.zeros(x.shape)),
    ]
    return draw.choice(choices)


def written(x: Tensor) -> Tensor:
    """What a view is given reaches another view that was placed before."""
    found = x.clone()
    seen = found.view(found.shape)
    found.view(-1).add_(x.flatten().flip(0))
    return seen


def assigned(index: Any, value: Tensor, *, into: Tensor) -> Tensor:
    into[index] = value
    return into


def added(view: Callable[[Tensor], Tensor], value: Tensor, *, into: Tensor) -> Tensor:
    """Written to a view: what becomes of the tensor that it is a view of."""
    part = view(into)
    part += value
    return into


def copied(view: Callable[[Tensor], Tensor], value: Tensor, *, into: Tensor) -> Tensor:
    view(into).copy_(value)
    return into


def follow(steps: list[Step], x: Tensor, dim: int = 0) -> tuple[Tensor, Place | None]:
    """The result of ``steps`` and its place, where dimension ``dim`` of ``x`` counts the rows."""
    followed = Rows(ROWS)
    followed.mark(x, Place(dim))
    torch.manual_seed(0)  # coins are the same whatever a row holds
    with Follow(followed):
        for one in steps:
            x = one(x)
    return x, followed.place_of(x)
