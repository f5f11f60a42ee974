"""The benchmark's own arithmetic: seeded settings, the journal, what counts in a median."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.accounting.bench import Journal
from benchmarks.accounting.settings import TABLE, Setting, random_settings
from benchmarks.accounting.summary import summarise


def test_random_settings_stay_in_the_ranges_and_repeat() -> None:
    found = random_settings(300, 3)
    assert found == random_settings(300, 3) != random_settings(300, 4)
    for s in found:
        assert 1 <= s.steps <= 10**6
        assert 1e-6 <= s.sampling_probability <= 1
        assert 0.3 <= s.noise_multiplier <= 100
        assert 1 <= s.group_size <= 512
        assert 1e-12 <= s.delta <= 1e-3


def row(setting: Any, theirs: float, **more: Any) -> dict[str, Any]:
    reply = {"seconds": theirs, "cpu_seconds": theirs, **more}
    return {"setting": setting.key, "dp_accounting": reply, "ours": {}, "speedup": theirs / 0.01}


def test_only_the_table_and_the_slow_cases_count() -> None:
    slow, fast = Setting(5, 0.1, 1.0, 1, 1e-6), Setting(6, 0.1, 1.0, 1, 1e-6)
    summary = summarise(
        [row(TABLE[0], 1.0), row(slow, 120.0, capped=True), row(fast, 4.9)], [], [], 0
    )
    assert summary["speedup_epsilon_cases"] == 2
    assert summary["speedup_epsilon_capped_cases"] == 1
    assert summary["speedup_epsilon_median"] == (100 + 12000) / 2
    assert summary["own_median_ms"] is None


def test_a_disagreement_is_named() -> None:
    bad = row(TABLE[0], 1.0) | {"consistent": False}
    assert summarise([bad], [], [], 0)["agreement_failures"] == [TABLE[0].key]


def test_the_journal_keeps_measurements_and_forgets_our_failures(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    journal = Journal(path)
    journal.add("ours a", {"seconds": 1.0})
    journal.add("ours b", {"error": "boom"})
    journal.add("dp-accounting c", {"error": "boom"})
    assert set(Journal(path).known) == {"ours a", "dp-accounting c"}
