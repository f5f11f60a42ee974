"""Commands on an accelerator: nothing is left on the host, and numbers are the CPU's.

The device is `tests.gradients.far_device`'s: an operation over tensors of both devices fails.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from tests.gradients.far_device import FAR, MixedDevicesError, far_machine
from tests.plans import changed_plan, els_plan, uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import CONFIG, toy_model
from userdp.core.clip import AdaptiveClipping
from userdp.core.codec import encode
from userdp.data.store import UserStore
from userdp.gradients import Units
from userdp.plans import Plan
from userdp.training import loop
from userdp.training.config import PlainPlan, RunOptions, TrainConfig, UnsafeSeeds, train_config
from userdp.training.evaluation import evaluate_splits

DEVICES = ("cpu", FAR.type)
SEEDS = {"unsafe_seeds": UnsafeSeeds(draws=5, noise=6)}


def trained(
    store: UserStore, out: Path, device: str, plan: Plan | PlainPlan, config: TrainConfig
) -> dict[str, Tensor]:
    """A run's released weights, computed on ``device``."""
    seeds = {} if isinstance(plan, PlainPlan) else SEEDS
    with far_machine() as machine:
        loop.train(store, plan, config, out=out, options=RunOptions(device=device), **seeds)
    assert (machine.products > 0) == (device == FAR.type), "it did not compute there"
    (path,) = (out / "model").glob("*.safetensors")
    return load_file(path)


RUNS: dict[str, tuple[Plan | PlainPlan, dict[str, Any]]] = {
    "plain": (PlainPlan(steps=3, batch_size=4), {}),
    "users": (uls_plan(steps=3), {}),
    "adapters": (uls_plan(steps=3), {"lora_rank": 2}),
    "averaged": (els_plan(steps=3), {"averaging": "ema", "checkpoint_every": 1}),
    "adam-bc": (uls_plan(steps=3), {"optimizer": "adam-bc"}),
    "activations again": (uls_plan(steps=3), {"activation_checkpointing": True, "micro_batch": 2}),
    "adaptive": (
        changed_plan(
            uls_plan(steps=3), adaptive=AdaptiveClipping(count_noise_std=2.0, learning_rate=1.0)
        ),
        {},
    ),
}


@pytest.mark.parametrize("kind", fast_then_slow(RUNS))
def test_train_gives_there_what_it_gives_here(store, tmp_path, kind):
    plan, changes = RUNS[kind]
    config = train_config({**encode(CONFIG), **changes})
    here, there = (trained(store, tmp_path / on, on, plan, config) for on in DEVICES)
    assert set(here) == set(there)
    assert max(float((here[name] - there[name]).abs().max()) for name in here) < 1e-4


@pytest.fixture(scope="module")
def made(prepared, tmp_path_factory) -> Path:
    """A folder with a store, a model that learned nothing, ``base``, and a ``run``."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(prepared, folder / "store")
    store = UserStore.open(folder / "store")
    toy_model(store).save_pretrained(folder / "base")
    loop.train(store, uls_plan(steps=3), CONFIG, out=folder / "run")
    return folder


def test_twin_text_left_on_the_host_is_noticed(made, monkeypatch):
    monkeypatch.setattr(Units, "to", lambda units, device: units)
    with far_machine(), pytest.raises(MixedDevicesError):
        evaluate_splits(made / "run", UserStore.open(made / "store"), ["train"], device=FAR.type)
