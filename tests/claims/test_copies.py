"""One charge, one continuation: no copy and no rollback gets more noisy steps for one price."""

from __future__ import annotations

import pytest

from tests.claims.lives import PLAN, Teller, begin, copied, truth
from tests.ledgers import query
from tests.speed import fast_then_slow
from userdp.ledger import StoreLedger


@pytest.mark.slow
def test_a_stopped_run_that_was_not_copied_goes_on_at_the_price_of_its_plan(store, tmp_path):
    """The honest life beside the seams: what they ask to be refused is not this."""
    tell = Teller()
    run = begin(store, tmp_path / "run", stop=3)
    tell.done("train", store.path, "--out", run, "--resume")
    price = PLAN.guarantee()
    assert tell.of_model(run) == tell.epsilon(store.path) == (price.epsilon, price.delta)


@pytest.mark.parametrize(
    ("copies", "checkpoint_every"),
    fast_then_slow([(2, 100), (2, 1), (3, 1)]),
    ids=["two", "saved", "three"],
)
@pytest.mark.pitfall(number=35)
def test_copies_of_an_unfinished_run_are_not_all_resumed_for_one_charge(
    store, tmp_path, copies, checkpoint_every
):
    """``cp -a RUN RUN2`` in the middle of a run, and ``train --resume`` in each folder.

    Three of six steps are done when the folder is copied (with or without a checkpoint in it). Each
    copy then takes three steps of its own: 3 + 2·3 = 9 noisy steps of two models, or
    3 + 3·3 = 12 of three. One plan of 6 steps was charged: ε = 2.47, and the truth is 2.77 or 3.02.
    Either all but one copy are refused, or the store's ε covers all steps that were taken.
    """
    tell = Teller()
    run = begin(store, tmp_path / "run", stop=3, checkpoint_every=checkpoint_every)
    folders = [run, *(copied(run, tmp_path / f"copy-{n}") for n in range(1, copies))]
    resumed = sum(
        tell("train", store.path, "--out", folder, "--resume")[0] == 0 for folder in folders
    )
    epsilon, delta = tell.epsilon(store.path)
    assert epsilon >= truth(delta, steps=3 + 3 * resumed)


@pytest.mark.slow
def test_a_runs_ledger_that_was_put_back_gives_no_more_steps(store, tmp_path):
    """RUN/ledger.jsonl is kept at one attempt, and put back after five, with all else left as is.

    Steps 2 to 6 are then taken a second time, on top of the checkpoint of step 5: the model that is
    released has seen 5 + 5 = 10 noisy steps, and its ledger tells of six. ε = 2.47 is claimed, and
    2.85 is true. Either the folder is refused, or all ten steps are charged.
    """
    tell = Teller()
    run = begin(store, tmp_path / "run", stop=1, checkpoint_every=1)
    before = (run / "ledger.jsonl").read_bytes()
    begin(store, run, stop=5, checkpoint_every=1, resume=True)
    (run / "ledger.jsonl").write_bytes(before)
    status, _ = tell("train", store.path, "--out", run, "--resume")
    for place in (run, store.path):
        epsilon, delta = tell.of_model(run) if place == run else tell.epsilon(place)
        assert status != 0 or epsilon >= truth(delta, steps=10)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["put back", "deleted"])
def test_a_stores_ledger_that_was_put_back_does_not_forget_a_run(store, tmp_path, how):
    """STORE/ledger.jsonl alone is restored from a backup made before a run that was released.

    Two runs of six steps are released on the same people: ε of 12 steps is 3.02. After the ledger
    of before the first run is put back (or the file removed), the second one begins it anew, and
    the store tells 2.47. Either the second run is refused, or the store's ε still covers both.
    """
    tell = Teller()
    ledger = store.path / "ledger.jsonl"
    if how == "put back":
        query(StoreLedger(store.path), "old", name="users", pure_epsilon=0.001)
        backup = ledger.read_bytes()
    begin(store, tmp_path / "first")
    if how == "put back":
        ledger.write_bytes(backup)
    else:
        ledger.unlink()
    PLAN.save(tmp_path / "plan.json")
    status, _ = tell(
        "train", store.path, "--out", tmp_path / "second", "--plan", tmp_path / "plan.json",
        "--model", "new", "--set", "learning.layers=1", "--set", "learning.width=16",
        "--set", "learning.heads=2",
    )  # fmt: skip
    epsilon, delta = tell.epsilon(store.path)
    assert status != 0 or epsilon >= truth(delta, steps=12)
