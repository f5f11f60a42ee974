"""The words about noise follow what the ledger says drew it; unknown noise claims nothing."""

from __future__ import annotations

import pytest

from tests.plans import changed_plan, uls_plan
from userdp.clip import AdaptiveClipping
from userdp.noise.gaussian import FLOATING_POINT_ASSUMPTION, NoiseSampler
from userdp.reporting.assumptions import Grade, assumptions_of
from userdp.reporting.html import render_report
from userdp.reporting.run_facts import read_run

HOST, DEVICE = "on a CPU by NumPy", "on an accelerator by a Box-Muller transform"


def words_of(*folders):
    found = {a.key: a for a in assumptions_of([read_run(folder) for folder in folders])}
    return found["floating-point"], found["randomness"]


@pytest.mark.parametrize(
    ("sampler", "said", "unsaid"),
    [(NoiseSampler.HOST, HOST, DEVICE), (NoiseSampler.DEVICE, DEVICE, HOST)],
)
def test_the_report_names_the_sampler_that_drew(make_run, sampler, said, unsaid):
    folder = make_run(noise_sampler=sampler)
    noise, seeds = words_of(folder)
    assert said in noise.statement
    assert unsaid not in noise.statement
    assert FLOATING_POINT_ASSUMPTION in noise.statement
    assert noise.grade is Grade.THEORETICAL
    assert ("64 on an accelerator" in seeds.ensured) == (sampler is NoiseSampler.DEVICE)
    page = render_report([read_run(folder)])
    assert said in page
    assert unsaid not in page


def test_a_run_that_went_on_on_another_device_names_both(make_run):
    noise, seeds = words_of(make_run("one"), make_run("two", noise_sampler=NoiseSampler.DEVICE))
    assert HOST in noise.statement
    assert DEVICE in noise.statement
    assert "256 on a CPU; 64 on an accelerator" in seeds.ensured


def test_the_count_of_adaptive_clipping_is_drawn_on_the_cpu_everywhere(make_run, adaptive_plan):
    noise, _ = words_of(make_run(plan=adaptive_plan, noise_sampler=NoiseSampler.DEVICE))
    assert HOST in noise.statement
    assert DEVICE in noise.statement


@pytest.fixture
def adaptive_plan():
    return changed_plan(
        uls_plan(), adaptive=AdaptiveClipping(count_noise_std=5.0, learning_rate=0.2)
    )
