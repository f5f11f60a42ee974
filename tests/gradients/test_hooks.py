"""What hooks keep reaches no other user, and what was asked of a model is asked of its hooks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.influence import losses, models
from benchmarks.influence.cases import renew, without
from userdp.errors import UseError
from userdp.gradients import Units, get_engine
from userdp.gradients import held_state as held_state_module
from userdp.gradients.clipping import squared_norm
from userdp.gradients.engines import choice
from userdp.gradients.held_state import HeldState
from userdp.gradients.hooks import hooks_of
from userdp.gradients.certificate.made_up import Answers, hooks_changed

ENGINES = ["auto", "bookkeeping", "lora", "reference", "vmap"]
CLIP = 0.01
NINES = 5
UNITS = Units.from_rows([[[9] * (NINES + 1)], *[[[n, n + 1, 3, 2 + n]] for n in range(7)]])


def toy() -> models.Flattened:
    model = models.Flattened()
    renew(model, 0, scale=1.0)
    return model


def notes_nines(kept: dict[str, bool], module: nn.Module, given: Any) -> None:
    """Switched on by a row such as nobody made up, and never off again."""
    if int((given[0] == 9).sum(1).max()) >= NINES:
        kept["on"] = True


def turns(kept: dict[str, bool], module: nn.Module, given: Any, out: Tensor) -> Tensor:
    return -out if kept["on"] else out


def in_a_closure(model: models.Flattened) -> None:
    kept = {"on": False}
    model.register_forward_pre_hook(lambda module, given: notes_nines(kept, module, given))
    model.head.register_forward_hook(lambda module, given, out: turns(kept, module, given, out))


def in_a_partial(model: models.Flattened) -> None:
    kept = {"on": False}
    model.register_forward_pre_hook(partial(notes_nines, kept))
    model.head.register_forward_hook(partial(turns, kept))


def in_a_default(model: models.Flattened) -> None:
    kept = {"on": False}

    def notes(module: nn.Module, given: Any, kept: dict[str, bool] = kept) -> None:
        notes_nines(kept, module, given)

    model.register_forward_pre_hook(notes)
    model.head.register_forward_hook(partial(turns, kept))


class Switch:
    """Hooks that are an object's own."""

    def __init__(self) -> None:
        self.kept = {"on": False}

    def notes(self, module: nn.Module, given: Any) -> None:
        notes_nines(self.kept, module, given)

    def __call__(self, module: nn.Module, given: Any, out: Tensor) -> Tensor:
        return turns(self.kept, module, given, out)


def in_an_object(model: models.Flattened) -> None:
    switch = Switch()
    model.register_forward_pre_hook(switch.notes)
    model.head.register_forward_hook(switch)


KEPT: dict[str, Callable[[models.Flattened], None]] = {
    "a closure": in_a_closure,
    "a partial": in_a_partial,
    "a default": in_a_default,
    "an object": in_an_object,
}


def moved(engine: str, hang: Callable[[models.Flattened], None], units: Units) -> dict[str, Tensor]:
    model = toy()
    hang(model)
    return dict(get_engine(engine)(model, losses.own_rows, units, l2_clip_norm=CLIP).value)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KEPT)
def test_invariant_3_state_that_a_hook_keeps_from_user_to_user_is_refused(
    kind: str, engine: str
) -> None:
    with pytest.raises(UseError, match=r"what a hook of module .* holds"):
        moved(engine, KEPT[kind], UNITS)


def test_invariant_3_twin_unless_hooks_are_followed_one_user_moves_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_state_module, "hooks_of", lambda model: ())
    everybody = moved("reference", in_a_closure, UNITS)
    rest = moved("reference", in_a_closure, without(UNITS, 0))
    assert math.sqrt(squared_norm(everybody[n] - v for n, v in rest.items())) / CLIP > 3


def test_invariant_3_a_hook_of_the_backward_pass_is_followed() -> None:
    model, seen = toy(), []

    def notes(module: nn.Module, given: Any, arrived: Any) -> None:
        seen.append(float(arrived[0].sum()))

    model.head.register_full_backward_hook(notes)
    with pytest.raises(UseError, match=r"what a hook of module head holds"):
        get_engine("reference")(model, losses.own_rows, UNITS, l2_clip_norm=CLIP)


def test_invariant_3_a_hook_of_a_parameter_is_followed() -> None:
    model, seen = toy(), []
    model.head.weight.register_hook(lambda arrived: seen.append(1))  # type: ignore[no-untyped-call]  # torch's
    with pytest.raises(UseError, match=r"what a hook of parameter head.weight holds"):
        get_engine("reference")(model, losses.own_rows, UNITS, l2_clip_norm=CLIP)


@pytest.mark.parametrize("engine", ENGINES)
def test_invariant_3_a_hook_that_came_after_the_questions_is_caught_when_it_changes_something(
    engine: str,
) -> None:
    model = toy()
    compute = partial(get_engine(engine), model, losses.own_rows, l2_clip_norm=CLIP)
    rest = without(UNITS, 0)
    compute(rest)
    in_a_closure(model)
    compute(rest)  # it changes nothing yet
    with pytest.raises(UseError, match=r"what a hook of module .* holds"):
        compute(UNITS)


@pytest.mark.parametrize("engine", ENGINES)
def test_invariant_3_rows_that_a_hook_couples_are_refused_whenever_it_came(engine: str) -> None:
    """The questions are asked anew; no state tells of it."""
    model = toy()
    compute = partial(get_engine(engine), model, losses.own_rows, UNITS, l2_clip_norm=CLIP)
    compute()
    handle = model.head.register_forward_hook(lambda module, given, out: out - out.mean(0))
    with pytest.raises(UseError, match="on made-up rows"):
        compute()
    handle.remove()
    compute()


def test_invariant_3_twin_without_new_questions_such_a_hook_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = toy()
    compute = partial(get_engine("reference"), model, losses.own_rows, UNITS, l2_clip_norm=CLIP)
    compute()
    model.head.register_forward_hook(lambda module, given, out: out - out.mean(0))
    monkeypatch.setattr(choice, "hooks_changed", lambda model: False)
    compute()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_hook_without_state_changes_nothing(engine: str) -> None:
    model = toy()
    plain = get_engine(engine)(model, losses.own_rows, UNITS, l2_clip_norm=CLIP).value
    model.head.register_forward_hook(lambda module, given, out: out)
    hooked = get_engine(engine)(model, losses.own_rows, UNITS, l2_clip_norm=CLIP).value
    for name, value in plain.items():
        torch.testing.assert_close(hooked[name], value, rtol=0, atol=2e-3 * CLIP)


def test_questions_are_asked_anew_only_where_hooks_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forgotten: list[nn.Module] = []
    right = Answers.forget

    def forget(model: nn.Module) -> None:
        forgotten.append(model)
        right(model)

    monkeypatch.setattr(Answers, "forget", forget)
    model = toy()
    compute = partial(get_engine("auto"), model, losses.own_rows, UNITS, l2_clip_norm=CLIP)
    compute()
    compute()
    assert not forgotten  # the engines' own hooks come and go meanwhile
    model.head.register_forward_hook(lambda module, given, out: out)
    compute()
    compute()
    assert len(forgotten) == 1
    assert not hooks_changed(model)


def test_what_is_walked_grows_by_what_hooks_hold_and_no_more() -> None:
    """A step walks each hook once, and their class once, and none of the engines' own."""
    model = toy()
    model.head.register_forward_hook(Switch())
    plain = len(HeldState(model, losses.own_rows)._before.values)
    model.head.register_forward_hook(Switch())
    assert len(HeldState(model, losses.own_rows)._before.values) <= plain + 12
    assert [hook.where for hook in hooks_of(model)] == ["module head"] * 2
