"""A device that is not there is refused; each of several processes has its own."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from tests.gradients.far_device import FAR, MixedDevicesError, far_machine
from tests.plans import changed_plan, els_plan, uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import CONFIG
from userdp.core.clip import AdaptiveClipping
from userdp.core.codec import encode
from userdp.core.errors import UseError
from userdp.gradients import Units
from userdp.ledger import RunFolder
from userdp.training import loop
from userdp.training.config import PlainPlan, RunOptions, UnsafeSeeds, train_config
from userdp.training.devices import choose_device
from userdp.training.evaluation import evaluate_splits
from userdp.training.loop import train


@pytest.fixture
def devices(monkeypatch):
    """How many there are, and what torchrun says of a process."""

    def say(count, rank, processes):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))

    return say


def test_each_of_several_processes_takes_the_device_of_its_local_rank(devices):
    for rank in range(2):
        devices(2, rank, 2)
        own = torch.device("cuda", rank)
        assert choose_device("cuda", processes=2) == choose_device(processes=2) == own
        assert choose_device("cuda", processes=16) == own, "eight machines of two"
    assert choose_device("cpu", processes=4) == torch.device("cpu")
    devices(2, 0, 1)
    assert choose_device("cuda:1", processes=2) == torch.device("cuda:1"), "one on each machine"


@pytest.mark.parametrize(
    ("count", "rank", "name", "says"),
    [
        (1, 1, "cuda", "no device 'cuda:1' here"),
        (0, 0, "cuda", "sees 0 CUDA devices"),
        (4, 1, "cuda:0", "all 2 processes of this machine"),
        (1, 0, "tpu", "CPU or on CUDA"),
        (1, 0, "meta", "CPU or on CUDA"),
    ],
)
def test_what_is_not_there_or_not_a_process_s_own_is_refused(devices, count, rank, name, says):
    devices(count, rank, 2)
    with pytest.raises(UseError, match=says):
        choose_device(name, processes=2)


def test_the_run_notes_what_was_asked_for_and_goes_on_by_what_is_asked_then(store, tmp_path):
    train(store, uls_plan(), CONFIG, out=tmp_path / "run")
    kept = RunFolder(tmp_path / "run").read_train()
    assert kept["run"]["device"] == "auto"
    assert train_config(kept["learning"]) == CONFIG


USERS = uls_plan(steps=3)
MOVING = AdaptiveClipping(count_noise_std=2.0, learning_rate=1.0)
RUNS = {
    "plain": (PlainPlan(steps=3, batch_size=4), {}),
    "users": (USERS, {}),
    "adapters": (USERS, {"lora_rank": 2}),
    "averaged": (els_plan(steps=3), {"averaging": "ema", "checkpoint_every": 1}),
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
