"""What a pass wrote down is put back behind it, values and identity, wherever it is held."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from userdp.core.errors import UseError
from userdp.gradients.certificate.state import State

MEAN = torch.zeros(3)
COUNTS = {"passes": 0}


class Model(nn.Module):
    """Holds what a forward pass may write to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.running: Any = None
        self.seen: list[Any] = [torch.zeros(1)]
        self.cache: dict[str, Tensor] = {}
        self.config = SimpleNamespace(kept={"last": torch.zeros(2)})


def plain_loss(model: nn.Module) -> None:
    """Holds nothing."""


class Loss:
    """A loss with attributes, a teacher among them."""

    def __init__(self) -> None:
        self.mean: Any = None
        self.recent: deque[Any] = deque(maxlen=3)
        self.teacher = nn.BatchNorm1d(3)

    def __call__(self, model: nn.Module) -> None:
        COUNTS["passes"] = 1


def global_loss(model: nn.Module) -> None:
    """Writes to a global that it names."""
    global MEAN
    MEAN = MEAN + 1


def closing_over() -> tuple[Callable[..., None], Callable[[], Any]]:
    held: Any = None

    def loss(model: nn.Module) -> None:
        nonlocal held
        held = torch.ones(1)

    return loss, lambda: held


WRITES: dict[str, Callable[[Any], object]] = {
    "a buffer, in place": lambda m: m.mean.add_(1),
    "a buffer, another one": lambda m: setattr(m, "mean", m.mean + 1),
    "a new buffer": lambda m: m.register_buffer("other", torch.ones(1)),
    "an attribute": lambda m: setattr(m, "running", torch.ones(1)),
    "a new attribute": lambda m: setattr(m, "last", torch.ones(1)),
    "an attribute that went": lambda m: delattr(m, "cache"),
    "a tensor in a list": lambda m: m.seen[0].add_(1),
    "a longer list": lambda m: m.seen.append(torch.ones(1)),
    "an entry of a dictionary": lambda m: m.cache.update(mask=torch.ones(2)),
    "an object's entry": lambda m: m.config.kept["last"].add_(1),
    "a parameter, another one": lambda m: setattr(
        m.linear, "weight", nn.Parameter(torch.ones(3, 3))
    ),
    "a module, another one": lambda m: setattr(m, "linear", nn.Linear(3, 3)),
}


def contents(value: Any) -> Any:
    """Everything in ``value``, tensors as objects and numbers."""
    if isinstance(value, Tensor):
        return id(value), value.tolist()
    if isinstance(value, nn.Module):
        return id(value), contents({k: v for k, v in vars(value).items() if "hooks" not in k})
    if isinstance(value, dict):
        return {key: contents(part) for key, part in value.items()}
    if isinstance(value, list | deque):
        return id(value), [contents(part) for part in value]
    return contents(vars(value)) if isinstance(value, SimpleNamespace | Loss) else value


OF_A_LOSS: dict[str, Callable[[Loss], object]] = {
    "an attribute": lambda loss: setattr(loss, "mean", torch.ones(1)),
    "a queue": lambda loss: loss.recent.append(torch.ones(1)),
    "a teacher's statistics": lambda loss: loss.teacher.running_mean.add_(1),
    "a teacher's weights": lambda loss: setattr(loss.teacher, "weight", None),
}
HANDED: dict[str, Callable[[Loss], Callable[..., None]]] = {
    "itself": lambda loss: loss,
    "a partial": lambda loss: functools.partial(loss),
    "a bound method": lambda loss: loss.__call__,
}


CASES: dict[str, tuple[Callable[[Any], object], Callable[[Loss], Callable[..., None]] | None]] = {
    **{f"the model, {kind}": (write, None) for kind, write in WRITES.items()},
    **{
        f"the loss, {kind}, as {how}": (write, handed)
        for kind, write in OF_A_LOSS.items()
        for how, handed in HANDED.items()
    },
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_model_or_a_loss_wrote_down_is_seen_and_put_back(case: str) -> None:
    write, handed = CASES[case]
    writer: Any = Model() if handed is None else Loss()
    state = State(writer, plain_loss) if handed is None else State(Model(), handed(writer))
    before = contents(writer)
    assert not state.changed()
    write(writer)
    assert state.changed()
    assert contents(writer) != before  # broken twin: nothing is put back
    state.put_back()
    assert contents(writer) == before
    assert not state.changed()


def test_closures_and_globals_that_a_loss_names_are_put_back() -> None:
    loss, held = closing_over()
    state = State(Model(), loss)
    loss(Model())
    assert held() is not None
    assert state.changed()
    state.put_back()
    assert held() is None
    before, state = MEAN, State(Model(), global_loss)
    global_loss(Model())
    assert state.changed()
    state.put_back()
    assert MEAN is before
    assert before.tolist() == [0, 0, 0]


def test_plain_numbers_are_no_change_and_are_put_back_all_the_same() -> None:
    """A count of calls is public in a pass that makes the calls of its certificate."""
    model, loss = Model(), Loss()
    model.calls = 0  # type: ignore[assignment]
    state = State(model, loss)
    model.calls, model.running = 1, 0.5  # type: ignore[assignment]
    loss(model)
    assert not state.changed()
    state.put_back()
    assert (model.calls, model.running, COUNTS["passes"]) == (0, None, 0)


def test_a_parameter_that_a_pass_writes_to_is_refused() -> None:
    """There is no copy of the weights that could be put back."""
    model = Model()
    state = State(model, plain_loss)
    with torch.no_grad():
        model.linear.weight.mul_(0.9)
    assert state.changed()
    with pytest.raises(UseError, match="wrote to a parameter"):
        state.put_back()
