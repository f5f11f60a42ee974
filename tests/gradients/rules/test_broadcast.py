"""Trained tensors that rows share by broadcasting, and what is made of parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.batches import batched_sum
from tests.gradients.tiny import distance, ragged
from userdp.gradients import Units, clipped_sum
from userdp.gradients.engines.following import NotCoveredError
from userdp.gradients.engines.rules import broadcast
from userdp.gradients.engines.uses import Dense

WIDTH = 6


class Toy(nn.Module):
    """An embedding, something trained, and one number for each row."""

    def __init__(self, function: Callable[[nn.ParameterDict, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(23, WIDTH)
        shapes = {
            "vector": (WIDTH,),
            "matrix": (WIDTH, WIDTH),
            "number": (),
            "heads": (2, 3),
            "kernel": (WIDTH, 1, 3),
            "grouped": (4, 3, 2),
            "bias": (4,),
            "position": (9, WIDTH),
        }
        self.own = nn.ParameterDict({n: nn.Parameter(torch.randn(s)) for n, s in shapes.items()})
        self.function = function

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.function(self.own, self.embedding(input_ids).tanh()).tanh()


def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Each row's own mean, over the places that it has."""
    out: Tensor = model(input_ids).flatten(2).square().sum(2)
    real = torch.arange(out.shape[1]) < lengths[:, None]
    return torch.where(real, out, 0.0).sum(1) / lengths.clamp(min=1)


def rms(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def scanned(p: nn.ParameterDict, x: Tensor) -> Tensor:
    """A state from position to position that begins with a constant of (rows, width)."""
    state, seen = torch.zeros_like(x[:, 0]) - 1.0, []
    for place in range(x.shape[1]):
        state = (state + p["vector"]) * torch.exp(-p["number"].exp()) + x[:, place]
        seen.append(state)
    return torch.stack(seen, 1)


COVERED: dict[str, Callable[[nn.ParameterDict, Tensor], Tensor]] = {
    "Gemma's norm": lambda p, x: rms(x) * (1.0 + p["vector"].float()),
    "a weight in front": lambda p, x: p["vector"] * x,
    "a norm of torch with 1 + w": lambda p, x: F.layer_norm(x, (WIDTH,), 1 + p["vector"]),
    "one norm for each head": lambda p, x: p["heads"] * rms(x.unflatten(-1, (2, 3))),
    "a decay": lambda p, x: x * -torch.exp(p["vector"]) + p["number"],
    "a scalar gate": lambda p, x: (
        torch.sigmoid(p["number"]) * x + (p["vector"] * p["number"]).sum()
    ),
    "used twice": lambda p, x: (x * p["vector"]).sigmoid() + p["vector"],
    "through another": lambda p, x: x * (p["matrix"] @ p["vector"]),
    "clamped in place": lambda p, x: x.clone().mul_(p["vector"]).clamp_(-1, 1),
    "where": lambda p, x: torch.where(torch.arange(WIDTH) < 3, x, p["vector"]),
    "x @ W": lambda p, x: x @ p["matrix"],
    "x @ W.T": lambda p, x: torch.matmul(x, p["matrix"].T * 2),
    "W @ x": lambda p, x: (p["matrix"] @ x.transpose(1, 2)).transpose(1, 2),
    "a product to which is added in place": lambda p, x: (x @ p["matrix"]).add_(p["vector"]),
    "positions for all rows": lambda p, x: x + p["position"][: x.shape[1]],
    "flattened": lambda p, x: (x.flatten(0, 1) * p["vector"]).view(x.shape),
    "rows behind": lambda p, x: (x.permute(2, 1, 0) * p["vector"][:, None, None]).permute(2, 1, 0),
    "a convolution": lambda p, x: F.conv1d(
        x.mT, p["kernel"], p["vector"], padding=2, groups=WIDTH
    ).mT[:, : x.shape[1]],
    "a convolution of groups": lambda p, x: F.conv1d(
        x.mT, p["grouped"], p["bias"], padding=2, dilation=2, groups=2
    ).mT[:, : x.shape[1]],
    "a state": scanned,
}

NOT_COVERED: dict[str, Callable[[nn.ParameterDict, Tensor], Tensor]] = {
    "einsum": lambda p, x: torch.einsum("btd,de->bte", x, p["matrix"]),
    "one use of two": lambda p, x: (
        torch.einsum("btd,d->bt", x, p["vector"])[..., None] + p["vector"]
    ),
    "written to": lambda p, x: x * (1 + p["vector"]).mul_(2),
}


@pytest.fixture
def units() -> Units:
    return Units.from_rows(ragged([2, 2, 2], seed=5, shortest=1))


def apart(model: nn.Module, units: Units, **options: float) -> tuple[float, Tensor, Tensor]:
    ours = batched_sum(model, loss, units, **options)
    exact = clipped_sum(model, loss, units, **options)
    return distance(ours, exact), ours.norms, exact.norms


@pytest.mark.parametrize("name", COVERED)
def test_per_unit_gradients_of_what_rows_share_are_exact(name: str, units: Units) -> None:
    for some in (units, units.select(1, 3), units.select(1, 2)):
        difference, ours, exact = apart(Toy(COVERED[name]), some, l2_clip_norm=1e3)
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-7)
        assert difference < 1e-5


@pytest.mark.parametrize("name", NOT_COVERED)
def test_what_no_rule_covers_is_named(name: str, units: Units) -> None:
    with pytest.raises(NotCoveredError, match=r"own|made"):
        batched_sum(Toy(NOT_COVERED[name]), loss, units, l2_clip_norm=1e3)


def only_the_vector() -> Toy:
    model = Toy(COVERED["Gemma's norm"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == "own.vector")
    return model


def largest_move(units: Units, clip: float) -> float:
    """The most by which one unit moves the sum, over C."""
    model = only_the_vector()
    everybody, *rest = (
        batched_sum(model, loss, some, l2_clip_norm=clip, micro_batch=6)
        for some in (units, units.select(1, 3), units.select(0, 2))
    )
    return max(distance(everybody, others) for others in rest) / clip


def test_invariant_3_twin_gradients_of_rows_that_are_shared_out_are_caught(units, monkeypatch):
    """Broken twin: each unit gets an equal part of what all units' rows leave at a vector.

    The sum is right, and no part of it is longer than the clip norm; but one unit's is in all, so
    that no unit's bits are its own.
    """
    norms = clipped_sum(only_the_vector(), loss, units, l2_clip_norm=1e3).norms
    clip = 0.8 * float(norms.max())
    assert largest_move(units, clip) <= 1

    def shared_out(
        self: broadcast.Spread, saved: tuple[Tensor], gradient: Tensor, needed: bool
    ) -> None:
        everybody = gradient.sum(0).reshape(saved[0].shape) / self.tape.layout.units
        self.tape.keep(self.name, Dense(everybody.expand(self.tape.layout.units, -1).clone()))

    monkeypatch.setattr(broadcast.Spread, "backward", shared_out)
    with pytest.raises(NotCoveredError, match="hang on its place"):
        largest_move(units, clip)
