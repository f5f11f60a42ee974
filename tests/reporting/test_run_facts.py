"""Reading runs: the ledger decides, and what is no run is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.reporting.conftest import MakeRun, examples_plan, users_plan, write_operator
from userdp.claims import Condition, Lineage
from userdp.claims.parts import ConditionKind
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.reporting.assumptions import Grade, assumptions_of
from userdp.reporting.operator_facts import read_operator
from userdp.reporting.run_facts import read_run, read_runs


def test_the_guarantee_is_of_the_whole_plan(make_run: MakeRun) -> None:
    whole, part = read_run(make_run("whole")), read_run(make_run("part", attempts=1))
    assert whole.finished
    assert not part.finished
    assert part.guarantee == whole.guarantee == users_plan().guarantee()
    assert part.claim.so_far is not None
    assert part.claim.so_far.epsilon < part.guarantee.epsilon


def test_known_seeds_void_the_claim(make_run: MakeRun) -> None:
    run = read_run(make_run(facts={"unsafe_seeds": True}))
    assert not run.private
    assert math.isinf(run.guarantee.epsilon)


def test_only_allowed_settings_are_read(make_run: MakeRun) -> None:
    run = read_run(make_run(config={"users": 1642, "note": "x", "seq_len": 64}))
    assert dict(run.settings) == {"seq_len": "64", "learning_rate": "0.001"}


def test_invariant_9_of_a_models_folder_only_the_name_is_shown(make_run: MakeRun) -> None:
    run = read_run(make_run(config={"train": {"model": "/home/somebody/models/base"}}))
    assert "somebody" not in str(run.settings) + str(run.train) + str(run.base)
    assert run.train["model"] == "base"


def test_runs_of_one_name_are_told_apart(make_run: MakeRun) -> None:
    runs = read_runs([make_run("a/run"), make_run("b/run")])
    assert [run.name for run in runs] == ["a/run", "b/run"]


def test_what_is_no_run_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    store = tmp_path / "store"
    store.mkdir()
    with pytest.raises(UseError, match=r"no ledger\.jsonl"):
        read_run(store)
    StoreLedger(store).reserve("r", users_plan())
    with pytest.raises(UseError, match="is a user store"):
        read_run(store)
    with pytest.raises(UseError, match="nothing is there"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(UseError, match="it is a file"):
        read_run(run / "ledger.jsonl")
    with pytest.raises(UseError, match="2 times"):
        read_runs([run, run])
    with pytest.raises(UseError, match="no run"):
        read_runs([])


def test_an_edited_ledger_is_refused(make_run: MakeRun) -> None:
    ledger = make_run() / "ledger.jsonl"
    lines = ledger.read_text(encoding="utf-8").splitlines(keepends=True)
    ledger.write_text("".join(lines[:2] + lines[3:]), encoding="utf-8")
    with pytest.raises(UseError, match="edited"):
        read_run(ledger.parent)


def test_before_and_after_are_measured_on_the_same_people(make_run: MakeRun) -> None:
    run = make_run()
    facts = read_operator(run)
    assert facts.before is not None
    assert facts.after is not None
    assert (facts.before.loss, facts.after.loss) == (5.773114, 5.142907)
    people = {"split": "held-out-users", "users": 5, "examples": 9, "user_loss": 1.0}
    during: list[dict[str, object]] = [
        {"kind": "evaluation", "step": 0, "loss": 5.0, **people},
        {"kind": "evaluation", "step": 3, "loss": 4.5, **people},
    ]
    model = {"kind": "final evaluation", "of": "model", "loss": 5.1, **people}
    write_operator(run, during)
    facts = read_operator(run)
    assert facts.before is not None
    assert facts.after is not None
    assert (facts.before.loss, facts.after.loss) == (5.0, 4.5)
    write_operator(run, [*during, model])
    facts = read_operator(run)
    assert facts.before is None  # the base model was measured on other people
    assert [found.step for found in facts.curve] == [0, 3]


def test_a_line_that_a_crash_cut_is_left_out_and_a_damaged_one_refused(make_run: MakeRun) -> None:
    run = make_run()
    path = run / "operator.jsonl"
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + '{"kind": "st', encoding="utf-8")
    assert len(read_operator(run).steps) == 3
    path.write_text("nonsense\n" + whole, encoding="utf-8")
    with pytest.raises(UseError, match="line 1"):
        read_operator(run)
    path.write_text(json.dumps({"kind": "step", "step": 1, "rows": 1, "loss": math.nan}) + "\n")
    assert read_operator(run).steps[0].loss is None


def test_assumptions_are_graded_and_fit_the_runs(make_run: MakeRun) -> None:
    alone = assumptions_of(read_runs([make_run("a")]))
    grades = [assumption.grade for assumption in alone]
    assert grades == sorted(grades, key=list(Grade).index)
    assert set(grades) == set(Grade)
    keys = {assumption.key for assumption in alone}
    assert {"constants", "identity", "secret-sampling", "tuning", "base-model", "released"} <= keys
    assert not {"cap", "several-runs", *ConditionKind} & keys
    several = assumptions_of(read_runs([make_run("b"), make_run("c", examples_plan(), attempts=1)]))
    assert {"cap", "several-runs"} <= {found.key for found in several}


@pytest.mark.parametrize("kind", list(ConditionKind))
def test_each_condition_is_a_critical_assumption_once(make_run: MakeRun, kind) -> None:
    told = [Condition(kind=kind, told=name) for name in ("one", "two")]
    runs = read_runs([make_run(name, lineage=Lineage(conditions=tuple(told))) for name in "ab"])
    (found,) = [one for one in assumptions_of(runs) if one.key == kind]
    assert found.grade is Grade.CRITICAL
    for condition in told:
        assert condition.in_words.lower() in found.statement.lower()
    unprotected = make_run("plain", private=False, lineage=Lineage(conditions=tuple(told)))
    assert kind not in {one.key for one in assumptions_of([read_run(unprotected)])}
