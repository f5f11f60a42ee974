"""Choices that jump are not for batches: there, who else is in the pass decides the last bits."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, MixtralConfig

from tests.gradients.batches import batched_sum, reason_alone
from tests.gradients.tiny import largest_move
from userdp.core.errors import UseError
from userdp.gradients import Units, causal_lm_loss, clipped_sum
from userdp.gradients.certificate import rows
from userdp.gradients.certificate.coupling import require_rows_apart
from userdp.gradients.engines.following import NotCoveredError

CLIP, VOCABULARY = 0.05, 61


def routed(*, tied: bool = False) -> nn.Module:
    """Mixtral, whose experts are followed from row to row; only its attention trains.

    Where ``tied``, all logits of its routers are equal but for their last bits.
    """
    torch.manual_seed(7)
    config = MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2,
        bos_token_id=0, eos_token_id=0, experts_implementation="batched_mm",
    )  # fmt: skip
    model: nn.Module = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
            parameter.requires_grad_("self_attn" in name)
            if "down_proj" in name:
                parameter.mul_(20)  # what an expert says matters
            if tied and name.endswith("gate.weight"):
                for expert, bits in ((1, 2**-23), (2, -(2**-23)), (3, 2**-22)):
                    parameter[expert] = parameter[0] * (1 + bits)
    return model


def users(seed: int, count: int = 2) -> list[list[list[int]]]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 40, (count,), generator=draw).tolist()
    return [[torch.randint(VOCABULARY, (length,), generator=draw).tolist()] for length in lengths]


def move(model: nn.Module, seed: int) -> float:
    """The most by which one of two users moves the batched sum, over C."""
    total = partial(batched_sum, model, causal_lm_loss, l2_clip_norm=CLIP)
    return largest_move(total, users(seed)) / CLIP


def test_invariant_3_a_router_in_a_batch_is_not_followed() -> None:
    with pytest.raises(NotCoveredError, match="tipped by the rounding"):
        batched_sum(routed(), causal_lm_loss, Units.from_rows(users(0)), l2_clip_norm=CLIP)


def test_invariant_3_twin_a_choice_among_nearly_equal_experts_moves_others(monkeypatch):
    """Broken twin: rows are followed through the choice, and a user moves the sum by more than C.

    Leaving the other user out changes nothing but the shapes of products, and their last bits.
    """
    monkeypatch.setattr(rows, "steps", lambda call, result: False)
    model = routed(tied=True)
    assert any(move(model, seed) > 1.005 for seed in range(40))


class Capacity(nn.Module):
    """Experts of limited room: tokens that come late are dropped, whoever's the earlier are."""

    def __init__(self, room: int | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.router = nn.Linear(8, 2)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, VOCABULARY)
        self.room = room

    def forward(self, input_ids: Tensor, **_: object) -> object:
        flat = self.embedding(input_ids).flatten(0, 1)
        chosen = self.router(flat).argmax(-1)
        found = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero()[: self.room, 0]
            found = found.index_add(0, mine, expert(flat[mine]))
        logits = self.head(found).view(*input_ids.shape, -1)
        return type("Answer", (), {"logits": logits})()


@pytest.mark.pitfall(number=18)
def test_invariant_3_experts_of_limited_room_are_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(UseError, match="made-up rows"):
        require_rows_apart(Capacity(3), causal_lm_loss, masked=False)
    units = Units.from_rows(users(2, 3))
    with pytest.raises(UseError, match="made-up rows"):
        clipped_sum(Capacity(3), causal_lm_loss, units, l2_clip_norm=1.0)
    # Without a limit a token's expert is the token's own matter.
    free = Capacity(None)
    require_rows_apart(free, causal_lm_loss, masked=False)
    assert reason_alone(free, causal_lm_loss, units) is not None
