"""`benchmarks.gpu` on a CPU and tiny models: parts run, find faults, and go on after an end."""

import itertools
from dataclasses import replace

import pytest
import torch

from benchmarks.gpu import commands, training
from benchmarks.gpu.memory import largest
from benchmarks.gpu.noise import noise
from benchmarks.gpu.setting import Setting
from userdp.gradients import noise as noise_module
from userdp.noise import Gaussian

TINY = Setting(device="cpu", tiny=True, memory_gib=1)
CPU = ["--device", "cpu", "--tiny"]


def test_float32_noise_on_the_device_fails_its_part(monkeypatch):
    assert noise(TINY, 0.0)["passed"] is True
    drawn = itertools.count()

    def narrow(generator, count):
        single = torch.randn(count, generator=generator).double()
        return single * (2**0.5 * (next(drawn) % 2))

    monkeypatch.setattr(noise_module, "draw_on_device", narrow)
    assert noise(TINY, 0.0)["passed"] is False


@pytest.mark.parametrize("most", [1, 2, 7, 64])
def test_the_search_finds_the_largest_that_fits(most):
    for true in range(most + 1):
        tried: list[int] = []

        def fits(size: int, true: int = true, tried: list[int] = tried) -> bool:
            tried.append(size)
            return size <= true

        good, bad = largest(fits, most=most)
        assert good == true
        assert bad == (None if true == most else true + 1)
        assert len(set(tried)) == len(tried) <= 14
        assert max(tried) <= most


@pytest.mark.slow
def test_twin_a_claim_that_is_not_the_plans_is_noticed(monkeypatch):
    monkeypatch.setattr(training.util, "find_spec", lambda name: None)
    honest = training.examine

    def against_another(store, run, plan, setting):
        return honest(store, run, replace(plan, noise=Gaussian(multiplier=2.0)), setting)

    monkeypatch.setattr(training, "examine", against_another)
    found = training.trained(TINY, float("inf"))
    assert not found["passed"]
    wrong = {check for check, holds in found["checks"].items() if not holds}
    assert wrong == {"the run claims the plan's epsilon", "the store claims the same"}


@pytest.mark.parametrize(
    ("here", "there", "beside", "passed"),
    [
        ({"loss": 2.0}, {"loss": 2.0001}, True, True),
        ({"loss": 2.0}, {"loss": 2.01}, True, False),
        ({"loss": float("nan")}, {"loss": 2.0}, True, False),
        ({"loss": 2.0}, {"other": 2.0}, True, False),
        ({"invariant 3": 1.0}, {}, False, True),
        ({"invariant 3": 0.0}, {}, False, False),
        ({"AUC": float("nan")}, {}, False, False),
    ],
)
def test_a_command_fails_by_what_it_says(here, there, beside, passed):
    said = iter([here, there])
    case = commands.Case(work=lambda place, device: next(said), beside=beside)
    assert commands.compared("any", case, None, TINY)["passed"] is passed
