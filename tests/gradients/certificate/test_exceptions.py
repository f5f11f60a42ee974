"""Scripts whose later passes are not those of the certificate, or that keep a state.

Whichever way their units are computed, one unit moves the sum by at most the clip norm. More of
them are the campaign's accidents (`test_influence`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import peft
import pytest
import torch
from torch import Tensor, nn

from tests.gradients.batches import counted_reference
from tests.gradients.campaign.accidents import Around, Mining, RunningMean, each_token, wrapped
from tests.gradients.campaign.families import VOCABULARY, build
from tests.gradients.tiny import largest_move, ragged
from userdp.gradients import ClippedSum, Loss, Units, causal_lm_loss, get_engine
from userdp.gradients.certificate import calls, state
from userdp.gradients.certificate.made_up import circumstances
from userdp.gradients.certificate.state import State
from userdp.gradients.engines import following

CLIP = 0.05
ROWS = ragged([1] * 8, seed=1, shortest=8, longest=8, vocabulary=VOCABULARY)


def summed(model: nn.Module, loss: Loss, units: Units, clip: float = CLIP) -> ClippedSum:
    return get_engine("auto")(model, loss, units, l2_clip_norm=clip, micro_batch=4)


def influence(model: nn.Module, loss: Loss, clip: float = CLIP) -> float:
    """The most by which one of a few units moves the sum, over the clip norm."""
    return largest_move(partial(summed, model, loss, clip=clip), ROWS, (0, 3, 7)) / clip


def way(model: nn.Module, loss: Loss) -> str:
    with counted_reference() as alone:
        summed(model, loss, Units.from_rows(ROWS))
    return "one by one" if sum(alone) else "batched"


def test_invariant_3_a_schedule_that_begins_later_is_computed_one_by_one_from_then_on():
    model, loss = build("gpt2"), Mining(1 << 30)
    assert way(model, loss) == "batched"
    loss.after = 0
    assert way(model, loss) == "one by one"
    assert influence(model, loss) <= 1
    loss.after = 1 << 30
    assert way(model, loss) == "batched"


def any_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken twin: a pass need not make the calls of its certificate."""
    honest = following.Comparing.ran

    def ran(self: Any, func: Any, args: Any, kwargs: Any) -> Any:
        here = self._known.seen[self._at : self._at + 1]
        if func in following.ASKS or (here and here[0].function is func):
            return honest(self, func, args, kwargs)
        return func(*args, **kwargs)

    monkeypatch.setattr(following.Comparing, "ran", ran)
    monkeypatch.setattr(following.Comparing, "require_apart", lambda self, proved, missed: None)


def test_invariant_3_twin_other_calls_than_those_of_the_certificate_are_caught(monkeypatch):
    """The hardest example of the batch weighs most; whoever it is moves all others."""

    def mined() -> tuple[nn.Module, Loss]:
        model, loss = build("gpt2"), Mining(1 << 30, over_batch=True)
        summed(model, loss, Units.from_rows(ROWS), 100.0)
        loss.after = 0
        return model, loss

    assert influence(*mined(), clip=100.0) <= 1
    any_calls(monkeypatch)
    model, loss = mined()
    assert way(model, loss) == "batched"
    alone = get_engine("reference")(model, loss, Units.from_rows(ROWS), l2_clip_norm=1e6).norms
    clip = 1.2 * float(alone.min()) / 21  # what one unit has where it is not the hardest
    assert max(influence(model, loss, scale * clip) for scale in (1.0, 2.0, 4.0)) > 1


def test_invariant_3_twin_a_running_mean_that_is_not_put_back_is_caught(monkeypatch):
    model = wrapped(RunningMean)
    assert influence(model, causal_lm_loss) <= 1
    monkeypatch.setattr(State, "put_back", lambda self: None)
    assert influence(model, causal_lm_loss) > 1


def test_adapters_that_are_exchanged_between_steps_are_certified_anew():
    kinds = {"r": 2, "fan_in_fan_out": True, "init_lora_weights": False}
    first, other = (peft.LoraConfig(target_modules=[one], **kinds) for one in ("c_attn", "c_fc"))
    model: Any = peft.get_peft_model(build("gpt2"), first)
    model.add_adapter("other", other)
    for name in ("default", "other", "default"):
        model.set_adapter(name)
        assert way(model, causal_lm_loss) == "batched"
        assert influence(model, causal_lm_loss) <= 1


# What a class or a global holds, and what only a whole number tells.

LAST: dict[torch.Size, Tensor] = {}


class Carries(Around):
    """Adds what the last pass wrote into its class, or into a global, after a warm-up."""

    kept: ClassVar[dict[torch.Size, Tensor]] = {}

    def __init__(self, inner: nn.Module, *, in_global: bool) -> None:
        super().__init__(inner)
        self.in_global, self.warm = in_global, False

    def forward(self, *args: Any, **named: Any) -> Any:
        held = LAST if self.in_global else self.kept
        found = self.inner(*args, **named)
        before = held.setdefault(found.shape, torch.zeros_like(found))
        now = 40 * found.detach()
        if self.warm:
            held[found.shape] = now
        return found + before


@pytest.mark.parametrize("in_global", [False, True])
def test_invariant_3_what_a_class_or_a_global_holds_reaches_no_other_user(in_global, monkeypatch):
    model: Any = wrapped(partial(Carries, in_global=in_global))
    summed(model, causal_lm_loss, Units.from_rows(ROWS))
    model.transformer.h[0].warm = True
    assert influence(model, causal_lm_loss) <= 1
    assert way(model, causal_lm_loss) == "one by one"
    # Broken twin: neither is read.
    monkeypatch.setattr(state, "_of_library", lambda code: True)
    assert way(model, causal_lm_loss) == "batched"
    assert influence(model, causal_lm_loss) > 1


class AlongRows:
    """Weighs tokens by a softmax along the row; later, by another number, along the batch."""

    def __init__(self) -> None:
        self.dim = 1

    def __call__(self, model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        losses, _ = each_token(model, input_ids, lengths)
        return (losses * (8 * losses).softmax(self.dim)).sum(1)


class Everything:
    def __contains__(self, function: object) -> bool:
        return True


def test_invariant_3_a_dimension_is_compared_and_a_number_that_counts_is_not(monkeypatch):
    def later() -> tuple[nn.Module, Loss]:
        model, loss = build("gpt2"), AlongRows()
        summed(model, loss, Units.from_rows(ROWS))
        loss.dim = 0
        return model, loss

    assert way(*later()) == "one by one"
    assert influence(*later()) <= 1
    monkeypatch.setattr(calls, "COUNTED", Everything())  # broken twin
    assert way(*later()) == "batched"
    assert influence(*later()) > 1


def test_an_answer_found_on_one_device_is_none_about_another():
    model = build("gpt2")
    before = circumstances(model, dict(model.named_parameters()), masked=False)
    assert before == circumstances(model, dict(model.named_parameters()), masked=False)
    model.to("meta")
    assert before != circumstances(model, dict(model.named_parameters()), masked=False)
