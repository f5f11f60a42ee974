"""What is held in places that code is handed: a module given to a helper, an operation of torch.

Which function names a module, and which the variable in it, need not be the same.
"""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import Tensor, library, nn

from tests.gradients.held_places import (
    Build,
    Place,
    module_of_own,
    of_loss,
    of_model,
    of_source,
    require_seen,
)
from userdp.gradients import Units, causal_lm_loss, get_engine, held_state
from userdp.gradients.held_state import HeldState

pytestmark = pytest.mark.usefixtures("modules_put_back")


def a_package_that_a_loss_holds() -> Place:
    state = module_of_own("proj.state")
    import proj  # type: ignore[import-not-found]  # made by the line before

    class Criterion:
        def __init__(self, package: Any) -> None:
            self.package = package

        def __call__(self, *rows: Any) -> Any:
            return self.package.state.TOP[0]

    return Place(
        lambda: state.TOP[0],
        lambda: state.TOP.__setitem__(0, -1.0),
        nn.Linear(2, 2),
        Criterion(proj),
    )


def an_operation_of_its_own(part: str) -> Build:
    def build() -> Place:
        top = {"sign": 1.0}

        @library.custom_op(f"tests_held::{part}", mutates_args=())
        def scaled(x: Tensor) -> Tensor:
            return x * (top["sign"] if part == "forward" else 1.0)

        scaled.register_autograd(
            lambda _, given: given * (top["sign"] if part == "backward" else 1.0)
        )

        def loss(*rows: Any) -> Tensor:
            called: Tensor = getattr(torch.ops.tests_held, part)(torch.zeros(1))
            return called

        return Place(lambda: top["sign"], lambda: top.update(sign=-1.0), nn.Linear(2, 2), loss)

    return build


class Signed(Tensor):
    """A tensor of a class of somebody's own."""

    sign = 1.0


def a_class_of_tensors() -> Place:
    Signed.sign = 1.0
    held = torch.zeros(2).as_subclass(Signed)
    return of_loss(held, lambda: Signed.sign, lambda: setattr(Signed, "sign", -1.0))


def a_hook_of_a_view() -> Place:
    model: Any = nn.Linear(2, 2)
    model.turned = model.weight.t()
    top = {"sign": 1.0}
    model.turned.register_hook(lambda gradient: gradient * top["sign"])
    return of_model(model, lambda: top["sign"], lambda: top.update(sign=-1.0))


KINDS: dict[str, Build] = {
    "a module given to a helper": of_source(
        "import proj.state\ndef helper(where): return where.TOP[0]\n"
        "def loss(*rows): return helper(proj.state)"
    ),
    "a module given to a method": of_source(
        "import proj.state\nclass Meter:\n    def see(self, where): return where.TOP[0]\n"
        "meter = Meter()\ndef loss(*rows): return meter.see(proj.state)"
    ),
    "a package that a helper returns": of_source(
        "def backend():\n    import proj\n    return proj\n"
        "def loss(*rows): return backend().state.TOP[0]"
    ),
    "a package that a loss holds": a_package_that_a_loss_holds,
    "an operation of torch, forwards": an_operation_of_its_own("forward"),
    "an operation of torch, backwards": an_operation_of_its_own("backward"),
    "a class of tensors": a_class_of_tensors,
    "a hook of a view": a_hook_of_a_view,
}


@pytest.mark.parametrize("kind", KINDS)
def test_invariant_3_what_code_is_handed_is_followed(kind: str) -> None:
    require_seen(KINDS[kind]())


def test_invariant_3_twin_what_each_function_names_by_itself_is_not_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_state._Reading, "own_modules", lambda reading: None)
    for kind in list(KINDS)[:4]:
        place = KINDS[kind]()
        held = HeldState(place.model, place.loss)
        place.change()
        held.require_unchanged()


class Answers:
    """Has no attributes, and asks a question of somebody who looks for some."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"not made for {name}")


class Untied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 4), nn.Linear(4, 11)

    def forward(self, input_ids: Tensor, **rest: Any) -> Any:
        return types.SimpleNamespace(logits=self.head(self.table(input_ids)))


@pytest.fixture
def prior() -> Tensor:
    with torch.inference_mode():
        return torch.ones(1)


@pytest.mark.parametrize("engine", ["reference", "bookkeeping"])
@pytest.mark.parametrize("held", ["a tensor of inference mode", "an object that answers"])
def test_what_ordinary_losses_hold_is_no_reason_to_stop(
    held: str, engine: str, prior: Tensor
) -> None:
    what: Any = prior if held == "a tensor of inference mode" else Answers()

    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor, kept: Any = what) -> Tensor:
        factor = kept.clone() if isinstance(kept, Tensor) else 1.0
        return causal_lm_loss(model, input_ids, lengths) * factor

    units = Units.from_rows([[[1, 2, 3]], [[4, 5, 6]]])
    model = Untied()
    model.prior = prior
    found = get_engine(engine)(model, loss, units, l2_clip_norm=1.0)
    assert found.non_finite == 0


@pytest.mark.parametrize("engine", ["reference", "bookkeeping"])
def test_a_teacher_may_answer_in_inference_mode(engine: str) -> None:
    teacher = Untied()

    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        with torch.inference_mode():
            wanted = teacher(input_ids).logits.softmax(-1)
        own: Tensor = model(input_ids).logits.log_softmax(-1)
        counted = torch.arange(input_ids.shape[1]) < lengths[:, None]
        return -((own * wanted.clone()).sum(2) * counted).sum(1)

    units = Units.from_rows([[[1, 2, 3]], [[4, 5, 6]]])
    found = get_engine(engine)(Untied(), loss, units, l2_clip_norm=1.0)
    assert found.non_finite == 0
    assert bool((found.norms > 0).all())
