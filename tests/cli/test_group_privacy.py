"""`userdp train --accountant group-privacy`: the ledger's claim, and that everything retells it."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from tests.training.toy import toy_store
from userdp.accounting import binomial_steps
from userdp.accounting.group_privacy import Conversion, group_guarantee
from userdp.cli.app import run as userdp
from userdp.data.store import UserStore
from userdp.plans import Plan

OPTIONS = shlex.split(
    "--set sampling.kind=examples --population 150 --set plan.batch_size=8 --group-size 5 "
    "--steps 3 "
    "--l2-clip-norm 1 --delta 1e-5 --epsilon 3 "
    "--model new --set learning.layers=1 --set learning.width=16 --set learning.heads=2"
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    return toy_store(tmp_path_factory.mktemp("prepared")).path


@pytest.fixture
def store(prepared, tmp_path) -> UserStore:
    shutil.copytree(prepared, tmp_path / "store")
    return UserStore.open(tmp_path / "store")


def told(capsys, *arguments: str) -> dict:
    assert userdp([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lemma"),
    [("group-privacy", Conversion.BEST), ("group-privacy-vadhan", Conversion.VADHAN)],
)
def test_the_ledger_claims_by_the_lemma_and_the_report_tells_how(
    store, tmp_path, capsys, name, lemma
) -> None:
    run = tmp_path / "run"
    found = told(
        capsys,
        "train",
        str(store.path),
        "--out",
        str(run),
        *OPTIONS,
        "--set",
        f"plan.accountant={name}",
    )
    assert found["accountant"] == name
    assert found["algorithm"] == "GP"
    assert 2.99 < found["epsilon"] <= 3.0
    for place in (run / "ledger.jsonl", store.path):
        assert told(capsys, "account", "--ledger", str(place))["epsilon"] == found["epsilon"]
    # By hand: one example's δ at ε/5, lifted to five (Chua et al. 2024, Proposition 1).
    plan = Plan.load(run / "plan.json")
    one = binomial_steps(
        sampling_probability=8 / 150, noise_multiplier=plan.noise.multiplier, steps=3
    )
    lifted = group_guarantee(3 / 5, one.delta(3 / 5).upper, 5, lemma)
    assert lifted.epsilon == pytest.approx(3.0)
    assert 0.99e-5 < lifted.delta <= 1.0001e-5
    told(capsys, "report", str(run), "--out", str(tmp_path / "report.html"), "--public")
    page = (tmp_path / "report.html").read_text()
    assert f"--accountant {name}" in page
    assert "--group-size 5" in page


@pytest.mark.slow
def test_a_run_whose_noise_is_that_of_the_mixture_claims_more_by_the_lemma(
    store, tmp_path, capsys
) -> None:
    """The two claims of the very same steps differ, and each run's ledger keeps to its own."""
    els = told(capsys, "train", str(store.path), "--out", str(tmp_path / "els"), *OPTIONS)
    kept = Plan.load(tmp_path / "els" / "plan.json")
    options = [part for part in OPTIONS if part not in ("--epsilon", "3")]
    options[options.index("--steps") + 1 : options.index("--steps") + 1] = ["3"]
    gp = told(
        capsys,
        "train",
        str(store.path),
        "--out",
        str(tmp_path / "gp"),
        *options,
        "--set",
        f"plan.noise_multiplier={kept.noise.multiplier!r}",
        "--set",
        "plan.accountant=group-privacy",
    )
    assert els["accountant"] == "contour"
    assert gp["epsilon"] > els["epsilon"] * 1.02


def test_uls_has_no_group_to_lift_a_claim_to(store, tmp_path, capsys) -> None:
    options = [part.replace("examples", "users") for part in OPTIONS]
    options[options.index("plan.batch_size=8")] = "plan.cohort_size=8"
    arguments = ["train", str(store.path), "--out", str(tmp_path / "run"), *options]
    assert userdp([*arguments, "--set", "plan.accountant=group-privacy"]) == 2
    assert "sample examples" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
