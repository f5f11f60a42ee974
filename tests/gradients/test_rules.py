"""Each layer's rule gives a unit's norm and clipped gradient; what has no rule is not skipped.

The oracle is the reference engine in float64, which runs the layer as torch or `peft` wrote it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import peft
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from tests.gradients.batches import batched_sum
from tests.gradients.tiny import VOCABULARY, distance, largest_move, ragged, row_squares, tiny
from userdp.gradients import Units, causal_lm_loss, clipped_sum, get_engine
from userdp.gradients.engines.following import NotCoveredError
from userdp.gradients.engines.rules import adapter, broadcast, embedding, grams, layer_norm, linear
from userdp.gradients.engines.uses import Dense, Form

Patch = pytest.MonkeyPatch
WIDTH = 6
UNITS = Units.from_rows(ragged([2, 2, 2], seed=5, shortest=1))
"""As many rows in each, so that they share a pass; some rows are a single token."""


class Around(nn.Module):
    """Looks tokens up and sends them through ``layer``."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table, self.layer = nn.Embedding(VOCABULARY, WIDTH), layer
        for parameter in layer.parameters():
            nn.init.normal_(parameter)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.table

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.layer(self.table(tokens).tanh())
        return answer


def error(model: nn.Module, form: Form | None = None) -> float:
    """The largest relative error of a unit's norm, and of the sum at a clip that bites half."""
    model, errors = model.double(), []
    for units in (UNITS, UNITS.select(1, 2)):
        far = clipped_sum(model, row_squares, units, l2_clip_norm=1e6)
        clip = float(far.norms.median())
        exact = clipped_sum(model, row_squares, units, l2_clip_norm=clip)
        ours = batched_sum(model, row_squares, units, l2_clip_norm=clip, form=form)
        norms = (ours.norms - exact.norms) / exact.norms
        errors += [distance(ours, exact) / clip, float(norms.abs().max())]
    return max(errors)


# Modules.


class Called(nn.Module):
    """A function of trained tensors of several shapes and of what it is given."""

    def __init__(self, function: Callable[[nn.ParameterDict, Tensor], Tensor]) -> None:
        super().__init__()
        shapes = {
            "vector": (WIDTH,), "matrix": (WIDTH, WIDTH), "number": (), "heads": (2, 3),
            "kernel": (WIDTH, 1, 3), "grouped": (4, 3, 2), "bias": (4,), "position": (9, WIDTH),
        }  # fmt: skip
        self.own = nn.ParameterDict({n: nn.Parameter(torch.empty(s)) for n, s in shapes.items()})
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.own, x)


def above(length: int) -> Tensor:
    return torch.ones(length, length).triu(1).bool()


def added(length: int) -> Tensor:
    return torch.zeros(length, length).masked_fill(above(length), -torch.inf).double()


class Attends(nn.Module):
    """`nn.MultiheadAttention` of a sequence over itself; over another where ``crossed``."""

    def __init__(
        self,
        mask: Callable[[int], Tensor] = above,
        *,
        first: bool = True,
        bias: bool = True,
        crossed: bool = False,
        **how: Any,
    ) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=first, bias=bias)
        self.mask, self.first, self.crossed, self.how = mask, first, crossed, how

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.first else x.transpose(0, 1)
        mask = self.mask(max(x.shape[int(self.first)], 1))
        keys = 2 * x if self.crossed else x
        y, weights = self.attention(x, keys, x, attn_mask=mask, **self.how)
        y = y if weights is None else y + weights[:, :, :1]
        return y if self.first else y.transpose(0, 1)


class Convolved(nn.Module):
    """A picture of positions and columns; no position sees a later one."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 3, 3, padding=(2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x[:, None])[:, :, : x.shape[1]].transpose(1, 2)


class Recurrent(nn.LSTM):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        found: Tensor = super().forward(x)[0]
        return found


class PositionsFirst(nn.Linear):
    """Flattens positions before rows: a layout that no rule can see."""

    def forward(self, x: Tensor) -> Tensor:
        rows, positions, width = x.shape
        flat = x.transpose(0, 1).reshape(-1, width)
        return super().forward(flat).view(positions, rows, -1).transpose(0, 1)


class Twice(nn.Linear):
    """One layer applied twice, as ALBERT does: its gradient is the sum over both."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(super().forward(x).tanh())


class Both(nn.Linear):
    """Uses one matrix in a layer that has a rule and once more outside of it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("btd,de->bte", super().forward(x), self.weight)


class Two(nn.Module):
    """Two layers under adapters, so that a gradient goes through one."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.second(self.first(x).tanh())
        return answer


def adapted(*, turned: bool = False, **settings: Any) -> nn.Module:
    """Two frozen layers with adapters, as `peft` makes them; ``turned``: of `Conv1D`."""
    model = (
        Two(Conv1D(12, WIDTH), Conv1D(WIDTH, 12))
        if turned
        else Two(nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH, bias=False))
    )
    model.requires_grad_(False)
    chosen = {"r": 3, "lora_alpha": 5, "target_modules": ["first", "second"], **settings}
    peft.inject_adapter_in_model(peft.LoraConfig(fan_in_fan_out=turned, **chosen), model)
    return model.train()


def rms(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def scanned(p: nn.ParameterDict, x: Tensor) -> Tensor:
    """A state from position to position that begins with a constant of (rows, width)."""
    state, seen = torch.zeros_like(x[:, 0]) - 1.0, []
    for place in range(x.shape[1]):
        state = (state + p["vector"]) * torch.exp(-p["number"].exp()) + x[:, place]
        seen.append(state)
    return torch.stack(seen, 1)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "embedding": nn.Identity,
    "linear": lambda: nn.Linear(WIDTH, 8),
    "Conv1D": lambda: Conv1D(8, WIDTH),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "RMS norm": lambda: nn.RMSNorm(WIDTH),
    "adapters": adapted,
    "adapters of Conv1D": partial(adapted, turned=True),
    "one layer twice": lambda: Twice(WIDTH, WIDTH),
    "a mask of truths": partial(Attends, need_weights=False),
    "a mask that is added": partial(Attends, added, need_weights=False),
    "a mask by hint": partial(Attends, added, need_weights=False, is_causal=True),
    "attention without biases": partial(Attends, bias=False, need_weights=False),
    "attention, positions first": partial(Attends, first=False, need_weights=False),
    "attention with weights": Attends,
}
SHARED: dict[str, Callable[[nn.ParameterDict, Tensor], Tensor]] = {
    "Gemma's norm": lambda p, x: rms(x) * (1.0 + p["vector"]),
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
"""Trained tensors that rows share by broadcasting, and what is made of parameters."""


@pytest.mark.parametrize("form", [None, *Form])
@pytest.mark.parametrize("name", LAYERS)
def test_the_rule_gives_each_units_norm_and_clipped_gradient(name: str, form: Form | None) -> None:
    assert error(Around(LAYERS[name]()), form) < 2e-5  # float64's margin; norms agree to rounding


@pytest.mark.parametrize("name", SHARED)
def test_per_unit_gradients_of_what_rows_share_are_exact(name: str) -> None:
    assert error(Around(Called(SHARED[name]))) < 2e-5


NOT_COVERED: dict[str, Callable[[], nn.Module]] = {
    "einsum": lambda: Called(lambda p, x: torch.einsum("btd,de->bte", x, p["matrix"])),
    "one use of two": lambda: Called(
        lambda p, x: torch.einsum("btd,d->bt", x, p["vector"])[..., None] + p["vector"]
    ),
    "a parameter that is written to": lambda: Called(lambda p, x: x * (1 + p["vector"]).mul_(2)),
    "in a layer and outside of it": lambda: Both(WIDTH, WIDTH),
    "an LSTM": lambda: Recurrent(WIDTH, 4, batch_first=True),
    "a convolution of pictures": Convolved,
    "positions before rows": lambda: PositionsFirst(WIDTH, WIDTH),
    "attention over another": partial(Attends, crossed=True, need_weights=False),
}


@pytest.mark.pitfall(number=14)
@pytest.mark.parametrize("name", NOT_COVERED)
def test_what_no_rule_covers_is_named_and_computed_by_the_reference(name: str) -> None:
    model = Around(NOT_COVERED[name]()).double()
    with pytest.raises(NotCoveredError, match=r"layer|made"):
        batched_sum(model, row_squares, UNITS, l2_clip_norm=1.0)
    ours, exact = (
        engine(model, row_squares, UNITS, l2_clip_norm=1e3)
        for engine in (get_engine("auto"), clipped_sum)
    )
    torch.testing.assert_close(ours.norms, exact.norms, rtol=1e-9, atol=0)
    assert distance(ours, exact) < 1e-6


# Adapters.


def two_adapters(layer: Any) -> None:
    layer.update_layer("other", 2, 2, config=peft.LoraConfig(r=2, target_modules=["first"]))
    nn.init.normal_(layer.lora_B["other"].weight)
    layer.set_adapter(["default", "other"])


def own_forward(layer: Any) -> None:
    inner = layer.lora_B["default"]
    inner.forward = lambda x: 3 * F.linear(x, inner.weight)


CHANGES: dict[str, Callable[[Any], object]] = {
    "a hook on A": lambda layer: layer.lora_A["default"].register_forward_hook(
        lambda module, args, value: 2 * value
    ),
    "a hook on the frozen layer": lambda layer: layer.base_layer.register_forward_hook(
        lambda module, args, value: value.sin()
    ),
    "a forward of B's own": own_forward,
    "two adapters": two_adapters,
    "a trained layer under it": lambda layer: layer.base_layer.weight.requires_grad_(True),
    "a parametrized A": lambda layer: nn.utils.parametrizations.weight_norm(
        layer.lora_A["default"]
    ),
    "a scale that is a tensor": lambda layer: layer.scaling.update(default=torch.tensor(0.5)),
}


@pytest.mark.parametrize("change", ["", *CHANGES])
def test_adapters_that_are_not_the_plain_case_run_as_peft_wrote_them(change, monkeypatch):
    ran, honest = [], adapter._run

    def run(*args: Any) -> Tensor | None:
        answer = honest(*args)
        ran.append(answer is not None)
        return answer

    monkeypatch.setattr(adapter, "_run", run)
    model = Around(adapted(target_modules=["first"]))
    CHANGES.get(change, lambda layer: None)(model.layer.first)
    model = model.double()
    ours, exact = (
        engine(model, row_squares, UNITS, l2_clip_norm=1.0)
        for engine in (get_engine("auto"), clipped_sum)
    )
    torch.testing.assert_close(ours.losses, exact.losses, rtol=1e-9, atol=0)
    torch.testing.assert_close(ours.norms, exact.norms, rtol=1e-9, atol=0)
    assert any(ran) is (change == "")


# Broken twins.


def a_turned_input_gradient(patch: Patch) -> None:
    honest = linear.Linear.backward

    def turned(self: Any, saved: Any, gradient: Any, needed: Any) -> Any:
        to_input = honest(self, saved, gradient, needed)
        return None if to_input is None else to_input.flip(-1)

    patch.setattr(linear.Linear, "backward", turned)


def norms_too_small(patch: Patch) -> None:
    honest = embedding.Sparse.squared_norms
    patch.setattr(embedding.Sparse, "squared_norms", lambda self: 0.8 * honest(self))


def a_forgotten_bias(patch: Patch) -> None:
    honest = layer_norm._LayerNorm.backward

    def without_bias(self: Any, saved: Any, gradient: Any, needed: Any) -> Any:
        weight_only = layer_norm._LayerNorm(self.tape, (self.names[0], None), 0)
        return honest(weight_only, saved, gradient, needed)

    patch.setattr(layer_norm._LayerNorm, "backward", without_bias)


def half_a_gram_matrix(patch: Patch) -> None:
    honest = grams.gram
    patch.setattr(grams, "gram", lambda rows: 0.5 * honest(rows))
    patch.setattr(linear, "choose_form", lambda **sizes: Form.GHOST)


def half_a_gradient(patch: Patch) -> None:
    patch.setattr(broadcast, "wide", lambda gradient: 0.5 * gradient)


def a_scale_left_out(patch: Patch) -> None:
    honest = adapter._Adapted
    patch.setattr(
        adapter, "_Adapted", lambda tape, names, turned, _: honest(tape, names, turned, 1)
    )


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("embedding", norms_too_small),
        ("linear", half_a_gram_matrix),
        ("Conv1D", a_turned_input_gradient),
        ("layer norm", a_forgotten_bias),
        ("RMS norm", half_a_gradient),
        ("adapters", a_scale_left_out),
    ],
)
def test_invariant_3_twin_a_broken_rule_is_caught(name, twin, monkeypatch):
    twin(monkeypatch)
    assert error(Around(LAYERS[name]())) > 1e-2


def no_cross_term(patch: Patch) -> None:
    patch.setattr(embedding.Sparse, "cross", lambda self, _: torch.zeros(len(self.tokens)).double())


def half_precision(patch: Patch) -> None:
    honest, less = linear.Ghost.squared_norms, 1 - 2.0**-7
    patch.setattr(linear.Ghost, "squared_norms", lambda s: honest(s).bfloat16().double() * less)


def skipped(patch: Patch) -> None:
    """Norms without one layer, and a sum with it."""
    honest = embedding.Sparse.squared_norms
    patch.setattr(embedding.Sparse, "squared_norms", lambda self: 0 * honest(self))


@pytest.mark.pitfall(number=14)
@pytest.mark.parametrize(
    ("twin", "family", "sizes"),
    [
        (no_cross_term, "gpt2-tied", [2, 2, 2]),
        (half_precision, "gpt2-untied", [1] * 4),
        (skipped, "gpt2-untied", [1] * 4),
    ],
)
def test_invariant_3_twin_gram_norms_without_a_cross_term_in_half_precision_or_skipped_are_caught(
    twin, family, sizes, monkeypatch
):
    model, rows = tiny(family, torch.float64), ragged(sizes, seed=4)
    how = {"l2_clip_norm": 0.5, "form": Form.GHOST}
    ghosts = partial(batched_sum, model, causal_lm_loss, **how)
    assert largest_move(ghosts, rows) <= 0.5
    twin(monkeypatch)
    assert largest_move(ghosts, rows) > 0.5


def test_invariant_3_twin_gradients_of_rows_that_are_shared_out_are_caught(monkeypatch):
    """Each unit gets an equal part of what all units' rows leave at a vector.

    The sum is right, and no part of it is longer than the clip norm; but one unit's is in all, so
    that no unit's bits are its own.
    """

    def shared_out(
        self: broadcast.Spread, saved: tuple[Tensor], gradient: Tensor, needed: bool
    ) -> None:
        everybody = gradient.sum(0).reshape(saved[0].shape) / self.tape.layout.units
        self.tape.keep(self.name, Dense(everybody.expand(self.tape.layout.units, -1).clone()))

    def only_the_vector() -> nn.Module:
        model = Around(Called(SHARED["Gemma's norm"]))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name == "layer.own.vector")
        return model

    assert error(only_the_vector()) < 2e-5
    monkeypatch.setattr(broadcast.Spread, "backward", shared_out)
    with pytest.raises(NotCoveredError, match="hang on its place"):
        error(only_the_vector())
