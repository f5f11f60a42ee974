"""What adapters and weights in memory descend from, as the claim of a loop of one's own says it."""

import math

import peft
import pytest
import torch

from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import loaded, private_run, sgd, trained
from userdp.claims import claim
from userdp.core.errors import UseError
from userdp.gradients import trainable_parameters
from userdp.training import origin as origin_module
from userdp.training.config import PlainPlan
from userdp.training.opening import Training
from userdp.training.origin import lineage_of_weights
from userdp.training.plain import PlainRun

PLAN = uls_plan(steps=1)
PRICE = PLAN.guarantee().epsilon


def adapted(base, **settings):
    settings = {"target_modules": ["c_attn"], "fan_in_fan_out": True, **settings}
    return peft.get_peft_model(
        loaded(base), peft.LoraConfig(r=2, task_type="CAUSAL_LM", **settings)
    )


def steps_elsewhere(model, count=2):
    """Steps of a loop that no ledger knows of."""
    optimizer = torch.optim.Adam(trainable_parameters(model).values(), lr=0.01)
    rows = torch.tensor([[2, 3, 4, 5, 6]])
    for _ in range(count):
        optimizer.zero_grad()
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
    return model


def begun(model, store, out, **options):
    """The claim of a run that has taken no step yet: it pays for its whole plan."""
    with private_run(model, sgd(model), store, PLAN, out=out, **options):
        pass
    return claim(out)


def told(claimed):
    """The conditions that speak of weights; earlier runs over the store show exact numbers too."""
    conditions = [(str(one.kind), one.told) for one in claimed.conditions]
    return [one for one in conditions if one[0].endswith(("origin", "memory"))]


NEW = {
    "lora": {},
    "gaussian": {"init_lora_weights": "gaussian"},
    "an output layer beside them": {"modules_to_save": ["lm_head"]},
    "of embeddings": {"target_modules": ["wte"], "fan_in_fan_out": False},
    "a magnitude besides": {"use_dora": True},
}


@pytest.mark.parametrize("kind", fast_then_slow(list(NEW)))
def test_invariant_13_new_adapters_on_a_known_base_need_no_condition(store, base, tmp_path, kind):
    assert not told(begun(adapted(base, **NEW[kind]), store, tmp_path / "run"))


def test_invariant_13_adapters_that_learned_elsewhere_are_a_condition(store, base, tmp_path):
    """The condition speaks of them, not of the base, which is known."""
    claimed = begun(steps_elsewhere(adapted(base)), store, tmp_path / "run")
    assert told(claimed) == [("adapters-of-unknown-origin", "no ledger knows them")]
    assert "the adapters that it began with (no ledger knows them)" in claimed.headline


def test_invariant_13_twin_adapters_that_are_always_taken_for_new_are_caught(
    store, base, tmp_path, monkeypatch
):
    monkeypatch.setattr(origin_module, "are_fresh", lambda model: True)
    assert not told(begun(steps_elsewhere(adapted(base)), store, tmp_path / "run"))


def initialised_by_eva(base):
    settings = peft.LoraConfig(
        r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM",
        init_lora_weights="eva",
    )  # fmt: skip
    model = peft.get_peft_model(loaded(base), settings)
    rows = torch.arange(2, 22).repeat(2).reshape(8, 5)
    batches = [{"input_ids": rows[at : at + 4], "labels": rows[at : at + 4]} for at in (0, 4)]
    batches = [{**one, "attention_mask": torch.ones_like(one["input_ids"])} for one in batches]
    peft.initialize_lora_eva_weights(model, batches, show_progress_bar=False)
    return model


def test_invariant_13_an_initialisation_from_data_is_a_condition(store, base, tmp_path):
    """EVA's product is zero, and its other factor is a statistic of the data."""
    claimed = begun(initialised_by_eva(base), store, tmp_path / "run")
    assert ("adapters-of-unknown-origin", "initialised from data: eva") in told(claimed)


def test_invariant_13_adapters_of_an_earlier_run_bring_its_claim(store, base, tmp_path):
    run = tmp_path / "first"
    trained(adapted(base), store, run, PLAN)
    again = peft.PeftModel.from_pretrained(loaded(base), run / "adapter", is_trainable=True)
    claimed = begun(again, store, tmp_path / "second")
    assert claimed.guarantee.epsilon == pytest.approx(2 * PRICE)
    assert not told(claimed)


def plain(base, store, out):
    """Adapters that a run without privacy over these people released."""
    model = adapted(base)
    optimizer = sgd(model)
    plan = PlainPlan(steps=2, batch_size=4)
    of = {"model": model, "optimizer": optimizer, "store": store, "plan": plan, "out": out}
    training = Training(**of, base=lineage_of_weights(model, store))
    with PlainRun(training, seed=0).open() as run:
        for _ in run:
            optimizer.step()
        run.save()
    return out / "adapter"


@pytest.mark.parametrize("how", ["from_pretrained", "set_peft_model_state_dict"])
def test_invariant_13_nothing_is_claimed_on_top_of_adapters_without_privacy(
    store, base, tmp_path, how
):
    adapter = plain(base, store, tmp_path / "plain")
    if how == "from_pretrained":
        model = peft.PeftModel.from_pretrained(loaded(base), adapter, is_trainable=True)
    else:
        model = adapted(base)
        peft.set_peft_model_state_dict(model, peft.load_peft_weights(str(adapter)))
    claimed = begun(model, store, tmp_path / "run")
    assert claimed.guarantee.epsilon == math.inf


@pytest.mark.parametrize(
    ("steps", "reason"), [(0, "not the weights that the run was begun"), (1, "by another run")]
)
def test_invariant_13_a_resumed_run_goes_on_from_no_other_runs_adapters(
    store, base, tmp_path, steps, reason
):
    model = adapted(base)
    plan = uls_plan(steps=2)
    optimizer = sgd(model)
    with private_run(model, optimizer, store, plan, out=tmp_path / "run") as private:
        for _, _ in zip(range(steps), private, strict=False):
            optimizer.step()
    other = tmp_path / "other"
    trained(adapted(base), store, other, PLAN)
    options = {"out": tmp_path / "run", "resume": True}
    with private_run(model, sgd(model), store, plan, **options) as private:
        peft.set_peft_model_state_dict(model, peft.load_peft_weights(str(other / "adapter")))
        with pytest.raises(UseError, match=reason):
            next(iter(private))
