"""Who looks at results may choose when to stop, so a run costs its whole plan from the start."""

from __future__ import annotations

import pytest

from tests.claims.lives import Teller, begin, truth


@pytest.mark.pitfall(number=39)
def test_a_run_that_somebody_stopped_claims_its_whole_plan(store, tmp_path):
    """A run is stopped after 2 of its 6 steps, by somebody who sees what the steps released.

    The moment is then a function of the outputs, and ε of a number of steps that the outputs chose
    bounds nothing: optimal stopping gives 4.7 to 11.8 times δ at ε = 4. What holds at any moment is
    ε of all six steps, 2.47; 1.92 is printed.
    """
    run = begin(store, tmp_path / "run", stop=2, checkpoint_every=1)
    epsilon, delta = Teller().of_model(run)
    assert epsilon >= truth(delta, steps=6)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [1, 3], ids=["no attempt", "two attempts"])
def test_a_cut_ledger_of_a_finished_run_lowers_no_claim(store, tmp_path, kept):
    """The last lines of a finished run's ledger are lost: the hash chain of the rest still holds.

    The weights in RUN/model have seen six steps, ε = 2.47; 0 or 1.92 is printed for them. The
    store and the weights tell otherwise: at least the whole plan is to be claimed.
    """
    run = begin(store, tmp_path / "run")
    ledger = run / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:kept]))
    epsilon, delta = Teller().of_model(run)
    assert epsilon >= truth(delta, steps=6)
