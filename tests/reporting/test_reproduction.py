"""The command on the page makes the same plan and the same settings again."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.plans import changed_plan
from tests.reporting.conftest import MakeRun, small_plan
from tests.speed import fast_then_slow
from tests.training.toy import CONFIG, toy_store
from userdp.accounting import Accountant
from userdp.cli.app import run as userdp
from userdp.clip import AdaptiveClipping, ClipForm, LayerSplit
from userdp.ledger import RunFolder
from userdp.plans import Plan
from userdp.reporting.html import render_report
from userdp.reporting.model_card import render_model_card
from userdp.reporting.run_facts import read_run
from userdp.reporting.words import train_command
from userdp.sampling import PoissonExamples, PoissonUsers
from userdp.training.config import PlainPlan, train_config

ULS, ELS = small_plan(PoissonUsers, 4.0), small_plan(PoissonExamples, 4.0)


def test_the_command_asks_leave_for_a_large_delta(make_run: MakeRun) -> None:
    """Else it would be refused: δ is 1 over the ELS plan's examples, and within the rule of ULS."""
    asks = ["run.allow_large_delta" in train_command(read_run(make_run(n, p)))
            for n, p in (("uls", ULS), ("els", ELS))]  # fmt: skip
    assert asks == [False, True]


@pytest.mark.parametrize(
    "plan",
    fast_then_slow(
        [
            small_plan(PoissonUsers, 8.0, steps=2),
            changed_plan(
                small_plan(PoissonUsers, 8.0, steps=2),
                item_clip_norm=0.3,
                clip_form=ClipForm.NORMALIZED,
                layer_split=LayerSplit.DIMENSION,
                adaptive=AdaptiveClipping(quantile=0.4, learning_rate=0.3),
            ),
            changed_plan(
                small_plan(PoissonExamples, 8.0, steps=2),
                accountant=Accountant.GROUP_PRIVACY,
                target_delta=1e-4,
            ),
            changed_plan(small_plan(PoissonUsers, 8.0, steps=2), unsafe_shuffle=True),
        ]
    ),
    ids=["plain", "clipping", "group privacy", "shuffle"],
)
def test_the_command_runs_and_repeats_plan_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    """In the run's folder, with the files that are handed on with the weights."""
    from userdp.training.loop import train

    store = toy_store(tmp_path)
    config = replace(CONFIG, warmup_steps=1, weight_decay=0.01, seed=3, lora_rank=2)
    train(store, plan, config, out=tmp_path / "a")
    words = shlex.split(train_command(read_run(tmp_path / "a")))
    words = [{"STORE": str(store.path), "AGAIN": str(tmp_path / "b")}.get(w, w) for w in words]
    monkeypatch.chdir(tmp_path / "a")
    assert userdp([*words[1:]]) == 0
    for name in ("plan.json", "train.toml"):
        ours, theirs = ((tmp_path / run / name).read_bytes() for run in ("a", "b"))
        assert ours == theirs
    first, second = (read_run(tmp_path / run) for run in ("a", "b"))
    # The same price again; the second run, which began after the first, claims both.
    assert first.claim.parts[-1].guarantee() == second.claim.parts[-1].guarantee()
    assert second.guarantee.epsilon == 2 * first.guarantee.epsilon
    assert train_config(RunFolder(tmp_path / "b").read_train()["learning"]) == config
    assert Plan.load(tmp_path / "b" / "plan.json") == plan


def test_a_run_without_privacy_has_a_command_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from userdp.training.loop import train

    store = toy_store(tmp_path)
    train(store, PlainPlan(steps=2, batch_size=4), CONFIG, out=tmp_path / "a")
    words = shlex.split(train_command(read_run(tmp_path / "a")))
    words = [{"STORE": str(store.path), "AGAIN": str(tmp_path / "b")}.get(w, w) for w in words]
    monkeypatch.chdir(tmp_path / "a")
    assert userdp([*words[1:]]) == 0
    assert (tmp_path / "a" / "train.toml").read_text() == (
        tmp_path / "b" / "train.toml"
    ).read_text()


def test_the_place_of_a_model_is_left_out(make_run: MakeRun) -> None:
    run = read_run(make_run())
    assert run.train["model"] == "gpt2"
    assert "quetzal" not in train_command(run)


def test_no_command_is_printed_for_a_loop_of_ones_own(make_run: MakeRun) -> None:
    """It would read a train.toml that is not there."""
    run = make_run("loop", ULS)
    (run / "train.toml").unlink(missing_ok=True)
    facts = read_run(run)
    assert train_command(facts) is None
    for page in (render_model_card(facts), render_report([facts])):
        assert "trains again" not in page
        assert "--config train.toml" not in page
