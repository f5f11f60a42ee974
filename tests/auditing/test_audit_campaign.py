"""Twenty right runs and three broken ones, each audited whole: `make audit-campaign`.

Results are written as they come to ``runs/audit/campaign.jsonl``, and the campaign goes on from
there. Without ``USERDP_AUDIT_RUNS`` there is no campaign.
"""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.broken_runs import BROKEN
from tests.auditing import toy
from userdp.auditing.audit_run import contradictions
from userdp.data.store import UserStore

RUNS = int(os.environ.get("USERDP_AUDIT_RUNS", "20"))
RESULTS = Path(os.environ.get("USERDP_AUDIT_RESULTS", "runs/audit/campaign.jsonl"))
CAMPAIGN = ("ten times too little noise", "shuffled batches", "noise re-used at every step")


def line(name: str, store: UserStore, folder: Path) -> dict:
    plan = toy.audit_plan()
    claimed = plan.guarantee().epsilon
    found = toy.audited(store, folder, plan, sabotage=BROKEN.get(name))
    return {
        "run": name,
        "claimed": claimed,
        "canaries_lower": found.bound.epsilon_lower,
        "canaries_most_detectable": found.bound.most_detectable,
        "steps_lower": found.steps.epsilon_lower,
        "steps_least_detectable": found.steps.detectable_epsilon,
        "noise_ratio": found.steps.noise_ratio,
        "contradictions": contradictions(found, claimed),
    }


@pytest.mark.slow
@pytest.mark.skipif("USERDP_AUDIT_RUNS" not in os.environ, reason="make audit-campaign")
def test_twenty_right_runs_pass_and_broken_ones_are_flagged(tmp_path):
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    done = (
        [json.loads(text) for text in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    )
    held = Counter(entry["run"] for entry in done)
    store = toy.audit_store(tmp_path / "people")
    for name in ["right"] * (RUNS - held["right"]) + [n for n in CAMPAIGN if not held[n]]:
        done.append(line(name, store, tmp_path))
        with RESULTS.open("a") as file:
            file.write(json.dumps(done[-1]) + "\n")
    right = [entry for entry in done if entry["run"] == "right"]
    below = [
        max(entry["canaries_lower"], entry["steps_lower"]) < entry["claimed"] for entry in right
    ]
    print(f"lower bound below the claim in {sum(below)} of {len(right)} right runs")
    for entry in done:
        print(json.dumps(entry))
    assert all(below)
    assert not any(entry["contradictions"] for entry in right)
    assert all(entry["contradictions"] for entry in done if entry["run"] != "right")
