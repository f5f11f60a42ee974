"""`Script`: what somebody trains, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from userdp.gradients import Loss, causal_lm_loss, trainable_parameters

WIDTH, HEADS, LONGEST = 16, 2, 16


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trainable_parameters(model).values(), lr=1e-3)


@dataclass(kw_only=True)
class Script:
    """What somebody trains.

    Args:
        model: on the CPU.
        loss: per row.
        optimizer: made of the model; by default AdamW over what is trainable.
        after_step: what the loop does behind ``optimizer.step()``.
    """

    model: nn.Module
    loss: Loss = causal_lm_loss
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adamw
    after_step: Callable[[], object] = lambda: None


SCRIPTS: dict[str, tuple[Callable[[int], Script], str]] = {}
"""By name: makes the script for a vocabulary, and what is expected.

"batches": users share passes. "alone": each is computed by itself, and the price is said. Else the
words by which the script is refused before anything is charged.
"""

BATCHES, ALONE = "batches", "alone"

Make = Callable[[int], Script]


def script(expected: str) -> Callable[[Make], Make]:
    """Register a script under its function's name."""

    def register(make: Make) -> Make:
        SCRIPTS[make.__name__.replace("_", " ")] = make, expected
        return make

    return register


def models(expected: str, loss: Loss = causal_lm_loss, **made: Callable[[int], nn.Module]) -> None:
    """Register a script for each model of a vocabulary's size, under the model's name."""
    for name, model in made.items():

        def make(vocabulary: int, model: Callable[[int], nn.Module] = model) -> Script:
            return Script(model=model(vocabulary), loss=loss)

        SCRIPTS[name.replace("_", " ")] = make, expected


def bodies(expected: str, loss: Loss | None = None, **made: Callable[[], nn.Module]) -> None:
    """Register a script of `Language` around each body, under the body's name."""
    for name, body in made.items():

        def model(vocabulary: int, body: Callable[[], nn.Module] = body) -> nn.Module:
            return Language(vocabulary, body())

        models(expected, loss or next_tokens, **{name: model})


def row_means(token_losses: Tensor, lengths: Tensor) -> Tensor:
    """Each row's mean over its own targets, of losses (rows, tokens - 1)."""
    real = torch.arange(token_losses.shape[1], device=lengths.device) < lengths[:, None] - 1
    return (token_losses * real).sum(1) / (lengths - 1).clamp(min=1)


def next_tokens(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """The loss of a model that maps tokens (rows, tokens) to logits."""
    losses = nn.functional.cross_entropy(
        model(input_ids)[:, :-1].transpose(1, 2), input_ids[:, 1:], reduction="none"
    )
    return row_means(losses, lengths)


class Language(nn.Module):
    """Tokens, positions, a body, a head: the frame of most modules here."""

    def __init__(self, vocabulary: int, body: nn.Module | None = None) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(LONGEST, WIDTH)
        self.body = nn.Identity() if body is None else body
        self.head = nn.Linear(WIDTH, vocabulary)

    def hidden(self, input_ids: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        found: Tensor = self.tokens(input_ids) + self.positions(places)
        return found

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.hidden(input_ids)))
        return logits
