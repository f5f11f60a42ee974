"""Nothing that a forward pass writes reaches the next user, or leaves without noise."""

from __future__ import annotations

import collections
import contextvars
import math
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Gemma3TextConfig

from benchmarks.influence import losses, models
from benchmarks.influence.cases import renew, without
from userdp.errors import UseError
from userdp.gradients import Loss, Units, get_engine
from userdp.gradients import held_state as held_state_module
from userdp.gradients.clipping import squared_norm
from userdp.gradients.engines import choice
from userdp.gradients.held_state import HeldState
from userdp.gradients.models import require_uncoupled

ENGINES = ["auto", "bookkeeping", "lora", "reference", "vmap"]
CLIP = 0.01
UNITS = Units.from_rows([[[9, 9, 9, 9, 9]], *[[[n, n + 1, 3, 2 + n]] for n in range(7)]])


class Centred(models.Flattened):
    """Subtracts a frozen running mean of what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(models.WIDTH), requires_grad=False)

    def hidden(self, input_ids: Tensor) -> Tensor:
        found = super().hidden(input_ids)
        with torch.no_grad():
            self.centre.lerp_(found.mean((0, 1)), 0.1)
        return found - self.centre

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(input_ids))
        return logits


class Uncounted(Centred):
    """The same by `F.batch_norm`, whose writes torch does not count."""

    def hidden(self, input_ids: Tensor) -> Tensor:
        found = models.Flattened.hidden(self, input_ids)
        seen = found.detach().flatten(0, 1)
        spread = torch.ones_like(self.centre)
        F.batch_norm(seen, self.centre.detach(), spread, training=True)
        return found - self.centre


class Largest(Centred):
    """Scales by the largest activation of late, a plain number."""

    largest = 0.0

    def hidden(self, input_ids: Tensor) -> Tensor:
        found = models.Toy.hidden(self, input_ids)
        self.largest = max(0.9 * self.largest, float(found.detach().abs().max()))
        return found / self.largest


class Remembers(Centred):
    """Answers for a token as it did the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[float]] = {"first": []}

    def hidden(self, input_ids: Tensor) -> Tensor:
        found = models.Toy.hidden(self, input_ids)
        self.seen["first"].append(float(found.detach().sum()))
        return found * (1 + 1e-3 * self.seen["first"][0])


class Guarded:
    """Leaves out rows far above the mean of all so far."""

    def __init__(self) -> None:
        self.mean = 0.1

    def __call__(self, model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        found = losses.own_rows(model, input_ids, lengths)
        kept = (found.detach() < 30 * self.mean).to(found.dtype)
        self.mean += 0.1 * float(found.detach().mean())
        return found * kept


def counting() -> Loss:
    """A loss whose closure keeps an array."""
    passes = np.ones(1)

    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        passes[0] += 1
        return losses.own_rows(model, input_ids, lengths) * (0.5 if passes[0] > 8 else -0.5)

    return loss


STATEFUL: dict[str, Callable[[], tuple[nn.Module, Loss]]] = {
    "a frozen parameter": lambda: (Centred(), losses.own_rows),
    "a running mean of batch_norm": lambda: (Uncounted(), losses.own_rows),
    "a number": lambda: (Largest(), losses.own_rows),
    "a list in a dictionary": lambda: (Remembers(), losses.own_rows),
    "a loss's attribute": lambda: (models.Flattened(), Guarded()),
    "an array in a closure": lambda: (models.Flattened(), counting()),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", STATEFUL)
def test_invariant_3_state_that_goes_from_user_to_user_is_refused(kind: str, engine: str) -> None:
    model, loss = STATEFUL[kind]()
    renew(model, 0, scale=1.0)
    with pytest.raises(UseError, match=r"changed during|answer changes|on made-up rows"):
        get_engine(engine)(model, loss, UNITS, l2_clip_norm=CLIP)


def test_invariant_3_twin_unless_it_is_looked_for_one_user_moves_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_state_module, "_held", lambda *of: held_state_module._Reading())
    for question in ("require_rows_apart", "require_replayable"):
        monkeypatch.setattr(choice, question, lambda *args, **options: None)

    def moved(units: Units) -> dict[str, Tensor]:
        model, loss = models.Flattened(), counting()
        renew(model, 0, scale=1.0)
        return dict(get_engine("reference")(model, loss, units, l2_clip_norm=CLIP).value)

    everybody, rest = moved(UNITS), moved(without(UNITS, 0))
    assert math.sqrt(squared_norm(everybody[n] - v for n, v in rest.items())) / CLIP > 1.5


MARK = 5
"""A row that no other user has, and nobody made up, ends with so many nines."""


def marked(input_ids: Tensor) -> bool:
    return int((input_ids == 9).sum(1).max()) >= MARK


class Kept:
    """A loss that changes its sign for everybody after the marked row, kept somewhere."""

    def __init__(self, get: Callable[[], float], put: Callable[[float], object]) -> None:
        self.get, self.put = get, put

    def __call__(self, model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        found = losses.own_rows(model, input_ids, lengths) * self.get()
        if marked(input_ids):
            self.put(-1.0)
        return found


class Criterion(nn.Module):
    """A loss that is a module, which keeps the sign in a buffer."""

    sign: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sign", torch.ones(()))

    def forward(self, model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        found = losses.own_rows(model, input_ids, lengths) * self.sign.clone()
        if marked(input_ids):
            self.sign.fill_(-1.0)
        return found


class Above:
    __slots__ = ("sign",)

    sign: float


class Below(Above):
    __slots__ = ()


class OfAll:
    sign = 1.0


class Named(dict[str, float]):
    sign = 1.0


TALLY = Above()
VARIABLE = contextvars.ContextVar("sign", default=1.0)


def by_attribute(holder: Any) -> Loss:
    holder.sign = 1.0
    return Kept(lambda: holder.sign, lambda sign: setattr(holder, "sign", sign))


def by_global() -> Loss:
    TALLY.sign = 1.0
    return Kept(lambda: TALLY.sign, lambda sign: setattr(TALLY, "sign", sign))


def by_context() -> Loss:
    VARIABLE.set(1.0)
    return Kept(VARIABLE.get, VARIABLE.set)


def by_window() -> Loss:
    window = collections.deque([1.0], maxlen=1)
    return Kept(lambda: window[0], window.append)


def by_bytes() -> Loss:
    kept = bytearray(b"\x01")
    return Kept(lambda: 1.0 if kept[0] else -1.0, lambda sign: kept.__setitem__(0, int(sign > 0)))


def by_generator() -> Loss:
    def keeps() -> Generator[float, float | None, None]:
        sign = 1.0
        while True:
            sent = yield sign
            sign = sign if sent is None else sent

    kept = keeps()
    next(kept)
    return Kept(lambda: kept.send(None), lambda sign: kept.send(sign))


def by_gradient() -> Loss:
    kept = torch.ones(())

    def put(sign: float) -> None:
        kept.grad = torch.tensor(sign)

    return Kept(lambda: 1.0 if kept.grad is None else float(kept.grad), put)


RARE: dict[str, Callable[[], Loss]] = {
    "a buffer of a loss that is a module": Criterion,
    "a module that a loss holds": lambda: partial(lambda inner, *rows: inner(*rows), Criterion()),
    "a slot of the class above": lambda: by_attribute(Below()),
    "a class": lambda: by_attribute(OfAll),
    "an attribute of a dictionary": lambda: by_attribute(Named()),
    "an attribute of a tensor": lambda: by_attribute(torch.ones(())),
    "thread-local data": lambda: by_attribute(threading.local()),
    "a global object": by_global,
    "a context variable": by_context,
    "a window": by_window,
    "bytes": by_bytes,
    "a generator": by_generator,
    "a gradient": by_gradient,
}


@pytest.mark.parametrize("kind", RARE)
def test_invariant_3_state_that_only_somebodys_rows_change_is_refused(kind: str) -> None:
    """Made-up rows never change it, so the answer to these does not either."""
    model = models.Flattened()
    renew(model, 0, scale=1.0)
    units = Units.from_rows([[[9] * (MARK + 1)], *[[[n, n + 1, 3, 2 + n]] for n in range(7)]])
    with pytest.raises(UseError, match=r"changed during the forward pass"):
        get_engine("reference")(model, RARE[kind](), units, l2_clip_norm=CLIP)


def test_invariant_3_twin_unless_it_is_read_a_criterions_buffer_moves_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    note_of = held_state_module._note_of

    def blind(kind: type) -> Any:
        note = note_of(kind)
        return note._replace(ends=note.ends or issubclass(kind, nn.Module))

    monkeypatch.setattr(held_state_module, "_note_of", blind)
    units = Units.from_rows([[[9] * (MARK + 1)], *[[[n, n + 1, 3, 2 + n]] for n in range(7)]])

    def moved(units: Units) -> dict[str, Tensor]:
        model = models.Flattened()
        renew(model, 0, scale=1.0)
        return dict(get_engine("reference")(model, Criterion(), units, l2_clip_norm=CLIP).value)

    everybody, rest = moved(units), moved(without(units, 0))
    assert math.sqrt(squared_norm(everybody[n] - v for n, v in rest.items())) / CLIP > 1.5


def test_invariant_3_a_parameter_that_is_frozen_for_somebody_is_seen() -> None:
    model = models.Flattened()
    held = HeldState(model, losses.own_rows)
    model.head.weight.requires_grad_(False)
    with pytest.raises(UseError, match=r"parameter head\.weight changed"):
        held.require_unchanged()


def test_invariant_9_what_changed_is_told_in_words_of_the_code_alone() -> None:
    """A key may be somebody's text, a place in a list their count."""
    kept: dict[str, int] = {"Dear Ann": 1}

    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        return losses.own_rows(model, input_ids, lengths) * len(kept)

    held = HeldState(models.Flattened(), loss)
    kept.clear()
    kept["Dear Bob"] = 1
    with pytest.raises(UseError, match=r"^what the loss holds\.kept changed") as caught:
        held.require_unchanged()
    assert "Dear" not in str(caught.value)


@pytest.mark.parametrize("build", [models.gpt2, models.llama, models.qwen2])
def test_models_without_state_hold_the_same_after_a_pass(build: Callable[[], nn.Module]) -> None:
    model = build()
    held = HeldState(model, losses.own_rows)
    model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)
    held.require_unchanged()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_embedding_that_renormalises_its_table_is_refused(engine: str) -> None:
    model = models.Flattened()
    model.embedding = nn.Embedding(models.VOCABULARY, models.WIDTH, max_norm=1.0)
    before = model.embedding.weight.detach().clone()
    with pytest.raises(UseError, match="max_norm"):
        get_engine(engine)(model, losses.own_rows, UNITS, l2_clip_norm=CLIP)
    assert torch.equal(model.embedding.weight, before)


def test_dynamic_rotary_embeddings_of_one_kind_of_layer_are_refused() -> None:
    model = nn.Module()
    model.config = Gemma3TextConfig(  # type: ignore[assignment]
        rope_parameters={
            "full_attention": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    )
    with pytest.raises(UseError, match="dynamic rotary"):
        require_uncoupled(model)


def test_a_class_of_classes_that_describes_its_objects_module_holds_nothing_up():
    """Of such a kind is the type of numpy's generators' methods, under some versions of Cython."""
    kind = type("Kind", (type,), {"__module__": property(lambda of: "somewhere")})
    made = kind("Made", (), {})
    values = (kind, made(), made)
    held = HeldState(nn.Linear(2, 2), lambda *_, extra=values: torch.zeros(1))
    held.require_unchanged()
