"""`userdp selftest` passes on a good machine, and fails for a broken engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from tests.speed import fast_then_slow
from userdp.cli.selftest import selftest as command
from userdp.errors import UseError
from userdp.gradients import ENGINES, ClippedSum, Engine
from userdp.gradients.engines.engine import Task
from userdp.training import selftest
from userdp.training.checks.every import CHECKS
from userdp.training.selftest import SelftestConfig, run_selftest

CONFIG = SelftestConfig(group_size=2, units=2, length=6, rounds=1, device="cpu")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of one narrow layer, in a folder."""
    folder = tmp_path_factory.mktemp("small")
    shape = GPT2Config(
        vocab_size=32,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
    )
    AutoModelForCausalLM.from_config(shape).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("bundled", "rank"), fast_then_slow([(False, None), (True, None), (True, 2)])
)
def test_every_engine_passes(small: str, bundled: bool, rank: int | None) -> None:
    if rank is not None:
        pytest.importorskip("peft")
    result = run_selftest(replace(CONFIG, model="bundled" if bundled else small, lora_rank=rank))
    assert result["passed"], [row for row in result["checks"] if row["passed"] is False]
    assert result["invariants"] == dict.fromkeys(["2", "3", "5", "6", "14"], True)
    assert list(result["step_ratio"]) == list(ENGINES)
    assert {row["check"] for row in result["checks"]} == {check.name for check in CHECKS}
    for check in CHECKS:
        rows = [row["engine"] for row in result["checks"] if row["check"] == check.name]
        assert rows == (list(ENGINES) if check.by_engine else [None])
    assert result["auto"] == "batched"


def test_twin_an_engine_that_adds_two_percent_too_much_fails_by_its_invariant(
    small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = ENGINES["reference"]

    def too_much(task: Task) -> ClippedSum:
        total = honest.compute(task)
        return replace(total, value={name: 1.02 * v for name, v in total.value.items()})

    monkeypatch.setattr(selftest, "ENGINES", {"auto": ENGINES["auto"]})
    monkeypatch.setitem(ENGINES, "auto", Engine(too_much))
    status, answer = answered(replace(CONFIG, model=small))
    assert status == 1
    assert answer["invariants"]["3"] is False
    assert answer["invariants"]["5"] is True
    failed = {row["check"] for row in answer["checks"] if row["passed"] is False}
    assert failed == {"engine", "sensitivity"}


def answered(config: SelftestConfig) -> tuple[int, Any]:
    """What the command answers; its words say which invariant failed."""
    answer = command(config=config)
    words = " ".join(part for part in answer.parts if isinstance(part, str))
    assert "Invariant 3 does not hold (auto)" in words
    return answer.status, answer.values


@pytest.mark.parametrize("options", [{"length": 100_000}, {"device": "nowhere"}])
def test_what_cannot_run_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UseError):
        run_selftest(replace(CONFIG, **options))


def test_one_unit_is_too_few() -> None:
    with pytest.raises(ValueError, match="units"):
        SelftestConfig(units=1)


@pytest.mark.slow
def test_tokens_are_random_and_no_data_is_read() -> None:
    before = torch.random.get_rng_state()
    run_selftest(CONFIG)
    assert torch.equal(before, torch.random.get_rng_state())
