"""Training on an accelerator: nothing is left on the host, and numbers are the CPU's.

The device is `tests.gradients.far_device`'s: an operation over tensors of both devices fails.
"""

import pytest
from safetensors.torch import load_file

from tests.gradients.far_device import FAR, MixedDevicesError, far_machine
from tests.plans import changed_plan, els_plan, uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import CONFIG
from userdp.core.clip import AdaptiveClipping
from userdp.core.codec import encode
from userdp.gradients import Units
from userdp.training import loop
from userdp.training.config import PlainPlan, RunOptions, UnsafeSeeds, train_config
from userdp.training.evaluation import evaluate_splits

USERS = uls_plan(steps=3)
MOVING = AdaptiveClipping(count_noise_std=2.0, learning_rate=1.0)
RUNS = {
    "plain": (PlainPlan(steps=3, batch_size=4), {}),
    "users": (USERS, {}),
    "adapters": (USERS, {"lora_rank": 2}),
    "averaged": (els_plan(steps=3), {"averaging": "ema", "checkpoint_every": 1}),
    "adam-bc": (USERS, {"optimizer": "adam-bc"}),
    "activations again": (USERS, {"activation_checkpointing": True, "micro_batch": 2}),
    "adaptive": (changed_plan(USERS, adaptive=MOVING), {}),
}


def trained(store, out, device, kind):
    """A run's released weights, computed on ``device``."""
    plan, changes = RUNS[kind]
    how = {"options": RunOptions(device=device)}
    if kind != "plain":
        how["unsafe_seeds"] = UnsafeSeeds(draws=5, noise=6)
    with far_machine() as machine:
        loop.train(store, plan, train_config({**encode(CONFIG), **changes}), out=out, **how)
    assert (machine.products > 0) == (device == FAR.type), "it did not compute there"
    (path,) = (out / "model").glob("*.safetensors")
    return load_file(path)


@pytest.mark.parametrize("kind", fast_then_slow(RUNS))
def test_train_gives_there_what_it_gives_here(store, tmp_path, kind):
    here, there = (trained(store, tmp_path / on, on, kind) for on in ("cpu", FAR.type))
    assert set(here) == set(there)
    assert max(float((here[name] - there[name]).abs().max()) for name in here) < 1e-4


def test_twin_text_left_on_the_host_is_noticed(store, tmp_path, monkeypatch):
    loop.train(store, USERS, CONFIG, out=tmp_path / "run")
    monkeypatch.setattr(Units, "to", lambda units, device: units)
    with far_machine(), pytest.raises(MixedDevicesError):
        evaluate_splits(tmp_path / "run", store, ["train"], device=FAR.type)
