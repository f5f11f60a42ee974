"""A device that is not there is refused; each of several processes has its own."""

from __future__ import annotations

import pytest
import torch

from tests.plans import changed_plan, els_plan, uls_plan
from tests.training.toy import CONFIG
from userdp.core.codec import encode
from userdp.core.errors import UseError
from userdp.ledger import RunFolder
from userdp.noise.clip_forms import AdaptiveClipping
from userdp.training.config import RunOptions, train_config
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
    "users": (USERS, {}),
    "adapters": (USERS, {"lora_rank": 2}),
    "averaged": (els_plan(steps=3), {"averaging": "ema", "checkpoint_every": 1}),
    "activations again": (USERS, {"activation_checkpointing": True, "micro_batch": 2}),
    "adaptive": (changed_plan(USERS, adaptive=MOVING), {}),
}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("kind", RUNS)
def test_a_run_on_a_cuda_device_is_measured_there_as_on_the_cpu(store, tmp_path, kind):
    """A tensor that was left on the host is an error of PyTorch's own."""
    plan, changes = RUNS[kind]
    config = train_config({**encode(CONFIG), **changes})
    train(store, plan, config, out=tmp_path / "run", options=RunOptions(device="cuda"))
    there, here = (
        evaluate_splits(tmp_path / "run", store, ["train"], device=on)[0]["model"]["loss"]
        for on in ("cuda", "cpu")
    )
    assert there == pytest.approx(here, abs=1e-4)
