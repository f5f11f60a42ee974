"""Sweeps of two or three tiny trials: what is charged, claimed, kept and never drawn again."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import stat
import time
from contextlib import ExitStack

import pytest

from tests.ledgers import select, unwritten
from tests.plans import changed_plan
from tests.speed import fast_then_slow
from tests.sweeping.launch import PLAN, Trials, request, swept
from tests.training.processes import start
from tests.training.toy import CONFIG, attempts, lines
from userdp.accounting.private_selection import PoissonNumber
from userdp.claims import claim
from userdp.claims.claims import store_claim
from userdp.cli.app import run as userdp
from userdp.core import files
from userdp.core.codec import encode
from userdp.core.errors import FailureError, UseError
from userdp.ledger import StoreLedger, permitted_lines
from userdp.ledger.lines import Settle
from userdp.ledger.run_ledger import RunRecord, is_finished
from userdp.ledger.run_lock import attempts_in
from userdp.reporting.facts import read_run
from userdp.sweeping import runs
from userdp.sweeping.trial_scores import selection_score
from userdp.training.loop import train
from userdp.training.open_run import constants_digest

SHAPE = "--set learning.layers=1 --set learning.width=16 --set learning.heads=2"


def slots(store):
    """Those of the one selection in the store's ledger, if there is one."""
    return dict(*(one.slots for _, one in StoreLedger(store.path).history().tunings.values()))


def kinds(store):
    return [line["kind"] for line in lines(store.path / "ledger.jsonl")]


@pytest.mark.slow
def test_non_private_tuning_claims_the_winners_run_alone_and_says_so(store, tmp_path):
    out = tmp_path / "sweep"
    result = swept(store, out, request(store, "non-private"))
    assert claim(out / "winner").guarantee == PLAN.guarantee()
    assert claim(store.path).guarantee.epsilon == 2 * PLAN.guarantee().epsilon
    losses = [trial["loss"] for trial in result.trials]
    assert losses == sorted(losses)
    assert result.settings["learning_rate"] == result.trials[0]["learning_rate"]
    basis = read_run(out / "winner").settings["plan_basis"]
    assert basis.startswith("non-private tuning on held-out-users (2 candidates")
    assert result.to_dict()["operator_only"] is True
    for private in ("scores/001.json", "tuning.json"):
        assert stat.S_IMODE((out / private).stat().st_mode) == 0o600
    released = {path.name for path in (out / "winner").iterdir()}
    assert released == {"plan.json", "train.toml", "ledger.jsonl", "model"}
    assert swept(store, out, None, resume=True) == result, "a finished sweep only tells again"


@pytest.mark.slow
def test_a_later_run_knows_of_a_non_private_tuning_whose_runs_kept_no_log(store, tmp_path):
    quiet = dataclasses.replace(CONFIG, no_exact_log=True)
    swept(store, tmp_path / "sweep", request(store, "non-private", config=quiet))
    train(store, PLAN, quiet, out=tmp_path / "run")
    told = [one.told for one in claim(tmp_path / "run").conditions]
    assert "by exact numbers (tune)" in "".join(told)


@pytest.mark.slow
def test_a_trial_that_was_killed_before_the_store_was_told_of_its_end_is_settled(
    store, tmp_path, monkeypatch
):
    """What is left of it is to be scored: nobody trains it again, so that the sweep tells it."""

    class Killed(BaseException):
        pass

    def killed(*arguments, **options):
        raise Killed

    out = tmp_path / "sweep"
    with monkeypatch.context() as patch:
        patch.setattr(permitted_lines, "is_new", unwritten(Settle, then=killed))
        with pytest.raises(Killed):
            swept(store, out, request(store, "non-private"))
    assert is_finished(out / "trial-001")
    assert StoreLedger(store.path).history().settled == {}
    swept(store, out, None, resume=True)
    history = StoreLedger(store.path).history()
    trials = {RunRecord.read(out / name).run_id for name in ("trial-001", "trial-002")}
    assert history.settled.keys() == trials
    assert len({one.weights for one in history.released}) == 2, "known by their weights, both"
    assert claim(store.path).complete


@pytest.mark.slow
def test_composition_charges_every_run_and_score_and_claims_them_all(store, tmp_path):
    result = swept(store, tmp_path / "sweep", request(store, "composition", epsilon=6.0))
    found = claim(tmp_path / "sweep" / "winner" / "ledger.jsonl").guarantee
    everything = claim(store.path).guarantee
    assert 5.9 < found.epsilon <= 6.0
    assert found.epsilon == pytest.approx(everything.epsilon)
    assert found.delta == pytest.approx(everything.delta)
    assert found.delta <= PLAN.budget.target_delta
    assert kinds(store).count("charge") == 2 + 4  # runs and scores
    assert not result.to_dict()["operator_only"]
    assert "2 candidates" in read_run(tmp_path / "sweep" / "winner").settings["plan_basis"]
    # Over its own charge alone, a run on the winner counts what the winner cost.
    winner = dataclasses.replace(CONFIG, model=str(tmp_path / "sweep" / "winner" / "model"))
    train(store, PLAN, winner, out=tmp_path / "on")
    history = StoreLedger(store.path).history()
    last = {name: one for name, one in history.charges.items() if one.is_run and one.base}
    alone = store_claim(dataclasses.replace(history, charges=last)).guarantee
    assert alone.epsilon > 0.9 * found.epsilon > 5 * PLAN.guarantee().epsilon
    # A score that a crash took after its charge is not drawn again.
    (tmp_path / "sweep" / "scores" / "001.json").unlink()
    before = (store.path / "ledger.jsonl").read_bytes()
    result = swept(store, tmp_path / "sweep", None, resume=True)
    assert (store.path / "ledger.jsonl").read_bytes() == before
    assert result.trials[-1]["trial"] == 1
    assert "crash" in result.trials[-1]["note"]


@pytest.mark.slow
def test_a_private_selection_is_one_charge_and_only_the_winner_claims(store, tmp_path, two_trials):
    asked = request(store, "private-selection")
    result = swept(store, tmp_path / "sweep", asked)
    out, price = tmp_path / "sweep", asked.tuning.guarantee()
    assert price.epsilon <= 8.0
    assert claim(out / "winner" / "ledger.jsonl").guarantee == price
    assert claim(store.path).guarantee == price
    assert kinds(store) == [
        *("store", "tuning", "charge"),
        *("trial", "open", "release", "settle", "answer") * 2,
        "release",
    ]
    ledger = store.path / "ledger.jsonl"
    assert stat.S_IMODE(ledger.stat().st_mode) == 0o600, "the number of trials is the operator's"
    assert len(set(slots(store))) == 2
    for number in (1, 2):
        trial = out / f"trial-{number:03d}"
        assert claim(trial / "ledger.jsonl").guarantee.epsilon == math.inf
        assert stat.S_IMODE(trial.stat().st_mode) == 0o700
    assert result.trials == ()
    told = {**result.to_dict(), "winner": ""}
    assert told.pop("trials") == []
    assert "trial" not in json.dumps(told)
    assert "trial" not in (out / "winner" / "ledger.jsonl").read_text()


def test_invariant_1_a_trial_that_no_selection_pays_for_is_refused_and_charges_nothing(
    store, tmp_path, capsys
):
    asked, ledger = request(store, "private-selection"), StoreLedger(store.path)
    tuned = asked.candidates[0]
    constants = constants_digest(tuned.plan, encode(tuned.config), store)
    grid, slots = (constants,), {"drawn": constants}
    select(ledger, "known", asked.tuning, constants=grid, slots=slots)
    before = ledger.path.read_bytes()
    # No slot; one that was never drawn; a drawn one with another plan, or with other options.
    refused = (("known", tuned.plan, "0.003"), ("other", tuned.plan, "0.003"),
               ("drawn", PLAN, "0.003"), ("drawn", tuned.plan, "0.5"))  # fmt: skip
    for number, (slot, plan, rate) in enumerate(refused):
        plan.save(tmp_path / "plan.json")
        line = f"train {store.path} --out {tmp_path}/run{number} --plan {tmp_path}/plan.json"
        line += f" --model new {SHAPE} --learning-rate {rate} --set run.slot={slot}"
        assert userdp(line.split()) == 2
        assert "pays for this trial" in capsys.readouterr().err
        assert not (tmp_path / f"run{number}").exists()
    assert ledger.path.read_bytes() == before
    assert not any(attempts_in(ledger.runs).values())


@pytest.mark.slow
def test_no_candidate_at_all_releases_nothing(store, tmp_path, monkeypatch):
    monkeypatch.setattr(PoissonNumber, "draw", lambda self: 0)
    poisson = {"mean_trials": 2.0, "distribution": "poisson", "epsilon": 20.0}
    result = swept(store, tmp_path / "sweep", request(store, "private-selection", **poisson))
    assert result.winner is None
    assert result.to_dict()["winner"] is None
    assert kinds(store) == ["store", "tuning", "charge"]
    assert slots(store) == {}


@pytest.mark.parametrize("mode", fast_then_slow(["non-private", "private-selection"]))
def test_invariant_7_an_interrupted_sweep_keeps_what_was_drawn_trained_and_scored(
    store, tmp_path, two_trials, mode
):
    out, asked = tmp_path / "sweep", request(store, mode)
    with pytest.raises(KeyboardInterrupt):
        swept(store, out, asked, trials=Trials(crash_before=2))
    drawn = slots(store)
    trained = (out / "trial-001" / "ledger.jsonl").read_bytes()
    (score,) = (path.read_bytes() for path in (out / "scores").iterdir())
    with pytest.raises(UseError, match="there is a tuning"):
        swept(store, out, asked)
    changed = dataclasses.replace(asked, candidates=asked.candidates[::-1])
    with pytest.raises(UseError, match="not what the tuning"):
        swept(store, out, changed, resume=True)
    trials = Trials()
    swept(store, out, asked, resume=True, trials=trials)
    assert [path.name for path in trials.calls] == ["trial-002"]
    assert slots(store) == drawn
    assert len(drawn) == (2 if mode == "private-selection" else 0)
    assert (out / "trial-001" / "ledger.jsonl").read_bytes() == trained
    assert (out / "scores" / "001.json").read_bytes() == score
    assert len(list((out / "scores").iterdir())) == 2


def test_a_trial_that_failed_or_that_another_process_trains_is_not_left_out(
    store, tmp_path, monkeypatch
):
    """The first trial fails; resumed, it is left to the process that holds it, which ends too."""
    out, others = tmp_path / "sweep", ExitStack()
    with pytest.raises(FailureError, match="out of memory"):
        swept(store, out, request(store, "non-private"), trials=Trials(refuse=1))
    assert not (out / "winner").exists()
    others.enter_context(files.exclusive(out / ".trial-001.lock", refusal=FailureError("held")))
    monkeypatch.setattr(runs, "_POLL", 0)
    monkeypatch.setattr(runs.time, "sleep", lambda seconds: others.close())  # it ends, unscored
    trials = Trials()
    swept(store, out, None, resume=True, trials=trials)
    assert [path.name for path in trials.calls] == ["trial-002", "trial-001"]


@pytest.mark.slow
def test_a_noisy_total_is_half_the_bound_less_the_loss_of_each_user():
    pytest.importorskip("opendp", reason="the extra queries is not installed")
    import numpy as np

    losses = np.array([1.0, 3.0, np.inf, np.nan, -1.0])

    def drawn(count, epsilon):
        scores = [selection_score(losses, epsilon=epsilon, bound=4.0) for _ in range(count)]
        return [one.value for one in scores], scores[0].error

    assert np.mean(drawn(20, 50.0)[0]) == pytest.approx(1.0 - 1.0 - 2.0 - 2.0 + 2.0, abs=0.2)
    spread, error = drawn(400, 0.5)
    assert error == math.sqrt(2) * 2 / 0.5
    assert np.std(spread) == pytest.approx(error, rel=0.3)


@pytest.mark.slow
def test_invariant_7_a_tuning_killed_in_the_middle_of_a_trial_goes_on_with_it(store, tmp_path):
    steps, out = 60, tmp_path / "sweep"
    changed_plan(PLAN, steps=steps).save(tmp_path / "plan.json")
    command = f"tune {store.path} --out {out} --json"
    grid_options = f"--tuning non-private --plan {tmp_path}/plan.json --learning-rate 0.003 0.03"
    grid_options += f" --set learning.model=new {SHAPE} --set learning.checkpoint_every=5"
    process, trial = start(f"{command} {grid_options}".split()), out / "trial-001"
    while not (trial / "checkpoints").exists():
        assert process.exitcode is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    before = attempts(trial)
    assert before < steps
    again = start(f"{command} --resume".split())
    again.join()
    assert again.exitcode == 0
    plan = changed_plan(PLAN, steps=steps)
    assert before <= attempts(trial) == steps
    assert claim(out / "winner").guarantee == plan.guarantee()  # the grid was fixed before both
    assert claim(store.path).guarantee.epsilon == 2 * plan.guarantee().epsilon
    assert (out / "winner" / "model").is_dir()
