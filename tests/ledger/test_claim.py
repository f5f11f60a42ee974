import dataclasses
import json
import math
from types import SimpleNamespace

import pytest

from tests.ledgers import begun, entries, reserve, run_with
from tests.plans import els_plan, uls_plan
from userdp.accounting.private_selection import TruncatedNegativeBinomial
from userdp.claims import claim
from userdp.claims.lineage import ConditionKind, Lineage, of_parts
from userdp.core.codec import encode
from userdp.core.errors import FailureError, UseError
from userdp.ledger import RunLedger, StoreLedger
from userdp.ledger.charged_parts import Choice, Query, Unclaimed
from userdp.plans import FixedGrid, PrivateSelection, StepRecord
from userdp.plans.provenance import Origin, Provenance
from userdp.sweeping.sweep_folder import SweepFolder


@pytest.mark.pitfall(number=39)
@pytest.mark.parametrize("plan", [uls_plan(), els_plan()], ids=["ULS", "ELS"])
def test_invariant_7_every_attempt_is_charged_and_a_resume_cannot_exceed_the_plan(tmp_path, plan):
    run_with(tmp_path / "run", plan, 3)
    ledger = RunLedger(tmp_path / "run" / "ledger.jsonl")
    assert (ledger.attempts, ledger.remaining) == (3, 2)
    unfinished = claim(tmp_path / "run")
    assert unfinished.guarantee == plan.guarantee(), "when it stopped, its outputs may have chosen"
    assert unfinished.so_far == plan.guarantee(3)
    assert unfinished.so_far.epsilon < unfinished.guarantee.epsilon, "twin: it bounds nothing"
    assert not unfinished.complete
    for _ in range(2):
        ledger.attempt(StepRecord.of_plan(plan))
    with pytest.raises(FailureError, match="all 5 planned steps are spent"):
        ledger.attempt(StepRecord.of_plan(plan))
    assert claim(tmp_path / "run").guarantee == plan.guarantee()
    assert claim(tmp_path / "run").so_far is None
    assert claim(tmp_path / "run").complete


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(StepRecord)])
def test_invariant_1_a_step_that_is_not_the_plans_is_refused_before_its_update(tmp_path, field):
    plan = uls_plan()
    ledger = begun(tmp_path / "ledger.jsonl", plan)
    honest = StepRecord.of_plan(plan)
    broken = {
        "sampling": els_plan().sampling,
        "sampling_probability": 0.2,
        "group_size": 5,
        "l2_clip_norm": 1.0,
        "noise_std": honest.noise_std * 0.9,
        "count_noise_std": 5.0,
        "noise_sampler": "float32",
    }
    with pytest.raises(FailureError, match="ledger and sampler disagree"):
        ledger.attempt(dataclasses.replace(honest, **{field: broken[field]}))
    assert ledger.attempts == 0


@pytest.mark.pitfall(number=1)
@pytest.mark.parametrize(
    "plan", [uls_plan(unsafe_shuffle=True), None], ids=["shuffled", "no privacy"]
)
def test_invariant_1_what_the_accounting_does_not_cover_claims_nothing(tmp_path, plan):
    assert claim(run_with(tmp_path / "run", plan, 0)).guarantee.epsilon == math.inf


def test_invariant_13_runs_on_one_store_add_up(tmp_path):
    uls, els = uls_plan(), els_plan()
    store = StoreLedger(tmp_path)
    reserve(store, "one", uls)
    reserve(store, "two", els)
    total = claim(tmp_path)
    assert total.guarantee.epsilon == uls.guarantee().epsilon + els.guarantee().epsilon
    assert total.guarantee.delta == uls.budget.target_delta + els.budget.target_delta
    assert [part.id for part in total.parts] == ["one", "two"]
    assert total.standing == "spent so far", "the second price may have been chosen by the first"
    assert total.guarantee.epsilon > uls.guarantee().epsilon, "twin: the first run was forgotten"
    at_delta = claim(tmp_path, delta=1e-5)
    assert at_delta.guarantee.delta == pytest.approx(1e-5)
    assert at_delta.guarantee.epsilon > total.guarantee.epsilon
    reserve(store, "open", None)
    assert claim(tmp_path).guarantee.epsilon == math.inf


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-6, math.nan])
def test_invariant_8_a_delta_that_is_none_is_refused(tmp_path, delta):
    reserve(StoreLedger(tmp_path), "one", uls_plan())
    with pytest.raises(UseError, match="delta"):
        claim(tmp_path, delta=delta)


def test_invariant_9_the_shareable_ledger_holds_public_constants_only(tmp_path):
    run_with(tmp_path / "run", uls_plan(), 3)
    header = entries(tmp_path / "run" / "ledger.jsonl")[0]
    named = {"kind", "schema", "run_id", "plan", "facts", "lineage"}
    assert set(header) == named | {"tuning_id", "payer"}
    allowed = {field.name for field in dataclasses.fields(StepRecord)}
    attempts = [e for e in entries(tmp_path / "run" / "ledger.jsonl") if e["kind"] == "attempt"]
    assert attempts
    assert all(set(entry) == {"kind", "step"} for entry in attempts)
    assert all(set(entry["step"]) == allowed for entry in attempts)


LAW = TruncatedNegativeBinomial.of_mean(5, eta=0.0)


def tuning(plan):
    return PrivateSelection(plans=(plan,), score_epsilon=0.1, repetitions=LAW)


def won(out, plan, tuned, payer=None):
    """A tuning's only trial, finished, and the winner that is made of it."""
    folder, trial = SweepFolder(out), SweepFolder(out).run(1)
    vars(folder)["begun"] = SimpleNamespace(sweep_id="s", request=SimpleNamespace(in_words="DP"))
    run_with(trial.path, plan, plan.steps, finished=True, payer=payer)
    plan.save(trial.plan)
    folder.release(1, Lineage(), Choice(id="s", tuning=tuned))
    return trial.path, folder.winner


@pytest.mark.pitfall(number=27)
def test_invariant_1_a_trial_claims_nothing_and_the_winner_what_choosing_cost(tmp_path):
    plan = uls_plan()
    payer = Unclaimed(id="t", why="it is a trial of a private selection")
    trial, winner = won(tmp_path / "selection", plan, tuning(plan), payer)
    assert claim(trial).guarantee.epsilon == math.inf
    assert "a trial of a private selection" in claim(trial).why_nothing
    found = claim(winner)
    assert found.guarantee == tuning(plan).guarantee()
    assert found.guarantee.epsilon > plan.guarantee().epsilon
    assert found.complete
    assert [part.id for part in found.parts] == ["s"], "as the store's ledger knows the tuning"
    assert "trial-001" not in (winner / "ledger.jsonl").read_text(), "the id of its run"
    grid = FixedGrid(plans=(plan, plan, plan), score_epsilon=0.1)
    _, winner = won(tmp_path / "grid", plan, grid)
    assert claim(winner).guarantee == grid.guarantee()


def test_invariant_1_twin_a_winner_of_a_tuning_that_never_tried_it_is_refused(tmp_path):
    other = tuning(uls_plan(noise_multiplier=9.0))
    with pytest.raises(UseError, match="did not try"):
        won(tmp_path / "sweep", uls_plan(), other)
    _, winner = won(tmp_path / "again", uls_plan(), tuning(uls_plan()))
    header = json.loads((winner / "ledger.jsonl").read_text().splitlines()[0])
    header["payer"]["tuning"]["plans"] = [encode(uls_plan(noise_multiplier=9.0))]
    (tmp_path / "edited.jsonl").write_text(json.dumps(header, separators=(",", ":")) + "\n")
    with pytest.raises(UseError, match="did not try"):
        claim(tmp_path / "edited.jsonl")


def test_invariant_13_a_run_claims_what_it_descends_from_besides_its_own_steps(tmp_path):
    plan = uls_plan()
    before = of_parts([Query(id="q", name="users", pure_epsilon=0.25)])
    found = claim(run_with(tmp_path / "run", plan, plan.steps, lineage=before.plain))
    assert [part.id for part in found.parts] == ["q", "run"]
    assert found.guarantee.epsilon == plan.guarantee().epsilon + 0.25


def test_invariant_13_a_plan_that_rests_on_exact_numbers_is_a_condition(tmp_path):
    origins = {"l2_clip_norm": Origin(source=Provenance.NON_PRIVATE, statistic="gradient norms")}
    plan = dataclasses.replace(uls_plan(), origins=origins)
    (condition,) = claim(run_with(tmp_path / "run", plan, plan.steps)).conditions
    assert condition.kind is ConditionKind.PLAN
    assert "gradient norms" in condition.told
