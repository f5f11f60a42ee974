"""What the operator's section says of losses, of audits, of who was compared with whom."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.reporting.conftest import MakeRun, full_page, operator_lines, write_operator
from tests.reporting.test_page import words_of
from userdp.reporting.facts import read_runs
from userdp.reporting.page import render_report

ROC = {"auc": 0.513, "auc_low": 0.45, "auc_high": 0.57, "low_fpr": 0.01,
       "tpr_at_low_fpr": 0.012, "tpr_low": 0.003, "tpr_high": 0.0314}  # fmt: skip


def page_of(run: Path, *more: dict[str, object]) -> str:
    """The page's words, the operator's section after the last "Operator only"."""
    write_operator(run, [*operator_lines(), *more])
    return words_of(full_page(run))


def audit_file(run: Path, **changes: object) -> None:
    """What `userdp audit` leaves, as far as a report reads it."""
    roc, file = {**ROC, "curve": []}, run / "audit" / "audit.json"
    values = {"extra_run": canaries(), "inference": roc, "references": None, "flagged": []}
    values["held_epsilon"] = 3.0
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({**values, **changes}), encoding="utf-8")


def canaries(**changes: float) -> dict[str, object]:
    bound = {"epsilon_lower": 0.0151, "confidence": 0.95, "most_detectable": 3.13, **changes}
    return {"bound": bound, "steps": {"epsilon_lower": 0.0097, "confidence": 0.95}}


def test_an_audit_stands_beside_the_claim_and_in_no_public_part(make_run: MakeRun) -> None:
    run = make_run()
    assert "Not audited" in page_of(run)
    curve = [[0.0, 0.0], [0.01, 0.012], [1.0, 1.0]]
    audit_file(run, references={**ROC, "runs": 8, "auc": 0.661, "curve": curve})
    page = page_of(run)
    for text in ("Steinke", " 0.0151 ", "95 %", "agrees with the claim", " 0.0097 ", " 0.513 ",
                 "0.450 to 0.570", "1.2 % (0.3 to 3.1), accusing 1 % of others", "the base model",
                 "8 reference runs", " 0.661 "):  # fmt: skip
        assert text in page
    assert "contradicts" not in page
    assert "0.0151" not in words_of(render_report(read_runs([run])))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"extra_run": canaries(epsilon_lower=40.0)}, "contradicts its claim"),
        ({"extra_run": canaries(epsilon_lower=0.9), "held_epsilon": 0.5}, "0.5 is claimed"),
        ({"extra_run": None, "flagged": ["steps: noise scale"]}, "steps: noise scale"),
        ({"extra_run": canaries(most_detectable=0.05)}, "could not have shown more than ε = 0.05"),
    ],
)
def test_what_an_audit_showed_is_said(make_run: MakeRun, changes, said) -> None:
    run = make_run()
    audit_file(run, **changes)
    assert said in page_of(run)
    assert ('role="alert"' in full_page(run)) is ("shown" not in said)


def test_the_names_that_the_report_reads_are_those_that_an_audit_writes() -> None:
    for module, kind, names in (
        ("guesses", "CanaryBound", {"epsilon_lower", "confidence", "most_detectable"}),
        ("step_checks", "StepAudit", {"epsilon_lower", "confidence"}),
        ("membership", "Roc", set(ROC)),
    ):
        written = getattr(pytest.importorskip(f"userdp.auditing.{module}"), kind).__slots__
        assert names <= set(written)


def test_losses_cohorts_and_cost_are_those_of_the_file(make_run: MakeRun) -> None:
    machine = {"kind": "machine", "device": "Abacus 9", "cores": 2, "threads": 1, "torch": "2.13"}
    public, own = page_of(make_run(), machine).rsplit("Operator only", 1)
    for text in ("5.7731 5.1429 −0.6302", "171.2", "31 / 32.0 / 33", "90.6 %", " 219 ", " 1.2 ",
                 "Abacus 9, cores 2, torch 2.13", "Training loss"):  # fmt: skip
        assert text in own
    assert "Abacus" not in public


def test_a_diverged_run_is_told_of_in_sentences(make_run: MakeRun) -> None:
    run = make_run()
    lines = [
        {"kind": "step", "step": 1, "rows": 4, "units": 2, "loss": math.nan, "non_finite": 2},
        {"kind": "final evaluation", "of": "model", "split": "held-out-users", "loss": "nan",
         "user_loss": None, "users": 5},
    ]  # fmt: skip
    write_operator(run, lines)
    page = words_of(full_page(run))
    assert "Not finite, counted as zero" in page
    assert "Training loss" not in page
