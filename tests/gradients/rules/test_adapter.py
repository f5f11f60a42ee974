"""LoRA adapters and the layer under them: the rule, and what it leaves to peft."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from tests.gradients.batches import batched_sum
from tests.gradients.rules.layers import UNITS, WIDTH, Around, error, loss
from userdp.gradients import clipped_sum, get_engine
from userdp.gradients.engines.rules import adapter
from userdp.gradients.engines.uses import Form

peft = pytest.importorskip("peft")


class Two(nn.Module):
    """Two layers under adapters, so that a gradient goes through one."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        linear = kind == "Linear"
        self.first = nn.Linear(WIDTH, 12) if linear else Conv1D(12, WIDTH)
        self.second = nn.Linear(12, WIDTH, bias=False) if linear else Conv1D(WIDTH, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.second(self.first(x).tanh())
        return answer


def adapted(kind: str = "Linear", **settings: Any) -> Around:
    """A frozen table and two frozen layers, with adapters whose B is not zero."""
    model = Around(Two(kind))
    chosen = {"r": 3, "lora_alpha": 5, "target_modules": ["first", "second"], **settings}
    config = peft.LoraConfig(fan_in_fan_out=kind == "Conv1D", **chosen)
    model.requires_grad_(False)
    peft.inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter)
    return model.train()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the rule answered, one entry a call that it took on."""
    found: list[object] = []
    honest = adapter._run

    def run(*args: Any) -> torch.Tensor | None:
        answer = honest(*args)
        if answer is not None:
            found.append(answer)
        return answer

    monkeypatch.setattr(adapter, "_run", run)
    return found


@pytest.mark.parametrize("form", [None, *Form])
@pytest.mark.parametrize("kind", ["Linear", "Conv1D"])
def test_the_rule_gives_each_units_norm_and_clipped_gradient(kind, form, ran):
    assert error(adapted(kind), form) < 2e-5  # float64's margin; the norms agree to rounding
    assert ran


@pytest.mark.parametrize("kind", ["Linear", "Conv1D"])
def test_values_are_those_of_peft(kind, ran, monkeypatch):
    model = adapted(kind).double()
    ours = batched_sum(model, loss, UNITS, l2_clip_norm=1.0).losses
    assert ran
    monkeypatch.setattr(adapter, "_run", lambda *args: None)
    # A copy: this model's passes are certified with the rule.
    theirs = batched_sum(copy.deepcopy(model), loss, UNITS, l2_clip_norm=1.0).losses
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


def hooked(model: Around) -> None:
    layer: Any = model.layer
    layer.first.lora_A["default"].register_forward_hook(lambda module, args, value: 2 * value)


def base_hooked(model: Around) -> None:
    layer: Any = model.layer
    layer.first.base_layer.register_forward_hook(lambda module, args, value: value.sin())


def own_forward(model: Around) -> None:
    layer: Any = model.layer
    inner = layer.first.lora_B["default"]
    inner.forward = lambda x: 3 * nn.functional.linear(x, inner.weight)


def second_adapter(model: Around) -> None:
    layer: Any = model.layer
    layer.first.update_layer("other", 2, 2, config=peft.LoraConfig(r=2, target_modules=["first"]))
    nn.init.normal_(layer.first.lora_B["other"].weight)
    layer.first.set_adapter(["default", "other"])


def trained_base(model: Around) -> None:
    layer: Any = model.layer
    layer.first.base_layer.weight.requires_grad_(True)


def parametrized(model: Around) -> None:
    layer: Any = model.layer
    nn.utils.parametrizations.weight_norm(layer.first.lora_A["default"])


def tensor_scale(model: Around) -> None:
    layer: Any = model.layer
    layer.first.scaling["default"] = torch.tensor(0.5)


CHANGES: dict[str, Callable[[Around], None]] = {
    "a hook on A": hooked,
    "a hook on the frozen layer": base_hooked,
    "a forward of B's own": own_forward,
    "two adapters": second_adapter,
    "a trained layer under it": trained_base,
    "a parametrized A": parametrized,
    "a scale that is a tensor": tensor_scale,
}


def require_right(model: Around) -> None:
    """Losses and norms as of the reference, by whichever engine serves."""
    model = model.double()
    exact = clipped_sum(model, loss, UNITS, l2_clip_norm=1.0)
    ours = get_engine("auto")(model, loss, UNITS, l2_clip_norm=1.0)
    torch.testing.assert_close(ours.losses, exact.losses, rtol=1e-9, atol=0)
    torch.testing.assert_close(ours.norms, exact.norms, rtol=1e-9, atol=0)


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_the_plain_case_runs_as_peft_wrote_it(change: str, ran: list[object]) -> None:
    model = adapted(target_modules=["first"])
    CHANGES[change](model)
    require_right(model)
    assert not ran


def test_invariant_3_twin_a_scale_that_is_left_out_is_caught(monkeypatch):
    honest = adapter._Adapted
    monkeypatch.setattr(
        adapter, "_Adapted", lambda tape, names, turned, scale: honest(tape, names, turned, 1.0)
    )
    assert error(adapted()) > 1e-2
