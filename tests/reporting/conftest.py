"""Runs as folders: a ledger of real attempts, a configuration, and an operator's file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.ledgers import run_with
from tests.plans import els_plan, uls_plan
from userdp.claims import Claim, Lineage
from userdp.core.vocabulary import Guarantee
from userdp.ledger.run_ledger import append_release
from userdp.plans import Plan
from userdp.reporting.facts import read_runs
from userdp.reporting.operator_part import read_operator
from userdp.reporting.page import render_report

SECOND = 1.0001
"""Of ε, what the second accountant says in these tests: the real one takes seconds."""
MakeRun = Callable[..., Path]

LOSSES = (5.431862, 5.318274, 5.297513)


def users_plan(**changes: Any) -> Plan:
    values = {"population": 2000, "cohort_size": 32, "group_size": 2, "l2_clip_norm": 1.0}
    return uls_plan(**{**values, "noise_multiplier": 0.75, "steps": 3, **changes})


def examples_plan(**changes: Any) -> Plan:
    values = {"population": 8000, "batch_size": 64, "noise_multiplier": 1.1, "steps": 3}
    return els_plan(**{**values, **changes})


def operator_lines(losses: tuple[float, ...] = LOSSES) -> list[dict[str, object]]:
    """What training writes for the operator: nothing of it may reach a public page."""
    people = {"split": "held-out-users", "users": 119, "examples": 12043}
    before, after = {"loss": 5.773114, "user_loss": 5.912268}, {"loss": 5.142907, "user_loss": 5.2}
    seen = {"clipped_fraction": 0.90625, "non_finite": 0, "seconds": 0.4137}
    final = {"kind": "final evaluation", **people}
    return [
        {"kind": "evaluation", "step": 0, **before, **people},
        *(
            {"kind": "step", "step": n, "units": 30 + n, "rows": 71 + n, "loss": loss, **seen}
            for n, loss in enumerate(losses, start=1)
        ),
        {**final, "of": "model", **after},
        {**final, "of": "base", **before},
    ]


def write_operator(run: Path, lines: list[dict[str, object]]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "operator.jsonl").write_text(text, encoding="utf-8")


def full_page(*runs: Path) -> str:
    """The operator's page about runs."""
    return render_report(read_runs(runs), operator=[read_operator(run) for run in runs])


@pytest.fixture(autouse=True, scope="session")
def quick_second() -> Iterator[None]:
    """A second accountant that answers at once; `tests/claims/test_second.py` has the real one."""

    def second(claim: Claim, **options: object) -> Guarantee:
        told = claim.guarantee
        return replace(told, epsilon=told.epsilon * SECOND, accountant="dp-accounting")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("userdp.reporting.facts.second_opinion", second)
        yield


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """See `run_maker`."""
    return run_maker(tmp_path)


def run_maker(tmp_path: Path) -> MakeRun:
    """Make a run's folder: `make_run(name, plan, attempts=…, facts=…, releases=…)`.

    Without ``attempts`` it is finished; ``train`` is what its training was told besides.
    """

    def make(name="run", plan=None, *, private=True, attempts=None, lineage=None, releases=(),
             facts=(), train=(), **options):  # fmt: skip
        plan = (plan or users_plan()) if private else None
        planned = 0 if plan is None else plan.steps
        attempts = planned if attempts is None else attempts
        folder = run_with(
            tmp_path / name,
            plan,
            attempts,
            finished=plan is not None and attempts == planned,
            run_id=f"c0ffee-{name}",
            lineage=(lineage or Lineage()).plain,
            facts={"userdp": "0.1.0", "store": "feed" * 8, "seq_len": 64, **dict(facts)},
            **options,
        )
        for release in releases:
            append_release(folder / "ledger.jsonl", release)
        told = {"model": "/home/quetzal/confidential/gpt2", "learning_rate": 0.001, **dict(train)}
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in told.items()]
        (folder / "train.toml").write_text("".join(["[train.learning]\n", *lines]), "utf-8")
        write_operator(folder, operator_lines())
        return folder

    return make
