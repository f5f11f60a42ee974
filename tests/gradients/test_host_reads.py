"""No engine waits for the device once per layer: a step reads as often at 4 layers as at 2."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu.reads import counted, per_layer
from benchmarks.gpu.setting import Setting
from userdp.gradients.engines import reference, tape
from userdp.gradients.engines.rules.linear import Ghost
from userdp.gradients.engines.uses import Dense

CPU = Setting(device="cpu", tiny=True, memory_gib=1)


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_a_layer_adds_no_read(engine):
    found = per_layer(engine, CPU)
    assert found["per_layer"] == 0
    assert found["waits"]["2"] > 0  # a pass has some: the count is alive


@pytest.mark.slow
def test_twin_a_read_per_layer_is_noticed(monkeypatch):
    honest = tape.Tape.keep

    def keep(self, name, use):
        assert not isinstance(use, Ghost) or bool(use.right.isfinite().all())
        honest(self, name, use)

    monkeypatch.setattr(tape.Tape, "keep", keep)
    assert per_layer("auto", CPU)["per_layer"] == 4  # GPT-2's linear layers


def test_twin_a_read_per_parameter_is_noticed_in_the_reference(monkeypatch):
    honest = reference.squared_norms

    def one_by_one(tensors):
        return torch.tensor([float(honest([tensor])) for tensor in tensors]).double()

    monkeypatch.setattr(reference, "squared_norms", one_by_one)
    assert per_layer("reference", CPU)["per_layer"] > 0


def test_the_sharded_engine_waits_for_no_norm():
    left, right = torch.randn(2, 3, 4), torch.randn(2, 3, 5)
    gradients = torch.einsum("usp,usq->upq", left, right)
    with counted() as reads:
        formed = Dense(gradients).at_most()
        gram = Ghost(left, right).at_most()
    assert reads.count == 0
    torch.testing.assert_close(formed, gram, rtol=1e-5, atol=0)


def test_copies_and_masks_are_reads_too():
    numbers = torch.arange(3.0)
    with counted() as reads:
        numbers.cpu()
        numbers.tolist()
        numbers[numbers > 1]
        float(numbers.sum())
    assert reads.count == 4
    with counted() as reads:
        numbers[1:] + numbers[torch.tensor([0, 2])]
    assert reads.count == 0
