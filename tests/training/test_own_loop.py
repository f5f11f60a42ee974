"""What is done with the run of a loop of one's own: evaluation, generation, personalization."""

import shutil
import stat

import pytest

from tests.speed import fast_then_slow
from tests.training.toy import adapted, loaded, moved, toy_model, trained
from userdp.claims.lineage import Lineage
from userdp.core.errors import UseError
from userdp.training.causal_models import read_model
from userdp.training.evaluation import evaluate_splits
from userdp.training.releasing import save_model
from userdp.training.store_losses import evaluate

HELD_OUT = ["held-out-users"]


@pytest.mark.parametrize("adapters", fast_then_slow([True, False]))
def test_a_loops_run_is_compared_with_the_very_model_that_it_began_from(
    store, base, tmp_path, adapters
):
    run = tmp_path / "run"
    trained(adapted(loaded(base)) if adapters else loaded(base), store, run)
    (measured,) = evaluate_splits(run, store, HELD_OUT)
    expected, _ = evaluate(read_model(str(base)), store, "held-out-users")
    assert measured["base"]["loss"] == expected["loss"] != measured["model"]["loss"]
    assert stat.S_IMODE((run / "resume.json").stat().st_mode) == 0o600
    if adapters:  # without a merged model they are measured over their base
        shutil.rmtree(run / "model")
        (apart,) = evaluate_splits(run, store, HELD_OUT)
        assert apart["base"] == measured["base"]
        assert apart["model"]["loss"] == pytest.approx(measured["model"]["loss"], abs=1e-5)


@pytest.mark.parametrize(
    ("base_is", "message"),
    fast_then_slow(
        [
            ("changed after it was loaded", "does not hold the weights"),
            ("made in memory", "made in memory"),
            ("exchanged later", "does not hold the weights"),
        ]
    ),
)
def test_invariant_13_no_other_model_is_compared_with_it_is_refused(
    store, base, tmp_path, base_is, message
):
    run, model = tmp_path / "run", loaded(base)
    if base_is == "changed after it was loaded":
        moved(model)
    trained(toy_model(store) if base_is == "made in memory" else model, store, run)
    if base_is == "exchanged later":
        other = moved(loaded(base))
        save_model(other, base, tokenizer=store.tokenizer_path, lineage=Lineage())
    with pytest.raises(UseError, match=message) as caught:
        evaluate_splits(run, store, HELD_OUT)
    assert "--no-base" in caught.value.hint
    (measured,) = evaluate_splits(run, store, HELD_OUT, with_base=False)
    assert "base" not in measured
