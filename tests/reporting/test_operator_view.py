"""What the operator's section says of audits, of who was compared with whom, and of the cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.plans import changed_plan
from tests.reporting.conftest import (
    MakeRun,
    examples_plan,
    operator_lines,
    users_plan,
    write_operator,
)
from userdp.errors import UseError
from userdp.reporting.comparison import compare
from userdp.reporting.holders import delta_facts, fewer_examples
from userdp.reporting.html import render_report
from userdp.reporting.operator_facts import read_operator
from userdp.reporting.releases import read_releases
from userdp.reporting.run_facts import RunFacts, read_run, read_runs
from userdp.reporting.tradeoff import trade_offs


def page_of(run: Path, *more: dict[str, object]) -> str:
    write_operator(run, [*operator_lines(), *more])
    return render_report(read_runs([run]), operator=[read_operator(run)])


def bound(**changes: float) -> dict[str, object]:
    """An extra run whose canaries showed this."""
    canaries = {"epsilon_lower": 0.0237, "confidence": 0.95, "most_detectable": 5.5, **changes}
    return {"bound": canaries, "steps": {"epsilon_lower": 0.0097, "confidence": 0.95}}


def test_an_audits_lower_bound_stands_beside_the_claim(make_run: MakeRun) -> None:
    run = make_run()
    assert "None of these runs was audited" in page_of(run)
    audit_file(run, extra_run=bound())
    page = page_of(run)
    assert "contradicts" not in page
    for text in ("Steinke", ">0.0237<", "95 %", ">5.5<", "agrees with the claim"):
        assert text in page
    assert ">0.0237<" not in page[: page.index('id="operator"')]


@pytest.mark.slow
def test_an_audit_above_the_claim_is_an_alarm(make_run: MakeRun) -> None:
    run = make_run()
    audit_file(run, extra_run=bound(epsilon_lower=40.0))
    page = page_of(run)
    assert 'role="alert"' in page
    assert "contradicts the claim" in page
    audit_file(run, extra_run=bound())
    assert 'role="alert"' not in page_of(run)


@pytest.mark.slow
def test_an_audit_that_could_not_have_seen_it_says_so(make_run: MakeRun) -> None:
    run = make_run()
    audit_file(run, extra_run=bound(most_detectable=0.05))
    assert "could not have shown more than ε\u00a0=\u00a00.05" in page_of(run)


def audit_file(run: Path, **changes: object) -> Path:
    """What `userdp audit` leaves, as far as a report reads it."""
    extra = {
        "bound": {"epsilon_lower": 0.0151, "confidence": 0.95, "most_detectable": 3.13},
        "steps": {"epsilon_lower": 0.0097, "confidence": 0.95},
    }
    roc = {"auc": 0.513, "auc_low": 0.45, "auc_high": 0.57, "tpr_at_low_fpr": 0.012,
           "low_fpr": 0.01}  # fmt: skip
    (run / "audit").mkdir(exist_ok=True)
    path = run / "audit" / "audit.json"
    values = {"extra_run": extra, "inference": roc, "flagged": [], **changes}
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


@pytest.mark.slow
def test_the_file_of_an_audit_is_read_and_its_flags_are_alarms(make_run: MakeRun) -> None:
    run = make_run()
    audit_file(run)
    summary = {"kind": "audit", "flagged": [], "epsilon_lower": None}
    page = page_of(run, summary)
    for text in (">0.0151<", ">3.13<", ">0.0097<", ">0.513<", "0.450 to 0.570",
                 "no better than chance", "1.2 %, accusing 1 % of others"):  # fmt: skip
        assert text in page
    assert 'role="alert"' not in page
    public = render_report(read_runs([run]))
    assert "0.0151" not in public
    sharper = {"runs": 8, "auc": 0.661, "auc_low": 0.6, "auc_high": 0.72, "tpr_at_low_fpr": 0.1,
               "low_fpr": 0.01}  # fmt: skip
    audit_file(run, references=sharper)
    page = page_of(run)
    for text in ("the base model", "8 reference runs", ">0.661<", "differs from chance"):
        assert text in page
    audit_file(run, flagged=["steps: noise scale"], extra_run=None)
    page = page_of(run)
    assert 'role="alert"' in page
    assert "steps: noise scale" in page
    audit_file(run, extra_run={"bound": {}})
    with pytest.raises(UseError, match="damaged"):
        read_operator(run)


def test_the_audits_own_result_is_what_the_report_reads() -> None:
    """The names that the report reads are those that an audit writes."""
    bounds = pytest.importorskip("userdp.auditing.guesses").CanaryBound.__slots__
    steps = pytest.importorskip("userdp.auditing.steps").StepAudit.__slots__
    roc = pytest.importorskip("userdp.auditing.inference").Roc.__slots__
    assert {"epsilon_lower", "confidence", "most_detectable"} <= set(bounds)
    assert {"epsilon_lower", "confidence"} <= set(steps)
    assert {"auc", "auc_low", "auc_high", "tpr_at_low_fpr", "low_fpr"} <= set(roc)


def test_the_machine_the_time_and_the_gradients_are_shown(make_run: MakeRun) -> None:
    machine = {"kind": "machine", "device": "Abacus 9", "cores": 2, "threads": 1, "torch": "2.13"}
    page = page_of(make_run(), machine)
    assert "Abacus 9; 2 cores, 1 threads; torch 2.13" in page
    assert ">219<" in page  # 72 + 73 + 74 rows
    assert ">1.2<" in page  # 3 steps of 0.4137 s
    assert "Abacus" not in page[: page.index('id="operator"')]


def measured(run: Path, loss: float) -> None:
    people = {"split": "held-out-users", "users": 5, "examples": 9, "user_loss": 1.0}
    final = {"kind": "final evaluation", **people}
    write_operator(run, [{**final, "of": "base", "loss": 5.0}, {**final, "of": "model",
                                                               "loss": loss}])  # fmt: skip


def grid(make_run: MakeRun) -> list[RunFacts]:
    """Two algorithms, two noises, two numbers of steps."""
    runs = []
    for number, (plan, noise, steps) in enumerate(
        (plan, noise, steps)
        for plan in (users_plan(), examples_plan())
        for noise in (0.8, 1.4)
        for steps in (2, 3)
    ):
        epsilon = 9.0 if noise < 1 else 2.0
        found = changed_plan(plan, noise_multiplier=noise, steps=steps, target_epsilon=epsilon)
        run = make_run(f"run{number}", found)
        measured(run, 4.0 + number / 10)
        runs.append(read_run(run))
    return runs


def test_panels_are_by_compute_and_by_epsilon_with_a_line_per_algorithm(
    make_run: MakeRun,
) -> None:
    runs = grid(make_run)
    plots = trade_offs(runs, [read_operator(run.path) for run in runs], compare(runs))
    by_compute = [plot for plot in plots if plot.key.startswith("by-compute")]
    assert [plot.title for plot in by_compute] == [
        "Loss against compute at ε = 2", "Loss against compute at ε = 9",
    ]  # fmt: skip
    # ULS: 0.016 * 2000 users of 2; ELS: 0.008 * 8000 examples: 64 gradients a step in both.
    by_epsilon = [plot.title for plot in plots if plot.key.startswith("by-epsilon")]
    assert by_epsilon == ["Loss against ε at 128 gradients", "Loss against ε at 192 gradients"]
    els, uls = by_compute[0].series
    assert (els.name, els.xs, els.ys) == ("ELS", (128.0, 192.0), (4.6, 4.7))
    assert (uls.name, uls.xs, uls.ys) == ("ULS", (128.0, 192.0), (4.2, 4.3))
    assert (els.style, uls.style) == (0, 1)
    assert len({plot.y_limits for plot in plots}) == 1
    assert len({plot.key for plot in plots}) == len(plots)
    assert by_compute[0].level == ("base model", 5.0)


def test_losses_on_other_people_are_in_no_plot_together(make_run: MakeRun) -> None:
    runs = grid(make_run)
    operator = [read_operator(run.path) for run in runs]
    moved = [replace(run, store=f"store {number}") for number, run in enumerate(runs)]
    assert trade_offs(moved, operator, compare(moved)) == []
    assert any("different user stores" in warning for warning in compare(moved).warnings)
    assert not any("different user stores" in warning for warning in compare(runs).warnings)


@pytest.mark.slow
def test_claims_of_two_kinds_are_told_apart_everywhere(make_run: MakeRun) -> None:
    graph = examples_plan(fixed_graph=True)
    runs = read_runs([make_run("a"), make_run("b", examples_plan()), make_run("g", graph)])
    found = compare(runs)
    assert not found.comparable
    assert [[run.name for run in group] for group in found.groups] == [["a", "b"], ["g"]]
    assert any("cannot be compared" in warning for warning in found.warnings)
    assert any("no sum of their ε" in warning for warning in found.warnings)
    assert [both.names for both in found.together] == [("a", "b")]
    page = render_report(runs, operator=[read_operator(run.path) for run in runs])
    above = page[: page.index('id="assumptions"')]
    assert "changing everything that one user contributed" in " ".join(above.split()).lower()
    assert (
        "adding or removing everything that one user contributed" in " ".join(above.split()).lower()
    )
    assert "which of its two worlds" in above
    assert "Privacy against held-out loss" in page  # of a and b alone
    assert "g: " not in page[page.index("trade-off-0-words") :].split("</desc>")[0]


@pytest.mark.slow
def test_fixed_graph_claims_have_their_own_price_for_fewer_examples(make_run: MakeRun) -> None:
    graph = examples_plan(fixed_graph=True)
    table = fewer_examples([read_run(make_run("g", graph)), read_run(make_run("u"))])
    assert table is not None
    assert tuple(table.columns) == ("Examples of a user", "1", "2", "4")
    ((name, *epsilons),) = table.rows
    assert name == "g"
    exact = [changed_plan(graph, group_size=held).guarantee().epsilon for held in (1, 2, 4)]
    for shown, wanted in zip(epsilons, exact, strict=True):
        assert 0 <= float(shown) - wanted < 1e-4
    assert fewer_examples([read_run(make_run("v"))]) is None


@pytest.mark.parametrize(
    ("delta", "words", "careful"),
    [(1e-5, "within the rule", False), (4e-4, "above the rule", False), (1e-3, "by lot", True)],
)
def test_the_choice_of_delta_is_judged(
    make_run: MakeRun, delta: float, words: str, careful: bool
) -> None:
    found = delta_facts(read_run(make_run("r", users_plan(delta=delta))))
    assert found is not None
    assert words in found["verdict"]
    assert found["verdict"].startswith("Careful") is careful
    assert delta_facts(read_run(make_run("plain", private=False))) is None


def test_released_losses_are_public_and_a_damaged_one_is_refused(make_run: MakeRun) -> None:
    line = {
        "split": "held-out-users", "loss_bound": 8.3, "epsilon": 0.5,
        "base": {"user_loss": 5.25, "standard_error": 0.125},
        "model": {"user_loss": 4.75, "standard_error": 0.125},
    }  # fmt: skip
    run = make_run(releases=[line])
    page = render_report(read_runs([run]))
    assert "4.7500" in page
    assert "± 0.1250" in page
    with pytest.raises(UseError, match="a release that is none"):
        read_releases(make_run("damaged", releases=[{"split": "held-out-users", "epsilon": 0.5}]))


def test_what_the_plan_was_chosen_from_is_said(make_run: MakeRun) -> None:
    basis = "non-private statistics: population"
    chosen = read_runs([make_run("a", config={"plan_basis": basis})])
    assert "chosen from:\n<strong>non-private statistics: population" in render_report(chosen)
    both = render_report((*chosen, *read_runs([make_run("b")])))
    assert "Non-private statistics: population" in both
    assert "Declared constants" in both
