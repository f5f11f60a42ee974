"""`userdp selftest` passes on a good machine, and fails for a broken engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.speed import fast_then_slow
from userdp.errors import UseError
from userdp.gradients import ENGINES, clipped_sum
from userdp.training.selftest import SelftestConfig, run_selftest

CONFIG = SelftestConfig(group_size=2, units=2, length=6, rounds=1, device="cpu")


@pytest.mark.parametrize("rank", fast_then_slow([None, 2]))
def test_every_engine_passes_on_the_bundled_model(rank: int | None) -> None:
    if rank is not None:
        pytest.importorskip("peft")
    result = run_selftest(replace(CONFIG, lora_rank=rank))
    assert result["passed"]
    assert [row["engine"] for row in result["engines"]] == list(ENGINES)
    assert result["auto"] == ("bookkeeping" if rank is None else "lora")


@pytest.mark.slow
def test_twin_an_engine_that_adds_two_percent_too_much_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_much(*arguments: Any, **options: Any) -> Any:
        found = clipped_sum(*arguments, **options)
        return replace(found, value={name: 1.02 * v for name, v in found.value.items()})

    broken: dict[str, Callable[..., Any]] = {"auto": too_much}
    monkeypatch.setitem(ENGINES, "auto", broken["auto"])
    result = run_selftest(CONFIG)
    assert not result["passed"]
    assert [row["passed"] for row in result["engines"]] == [False, True, True, True, True]


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
