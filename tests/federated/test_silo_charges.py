"""What a silo charges and refuses, and what its federation claims for it."""

import math
from contextlib import suppress

import numpy as np
import pytest

from tests.federated.toys import COUNTS, WIDTH, ZERO, items, plan, silo
from tests.ledgers import entries
from userdp.core.errors import FailureError, UseError
from userdp.federated.federation_plan import federation_claim
from userdp.ledger import StoreLedger
from userdp.sampling.draws import Sampler


def test_invariant_7_a_step_is_charged_before_its_data_and_a_cut_round_is_not_taken_up(
    tmp_path, monkeypatch
):
    made = plan(local_steps=4)
    failing, draw = silo(tmp_path, made, items(COUNTS)), Sampler.draw

    def fails(sampler):
        if failing.run.done == 3:
            raise RuntimeError("the machine went away")
        return draw(sampler)

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "draw", fails)
        with pytest.raises(RuntimeError, match="went away"):
            failing.run_round(1, ZERO)
    failing.close()
    again = silo(tmp_path, made, items(COUNTS))
    with pytest.raises(FailureError, match="began round 1 before"):
        again.run_round(1, ZERO)
    again.run_round(2, ZERO)
    assert again.run.done == 7
    again.close()
    kinds = [line["kind"] for line in entries(tmp_path / "run" / "ledger.jsonl")]
    # An opening by each process, and no end: its whole plan stays reserved.
    assert kinds == ["run", "open", *["attempt"] * 3, "open", *["attempt"] * 4]
    assert charged(tmp_path) == (8, False)


def charged(folder):
    """The steps that the only charge of a silo's store is of, and whether that is final."""
    history = StoreLedger(folder / "store").history()
    (charge,) = history.charges.values()
    return charge.plan.steps, history.is_final(charge)


def test_invariant_12_a_silos_store_is_charged_with_its_whole_plan_before_its_first_step(tmp_path):
    made = plan(silos=6, silos_per_round=2, rounds=9)
    index = max(range(6), key=made.rounds_of_silos.__getitem__)
    numbers = [number for number in range(1, 10) if index in made.schedule(number)]
    here = silo(tmp_path, made, items(COUNTS), index=index)
    here.run_round(numbers[0], ZERO)
    (charge,) = StoreLedger(tmp_path / "store").history().charges.values()
    assert charge.plan == made.of_silo(index)
    assert charged(tmp_path) == (2 * len(numbers), False)
    with pytest.raises(FailureError, match="does not run"):
        here.run_round(min({*range(1, 10)} - {*numbers}), ZERO)
    for number in numbers[1:]:
        here.run_round(number, ZERO)
    assert charged(tmp_path) == (2 * len(numbers), True)


def test_a_server_that_asks_for_more_rounds_or_out_of_turn_is_refused(tmp_path):
    here = silo(tmp_path, plan(), items(COUNTS))
    updates = [here.run_round(number, ZERO)["w"] for number in (1, 2)]
    other = {"w": np.ones(WIDTH, dtype=np.float32)}  # a server that restarted asks once more
    assert (here.run_round(2, other)["w"] == updates[1]).all()
    for number in (0, 3, 10**9):
        with pytest.raises(FailureError, match=f"for round {number}, in which it does not run"):
            here.run_round(number, ZERO)
    assert here.run.done == 4


@pytest.mark.parametrize(
    "bad",
    [
        {"v": ZERO["w"]},
        {"w": np.zeros(WIDTH + 1, dtype=np.float32)},
        {"w": np.full(WIDTH, np.nan, dtype=np.float32)},
        {"w": np.zeros(WIDTH)},
    ],
)
def test_another_models_weights_are_refused_and_cost_nothing(tmp_path, bad):
    here = silo(tmp_path, plan(), items(COUNTS))
    with pytest.raises(UseError):
        here.run_round(1, bad)
    assert not (tmp_path / "store" / "ledger.jsonl").exists()


def test_a_run_of_another_federation_is_refused_at_the_start(tmp_path):
    here = silo(tmp_path, plan(), items(COUNTS))
    here.run_round(1, ZERO)
    here.close()
    for other, index in ((plan(rounds=3), 0), (plan(), 1)):
        with pytest.raises(UseError, match="another federation or of another silo"):
            silo(tmp_path, other, items(COUNTS), index=index)
    with pytest.raises(UseError, match="no silo 3"):
        silo(tmp_path / "b", plan(), items(COUNTS), index=3)


def test_invariant_8_a_federations_claim_is_its_whole_plans_whatever_ran(tmp_path):
    made = plan(silos_per_subject=2, rounds=3)
    for index, rounds in enumerate((3, 1, 2)):
        here = silo(tmp_path / f"{index}", made, items(COUNTS), index=index)
        for number in range(1, rounds + 1):
            here.run_round(number, ZERO)
    runs = [tmp_path / f"{index}" / "run" for index in range(3)]
    found = federation_claim(made, runs)
    assert (found.steps, found.complete) == (12, False)
    assert found.guarantee == made.guarantee()
    # A ledger that is missing is charged in full.
    assert federation_claim(made, runs[:2]).guarantee == made.guarantee()
    assert [part.in_words for part in found.parts] == ["all rounds of local-group-dp"]
    with pytest.raises(UseError, match="second ledger"):
        federation_claim(made, [runs[0], runs[0]])
    with pytest.raises(UseError, match="another federation"):
        federation_claim(plan(rounds=3), runs)


def test_a_silo_that_is_never_asked_is_missed_by_no_claim(tmp_path):
    made = plan(silos=6, silos_per_round=2, rounds=3)
    asked = [index for index, rounds in enumerate(made.rounds_of_silos) if rounds]
    for index in asked:
        here = silo(tmp_path / str(index), made, items(COUNTS), index=index)
        for number in range(1, 4):
            with suppress(FailureError):  # of a round in which it does not run
                here.run_round(number, ZERO)
    found = federation_claim(made, [tmp_path / str(index) / "run" for index in asked])
    assert (len(asked) < 6, found.complete, found.conditions) == (True, True, ())


def test_what_the_stores_were_charged_besides_is_told_beside_the_claim(tmp_path):
    """Somebody took the run's folder away, and all began anew in the same store."""
    made = plan()
    for number in range(2):
        silo(tmp_path, made, items(COUNTS)).run_round(1, ZERO)
        (tmp_path / "run").rename(tmp_path / f"run {number}")
        for name in ("begun.json", "released.safetensors"):
            (tmp_path / name).unlink()
    held = set(StoreLedger(tmp_path / "store").history().charges)
    (tmp_path / "run 1").rename(tmp_path / "run")
    told = federation_claim(made, [tmp_path / "run"])
    (first,) = [part for part in told.parts if part.id in held]
    both = made.guarantee().epsilon + first.guarantee().epsilon
    assert told.guarantee.epsilon == pytest.approx(both)


def test_known_seeds_void_the_claim_of_a_federation(tmp_path):
    made = plan()
    silo(tmp_path, made, items(COUNTS), seed=3).run_round(1, ZERO)
    assert federation_claim(made, [tmp_path / "run"]).guarantee.epsilon == math.inf
