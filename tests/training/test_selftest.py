"""`userdp selftest` passes on a good machine, and sees what was broken on purpose.

A model's own size does not matter to the checks, so faults are planted in a tiny one's steps.
`docs/results/selftest.md` lists them all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu.noise import DeviceNoise
from tests.speed import fast_then_slow
from tests.training import selftest_jobs
from tests.training.selftest_jobs import failing, failures, scene, tiny_model
from tests.training.worlds import run_world
from userdp.cli.output import in_words
from userdp.commands import selftest as command
from userdp.gradients import ENGINES, Engine, clipping
from userdp.gradients import noise as drawing
from userdp.gradients.noise import NoiseSource
from userdp.training.selftest import CHECKS, Scene, SelftestConfig, run_selftest

CONFIG = SelftestConfig(group_size=2, units=2, device="cpu")
MACHINE = [check.name for check in CHECKS if not check.by_engine]
ENGINE = [check.name for check in CHECKS if check.by_engine]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("small")
    tiny_model().save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("model", "rank"),
    fast_then_slow([("small", None), ("new", None), ("bundled", None), ("bundled", 2)]),
)
def test_every_engine_passes(small: str, model: str, rank: int | None) -> None:
    if rank is not None:
        pytest.importorskip("peft")
    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    named = small if model == "small" else model
    result = run_selftest(replace(CONFIG, model=named, lora_rank=rank))
    after = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert result["passed"], [row for row in result["checks"] if not row["passed"]]
    assert result["invariants"] == dict.fromkeys(["3", "5"], True)
    for check in CHECKS:
        rows = [row["engine"] for row in result["checks"] if row["check"] == check.name]
        assert rows == (list(ENGINES) if check.by_engine else [None])
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_a_failure_names_the_invariant_and_the_engine(small: str, monkeypatch) -> None:
    def too_much(total: Any) -> Any:
        return replace(total, value={name: 1.02 * v for name, v in total.value.items()})

    plant_engine(monkeypatch, too_much)
    monkeypatch.setitem(ENGINES, "auto", ENGINES["reference"])
    found = command.selftest(config=replace(CONFIG, model=small))
    words = " ".join(part for part in in_words(found, "selftest") if isinstance(part, str))
    assert "Invariant 3 does not hold (reference)" in words
    assert not found["passed"]
    assert found["invariants"] == {"3": False, "5": True}
    failed = {row["check"] for row in found["checks"] if not row["passed"]}
    assert failed == {"engine", "sensitivity"}


def plant_engine(monkeypatch, change: Callable[[Any], Any]) -> None:
    honest = ENGINES["reference"].compute
    monkeypatch.setitem(ENGINES, "reference", Engine(lambda task: change(honest(task))))


def plant_noise(monkeypatch, change: Callable[[dict[str, torch.Tensor], float], None]) -> None:
    """After the noise, ``change(value, noise_std)``."""
    honest = NoiseSource.add_

    def add_(self: NoiseSource, value: dict[str, torch.Tensor], noise_std: float) -> None:
        honest(self, value, noise_std)
        change(value, noise_std)

    monkeypatch.setattr(NoiseSource, "add_", add_)


def too_small(monkeypatch) -> None:
    honest = NoiseSource.add_
    monkeypatch.setattr(
        NoiseSource, "add_", lambda self, value, std: honest(self, value, 0.9 * std)
    )


def again_in_the_next_step(monkeypatch) -> None:
    kept: dict[str, torch.Tensor] = {}

    def again(value: dict[str, torch.Tensor], std: float) -> None:
        for name, part in value.items():
            part.copy_(kept.setdefault(name, part.clone()))

    plant_noise(monkeypatch, again)


def off_the_grid(monkeypatch) -> None:
    def move(value: dict[str, torch.Tensor], std: float) -> None:
        for part in value.values():
            part.add_(std * 1e-9)

    plant_noise(monkeypatch, move)


def draws_in_float32(monkeypatch) -> None:
    honest = drawing.draw_on_host

    def narrow(generator: Any, out: Any) -> None:
        honest(generator, out)
        out[:] = out.astype(np.float32)

    monkeypatch.setattr(drawing, "draw_on_host", narrow)


def dropped_layer(monkeypatch) -> None:
    def dropped(total: Any) -> Any:
        total.value["transformer.ln_f.weight"].zero_()
        return total

    plant_engine(monkeypatch, dropped)


def margin_above_the_clip_norm(monkeypatch) -> None:
    honest = clipping.clip_factors

    def more(squares: Any, *, l2_clip_norm: float, stability: Any = None) -> Any:
        return honest(squares, l2_clip_norm=1.002 * l2_clip_norm, stability=stability)

    monkeypatch.setattr(clipping, "clip_factors", more)


ALONE: dict[str, tuple[str, Callable[[Any], None]]] = {
    "a layer whose gradient is dropped from the sum": ("engine", dropped_layer),
    "a margin of more than the clip norm": ("sensitivity", margin_above_the_clip_norm),
    "draws in float32": ("noise's tail", draws_in_float32),
    "noise off the grid": ("noise", off_the_grid),
    "noise that comes again in the next step": ("noise", again_in_the_next_step),
    "noise that is a tenth too small": ("noise", too_small),
}
"""Planted in one process: the check that sees it, and what plants it."""


INVARIANTS = {check.name: check.invariant for check in CHECKS}


def named(fault: str) -> str:
    """For the campaign of planted faults, which runs the tests that name an invariant."""
    name = ALONE[fault][0] if fault in ALONE else TWO[fault]
    return f"invariant_{INVARIANTS[name]} {fault}"


@pytest.mark.parametrize("fault", ALONE, ids=named)
def test_a_fault_is_seen_by_its_check(fault: str, monkeypatch) -> None:
    name, plant = ALONE[fault]
    assert not failures(scene(), name)
    plant(monkeypatch)
    assert failures(scene(), name)


def test_invariant_5_an_accelerators_sampler_passes_and_twins_that_are_cut_or_narrow_are_caught(
    monkeypatch,
):
    monkeypatch.setattr(Scene, "noise", lambda self: DeviceNoise())
    assert not failures(scene(), "noise's tail")
    honest = drawing.draw_on_device
    for broken in (
        lambda generator, count: honest(generator, count).clamp(-8.6, 8.6),
        lambda generator, count: honest(generator, count).float().double(),
        lambda generator, count: 1 / honest(generator, count),
    ):
        monkeypatch.setattr(drawing, "draw_on_device", broken)
        assert failures(scene(), "noise's tail")


@pytest.mark.parametrize("far", fast_then_slow([False, True]))
def test_honest_processes_pass(tmp_path, far):
    names = [*MACHINE, *ENGINE] if not far else MACHINE
    assert run_world(2, failing, tmp_path, names, None, far) == [[], []]


TWO = {
    "every process clips all units": "engine",
    "one process has other weights": "one model",
    "every process adds its own noise": "noise",
    "a tensor that nobody owns": "noise",
    "one process's noise halved": "noise",
}
"""Planted in two processes: the check that sees it."""


@pytest.mark.parametrize("fault", fast_then_slow(list(TWO)), ids=named)
def test_a_fault_of_one_process_is_seen(tmp_path, fault):
    name = TWO[fault]
    # On one of them at least: `run_selftest` gathers what all of them measured.
    assert [name] in run_world(2, failing, tmp_path, [name], fault)


ELSEWHERE = {
    "a tail that is cut at six deviations": (
        "test_gaussian.py::test_invariant_5_draws_on_the_host_beyond_six_deviations_are_redrawn"
    ),
    "noise in float32": "test_lattice.py::test_invariant_5_twin_float32_noise_tells_the_clean_sum",
}
"""What is equal on all machines has a test in `tests/gradients`."""


def test_the_page_lists_every_planted_fault():
    seen = [(fault, "one", name) for fault, (name, _) in ALONE.items()]
    seen += [(fault, "two", name) for fault, name in TWO.items()]
    rows = [(INVARIANTS[name], fault, by, f"the selftest: {name}") for fault, by, name in seen]
    rows += [(5, fault, "one", f"`tests/gradients/{test}`") for fault, test in ELSEWHERE.items()]
    table = "\n".join(f"| {f} | {p} | {number} | {by} |" for number, f, p, by in sorted(rows))
    page = Path(__file__).parents[2] / "docs" / "results" / "selftest.md"
    assert table in page.read_text(encoding="utf-8"), table
    assert set(selftest_jobs.FAULTS) == {None, *TWO}
