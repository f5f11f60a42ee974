"""Sweeps of two or three tiny trials: what is charged, claimed, kept and never drawn again."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import stat
import time
import tomllib
from pathlib import Path

import pytest

from tests.plans import changed_plan, uls_plan
from tests.speed import fast_then_slow
from tests.sweeping.launch import InProcess
from tests.training.processes import start
from tests.training.toy import CONFIG, attempts, lines
from userdp.accounting.repetitions import PoissonNumber, TruncatedNegativeBinomial
from userdp.claims import claim
from userdp.cli.app import run as userdp
from userdp.codec import encode
from userdp.errors import FailureError, UseError
from userdp.ledger import RunFolder, StoreLedger
from userdp.plans import Plan
from userdp.reporting.run_facts import read_run
from userdp.sweeping.request import TuningMode, build_request, grid
from userdp.sweeping.result import describe
from userdp.sweeping.scores import selection_score
from userdp.sweeping.sweep import run_sweep
from userdp.training.opening import constants_digest
from userdp.training.side_by_side import train_arguments
from userdp.vocabulary import round_up

PLAN = uls_plan(cohort_size=8, group_size=2, steps=3, l2_clip_norm=1.0)
RATES = {"learning_rate": [0.003, 0.03]}
LAW = TruncatedNegativeBinomial.of_mean(2, eta=0.0)


@pytest.fixture
def two_trials(monkeypatch):
    monkeypatch.setattr(TruncatedNegativeBinomial, "draw", lambda self: 2)


def request(store, mode, **changes):
    if mode == TuningMode.PRIVATE_SELECTION:
        changes = {"repetitions": LAW, "epsilon": 8.0, **changes}
    if mode != TuningMode.NON_PRIVATE:
        pytest.importorskip("opendp", reason="the extra queries is not installed")
    return build_request(store, TuningMode(mode), grid([PLAN], CONFIG, axes=RATES), **changes)


def sweep(store, out, asked, **options):
    options = {"launch": InProcess(), "poll": 0, **options}
    return run_sweep(store, out, asked, **options)


def slots(store):
    """Those of the one selection in the store's ledger, if there is one."""
    return dict(*StoreLedger(store.path).history().slots.values())


def kinds(store):
    return [line["kind"] for line in lines(store.path / "ledger.jsonl")]


@pytest.mark.slow
def test_non_private_tuning_claims_the_winners_run_alone_and_says_so(store, tmp_path):
    out = tmp_path / "sweep"
    result = sweep(store, out, request(store, "non-private"))
    found = claim(out / "winner")
    assert found.guarantee == PLAN.guarantee()
    assert claim(store.path).guarantee.epsilon == 2 * PLAN.guarantee().epsilon
    losses = [trial["loss"] for trial in result.trials]
    assert losses == sorted(losses)
    assert result.settings["learning_rate"] == result.trials[0]["learning_rate"]
    basis = read_run(out / "winner").settings["plan_basis"]
    assert basis.startswith("non-private tuning on held-out-users (2 candidates")
    assert describe(result, store)["operator_only"] is True
    for private in ("operator.jsonl", "sweep.json"):
        assert stat.S_IMODE((out / private).stat().st_mode) == 0o600
    assert {path.name for path in (out / "winner").iterdir()} == {
        "plan.json",
        "train.toml",
        "ledger.jsonl",
        "model",
    }
    assert sweep(store, out, None, resume=True) == result, "a finished sweep only tells again"


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
        patch.setattr(StoreLedger, "store", "settle", killed)
        with pytest.raises(Killed):
            sweep(store, out, request(store, "non-private"))
    assert RunFolder(out / "trial-001").finished
    assert StoreLedger(store.path).history().settled == set()
    sweep(store, out, None, resume=True)
    history = StoreLedger(store.path).history()
    trials = {RunFolder(out / name).run_id for name in ("trial-001", "trial-002")}
    assert history.settled == trials
    assert len({one.weights for one in history.released}) == 2, "known by their weights, both"
    assert claim(store.path).complete


@pytest.mark.slow
def test_composition_charges_every_run_and_score_and_claims_them_all(store, tmp_path):
    asked = request(store, "composition", epsilon=6.0)
    result = sweep(store, tmp_path / "sweep", asked)
    found = claim(tmp_path / "sweep" / "winner" / "ledger.jsonl").guarantee
    everything = claim(store.path).guarantee
    assert 5.9 < found.epsilon <= 6.0
    assert found.epsilon == pytest.approx(everything.epsilon)
    assert found.delta == pytest.approx(everything.delta)
    assert found.delta <= PLAN.budget.target_delta
    assert kinds(store).count("reserve") == 2
    assert kinds(store).count("query") == 4
    assert not describe(result, store)["operator_only"]
    assert "2 candidates" in read_run(tmp_path / "sweep" / "winner").settings["plan_basis"]


@pytest.mark.slow
def test_a_private_selection_is_one_charge_and_only_the_winner_claims(store, tmp_path, two_trials):
    asked = request(store, "private-selection")
    result = sweep(store, tmp_path / "sweep", asked)
    out, price = tmp_path / "sweep", asked.tuning.guarantee()
    assert price.epsilon <= 8.0
    assert claim(out / "winner" / "ledger.jsonl").guarantee == price
    assert claim(store.path).guarantee == price
    assert kinds(store) == [
        *("store", "sweep", "selection", "slots"),
        *("trial", "open", "store", "settle", "score") * 2,
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
    told = {**describe(result, store), "winner": ""}
    assert told.pop("trials") == []
    assert "trial" not in json.dumps(told)
    assert "trial" not in (out / "winner" / "ledger.jsonl").read_text()
    assert "trial" not in (out / "winner" / "ledger.jsonl").read_text()


def test_invariant_1_a_trial_that_no_selection_pays_for_is_refused_and_charges_nothing(
    store, tmp_path, capsys
):
    asked, ledger = request(store, "private-selection"), StoreLedger(store.path)
    tuned = asked.candidates[0]
    ledger.reserve_selection("known", asked.tuning)
    constants = constants_digest(tuned.plan, encode(tuned.config), store)
    ledger.slots("known", lambda: {"drawn": constants})
    before = ledger.path.read_bytes()
    # No slot; one that was never drawn; a drawn one with another plan, or with other options.
    for number, (slot, plan, rate) in enumerate(
        [
            ("known", tuned.plan, "0.003"),
            ("other", tuned.plan, "0.003"),
            ("drawn", PLAN, "0.003"),
            ("drawn", tuned.plan, "0.5"),
        ]
    ):
        plan.save(tmp_path / "plan.json")
        arguments = ["train", str(store.path), "--out", str(tmp_path / f"run{number}")]
        arguments += ["--plan", str(tmp_path / "plan.json"), "--model", "new", "--layers", "1"]
        arguments += ["--width", "16", "--heads", "2", "--learning-rate", rate, "--slot", slot]
        assert userdp(arguments) == 2
        assert "pays for this trial" in capsys.readouterr().err
        assert not (tmp_path / f"run{number}").exists()
    assert ledger.path.read_bytes() == before
    assert not list((store.path / "runs").iterdir())


@pytest.mark.slow
def test_no_candidate_at_all_releases_nothing(store, tmp_path, monkeypatch):
    monkeypatch.setattr(PoissonNumber, "draw", lambda self: 0)
    asked = request(store, "private-selection", repetitions=PoissonNumber(mu=2.0), epsilon=20.0)
    result = sweep(store, tmp_path / "sweep", asked)
    assert result.winner is None
    assert describe(result, store)["winner"] is None
    assert kinds(store) == ["store", "sweep", "selection", "slots"]
    assert slots(store) == {}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["composition", "private-selection"])
def test_invariant_1_the_winners_report_tells_the_price_of_choosing(
    store, tmp_path, two_trials, mode
):
    asked = request(store, mode)
    sweep(store, tmp_path / "sweep", asked)
    page = tmp_path / "report.html"
    assert userdp(["report", str(tmp_path / "sweep" / "winner"), "--out", str(page)]) == 0
    shown = page.read_text("utf-8")
    assert round_up(asked.tuning.guarantee().epsilon) in shown
    alone = asked.candidates[0].plan
    assert round_up(alone.guarantee().epsilon) not in shown, "that of its own run"
    assert "userdp account --sampling" not in shown, "which would print another epsilon"
    assert "in this claim" in shown
    trial = tmp_path / "sweep" / "trial-001"
    assert userdp(["report", str(trial), "--out", str(page), "--overwrite"]) == 0
    if mode == "private-selection":
        assert "a trial of a private selection" in page.read_text("utf-8")


@pytest.mark.parametrize("mode", fast_then_slow(["non-private", "private-selection"]))
def test_invariant_7_an_interrupted_sweep_keeps_what_was_drawn_trained_and_scored(
    store, tmp_path, two_trials, mode
):
    out, asked = tmp_path / "sweep", request(store, mode)
    with pytest.raises(KeyboardInterrupt):
        sweep(store, out, asked, launch=InProcess(crash_before=2))
    drawn = slots(store)
    trained = (out / "trial-001" / "ledger.jsonl").read_bytes()
    (score,) = lines(out / "operator.jsonl")
    with pytest.raises(UseError, match="there is a sweep"):
        sweep(store, out, asked)
    changed = dataclasses.replace(asked, candidates=asked.candidates[::-1])
    with pytest.raises(UseError, match="not what the sweep"):
        sweep(store, out, changed, resume=True)
    launch = InProcess()
    sweep(store, out, asked, resume=True, launch=launch)
    assert len(launch.calls) == 1
    assert slots(store) == drawn
    assert len(drawn) == (2 if mode == "private-selection" else 0)
    assert (out / "trial-001" / "ledger.jsonl").read_bytes() == trained
    assert lines(out / "operator.jsonl")[0] == score
    assert len(lines(out / "operator.jsonl")) == 2


@pytest.mark.slow
def test_a_trial_that_fails_ends_the_sweep_in_an_error_and_is_resumed_with_its_settings(
    store, tmp_path
):
    out, launch = tmp_path / "sweep", InProcess(refuse=1)
    with pytest.raises(FailureError, match="out of memory"):
        sweep(store, out, request(store, "non-private"), launch=launch)
    assert (out / "trial-002" / "model").is_dir(), "the others are finished"
    assert not (out / "winner").exists()
    again = InProcess()
    sweep(store, out, None, resume=True, launch=again)
    assert again.calls == [launch.calls[0]]


@pytest.mark.slow
def test_a_score_lost_after_its_charge_is_not_drawn_again(store, tmp_path):
    asked = request(store, "composition", epsilon=6.0)
    out = tmp_path / "sweep"
    sweep(store, out, asked)
    kept = (out / "operator.jsonl").read_text().splitlines(keepends=True)
    lost = json.loads(kept[0])["trial"]
    (out / "operator.jsonl").write_text("".join(kept[1:]) + '{"kind":"sco')
    before = (store.path / "ledger.jsonl").read_bytes()
    result = sweep(store, out, None, resume=True)
    assert (store.path / "ledger.jsonl").read_bytes() == before
    assert result.trials[-1]["trial"] == lost
    assert "crash" in result.trials[-1]["note"]


@pytest.mark.slow
def test_a_noisy_total_is_half_the_bound_less_the_loss_of_each_user():
    pytest.importorskip("opendp", reason="the extra queries is not installed")
    import numpy as np

    losses = np.array([1.0, 3.0, np.inf, np.nan, -1.0])
    drawn = [selection_score(losses, epsilon=50.0, bound=4.0) for _ in range(20)]
    assert np.mean(drawn) == pytest.approx(1.0 - 1.0 - 2.0 - 2.0 + 2.0, abs=0.2)
    spread = [selection_score(losses, epsilon=0.5, bound=4.0) for _ in range(400)]
    assert np.std(spread) == pytest.approx(math.sqrt(2) * 2 / 0.5, rel=0.3)


def test_the_options_of_a_trial_are_its_configuration(tmp_path):
    from userdp.ledger import RunFolder
    from userdp.sweeping.folder import SweepFolder
    from userdp.sweeping.request import Candidate
    from userdp.training.config import train_config

    config = dataclasses.replace(CONFIG, activation_checkpointing=True, weight_decay=0.1)
    named = SweepFolder(tmp_path).write_settings(1, Candidate(plan=PLAN, config=config))
    options = Path(named[named.index("--config") + 1])
    assert stat.S_IMODE(options.stat().st_mode) == 0o600
    assert train_config(tomllib.loads(options.read_text())["train"]) == config
    assert Plan.load(Path(named[named.index("--plan") + 1])) == PLAN
    arguments = train_arguments(tmp_path, RunFolder(tmp_path / "run"), named)
    assert arguments[-6:] == [*named, "--allow-large-delta", "--no-tensorboard"]
    assert "--resume" not in arguments


def trial_processes(out: Path) -> dict[str, int]:
    """The processes of the trials of the sweep at ``out``, by the names of their folders."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        run = Path(words[words.index("--out") + 1]) if "--out" in words else None
        if run is not None and run.parent == out:
            found[run.name] = int(entry.name)
    return found


@pytest.fixture
def nothing_left(tmp_path):
    """A trial that was held still would wait for ever after a test that failed."""
    yield
    for number in trial_processes(tmp_path / "sweep").values():
        os.kill(number, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds trials through /proc")
def test_invariant_7_a_sweep_killed_in_the_middle_of_a_trial_goes_on_with_it(
    store, tmp_path, nothing_left
):
    """Each trial is held still at its first checkpoint, so that few steps make a middle."""
    steps, out = 60, tmp_path / "sweep"
    changed_plan(PLAN, steps=steps).save(tmp_path / "plan.json")
    command = ["sweep", str(store.path), "--out", str(out), "--json", "--no-tensorboard"]
    grid_options = ["--tuning", "non-private", "--plan", str(tmp_path / "plan.json")]
    grid_options += ["--learning-rate", "0.003", "0.03", "--jobs", "2", "--model", "new"]
    grid_options += ["--layers", "1", "--width", "16", "--heads", "2", "--checkpoint-every", "5"]
    process = start([*command, *grid_options])
    runs, held = [out / "trial-001", out / "trial-002"], {}
    while len(held) < len(runs):
        assert process.exitcode is None
        for run in runs:
            if run.name not in held and (run / "checkpoints").exists():
                held[run.name] = trial_processes(out)[run.name]
                os.kill(held[run.name], signal.SIGSTOP)
        time.sleep(0.01)
    before = [attempts(run) for run in runs]
    assert max(before) < steps
    os.kill(process.pid, signal.SIGKILL)
    os.kill(held["trial-001"], signal.SIGKILL)
    process.join()
    again = start([*command, "--resume"])
    os.kill(held["trial-002"], signal.SIGCONT)  # it outlives its sweep, and is waited for
    again.join()
    assert again.exitcode == 0
    plan = changed_plan(PLAN, steps=steps)
    for run, charged in zip(runs, before, strict=True):
        assert charged <= attempts(run) == steps
    price = plan.guarantee().epsilon
    # Whichever began second may have been chosen by the first: nobody declared it.
    assert sorted(claim(run).guarantee.epsilon for run in runs) == [price, 2 * price]
    assert claim(out / "winner").guarantee == plan.guarantee()  # the grid was fixed before both
    assert claim(store.path).guarantee.epsilon == 2 * plan.guarantee().epsilon
    assert (out / "winner" / "model").is_dir()
