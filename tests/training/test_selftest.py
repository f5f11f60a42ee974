"""`userdp selftest` passes on a good machine, and sees what was broken on purpose.

A model's own size does not matter to the checks, so faults are planted in a tiny one's steps.
`docs/results/selftest.md` lists them all.
"""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gpu.noise import DeviceNoise
from tests.speed import fast_then_slow
from tests.training.processes import run_world
from tests.training.selftest_jobs import FAULTS, failing, tiny_model
from userdp.cli.output import in_words
from userdp.commands import audit as command
from userdp.gradients import ENGINES, Engine
from userdp.gradients import noise as drawing
from userdp.training import selftest
from userdp.training.selftest import INVARIANTS, SelftestConfig, run_selftest

CONFIG = SelftestConfig(group_size=2, units=2, device="cpu")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("small")
    tiny_model().save_pretrained(folder)
    return str(folder)


def generators() -> list[object]:
    return [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]


@pytest.mark.parametrize(
    ("model", "rank"),
    fast_then_slow([("small", None), ("new", None), ("bundled", None), ("bundled", 2)]),
)
def test_every_engine_passes(small: str, model: str, rank: int | None) -> None:
    before = generators()
    named = small if model == "small" else model
    result = run_selftest(replace(CONFIG, model=named, lora_rank=rank))
    assert result["passed"], [row for row in result["checks"] if not row["passed"]]
    assert result["invariants"] == {"3": True, "5": True}
    asked = {(row["check"], row["engine"]) for row in result["checks"]}
    of_engines = {(check, name) for check in ("engine", "sensitivity") for name in ENGINES}
    assert asked == of_engines | {(check, None) for check, of in INVARIANTS.items() if of == 5}
    assert generators() == before


def test_a_failure_names_the_invariant_and_the_engine(small: str, monkeypatch) -> None:
    honest = ENGINES["reference"].compute

    def too_much(task):
        total = honest(task)
        return replace(total, value={name: 1.02 * v for name, v in total.value.items()})

    monkeypatch.setitem(ENGINES, "auto", ENGINES["reference"])
    monkeypatch.setitem(ENGINES, "reference", Engine(too_much))
    found = command.selftest(**asdict(replace(CONFIG, model=small)))
    words = " ".join(in_words(found, "selftest"))
    assert "Invariant 3 does not hold (reference)" in words
    assert not found["passed"]
    assert found["invariants"] == {"3": False, "5": True}
    failed = {(row["check"], row["engine"]) for row in found["checks"] if not row["passed"]}
    assert failed == {("engine", "reference"), ("sensitivity", "reference")}


def named(fault: str) -> str:
    """For the campaign of planted faults, which runs the tests that name an invariant."""
    return f"invariant_{INVARIANTS[FAULTS[fault][0]]} {fault}"


IN_ONE = [fault for fault, (_, processes, *_) in FAULTS.items() if processes == "one"]


@pytest.mark.parametrize("fault", IN_ONE, ids=named)
def test_a_fault_is_seen_by_its_check(fault, monkeypatch):
    assert FAULTS[fault][0] in failing(fault, put=monkeypatch.setattr)


@pytest.mark.parametrize("fault", fast_then_slow([f for f in FAULTS if f not in IN_ONE]), ids=named)
def test_a_fault_of_one_process_is_seen(tmp_path, fault):
    # By one of them at least: `run_selftest` gathers what all of them measured.
    assert FAULTS[fault][0] in set().union(*run_world(2, failing, tmp_path, fault))


def test_honest_processes_pass(tmp_path):
    assert failing() == set()
    assert run_world(2, failing, tmp_path) == [set(), set()]


def test_invariant_5_an_accelerators_sampler_passes_and_twins_that_are_cut_or_narrow_are_caught(
    monkeypatch,
):
    monkeypatch.setattr(selftest, "source_for", lambda world, model: DeviceNoise())
    assert failing() == set()
    honest = drawing.draw_on_device
    for broken in (
        lambda generator, count: honest(generator, count).clamp(-8.6, 8.6),
        lambda generator, count: honest(generator, count).float().double(),
        lambda generator, count: 1 / honest(generator, count),
    ):
        monkeypatch.setattr(drawing, "draw_on_device", broken)
        assert "noise's tail" in failing()


def test_the_page_lists_every_planted_fault():
    seen = [
        (INVARIANTS[of], fault, by, f"the selftest: {of}") for fault, (of, by, *_) in FAULTS.items()
    ]
    table = "\n".join(f"| {f} | {p} | {number} | {by} |" for number, f, p, by in sorted(seen))
    page = Path(__file__).parents[2] / "docs" / "results" / "selftest.md"
    assert table in page.read_text(encoding="utf-8"), table
