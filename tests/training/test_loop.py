"""`userdp train`'s loop: resumed runs, what is released and measured, and what is refused."""

import dataclasses
import stat
import warnings

import pytest
import torch
from safetensors.torch import load_file

from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import (
    CONFIG,
    RESUMED,
    attempts,
    lines,
    moved,
    tiny_gpt2,
    toy_model,
    toy_store,
)
from userdp.claims import claim
from userdp.core.errors import UseError
from userdp.core.vocabulary import NONE
from userdp.data.splits import Split
from userdp.training.causal_models import read_model
from userdp.training.config import (
    Averaging,
    OptimizerName,
    PlainPlan,
    Precision,
    RunOptions,
    Schedule,
)
from userdp.training.loop import train
from userdp.training.optimizers import learning_rate
from userdp.training.store_losses import evaluate


def changed(**values):
    return dataclasses.replace(CONFIG, **values)


def weights_of(run):
    return load_file(run / "model" / "model.safetensors")


@pytest.mark.parametrize("optimizer", list(OptimizerName))
@pytest.mark.parametrize("averaging", fast_then_slow(Averaging))
def test_a_plain_run_resumed_from_its_checkpoint_ends_where_the_unbroken_one_does(
    store, tmp_path, optimizer, averaging, stopped
):
    how = {"schedule": Schedule.LINEAR, "checkpoint_every": 2, "weight_decay": 0.1}
    plan, config = PlainPlan(steps=6, batch_size=8), changed(optimizer=optimizer, **how)
    config = dataclasses.replace(config, averaging=averaging)
    train(store, plan, config, out=tmp_path / "whole")
    run = stopped(plan, config, 5)
    train(store, plan, config, out=run, options=RESUMED)
    one, other = weights_of(tmp_path / "whole"), weights_of(run)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert lines(run / "ledger.jsonl")[0]["plan"] is None
    for path in (store.path, run / "ledger.jsonl"):  # and nothing is claimed of anything any more
        found = claim(path).guarantee
        assert (found.epsilon, found.sampling) == (float("inf"), NONE)


def test_a_resumed_private_run_has_exactly_the_plans_attempts_and_its_epsilon(store, stopped):
    how = {"precision": Precision.BFLOAT16, "base_precision": Precision.BFLOAT16, "lora_rank": 2}
    how |= {"checkpoint_every": 3, "warmup_steps": 7, "activation_checkpointing": True}
    plan, config = uls_plan(steps=7), changed(**how)
    run = stopped(plan, config, 5)
    train(store, plan, dataclasses.replace(config, micro_batch=2), out=run, options=RESUMED)
    assert attempts(run) == 7
    assert claim(run / "ledger.jsonl").guarantee == plan.guarantee()
    assert claim(store.path).guarantee == plan.guarantee()
    steps = [line for line in lines(run / "operator.jsonl") if line["kind"] == "step"]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 6, 7]
    rates = [line["learning_rate"] for line in steps]
    assert rates == pytest.approx([0.01 * t / 7 for t in (1, 2, 3, 4, 6, 7)])


@pytest.mark.parametrize("what", ["configuration", "model"])
def test_invariant_7_a_changed_configuration_or_base_refuses_to_resume(
    store, tmp_path, stopped, what
):
    base, model = str(tmp_path / "base"), toy_model(store)
    model.save_pretrained(base)
    config = changed(model=base)
    run = stopped(uls_plan(), config, 2)
    if what == "configuration":
        config = changed(model=base, learning_rate=0.02)
    else:
        moved(model).save_pretrained(base)
    with pytest.raises(UseError, match=f"the {what} is not the one"):
        train(store, uls_plan(), config, out=run, options=RESUMED)


@pytest.mark.slow
def test_the_average_is_what_is_released_and_measured(store, tmp_path):
    run, name = tmp_path / "run", "transformer.wpe.weight"
    train(store, uls_plan(), changed(averaging=Averaging.EMA, evaluate_every=5), out=run)
    last, released = max((run / "checkpoints").iterdir()), weights_of(run)
    state = torch.load(last, weights_only=True)
    assert torch.equal(released[name], state["average"][name])
    assert not torch.equal(released[name], state["weights"][name])
    log = lines(run / "operator.jsonl")
    measured = [line["loss"] for line in log if line["kind"] == "evaluation"]
    found, _ = evaluate(read_model(str(run / "model")), store, Split.HELD_OUT_USERS)
    assert measured[-1] == pytest.approx(found["loss"], abs=1e-5)


def test_a_model_that_would_misread_the_store_is_refused(store, tmp_path):
    tiny_gpt2(8, n_positions=8).save_pretrained(tmp_path / "small")
    for model, told in (
        (str(tmp_path / "small"), "knows 8 tokens"),
        ("bundled", "different tokenizers"),
        (str(tmp_path / "nowhere"), "cannot load a causal language model"),
    ):
        with pytest.raises(UseError, match=told):
            train(store, uls_plan(), changed(model=model), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("schedule", list(Schedule))
def test_the_learning_rate_is_positive_at_every_step_and_peaks_after_the_warmup(schedule):
    config = changed(schedule=schedule, warmup_steps=3)
    rates = [learning_rate(config, step=t, steps=20) for t in range(1, 21)]
    assert min(rates) > 0
    assert max(rates) == rates[2] == config.learning_rate
    assert rates[2:] == sorted(rates[2:], reverse=True)


@pytest.mark.slow
def test_tensorboard_curves_are_the_operators_alone(store, tmp_path):
    pytest.importorskip("tensorboard")
    drawn = RunOptions(report_to=("tensorboard",))
    train(store, uls_plan(steps=1), CONFIG, out=tmp_path / "run", options=drawn)
    folder = tmp_path / "run" / "curves"
    assert list(folder.iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(("population", "says"), fast_then_slow([(20_000, True), (None, False)]))
def test_a_population_far_from_what_is_drawn_is_said(tmp_path, population, says):
    """Drawn 19 where 256 were expected once stood unflagged and cost 0.22 nats."""
    store = toy_store(tmp_path)
    users = population or len(store.split(Split.TRAIN).counts)
    plan = uls_plan(population=users, cohort_size=min(256, users), group_size=2, steps=5)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        train(store, plan, CONFIG, out=tmp_path / "run")
    expected = "are expected of the declared population"
    assert any(expected in str(one.message) for one in told) is says
