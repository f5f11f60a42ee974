"""One unit moves the sum by at most C: some of the campaign's questions, and broken twins.

All of them were asked once (docs/results/engines.md), by ``python -m tests.gradients.campaign``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from tests.gradients.batches import batched_sum
from tests.gradients.campaign import cases, models
from tests.gradients.campaign.accidents import ACCIDENTS
from tests.gradients.campaign.families import build
from tests.gradients.campaign.jobs import Job, answered, wrong
from tests.gradients.campaign.people import cohort
from tests.gradients.tiny import distance, ragged
from tests.speed import fast_then_slow
from userdp.core.errors import UseError
from userdp.gradients import ClippedSum, Loss, Units, causal_lm_loss, clipped_sum, get_engine
from userdp.gradients.certificate.calls import Calls
from userdp.gradients.certificate.rows import Rows
from userdp.gradients.engines import batched, choice, layer
from userdp.gradients.engines.certify import Certificate, Proving
from userdp.gradients.engines.choice import why_alone
from userdp.gradients.engines.passes import PassShape
from userdp.gradients.engines.tape import Tape
from userdp.gradients.engines.task import Task
from userdp.gradients.model_randomness import secret_randomness
from userdp.training.lora import linear_layers


@pytest.fixture(autouse=True)
def _models_of_its_own() -> Iterator[None]:
    """What an engine concluded of a model, blind or not, is told to no other test."""
    yield
    cases._models.clear()
    cases._met.clear()


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("number", fast_then_slow(range(24), fast=6))
@pytest.mark.parametrize("engine", fast_then_slow(["auto", "reference"]))
@pytest.mark.parametrize("kind", cases.KINDS)
def test_invariant_3_and_14_one_unit_moves_the_sum_by_at_most_the_clip_norm(kind, engine, number):
    row = answered(Job(kind, engine, str(number)))
    assert not wrong(row), row


def test_invariant_14_one_unit_moves_a_sharded_sum_by_at_most_the_clip_norm() -> None:
    row = answered(Job("dropout", "sharded", "0"))
    assert not wrong(row), row
    assert row["way"] == "certified"


@pytest.mark.parametrize(
    ("name", "kind", "way"),
    fast_then_slow(
        [
            ("mixtral", "full", "reference"),
            ("llama", "LoRA", "certified"),
            ("mamba2", "full", "certified"),
            ("gpt2", "full, bfloat16 and dropout", "certified"),
            # The backward pass of its GELU is Python code, which is given tensors of no known row.
            ("bloom", "full", "reference"),
        ],
        fast=2,
    ),
)
def test_invariant_3_one_user_moves_the_sum_of_a_family_by_at_most_the_clip_norm(name, kind, way):
    row = answered(Job(f"families, {kind}", "auto", name))
    assert not wrong(row), row
    assert row["way"] == way
    assert row["ratio"] > 0.9


@pytest.mark.parametrize("name", ACCIDENTS)
def test_invariant_3_an_accident_moves_the_sum_by_at_most_the_clip_norm(name: str) -> None:
    """Ordinary scripts that keep a state, change after some passes, or draw by themselves.

    Each goes one way, which hangs on code alone: in batches, one unit at a time, or refused before
    anything is charged.
    """
    row = answered(Job("accidents", "auto", name))
    assert not wrong(row), row


@pytest.mark.parametrize("engine", ["auto", "reference"])
@pytest.mark.parametrize("name", [name for name, one in ACCIDENTS.items() if one.says])
def test_what_no_engine_can_compute_is_refused_whoever_was_drawn(name, engine):
    one = ACCIDENTS[name]
    with pytest.raises(UseError, match=one.says):
        get_engine(engine)(one.model(), one.loss(), Units.from_rows([]), l2_clip_norm=0.05)


# Why units are computed alone.


def test_a_choice_of_experts_and_a_loss_that_selects_are_named() -> None:
    def selecting(model: nn.Module, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        losses = causal_lm_loss(model, input_ids, lengths)
        return losses * float(losses.detach().max() > -1)

    def why(family: str, loss: Loss = causal_lm_loss, **how: Units) -> str | None:
        asked = {"model": build(family), "loss": loss, "units": cohort(), "l2_clip_norm": 1.0}
        return why_alone(Task(**{**asked, **how}))

    assert why("mixtral") == (
        "2 layers model.layers.*.mlp.gate (MixtralTopKRouter): "
        "its choice could be tipped by the rounding of a batch (topk)"
    )
    assert "(the loss)" in str(why("llama", selecting))
    assert "longer than" in str(why("llama", units=Units.from_rows([[[1] * 65]])))


def test_adapters_go_to_linear_layers_and_to_nothing_that_routes() -> None:
    names = linear_layers(build("phimoe"))
    assert {name.rpartition(".")[2] for name in names} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert "lm_head" not in linear_layers(build("llama"))
    names = linear_layers(build("deepseek_v3"))
    assert not any("mlp" in name for name in names)  # `peft` would take them for the experts'
    assert any("self_attn" in name for name in names)
    assert not any("out_proj" in name for name in linear_layers(build("mamba")))


# Broken twins: whose a place is, told by shapes.


def by_division(tape: Tape, x: torch.Tensor) -> int | None:
    rows = tape.layout.rows
    if x.dim() >= 2 and x.shape[0] == rows:
        return 1
    return x.shape[0] // rows if x.dim() <= 2 and x.shape[0] % rows == 0 else None


@pytest.mark.pitfall(number=30)
@pytest.mark.parametrize("kind", ["flattened", "routed"])
def test_invariant_3_twin_rows_told_by_division_are_caught(kind, monkeypatch):
    """Nothing is certified, and no pass is compared with another: rows are told by their count.

    Selected tokens that the rows divide, and as many tokens as the pass has in a router's order:
    what is moved hangs on the secret order of the units, so that several questions are asked.
    """

    def uncompared(tape: Tape, known: Calls) -> Proving:
        return Proving(tape)

    def granted(task: Task, shape: PassShape, *how: object) -> Certificate:
        return Certificate(calls=Calls(), places=tuple(range(shape.units)))

    monkeypatch.setattr(layer, "owned", by_division)
    monkeypatch.setattr(Rows, "prove", lambda self, found: True)
    monkeypatch.setattr(Rows, "kept_apart", lambda self: True)
    monkeypatch.setattr(batched, "Comparing", uncompared)
    monkeypatch.setattr(batched, "certificate", granted)
    monkeypatch.setattr(choice, "disagreement", lambda task: None)
    cases._models.clear()
    asked = (answered(Job(kind, "auto", str(number))) for number in range(0, 80, 2))
    assert any(row.get("ratio", 0.0) > 1.01 for row in asked)  # the margin is 0.001


# Dropout: what is computed again sees the masks of the first time.


def forced(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Have the second pass of a sum raise an error, or have no norm for its first unit."""
    passes = 0

    class Poor(Tape):
        def run(self, units):
            nonlocal passes
            passes += 1
            found = super().run(units)
            if passes == 2 and how == "an error":
                raise ValueError("somebody's rows")
            return found

        def squares_by_name(self):
            found = super().squares_by_name()
            if passes == 2 and how == "no norm in float32":
                first = torch.tensor(0)
                found |= {n: one.index_fill(0, first, torch.nan) for n, one in found.items()}
            return found

    monkeypatch.setattr(batched.Passes, "kind", Poor)


def summed(kind: str, items: float | None = None) -> Callable[[], ClippedSum]:
    """A sum whose masks are the same each time, if nobody draws more."""
    model, units = models.drawing(kind, 0.5), Units.from_rows(ragged((2, 1, 3, 1, 2)))
    limits = {"l2_clip_norm": 0.3, "item_clip_norm": items, "micro_batch": 4}

    def under_one_key() -> ClippedSum:
        with secret_randomness("a key of this test"):
            return batched_sum(model, causal_lm_loss, units, strict=False, **limits)

    under_one_key()
    return under_one_key


@pytest.mark.parametrize("items", fast_then_slow([None, 0.5]))
@pytest.mark.parametrize("how", ["an error", "no norm in float32"])
@pytest.mark.parametrize("kind", fast_then_slow(["tokens", "gpt2"]))
def test_invariant_14_what_is_computed_again_sees_the_masks_of_the_first_time(
    kind, how, items, monkeypatch
):
    total = summed(kind, items)
    straight = total()
    forced(monkeypatch, how)
    again = total()
    torch.testing.assert_close(again.norms, straight.norms, rtol=1e-4, atol=0)
    assert distance(again, straight) < 1e-4
    assert again.non_finite == 0


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_invariant_14_twin_a_public_seed_is_caught(engine):
    """Who sits behind the user that leaves has other masks, and everybody can work out which."""
    model, rows = models.drawing("tokens", 0.5), ragged([1] * 33)
    norms = clipped_sum(model, causal_lm_loss, Units.from_rows(rows), l2_clip_norm=1.0).norms
    limits = {"l2_clip_norm": 0.9 * float(norms.min()), "micro_batch": 8}

    def seeded(kept: list) -> ClippedSum:
        with secret_randomness("this is public"):
            return get_engine(engine)(model, causal_lm_loss, Units.from_rows(kept), **limits)

    seeded(rows)
    assert distance(seeded(rows), seeded(rows[1:])) > 2 * limits["l2_clip_norm"]
