"""Nothing that a forward pass writes reaches the next user, or leaves without noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
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
    monkeypatch.setattr(held_state_module, "_held", lambda model, loss: {})
    for question in ("require_rows_apart", "require_replayable"):
        monkeypatch.setattr(choice, question, lambda *args, **options: None)

    def moved(units: Units) -> dict[str, Tensor]:
        model, loss = models.Flattened(), counting()
        renew(model, 0, scale=1.0)
        return dict(get_engine("reference")(model, loss, units, l2_clip_norm=CLIP).value)

    everybody, rest = moved(UNITS), moved(without(UNITS, 0))
    assert math.sqrt(squared_norm(everybody[n] - v for n, v in rest.items())) / CLIP > 1.5


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
