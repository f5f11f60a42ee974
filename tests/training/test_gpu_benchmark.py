"""`benchmarks.gpu` on a CPU and tiny models: parts run, find faults, and go on after an end."""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import commands, memory, parts, training
from benchmarks.gpu.compiled import beside_compiled
from benchmarks.gpu.memory import METHODS, absent, largest
from benchmarks.gpu.noise import noise
from benchmarks.gpu.parts import Part, all_parts, run
from benchmarks.gpu.report import markdown
from benchmarks.gpu.setting import Setting
from userdp.gradients import noise as noise_module
from userdp.noise import Gaussian

ROOT = Path(__file__).parents[2]
TINY = Setting(device="cpu", tiny=True, memory_gib=1)
CPU = ["--device", "cpu", "--tiny"]
APART = {
    "training",
    "commands",
    "compiled",
    "memory_batch",
    "memory_model",
}  # with tests of their own below


@pytest.mark.slow
def test_every_part_runs(tmp_path):
    out = tmp_path / "gpu.json"
    names = [name for name in all_parts() if name not in APART]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--out", str(out), *CPU, "--only", *names],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())["parts"]
    assert {name: part["error"] for name, part in found.items() if "error" in part} == {}
    assert list(found) == names
    rows = found["exact_float32"]["rows"]
    engines = {"auto", "reference"}
    assert {row["engine"] for row in rows} == engines
    assert "gpt2, tied, compiled" in {row["model"] for row in rows}
    assert [row["users"] for row in found["k_users"]["rows"]] == [3, 3]
    assert [row["sequences"] for row in found["k_users"]["rows"]] == [6, 15]
    assert [row["sequences"] for row in found["k_gradients"]["rows"]] == [20, 20]
    assert found["noise"]["passed"] is True
    assert all(row["float32_errors"] > 5 for row in found["noise"]["rows"])
    tables = out.with_suffix(".md").read_text()
    assert "| decoder_g16_bfloat16 | bfloat16 | 16 | 16 | auto |" in tables
    assert "| k_gradients | float32 | 5 | 20 | auto |" in tables


def test_float32_noise_on_the_device_fails_its_part(monkeypatch):
    assert noise(TINY, 0.0)["passed"] is True
    drawn = itertools.count()

    def narrow(generator, count):
        single = torch.randn(count, generator=generator).double()
        return single * (2**0.5 * (next(drawn) % 2))

    monkeypatch.setattr(noise_module, "draw_on_device", narrow)
    assert noise(TINY, 0.0)["passed"] is False


def test_a_second_call_does_what_is_left_or_failed_and_again_does_all(tmp_path, monkeypatch):
    calls: list[str] = []

    def part(name, *results):
        left = list(results)

        def work(setting, deadline):
            calls.append(name)
            found = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(found, Exception):
                raise found
            return found

        return Part(work=work, weight=1, least=0)

    fine = {"rows": []}
    known = {
        "good": part("good", fine),
        "failed": part("failed", RuntimeError("out of something"), fine),
        "short": part("short", {"rows": [], "skipped": ["float32"]}, fine),
    }
    monkeypatch.setattr(parts, "all_parts", lambda: known)
    out = tmp_path / "gpu.json"
    first = run(TINY, out, limit=60)
    assert calls == ["good", "failed", "short"]
    assert "failed did not run: RuntimeError: out of something" in markdown(first)
    assert "short: no time left for float32" in markdown(first)
    second = run(TINY, out, limit=60)
    assert calls[3:] == ["failed", "short"]
    assert not any("error" in part for part in second["parts"].values())
    run(TINY, out, limit=60)
    assert len(calls) == 5
    run(TINY, out, limit=60, only=["good"])
    assert len(calls) == 5
    run(TINY, out, limit=60, again=True, only=["good"])
    assert calls[5:] == ["good"]
    assert list(json.loads(out.read_text())["parts"]) == ["good"]


def test_without_time_each_part_says_that_it_is_left(tmp_path):
    found = run(TINY, tmp_path / "gpu.json", limit=-1)["parts"]
    assert list(found) == list(all_parts())
    assert all("no time left" in part["error"] for part in found.values())


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


def test_the_search_says_what_it_knows_when_time_is_up():
    assert largest(lambda size: True, most=100, deadline=0) == (1, None)


@pytest.mark.slow
def test_memory_is_searched_for_every_method_that_is_here(monkeypatch):
    monkeypatch.setattr(memory, "METHODS", ("plain", "auto"))  # Opacus takes seconds to import
    for what, most in (("batch", "sequences"), ("model", "layers")):
        found = memory.memory(what, TINY, float("inf"))
        assert [row["method"] for row in found["rows"]] == ["plain", "auto"]
        for row in found["rows"]:
            assert (row["largest"], row["fails_at"], row["settled"]) == (3, 4, True)
            assert row[most] == 3
            assert row["seconds_per_sequence"] > 0


def test_opacus_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(memory.util, "find_spec", lambda name: None)
    assert absent("plain") is None
    assert absent("opacus ghost") == "opacus not installed"
    monkeypatch.setattr(memory, "METHODS", METHODS[2:])
    found = memory.memory("batch", TINY, float("inf"))
    assert found["rows"] == []
    assert "not run: opacus ghost" in markdown(
        {"device": "cpu", "torch": "", "tiny": True, "parts": {"memory_batch": found}}
    )


@pytest.mark.slow
def test_a_run_is_trained_without_the_command_line_and_its_ledgers_checked(monkeypatch):
    monkeypatch.setattr(training.util, "find_spec", lambda name: None)
    found = training.trained(TINY, float("inf"))
    assert found["passed"], found["checks"]
    assert "no cyclopts" in found["entry"]


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


@pytest.mark.slow
def test_every_command_is_run_and_judged():
    found = commands.commands(TINY, float("inf"))
    assert [row["command"] for row in found["rows"]] == list(commands.CASES)
    assert found["passed"], found["rows"]
    tables = markdown({"device": "cpu", "torch": "", "tiny": True, "parts": {"commands": found}})
    assert tables.count("| passed |") == len(commands.CASES)


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


@pytest.mark.slow
def test_both_sides_are_timed_compiled():
    (row,) = beside_compiled(TINY, float("inf"))["rows"]
    assert row["engine_of_compiled"] == "batched"
    assert set(row["ratio_to_compiled"]) == {
        "plain",
        "auto",
        "plain, model compiled",
        "plain, loss compiled",
        "auto, model compiled",
    }
