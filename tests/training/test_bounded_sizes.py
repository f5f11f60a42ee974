"""Fixed-size and truncated sampling from the plan to the ledger and the claim."""

from dataclasses import replace

import pytest

from tests.auditing.toy import CONFIG, audit_store
from tests.ledgers import forget
from tests.plans import plan_of_size
from tests.speed import fast_then_slow
from tests.training.toy import lines, private_run, sgd, toy_model
from userdp.claims import claim
from userdp.core.errors import UseError
from userdp.ledger import StoreLedger
from userdp.plans import Plan
from userdp.sampling import FixedSizeExamples, FixedSizeUsers, TruncatedExamples, TruncatedUsers
from userdp.training.loop import train

KINDS = [FixedSizeUsers, FixedSizeExamples, TruncatedUsers, TruncatedExamples]
FIXED = KINDS[:2]


def plan(kind) -> Plan:
    """Of a store with 160 training users, about 320 examples of them after the cap."""
    size, population = (20, 120) if kind in (FixedSizeUsers, TruncatedUsers) else (30, 240)
    values = {"group_size": 2, "steps": 12, "l2_clip_norm": 0.5, "noise_multiplier": 2.0}
    if kind in FIXED:
        bounds = {"least_population": population - 30}
    else:
        bounds = {"most_population": 3 * population, "cap": 5 * size}
    values |= {"population": population, "target_delta": 1e-5, **bounds}
    return plan_of_size(kind, size, **values)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return audit_store(tmp_path_factory.mktemp("bounded"))


@pytest.fixture
def store(made):
    forget(made.path)  # a later run would inherit what the earlier ones released
    return made


def test_a_plan_of_which_no_epsilon_holds_is_refused_before_the_charge(store, tmp_path):
    lossy = plan(TruncatedUsers)
    lossy, model = replace(lossy, sampling=replace(lossy.sampling, cap=24)), toy_model(store)
    with pytest.raises(UseError, match="no epsilon holds"):
        private_run(model, sgd(model), store, lossy, out=tmp_path / "run")
    assert not StoreLedger(store.path).history().charges


@pytest.mark.parametrize("kind", fast_then_slow(KINDS))
def test_from_the_plan_to_the_claim(store, tmp_path, kind):
    mine, out = plan(kind), tmp_path / "run"
    train(store, mine, CONFIG, out=out)
    entries = [line for line in lines(out / "ledger.jsonl") if line["kind"] == "attempt"]
    assert {entry["step"]["sampling"]["kind"] for entry in entries} == {kind.kind}
    units = [one["units"] for one in lines(out / "operator.jsonl") if one["kind"] == "step"]
    fewest, most = mine.sampling.sizes(10**6)
    assert all(fewest <= number <= most for number in units)
    assert (len(set(units)) == 1) == (kind in FIXED)
    assert claim(out / "ledger.jsonl").guarantee == mine.guarantee()
    assert Plan.load(out / "plan.json") == mine
